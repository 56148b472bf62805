"""Specs: the file that a path or a preset's name stands for, and its tree as a frozen struct.

Errors are such that a person can act on them: file, place, value, what was allowed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from copy import copy
from functools import cache, lru_cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin

import msgspec
import yaml
from msgspec import inspect

from rapid_des.config.allowed import in_words
from rapid_des.config.documents import Document, load_document
from rapid_des.config.texts import Tree
from rapid_des.config.type_paths import choices_of, key_names, missing_keys, type_at
from rapid_des.errors import ConfigError
from rapid_des.units import Quantity

Kind: TypeAlias = Literal["machine", "device", "job", "model", "software", "rollout", "study", "reliability"]

KINDS: tuple[Kind, ...] = ("machine", "device", "job", "model", "software", "rollout", "study", "reliability")
_FOLDERS: dict[str, str] = {
    "machine": "topologies",
    "device": "topologies/devices",
    "job": "workloads",
    "model": "workloads/models",
    "software": "workloads/software",
    "rollout": "workloads/rollouts",
    "study": "workloads/studies",
    "reliability": "workloads/reliability",
}
_PACKAGE = Path(__file__).parents[1]


def preset_folder(kind: Kind) -> Path:
    """Return the folder of a kind's presets: inside the wheel, or at the top level of a checkout."""
    return _preset_root(_FOLDERS[kind])


def _preset_root(folder: str) -> Path:
    installed = _PACKAGE / "presets" / folder
    return installed if installed.is_dir() else _PACKAGE.parent / folder


def preset_names(kind: Kind) -> list[str]:
    """Return the bare names of all presets of a kind, sorted."""
    return sorted(path.stem for path in preset_folder(kind).glob("*.yaml"))


def trace_names() -> list[str]:
    """Return the prefixes of the trace sets that ship, sorted."""
    return sorted({path.name.split(".")[0] for path in _preset_root("workloads/traces").glob("*.et")})


def preset_file(name: str) -> Path:
    """Return the file of the preset of a name, whatever its kind; a `ConfigError` lists near names."""
    for kind in KINDS:
        path = preset_folder(kind) / f"{name.removesuffix('.yaml')}.yaml"
        if _is_file(path):
            return path
    known = [preset for kind in KINDS for preset in preset_names(kind)]
    near = ", ".join(difflib.get_close_matches(name, known, n=5)) or ", ".join(known)
    raise ConfigError(f"no preset {name!r}; did you mean one of: {near}")


def open_document(source: str | Path | Mapping[str, Any] | Document, kind: Kind, *, folder: Path) -> Document:
    """Return the document that a path, a preset's name, a mapping or a document stands for.

    References inside a mapping start from `folder`, and errors call it by its kind.
    """
    if isinstance(source, Document):
        return source
    if isinstance(source, Mapping):
        return Document(folder / kind, to_tree(source, kind))
    return load_document(resolve(str(source), kind, folder=folder))


def _of_the_same_words(meant: str, presets: Sequence[str]) -> list[str]:
    """Return the presets that share the most words with digits, as h100 is, with a name; none if over 4."""
    words = {word for word in re.split(r"[_\-. ]", meant.lower()) if re.search(r"[a-wyz]\d|\db", word)}
    shared = {preset: len(words & set(preset.split("_"))) for preset in presets}
    most = max(shared.values(), default=0)
    near = [preset for preset in presets if shared[preset] == most > 0]
    return near if len(near) <= 4 else []


def resolve(reference: str, kind: Kind, *, folder: Path, named_in: str = "", key: str = "") -> Path:
    """Return the file that `reference` names.

    A reference is tried relative to `folder` (the referring file's, or the working directory), as written and
    with `.yaml` added, then as a preset: `topologies/x.yaml`, `x.yaml` and `x` all find the preset x.
    """
    written = folder / expanded(reference)
    name = Path(reference).name
    presets_of = preset_folder(kind)
    candidates = [written, written.parent / f"{name}.yaml", presets_of / name, presets_of / f"{name}.yaml"]
    for candidate in candidates:
        if name and _is_file(candidate):
            return candidate
    if kind == "job" and name.removesuffix(".yaml") in preset_names("model"):
        raise ConfigError(is_model(name), file=named_in, key=key)
    presets = preset_names(kind)
    meant = name.removesuffix(".yaml")
    near = [preset for preset in presets if meant and preset.startswith(f"{meant}_")]
    near = (
        near
        or difflib.get_close_matches(meant, presets, n=1, cutoff=0.85)  # a slip of the finger
        or _of_the_same_words(meant, presets)
        or difflib.get_close_matches(meant, presets, n=1)
    )
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    problem = f"no {kind} file {reference!r} here and no such preset; {hint}presets: {', '.join(presets)}"
    raise ConfigError(problem, file=named_in, key=key)


def is_model(reference: str) -> str:
    """Return what to say of a model where a job is wanted."""
    command = f"rapid-des new job --set model={reference} -o job.yaml"
    trains = f"`{command}` writes a job that trains it"
    return f"{reference} is a model, not a job; {trains}; plan, serve and capacity take models"


def beside(folder: Path, reference: str, *, key: str) -> Path:
    """Return the file that a data file in `folder` names: below that folder, or an absolute path.

    `..` is refused, so that a folder of files that somebody sent reads nothing around it by chance.
    """
    if ".." in Path(reference).parts:
        raise ConfigError(f"{reference[:60]!r} leads out of {folder}; name the file in full", key=key)
    return folder / reference


def expanded(reference: str) -> Path:
    """Return a path with `~` replaced by the home folder; a user who is not there is left as written."""
    try:
        return Path(reference).expanduser()
    except RuntimeError:
        return Path(reference)


def _is_file(path: Path) -> bool:
    """Return whether a file exists; a name that no file can have (too long, a NUL) does not."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


_PLACE = re.compile(r"(?P<what>.*?)(?: - at `(?P<key>(?:key )?[^`]*)`)?\Z", re.DOTALL)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_FIELD = re.compile(r"field `([^`]*)`")
_ANY_KEY = "..."
"""The step of a path that stands for any key of a mapping."""


class Spec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of every file format: immutable, keyword-only, no unknown keys."""


S = TypeVar("S", bound=msgspec.Struct)


def _from_text(target: type, value: object) -> object:
    if issubclass(target, Quantity):
        return target.parse(value)
    raise NotImplementedError(target)


def decode(document: Document, spec: type[S]) -> S:
    """Return `document` as `spec`; a `ConfigError` names file, key path, value and what is allowed."""
    try:
        return msgspec.convert(document.tree, spec, dec_hook=_from_text)
    except msgspec.ValidationError as error:
        raise _explain(str(error), document, spec) from None


def to_yaml(spec: Spec | Tree, *, brief: bool = False) -> str:
    """Return the text of a file that decodes to an equal spec; what is unset by default is left out.

    `brief` leaves out all that is as by default.
    """
    tree = _plain(spec, brief=brief)
    text: str = yaml.safe_dump(tree, sort_keys=False, default_flow_style=None, width=110, allow_unicode=True)
    return text


def to_tree(value: object, kind: str) -> Tree:
    """Return a spec, or a mapping of Python values, as the tree that a file of a kind would hold."""
    try:
        tree = _plain(value)
    except (TypeError, NotImplementedError) as error:
        raise ConfigError(f"holds what no file can: {error}", file=kind) from None
    assert isinstance(tree, dict)
    return tree


def _plain(value: Any, *, brief: bool = False) -> Any:
    """Return a spec as a plain tree without the None that a missing key means."""
    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        tag = {} if config.tag_field is None else {config.tag_field: config.tag}
        entries = ((field, getattr(value, field.name)) for field in _fields(type(value)))
        return tag | {
            field.encode_name: _plain(item, brief=brief)
            for field, item in entries
            if (item is not None or field.default is not None) and not (brief and item == field.default)
        }
    if isinstance(value, Mapping):
        return {key: _plain(item, brief=brief) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, brief=brief) for item in value]
    return msgspec.to_builtins(value, enc_hook=_to_text)


@cache
def _fields(spec: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Return the fields of a struct; NOTE: msgspec evaluates their types at every call, 0.1 ms a struct."""
    return msgspec.structs.fields(spec)


def _to_text(value: object) -> str:
    if isinstance(value, Quantity):
        return value.exact()
    raise NotImplementedError(type(value))


def json_schema(spec: type[Spec]) -> Tree:
    """Return the JSON Schema of a file kind; a quantity is a string with its units in the description."""
    return msgspec.json.schema(spec, schema_hook=_quantity_schema)


def _quantity_schema(target: type) -> Tree:
    if issubclass(target, Quantity):
        units = ", ".join(target.units)
        return {
            "type": "string",
            "examples": [target.example],
            "description": f"a number and one of: {units}",
        }
    raise NotImplementedError(target)


def _explain(message: str, document: Document, spec: type[msgspec.Struct]) -> ConfigError:
    match = _PLACE.match(message)
    assert match is not None
    what, path = match["what"], (match["key"] or "$").removeprefix("key ")
    steps = [name or index for name, index in _STEP.findall(path)]
    for at in [at for at, step in enumerate(steps) if step == _ANY_KEY]:
        steps[at] = _refused_key(message, document.tree, spec, steps[:at])
        path = path.replace(f"[{_ANY_KEY}]", f".{steps[at]}", 1)
    named = _FIELD.search(what)
    if named and "unknown" in what:
        known = key_names(inspect.type_info(spec), steps, _value_at(document.tree, steps))
        near = difflib.get_close_matches(named[1], known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        what = f"unknown key {named[1]!r}; {hint}allowed: {', '.join(known)}"
    elif named:
        absent = missing_keys(inspect.type_info(spec), steps, _value_at(document.tree, steps)) or [named[1]]
        what = f"missing key{'s' * (len(absent) > 1)} {', '.join(map(repr, absent))}"
    else:
        what = _with_value(what, document.tree, steps, type_at(inspect.type_info(spec), steps))
    return ConfigError(what, file=str(document.path), key=path.removeprefix("$").removeprefix("."))


def _refused_key(message: str, tree: Tree, spec: type[msgspec.Struct], above: list[str]) -> str:
    """Return the key of the mapping at `above` whose value is refused; msgspec names the mapping alone."""
    mapping = _value_at(tree, above)
    keys = list(mapping) if isinstance(mapping, dict) else ["?"]
    while len(keys) > 1:  # by halves: a file may hold many
        half = keys[: len(keys) // 2]
        try:
            alone = _with_item(tree, above, {key: mapping[key] for key in half})
            msgspec.convert(alone, spec, dec_hook=_from_text)
            refused = False
        except msgspec.ValidationError as error:
            refused = str(error) == message
        keys = half if refused else keys[len(half) :]
    return str(keys[0])


def _with_item(tree: Any, steps: list[str], item: object) -> Any:
    """Return a tree with another value at `steps`."""
    if not steps:
        return item
    at = int(steps[0]) if isinstance(tree, list) else steps[0]
    changed = copy(tree)
    changed[at] = _with_item(tree[at], steps[1:], item)
    return changed


def _with_value(what: str, tree: object, steps: list[str], kind: inspect.Type) -> str:
    value = _value_at(tree, steps)
    if value is msgspec.UNSET:
        return what
    shown = repr(value) if len(repr(value)) <= 80 else repr(value)[:77] + "..."
    choices = choices_of(kind)
    if choices and ("enum value" in what or what.startswith("Invalid value")):
        near = difflib.get_close_matches(str(value), choices, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        return f"{shown} is not one of {', '.join(choices)}{hint}"
    if what.startswith("Expected"):
        allowed = in_words(kind, brief=True)
        return f"{shown} is not {allowed}{_as_share(value, allowed)}"
    return what if what.startswith(shown) else f"{what}, the value is {shown}"


def _as_share(value: object, allowed: str) -> str:
    """Return how a text such as 25% is written where a number is allowed."""
    percent = re.fullmatch(r"([0-9]+(?:\.[0-9]*)?) ?%", value) if isinstance(value, str) else None
    if percent is None or "number" not in allowed:
        return ""
    return f" ({percent[0]} is written {float(percent[1]) / 100:g})"


def _value_at(tree: object, steps: list[str]) -> Any:
    """Follow `steps` through a file's tree; `UNSET` where it has no such place."""
    value: Any = tree
    for step in steps:
        if isinstance(value, list) and step.isdigit():
            value = value[int(step)]
        elif isinstance(value, dict) and step in value:
            value = value[step]
        else:
            return msgspec.UNSET
    return value


def check_setting(spec: type[Spec], key: str, value: object) -> None:
    """Raise `ConfigError` if a file kind has no such key, or if a value (None: any) cannot stand there.

    >>> from rapid_des.device.spec import DeviceSpec
    >>> check_setting(DeviceSpec, "hbm.capacity", "80 GiB")
    """
    kinds = _kinds_at(spec, key)
    problems = [] if value is None else [_refusal(kind, value) for kind in kinds]
    if problems and all(problems):
        raise ConfigError(str(problems[0]))


@lru_cache(maxsize=256)
def _kinds_at(spec: type[Spec], key: str) -> tuple[Any, ...]:
    """Return the types that may stand at a key, of which axes of studies have many values."""
    steps = key.split(".")
    kinds: tuple[Any, ...] = (spec,)
    for number, step in enumerate(steps):
        below = tuple(dict.fromkeys(part for kind in kinds for part in _annotations(kind, step)))
        if not below:
            known = sorted({name for kind in kinds for name in _names_in(kind)})
            near = difflib.get_close_matches(step, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            where = f"of {'.'.join(steps[:number])}" if number else "there"
            said = (
                f"{hint}keys {where}: {', '.join(known)}"
                if known
                else f"nothing stands below {steps[number - 1]!r}"
            )
            raise ConfigError(f"unknown key {step!r}; {said}")
        kinds = below
    return kinds


def _annotations(kind: Any, step: str) -> list[Any]:
    """Return the types that a step leads to from a type, through unions, lists and mappings."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        tag = [str] if step == kind.__struct_config__.tag_field else []
        return tag + [field.type for field in _fields(kind) if field.encode_name == step]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _annotations(arguments[0], step)
    if origin in (Union, UnionType):
        return [inner for part in arguments for inner in _annotations(part, step)]
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return [arguments[1]]
    if origin in (tuple, list) and step.isdecimal():
        return [arguments[0]]
    return []


def _names_in(kind: Any) -> list[str]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return [field.encode_name for field in _fields(kind)]
    return [name for part in get_args(kind) for name in _names_in(part)]


def _refusal(kind: Any, value: object) -> str:
    """Return why a value is none of a type; empty if it is."""
    try:
        msgspec.convert(value, kind, dec_hook=_from_text)
    except (msgspec.ValidationError, ValueError) as error:
        words = choices_of(inspect.type_info(kind))
        if words or not str(error).startswith(repr(value)):
            allowed = in_words(inspect.type_info(kind))
            return f"{value!r} is not one of {', '.join(words)}" if words else f"{value!r} is not {allowed}"
        return str(error)
    return ""
