"""What a value of a file may be, in words."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import inspect

from rapid_des.units import Quantity


def parts_of(kind: inspect.Type) -> tuple[inspect.Type, ...]:
    """Return what a value may be instead, or holds."""
    match kind:
        case inspect.UnionType():
            return tuple(kind.types)
        case inspect.Metadata():
            return (kind.type,)
        case inspect.ListType() | inspect.VarTupleType():
            return (kind.item_type,)
        case inspect.TupleType():
            return tuple(kind.item_types)
        case inspect.DictType():
            return (kind.value_type,)
    return ()


def in_words(kind: inspect.Type, *, brief: bool = False) -> str:
    """Return what a value may be; `brief` leaves out the keys of mappings that differ in a tag.

    >>> from typing import Annotated
    >>> import msgspec
    >>> in_words(inspect.type_info(Annotated[int, msgspec.Meta(ge=1)] | list[str]))
    'a whole number from 1, or a list of text'
    """
    return ", or ".join(dict.fromkeys(_words(kind, brief=brief)))


def _words(kind: inspect.Type, *, brief: bool) -> Iterator[str]:
    if isinstance(kind, inspect.Metadata):
        yield from _words(kind.type, brief=brief)
    elif isinstance(kind, inspect.UnionType):
        tagged = [part for part in kind.types if isinstance(part, inspect.StructType) and part.tag_field]
        if brief and len(tagged) > 1:
            tags = ", ".join(str(part.tag) for part in tagged)
            yield f"a mapping with {tagged[0].tag_field}: one of {tags}"
        for part in kind.types:
            if not brief or part not in tagged:
                yield from _words(part, brief=brief)
    elif not isinstance(kind, inspect.NoneType):
        holds = ", or ".join(dict.fromkeys(in_words(part, brief=brief) for part in parts_of(kind)))
        yield _noun(kind) + (f" {holds}" if holds else "")


def _noun(kind: inspect.Type) -> str:
    match kind:
        case inspect.LiteralType():
            return "one of " + ", ".join(map(str, kind.values))
        case inspect.CustomType() if issubclass(kind.cls, Quantity):
            return f"a quantity such as {kind.cls.example!r}"
        case inspect.IntType():
            return "a whole number" + _range(kind)
        case inspect.FloatType():
            return "a number" + _range(kind)
        case inspect.StructType():
            tag = [f"{kind.tag_field}: {kind.tag}"] if kind.tag_field else []
            keys = [", ".join(field.encode_name for field in kind.fields)] if kind.fields else []
            return "a mapping with " + " and ".join(tag + [f"keys {names}" for names in keys])
        case inspect.StrType(pattern=str(pattern)):
            return f"text that matches {pattern}"
        case inspect.ListType(min_length=int(least)) | inspect.VarTupleType(min_length=int(least)):
            return f"a list of {least} or more of"
    return _NOUNS.get(type(kind), "any value")


_NOUNS: dict[type, str] = {
    inspect.StrType: "text",
    inspect.BoolType: "true or false",
    inspect.ListType: "a list of",
    inspect.VarTupleType: "a list of",
    inspect.TupleType: "a list of",
    inspect.DictType: "a mapping to",
}


def _range(kind: inspect.IntType | inspect.FloatType) -> str:
    """Return the bounds of a number, with a space before them.

    >>> _range(inspect.FloatType(gt=0, le=1)), _range(inspect.IntType(ge=1, le=4096))
    (' above 0 and up to 1', ' from 1 to 4,096')
    """
    low = [
        f"{word} {_number(bound)}"
        for word, bound in (("above", kind.gt), ("from", kind.ge))
        if bound is not None
    ]
    up_to = "up to" if kind.ge is None else "to"
    high = [
        f"{word} {_number(bound)}"
        for word, bound in (("below", kind.lt), (up_to, kind.le))
        if bound is not None
    ]
    joint = " " if kind.ge is not None and kind.le is not None else " and "
    bounds = joint.join(low + high)
    return f" {bounds}" if bounds else ""


def _number(bound: float) -> str:
    return f"{int(bound):,}" if bound == int(bound) else f"{bound:g}"
