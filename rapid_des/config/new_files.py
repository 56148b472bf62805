"""New files to edit: every key of a file kind with its meaning, what it may be and its default."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import yaml
from msgspec import inspect

from rapid_des.config.descriptions import Field, described, structs_of
from rapid_des.config.specs import Spec
from rapid_des.config.texts import Tree

_BASE = "# The device whose values stand for the keys that this file does not state."
_WIDTH, _LONG = 100, 200
"""Characters of a line, and of a list of allowed values that the file leaves to `rapid-des explain`."""


def commented(spec: type[Spec], tree: Tree, kind: str, title: str) -> str:
    """Return the text of a file that states `tree`; all its other keys stand in it as comments.

    >>> from rapid_des.studies.spaces import StudySpec
    >>> tree = {"job": "gpt2", "on": "dgx_a100", "axes": {"tp": [1, 2]}}
    >>> text = commented(StudySpec, tree, "study", "A study.")
    >>> [line for line in text.splitlines() if line and line[0] != "#"]
    ['job: gpt2', 'on: dgx_a100', 'axes:', '  tp: [1, 2]']
    """
    lines = [f"# {title}", "# A line that begins with # states nothing: remove the # to state a key.", ""]
    lines += _mapping(inspect.type_info(spec), tree, kind)
    kept = [line for line, before in zip(lines, ["", *lines], strict=False) if line or before]
    return "\n".join(kept).rstrip() + "\n"


def _mapping(kind: inspect.Type, tree: Tree, path: str) -> Iterator[str]:
    """Yield the lines of a mapping: the keys that it states, then the others as comments."""
    struct = _struct_for(kind, tree)
    fields = {} if struct is None else {field.name: (field, below) for field, below in described(struct)}
    for key, value in tree.items():
        if key not in fields:
            yield from (_BASE, *_value(key, value), "")
            continue
        field, below = fields[key]
        yield from _comment(field, f"{path}.{key}")
        yield from _stated(key, value, below, f"{path}.{key}")
        yield ""
    for key, (field, _) in fields.items():
        if key not in tree:
            yield from _comment(field, f"{path}.{key}")
            yield f"# {key}: {_default(field)}".rstrip()
            yield ""


def _default(field: Field) -> str:
    """Return the default as a file states it; empty where there is none to state."""
    if field.default in {"unset", "nothing"}:
        return ""
    return f"[{field.default}]" if field.allowed.startswith("a list of") else field.default


def _stated(key: str, value: object, kind: inspect.Type, path: str) -> Iterator[str]:
    """Yield a key and its value; the keys of mappings are commented too."""
    if isinstance(value, dict) and _struct_for(kind, value):
        yield f"{key}:"
        yield from _indented(_mapping(kind, value, path), "  ")
    elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        yield f"{key}:"
        for item in value:
            lines = _mapping(kind, item, path)
            first, *rest = [line for line in lines if line and not line.lstrip().startswith("#")]
            yield f"  - {first}"
            yield from _indented(iter(rest), "    ")
    else:
        yield from _value(key, value)


def _indented(lines: Iterator[str], indent: str) -> Iterator[str]:
    for line in lines:
        yield indent + line if line else line


def _value(key: str, value: object) -> Iterator[str]:
    """Yield a key and its value as YAML."""
    text = yaml.safe_dump(
        value, sort_keys=False, default_flow_style=None, width=10 * _WIDTH, allow_unicode=True
    )
    lines = text.removesuffix("\n").removesuffix("...").rstrip("\n").splitlines()
    if len(lines) == 1 and (not isinstance(value, dict) or lines[0].startswith("{")):
        yield f"{key}: {lines[0]}"
    else:
        yield f"{key}:"
        yield from _indented(iter(lines), "  ")


def _comment(field: Field, path: str) -> Iterator[str]:
    """Yield what a key means and what it may be."""
    allowed = field.allowed if len(field.allowed) < _LONG else f"see `rapid-des explain {path}`"
    for part in (field.meaning, f"Allowed: {allowed}."):
        yield from (f"# {line}" for line in textwrap.wrap(part, _WIDTH, break_long_words=False))


def _struct_for(kind: inspect.Type, tree: Tree) -> inspect.StructType | None:
    """Return which of the mappings that a value may be has these keys; None: none of them."""
    for struct in structs_of(kind):
        tag = struct.tag_field
        if tag is not None and tree.get(tag) == struct.tag:
            return struct
        if tag is None and {*tree} - {"base"} <= {field.encode_name for field in struct.fields}:
            return struct
    return None
