"""The meaning of the fields of file formats, read from the docstring under each field."""

from __future__ import annotations

import ast
import inspect
import sys
from collections import deque
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

import msgspec
from msgspec import Struct
from msgspec import inspect as types

from rapid_des.config.allowed import in_words, parts_of
from rapid_des.config.examples import example_line
from rapid_des.config.specs import Spec, json_schema
from rapid_des.config.texts import Tree
from rapid_des.config.type_paths import types_at
from rapid_des.errors import ConfigError


class Field(Struct, frozen=True):
    """One key of a file format."""

    name: str
    meaning: str
    allowed: str
    """The kind of value, its unit and its range, as text."""
    default: str
    """The default as a file would state it; empty if the key is required."""
    example: str = ""
    """A line of a file that states the key."""


def described_schema(spec: type[Spec]) -> Tree:
    """Return the JSON Schema of a file format with every field's meaning."""
    schema = json_schema(spec)
    for struct in structs(types.type_info(spec)):
        properties = schema["$defs"][struct.cls.__name__]["properties"]
        if struct.tag_field is not None:
            properties[struct.tag_field]["description"] = _tag(struct).meaning
        meanings = meanings_of(struct.cls)
        for field in struct.fields:
            unit = properties[field.encode_name].get("description", "")
            said = (meanings.get(field.name, ""), unit)
            properties[field.encode_name]["description"] = "; ".join(part for part in said if part)
    return schema


def explain(spec: type[Spec], key: str) -> tuple[Field, ...]:
    """Return the description of a key such as `fabric.spans_inner`, once for each struct that has it.

    Items of a list are left out of the path or numbered. A `ConfigError` names the keys that there are.
    """
    steps = [step for step in key.split(".") if step and not step.isdecimal()]
    *above, last = steps or [""]
    described = [struct for kind in types_at(types.type_info(spec), above) for struct in _flat(kind)]
    tags = [_tag(struct) for struct in described if struct.tag_field == last]
    fields = [(struct, field) for struct in described for field in struct.fields if field.encode_name == last]
    if not fields and not tags:
        known = sorted({name for struct in described for name in _keys(struct)})
        if not known and above:
            explain(spec, ".".join(above))  # the error names the first step that is no key
        where = ".".join(above) or "the top level"
        keys = f"keys of {where}: {', '.join(known)}" if known else f"nothing stands below {where}"
        raise ConfigError(f"no key {key!r}; {keys}")
    rows = (_field(struct, field) for struct, field in fields)
    return tuple(dict.fromkeys((*tags, *rows)))


def keys_below(spec: type[Spec], path: str) -> dict[str, bool]:
    """Return the keys that a file format has below a path, and whether keys stand below each of them too.

    >>> from rapid_des.device.spec import DeviceSpec
    >>> list(keys_below(DeviceSpec, "clock"))
    ['peak', 'boost', 'sustained', 'sustained_by_dtype', 'sustained_from', 'sustained_within']
    """
    steps = [step for step in path.split(".") if step and not step.isdecimal()]
    described = [struct for kind in types_at(types.type_info(spec), steps) for struct in _flat(kind)]
    return {struct.tag_field: False for struct in described if struct.tag_field} | {
        field.encode_name: any(_flat(field.type)) or isinstance(field.type, types.DictType)
        for struct in described
        for field in struct.fields
    }


def paths_to(spec: type[Spec], name: str) -> Iterator[str]:
    """Yield the paths at which a file format has a key of a name, the shortest first.

    >>> from rapid_des.machine import MachineSpec
    >>> list(paths_to(MachineSpec, "order"))
    ['routing.order']
    """
    waiting = deque([("", types.type_info(spec))])
    seen: set[type] = set()  # a mapping that stands in several places is named at the first
    while waiting:
        path, kind = waiting.popleft()
        for struct in _flat(kind):
            if struct.cls not in seen:
                seen.add(struct.cls)
                if name in _keys(struct):
                    yield f"{path}{name}"
                waiting += [(f"{path}{field.encode_name}.", field.type) for field in struct.fields]


def structs(kind: types.Type) -> Iterator[types.StructType]:
    """Yield every struct that a file format is made of, each once."""
    seen: set[type] = set()
    waiting = [kind]
    while waiting:
        for struct in _flat(waiting.pop()):
            if struct.cls not in seen:
                seen.add(struct.cls)
                yield struct
                waiting += [field.type for field in struct.fields]


@cache
def meanings_of(spec: type) -> dict[str, str]:
    """Return the first paragraph of the docstring under each field, those of bases too."""
    meanings: dict[str, str] = {}
    for base in spec.__mro__:
        if issubclass(base, msgspec.Struct) and base is not msgspec.Struct:
            meanings = _meanings_in(base.__module__)[base.__name__] | meanings
    return meanings


@cache
def _meanings_in(module: str) -> dict[str, dict[str, str]]:
    """Return what stands under the fields of each class of a module, whose source is read once."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: _under_fields(node) for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def _under_fields(body: ast.ClassDef) -> dict[str, str]:
    meanings: dict[str, str] = {}
    for statement, after in pairwise(body.body):
        match statement, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                meanings[name] = " ".join(text.split())
    return meanings


def described(struct: types.StructType) -> list[tuple[Field, types.Type]]:
    """Return the keys of a mapping, each with the type of its value; that of its tag first."""
    tag = [(_tag(struct), types.StrType())] if struct.tag_field else []
    return [*tag, *((_field(struct, field), field.type) for field in struct.fields)]


def structs_of(kind: types.Type) -> Iterator[types.StructType]:
    """Yield the mappings with fixed keys that a value, or an item of a list, may be."""
    match kind:
        case types.StructType():
            yield kind
        case types.UnionType() | types.Metadata() | types.ListType() | types.VarTupleType():
            for part in parts_of(kind):
                yield from structs_of(part)


def _keys(struct: types.StructType) -> list[str]:
    """Return the keys of a struct, that of its tag first."""
    return [*filter(None, [struct.tag_field]), *(field.encode_name for field in struct.fields)]


def _tag(struct: types.StructType) -> Field:
    """Return the key whose value selects a struct of a union."""
    about = (struct.cls.__doc__ or "").partition("\n")[0]
    example = f"{struct.tag_field}: {struct.tag}"
    return Field(str(struct.tag_field), f"{struct.tag}: {about}", str(struct.tag), "", example)


def _field(struct: types.StructType, field: types.Field) -> Field:
    default, value = "", None
    if not field.required:
        value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
        default = "unset" if value is None else _as_written(value)
    meaning = meanings_of(struct.cls).get(field.name, "")
    example = example_line(field.encode_name, meaning, field.type, value)
    return Field(field.encode_name, meaning, in_words(field.type), default, example)


def _as_written(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, msgspec.Struct | dict) or value == ():
        return "nothing"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _flat(kind: types.Type) -> Iterator[types.StructType]:
    """Yield the structs that a value may be or hold directly in a list or mapping."""
    if isinstance(kind, types.StructType):
        yield kind
    for part in parts_of(kind):
        yield from _flat(part)
