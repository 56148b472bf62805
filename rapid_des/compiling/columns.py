"""Columns and tables as types of numba: a table is an address, its fields are at fixed words behind it.

NOTE: numba passes its own arrays and tuples by value. With seven words an array the state of a simulation is
1,700 words in every call, which LLVM took a minute to compile. A table here is one word, whatever its size.
Indices count from the first entry; an index below 0 is not allowed.
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba.core import types as numba_types
from numba.core.typing.templates import (
    AbstractTemplate,
    AttributeTemplate,
    Signature,
    infer_global,
    signature,
)
from numba.extending import infer_getattr, lower_builtin, lower_getattr_generic, models, register_model

from rapid_des.compiling.kinds import ArrayType, Kind, Scalar, TupleType, words_of

types: Any = numba_types
_WORD = ir.IntType(64)


class ColumnType(types.Type):
    """A column: the address of its three words."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"ArrayType({dtype})")


class MatrixType(types.Type):
    """A column of rows: the address of its three words."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"Matrix({dtype})")


class SpanType(types.Type):
    """A slice of a column: the address of its first entry, and its length."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"Span({dtype})")


class TableType(types.Type):
    """A table: the address of its words."""

    def __init__(self, kind: TupleType) -> None:
        self.kind, self.places, place = kind, {}, 0
        for name, field in kind.fields:
            self.places[name] = place, type_of(field)
            place += words_of(field)
        super().__init__(name=kind.name)


def type_of(kind: Kind) -> Any:
    """Return numba's type for the kind of an argument."""
    if isinstance(kind, ArrayType):
        return (ColumnType if kind.dimensions == 1 else MatrixType)(_scalar(kind.dtype))
    return _scalar(kind.dtype) if isinstance(kind, Scalar) else TableType(kind)


def _scalar(name: str) -> Any:
    return types.boolean if name == "bool" else getattr(types, name)


class _AddressModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _WORD.as_pointer())


class _SpanModel(models.StructModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        members = [("first", types.CPointer(kind.dtype)), ("length", types.intp)]
        super().__init__(manager, kind, members)


register_model(ColumnType)(_AddressModel)
register_model(MatrixType)(_AddressModel)
register_model(TableType)(_AddressModel)
register_model(SpanType)(_SpanModel)


def _word(builder: Any, address: Any, place: int, kind: Any = _WORD) -> Any:
    """Load a word of a table; tables do not change while machine code runs, so LLVM may load it once."""
    there = builder.gep(address, [ir.Constant(_WORD, place)])
    word = builder.load(builder.bitcast(there, kind.as_pointer()))
    word.set_metadata("invariant.load", builder.module.add_metadata([]))
    return word


@infer_getattr
class _Fields(AttributeTemplate):
    key = TableType

    def generic_resolve(self, table: TableType, name: str) -> Any:
        return table.places[name][1] if name in table.places else None


@lower_getattr_generic(TableType)
def _field(context: Any, builder: Any, table: TableType, address: Any, name: str) -> Any:
    place, kind = table.places[name]
    if isinstance(kind, ColumnType | MatrixType):
        return builder.gep(address, [ir.Constant(_WORD, place)])
    return _word(builder, address, place, context.get_value_type(kind))


def _first(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """Return the address of the first entry of a column or a slice."""
    if isinstance(kind, SpanType):
        return builder.extract_value(value, 0)
    return _word(builder, value, 0, context.get_data_type(kind.dtype).as_pointer())


def _length(builder: Any, kind: Any, value: Any) -> Any:
    return builder.extract_value(value, 1) if isinstance(kind, SpanType) else _word(builder, value, 1)


def _entry(context: Any, builder: Any, sig: Any, given: Any) -> Any:
    """Return the address of an entry."""
    (kind, index_kind, *_), (value, index, *_) = sig.args, given
    if isinstance(kind, MatrixType):
        row, column = (
            context.cast(builder, part, each, types.intp)
            for part, each in zip(_unpacked(builder, index, 2), index_kind, strict=True)
        )
        place = builder.add(builder.mul(row, _word(builder, value, 2)), column)
    else:
        place = context.cast(builder, index, index_kind, types.intp)
    return builder.gep(_first(context, builder, kind, value), [place])


def _unpacked(builder: Any, pair: Any, count: int) -> list[Any]:
    return [builder.extract_value(pair, place) for place in range(count)]


def _is_place(column: Any, index: Any) -> bool:
    if isinstance(column, MatrixType):
        return isinstance(index, types.BaseTuple) and len(index) == 2
    return isinstance(column, ColumnType | SpanType) and isinstance(index, types.Integer)


@infer_global(operator.getitem)
class _Read(AbstractTemplate):
    def generic(self, given: Any, _: Any) -> Signature | None:
        column, index = given
        if _is_place(column, index):
            return signature(column.dtype, column, index)
        is_stretch = isinstance(column, ColumnType | SpanType) and isinstance(index, types.SliceType)
        if is_stretch or (isinstance(column, MatrixType) and isinstance(index, types.Integer)):
            return signature(SpanType(column.dtype), column, index)
        return None


@infer_global(operator.setitem)
class _Write(AbstractTemplate):
    def generic(self, given: Any, _: Any) -> Signature | None:
        column, index, _value = given
        return signature(types.none, column, index, column.dtype) if _is_place(column, index) else None


@infer_global(len)
class _Len(AbstractTemplate):
    def generic(self, given: Any, _: Any) -> Signature | None:
        (column,) = given
        return (
            signature(types.intp, column) if isinstance(column, ColumnType | MatrixType | SpanType) else None
        )


def _read(context: Any, builder: Any, sig: Any, given: Any) -> Any:
    there = _entry(context, builder, sig, given)
    return context.unpack_value(builder, sig.return_type, there)


def _write(context: Any, builder: Any, sig: Any, given: Any) -> Any:
    there = _entry(context, builder, sig, given)
    context.pack_value(builder, sig.args[2], given[2], there)
    return context.get_dummy_value()


def _slice(context: Any, builder: Any, sig: Any, given: Any) -> Any:
    limits = context.make_helper(builder, sig.args[1], given[1])
    first = builder.gep(_first(context, builder, sig.args[0], given[0]), [limits.start])
    return _span(context, builder, sig, first, builder.sub(limits.stop, limits.start))


def _row(context: Any, builder: Any, sig: Any, given: Any) -> Any:
    row, width = context.cast(builder, given[1], sig.args[1], types.intp), _word(builder, given[0], 2)
    first = builder.gep(_first(context, builder, sig.args[0], given[0]), [builder.mul(row, width)])
    return _span(context, builder, sig, first, width)


def _span(context: Any, builder: Any, sig: Any, first: Any, length: Any) -> Any:
    span = builder.insert_value(ir.Constant(context.get_value_type(sig.return_type), ir.Undefined), first, 0)
    return builder.insert_value(span, length, 1)


def _len(_: Any, builder: Any, sig: Any, given: Any) -> Any:
    return _length(builder, sig.args[0], given[0])


for _kind in (ColumnType, SpanType):
    lower_builtin(len, _kind)(_len)
    lower_builtin(operator.getitem, _kind, types.Integer)(_read)
    lower_builtin(operator.getitem, _kind, types.SliceType)(_slice)
    lower_builtin(operator.setitem, _kind, types.Integer, types.Any)(_write)
lower_builtin(len, MatrixType)(_len)
lower_builtin(operator.getitem, MatrixType, types.BaseTuple)(_read)
lower_builtin(operator.getitem, MatrixType, types.Integer)(_row)
lower_builtin(operator.setitem, MatrixType, types.BaseTuple, types.Any)(_write)
