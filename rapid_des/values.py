"""What a value object can be asked, a `msgspec.Struct` or a dataclass: its fields, and a changed copy.

A frozen `Struct` is the form of a value here: its class takes 0.03 ms at import, a dataclass 1.4 ms.
"""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

_Value = TypeVar("_Value")


def replace(value: _Value, /, **changes: Any) -> _Value:
    """Return a copy of a value with some of its fields changed."""
    if isinstance(value, Struct):
        return msgspec.structs.replace(value, **changes)
    import dataclasses

    return dataclasses.replace(value, **changes)  # type: ignore[type-var]


def fields(value: object) -> tuple[str, ...]:
    """Return the names of the fields of a value or of its class, in their order."""
    kind = value if isinstance(value, type) else type(value)
    if issubclass(kind, Struct):
        return kind.__struct_fields__
    described: dict[str, Any] = getattr(kind, "__dataclass_fields__")  # noqa: B009
    return tuple(described)


def is_value(value: object) -> bool:
    """Return whether an object is a value with fields, not a class of such."""
    return isinstance(value, Struct) or (
        hasattr(type(value), "__dataclass_fields__") and not isinstance(value, type)
    )


def astuple(value: object) -> tuple[Any, ...]:
    """Return the fields of a value in their order, values among them as tuples too."""
    return tuple(_as(getattr(value, name), astuple) for name in fields(value))


def asdict(value: object) -> dict[str, Any]:
    """Return the fields of a value by name, values among them as dictionaries too."""
    return {name: _as(getattr(value, name), asdict) for name in fields(value)}


def _as(held: Any, form: Any) -> Any:
    if is_value(held):
        return form(held)
    if isinstance(held, tuple) and hasattr(held, "_fields"):
        return type(held)(*(_as(part, form) for part in held))
    if isinstance(held, list | tuple):
        return type(held)(_as(part, form) for part in held)
    if isinstance(held, dict):
        return type(held)((_as(key, form), _as(part, form)) for key, part in held.items())
    return copy.deepcopy(held)
