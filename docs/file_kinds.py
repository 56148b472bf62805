"""A page for a kind of file: its keys, what they mean, what they take and what holds without them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]
ROOTS = {
    "MachineSpec": "machine",
    "DeviceSpec": "device",
    "FamilySpec": "family",
    "JobSpec": "job",
    "ModelSpec": "model",
    "Software": "software",
    "ReliabilitySpec": "reliability",
    "RolloutSpec": "rollout",
    "StudySpec": "study",
}
"""The kind whose page describes a struct; other pages link there."""
_UNITS = re.compile(r"[.;]? ?a number and one of:.*", re.DOTALL)
"""The units of a quantity, which stand on a page of their own."""
_SPECIAL = re.compile(r"([\\*_<>|\[\]{}$])")


def file_page(kind: str, schema: Schema) -> str:
    """Return the page of a kind of file, from its JSON Schema."""
    root = schema["$ref"].rpartition("/")[2]
    lines = [f"# {kind}", ""]
    for name in _reached(root, schema["$defs"]):
        one = schema["$defs"][name]
        if name != root:
            lines += [f"({kind}-{name.lower()})=", "", f"## {name}", ""]
        lines += [plain(one.get("description", "").partition("\n\n")[0]), ""]
        lines += _table(one, kind, root)
    return "\n".join(lines) + "\n"


def _reached(root: str, structs: Mapping[str, Schema]) -> list[str]:
    """Return the structs that stand on a root's page, in the order in which keys name them."""
    seen: list[str] = []
    waiting = [root]
    while waiting:
        name = waiting.pop(0)
        if name not in seen and (name == root or name not in ROOTS):
            seen.append(name)
            waiting += _references(structs[name])
    return seen


def _references(node: object) -> Iterator[str]:
    match node:
        case {"$ref": str(where)}:
            yield where.rpartition("/")[2]
        case dict():
            for value in node.values():
                yield from _references(value)
        case list():
            for value in node:
                yield from _references(value)


def _table(one: Schema, kind: str, root: str) -> Iterator[str]:
    if not one.get("properties"):
        return
    yield "| key | what it is | allowed | default |\n|---|---|---|---|"
    for key, value in one["properties"].items():
        default = "required" if key in one.get("required", ()) else _default(value.get("default"))
        meaning = plain(_UNITS.sub("", value.get("description", "")))
        yield f"| `{key}` | {meaning} | {_allowed(value, kind, root)} | {default} |"
    yield ""


def _default(value: object) -> str:
    match value:
        case None:
            return "unset"
        case bool():
            return f"`{str(value).lower()}`"
        case {} | []:
            return "empty"
        case dict():
            return "its defaults"
        case list():
            return f"`{', '.join(map(str, value))}`"
    return f"`{value}`"


def _allowed(value: Schema, kind: str, root: str) -> str:
    """Return what a value may be, in words."""
    match value:
        case {"$ref": str(where)}:
            return _link(where.rpartition("/")[2], kind, root)
        case {"enum": list(words)} | {"const": [*words]}:
            return ", ".join(f"`{word}`" for word in words if word is not None)
        case {"anyOf": list(parts)} | {"oneOf": list(parts)}:
            words = [_allowed(part, kind, root) for part in parts if part.get("type") != "null"]
            return ", or ".join(dict.fromkeys(filter(None, words)))
        case {"type": "array"}:
            items = value.get("items") or {"anyOf": value.get("prefixItems", [])}
            return f"a list of {_allowed(items, kind, root)}" if items else "a list"
        case {"type": "object", "additionalProperties": dict(items)}:
            return f"a mapping to {_allowed(items, kind, root)}"
    return _simple(value)


def _simple(value: Schema) -> str:
    match value:
        case {"type": "string", "examples": [example, *_]}:
            return f"a quantity such as `{example}`"
        case {"type": "integer" | "number" as number}:
            return ("a whole number" if number == "integer" else "a number") + _range(value)
    return {"string": "text", "boolean": "`true`, `false`"}.get(value.get("type", ""), "any value")


def _range(value: Schema) -> str:
    words = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
    return "".join(f" {word} {value[key]:,}" for key, word in words.items() if key in value)


def _link(name: str, kind: str, root: str) -> str:
    """Return a link to where a struct is described."""
    if name in ROOTS and name != root:
        return f"the keys of a [{ROOTS[name]} file]({ROOTS[name]}.md)"
    if name == root:
        return f"the keys of a {kind} file"
    return f"[{name}](#{kind}-{name.lower()})"


def plain(text: str) -> str:
    """Return text in which Markdown means nothing, but for what stands between backquotes."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(
        part.replace("|", r"\|") if part.startswith("`") else _SPECIAL.sub(r"\\\1", part) for part in parts
    )
