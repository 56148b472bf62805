"""An example of what may stand at a key of a file, made from its type and its meaning."""

from __future__ import annotations

import re
from typing import Any

import yaml
from msgspec import inspect

from rapid_des.units import Quantity

_QUOTED = re.compile(r'"([^"]+)"')
_MAPPING = re.compile(r"`(\{[^`]+\})`")
_NUMBER, _SHARE = 2, 0.5


def example_line(key: str, meaning: str, kind: inspect.Type, default: object = None) -> str:
    """Return a key with an example of its value, as a file states it.

    It is the mapping that the meaning shows, a default that is text, or made from the type.

    >>> example_line("outages", 'When replicas are out: "replica=1 at=30s".', inspect.type_info(list[str]))
    'outages: [replica=1 at=30s]'
    """
    shown = _MAPPING.search(meaning)
    value = default if isinstance(default, str) else example_of(kind, key, meaning)
    if shown and inspect.StructType in {type(part) for part in (kind, *getattr(kind, "types", ()))}:
        value = yaml.safe_load(shown[1])
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**6)
    return f"{key}: {text.splitlines()[0]}"


def example_of(kind: inspect.Type, key: str, meaning: str = "") -> Any:
    """Return a value that a key may have; text is what its meaning quotes, or a name made from the key."""
    match kind:
        case inspect.UnionType():
            return example_of(next(part for part in kind.types if part != inspect.NoneType()), key, meaning)
        case inspect.Metadata():
            return example_of(kind.type, key, meaning)
        case inspect.LiteralType():
            return kind.values[-1]
        case inspect.CustomType() if issubclass(kind.cls, Quantity):
            return kind.cls.example
        case inspect.BoolType():
            return True
        case inspect.IntType() | inspect.FloatType():
            return _number(kind)
        case inspect.StrType():
            quoted = _QUOTED.search(meaning)
            return quoted[1] if quoted else f"my_{key}"
    return _collection(kind, key, meaning)


def _number(kind: inspect.IntType | inspect.FloatType) -> float:
    """Return a number within the bounds: 2, one half, or the nearest bound."""
    wanted: float = _NUMBER if isinstance(kind, inspect.IntType) else _SHARE
    low, high = (kind.ge if kind.ge is not None else kind.gt), (kind.le if kind.le is not None else kind.lt)
    if low is not None and wanted < low:
        wanted = low + (kind.ge is None)
    if high is not None and wanted > high:
        wanted = high - (kind.le is None)
    return wanted


def _collection(kind: inspect.Type, key: str, meaning: str) -> Any:
    match kind:
        case inspect.ListType() | inspect.VarTupleType():
            return [example_of(kind.item_type, key, meaning)] * max(1, kind.min_length or 1)
        case inspect.TupleType():
            return [example_of(part, key, meaning) for part in kind.item_types]
        case inspect.DictType():
            return {example_of(kind.key_type, "name"): example_of(kind.value_type, key, meaning)}
        case inspect.StructType():
            required = [field for field in kind.fields if field.required] or list(kind.fields[:1])
            tag = {kind.tag_field: kind.tag} if kind.tag_field else {}
            return tag | {field.encode_name: example_of(field.type, field.encode_name) for field in required}
    return f"my_{key}"
