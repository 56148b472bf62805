"""The types that may stand at a place of a file, and the keys there."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import inspect


def choices_of(kind: inspect.Type) -> list[str]:
    """Return the words that a type allows, as text; none if it is no choice of words."""
    if isinstance(kind, inspect.LiteralType):
        return [str(value) for value in kind.values]
    if isinstance(kind, inspect.UnionType):
        return [choice for part in kind.types for choice in choices_of(part)]
    return []


def _structs(kind: inspect.Type) -> list[inspect.StructType]:
    if isinstance(kind, inspect.StructType):
        return [kind]
    if isinstance(kind, inspect.UnionType):
        return [struct for part in kind.types for struct in _structs(part)]
    return []


def structs_at(kind: inspect.Type, steps: list[str], value: object) -> list[inspect.StructType]:
    """Return the structs that may stand at `steps`: of a union, those whose tag `value` has, if any."""
    structs = _structs(type_at(kind, steps))
    mapping = value if isinstance(value, Mapping) else {}
    tagged = [
        struct for struct in structs if struct.tag_field and mapping.get(struct.tag_field) == struct.tag
    ]
    return tagged or structs


def missing_keys(kind: inspect.Type, steps: list[str], value: object) -> list[str]:
    """Return all keys that the mapping at `steps` lacks; none if several structs may stand there."""
    structs, given = structs_at(kind, steps, value), value if isinstance(value, Mapping) else {}
    fields = structs[0].fields if len(structs) == 1 else ()
    return [field.encode_name for field in fields if field.required and field.encode_name not in given]


def key_names(kind: inspect.Type, steps: list[str], value: object) -> list[str]:
    """Return the keys of the struct at `steps`, its tag first."""
    structs = structs_at(kind, steps, value)
    tags = [struct.tag_field for struct in structs if struct.tag_field]
    return list(dict.fromkeys([*tags, *(field.encode_name for struct in structs for field in struct.fields)]))


def type_at(kind: inspect.Type, steps: list[str]) -> inspect.Type:
    """Follow `steps` through the type; where unions leave a choice, the first part that has the step.

    A key that several structs of a union have with words of their own has all their words as choices.
    """
    for step in steps:
        below = _step_into(kind, step)
        words = [word for part in below if isinstance(part, inspect.LiteralType) for word in part.values]
        literal = inspect.LiteralType(tuple(dict.fromkeys(words)))
        kind = literal if len(below) > 1 and words else next(iter(below), inspect.AnyType())
    return kind


def types_at(kind: inspect.Type, steps: list[str]) -> list[inspect.Type]:
    """Follow keys through every part of every union; items of lists are not counted as steps."""
    kinds = [kind]
    for step in steps:
        kinds = [part for each in kinds for part in _step_into(_item(each), step)]
    return [_item(each) for each in kinds]


def _item(kind: inspect.Type) -> inspect.Type:
    """Return the type of a list's items; other types are returned unchanged."""
    match kind:
        case inspect.ListType() | inspect.VarTupleType():
            return _item(kind.item_type)
        case inspect.UnionType():
            return inspect.UnionType(tuple(_item(part) for part in kind.types))
        case inspect.Metadata():
            return _item(kind.type)
    return kind


def _step_into(kind: inspect.Type, step: str) -> list[inspect.Type]:
    if isinstance(kind, inspect.Metadata):
        return _step_into(kind.type, step)
    if isinstance(kind, inspect.UnionType):
        return [inner for part in kind.types for inner in _step_into(part, step)]
    if isinstance(kind, inspect.StructType):
        if step == kind.tag_field:
            return [inspect.LiteralType((kind.tag,))]
        return [field.type for field in kind.fields if field.encode_name == step]
    if isinstance(kind, inspect.DictType):
        return [kind.value_type]
    if isinstance(kind, inspect.ListType | inspect.VarTupleType):
        return [kind.item_type]
    if isinstance(kind, inspect.TupleType) and step.isdigit():
        return [kind.item_types[int(step)]]
    return []
