"""Conditions such as `tp*cp*pp*dp == 64`: a few forms are allowed, parsed once; no code is executed."""

from __future__ import annotations

import ast
import difflib
import operator
import re
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from typing import Any, TypeAlias

from msgspec import Struct

from rapid_des.errors import ConfigError

_Function: TypeAlias = Callable[[Mapping[str, Any]], Any]
_LONGEST, _MOST_POWER, _MOST = 1000, 64, 2**63
_ASSIGNS = re.compile(r"(?<![=<>!])=(?!=)")
_OPERATIONS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, among: item in among,
    ast.NotIn: lambda item, among: item not in among,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "abs": abs}
_ALLOWED = "numbers, text in quotes, names, + - * / // % ** ( ), comparisons, and, or, not, in, min, max, abs"


class Expression(Struct, frozen=True, dict=True):
    """A parsed expression; names may be dotted (`job.training.micro_batch`).

    >>> Expression.parse("tp * dp == 8 and schedule != 'gpipe'").names
    ('tp', 'dp', 'schedule')
    >>> Expression.parse("tp * dp == 8")({"tp": 2, "dp": 4})
    True
    """

    text: str
    tree: ast.expr
    names: tuple[str, ...]
    file: str = ""
    key: str = ""
    """The key of the file that holds the expression, for errors."""

    @classmethod
    def parse(
        cls, text: str, *, known: Collection[str] | None = None, file: str = "", key: str = ""
    ) -> Expression:
        """Return the expression of a text; `ConfigError` for a forbidden form or an unknown name."""
        try:
            if len(text) > _LONGEST:
                raise ValueError(f"longer than {_LONGEST} characters")
            tree = ast.parse(text.strip(), mode="eval").body
            names = dict.fromkeys(_names(tree))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            why = error.msg if isinstance(error, SyntaxError) else str(error)
            why += "; equal is ==" if _ASSIGNS.search(text) else ""
            raise ConfigError(f"{text[:80]!r}: {why}; allowed: {_ALLOWED}", file=file, key=key) from None
        for name in names:
            if known is not None and name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]!r}? " if near else ""
                problem = f"{text[:80]!r}: no {name!r} here; {hint}known: {', '.join(known)}"
                raise ConfigError(problem, file=file, key=key)
        return cls(text, tree, tuple(names), file, key)

    @cached_property
    def _function(self) -> _Function:
        """The compiled function; a study evaluates its conditions for millions of combinations."""
        return _function(self.tree)

    def __reduce__(self) -> tuple[type[Expression], tuple[Any, ...]]:
        return Expression, (self.text, self.tree, self.names, self.file, self.key)

    def __call__(self, values: Mapping[str, Any]) -> Any:
        """Return the value of the expression; `ConfigError` if an operation does not fit its values."""
        try:
            return _bounded(self._function(values))
        except (TypeError, ArithmeticError, ValueError) as error:
            used = ", ".join(f"{name} {values.get(name)!r}" for name in self.names)
            problem = f"{self.text[:80]!r} with {used}: {error}"
            raise ConfigError(problem, file=self.file, key=self.key) from None


def _names(node: ast.expr) -> list[str]:
    """Return the names that an expression uses; `ValueError` for a form that is not allowed."""
    if isinstance(node, ast.Name | ast.Attribute):
        return [_dotted(node)]
    return [name for part in _parts(node) for name in _names(part)]


def _parts(node: ast.expr) -> list[ast.expr]:
    """Return the operands of an expression; `ValueError` if its form is not allowed."""
    match node:
        case ast.Constant(value=bool() | int() | float() | str()):
            return []
        case ast.BoolOp():
            return node.values
        case ast.UnaryOp() if isinstance(node.op, ast.Not) or type(node.op) in _OPERATIONS:
            return [node.operand]
        case ast.BinOp() if type(node.op) in _OPERATIONS or isinstance(node.op, ast.Pow):
            return [node.left, node.right]
        case ast.Compare() if all(type(operator) in _OPERATIONS for operator in node.ops):
            return [node.left, *node.comparators]
        case ast.Tuple() | ast.List():
            return node.elts
        case ast.Call(func=ast.Name(id=name), keywords=[]) if name in _FUNCTIONS and node.args:
            return node.args
    raise ValueError(f"{ast.unparse(node)[:40]!r} is not allowed here")


def _dotted(node: ast.expr) -> str:
    match node:
        case ast.Name():
            return node.id
        case ast.Attribute():
            return f"{_dotted(node.value)}.{node.attr}"
    raise ValueError(f"{ast.unparse(node)[:40]!r} is not allowed here")


def _function(node: ast.expr) -> _Function:
    """Return the function from the values of names to the value of an expression."""
    match node:
        case ast.Constant(value=value):
            return lambda _: value
        case ast.Name() | ast.Attribute():
            return operator.itemgetter(_dotted(node))
    parts = [_function(part) for part in _parts(node)]
    match node:
        case ast.BoolOp():
            decide = all if isinstance(node.op, ast.And) else any
            return lambda values: decide(part(values) for part in parts)
        case ast.Compare():
            return _compared(node, parts)
        case ast.UnaryOp(op=ast.Not()):
            return lambda values: not parts[0](values)
        case ast.UnaryOp() | ast.BinOp():
            return _calculated(_power if isinstance(node.op, ast.Pow) else _OPERATIONS[type(node.op)], parts)
        case ast.Call(func=ast.Name(id=name)):
            function = _FUNCTIONS[name]
            return lambda values: function(*(part(values) for part in parts))
    return lambda values: [part(values) for part in parts]


def _compared(node: ast.Compare, parts: list[_Function]) -> _Function:
    if len(parts) == 2:
        (left, right), compare = parts, _OPERATIONS[type(node.ops[0])]
        return lambda values: bool(compare(left(values), right(values)))
    compares = [_OPERATIONS[type(operation)] for operation in node.ops]

    def chained(values: Mapping[str, Any]) -> bool:
        sides = [part(values) for part in parts]
        return all(
            compare(left, right) for compare, left, right in zip(compares, sides, sides[1:], strict=False)
        )

    return chained


def _calculated(operation: Callable[..., Any], parts: list[_Function]) -> _Function:
    """Return a function that does arithmetic on numbers; it raises `TypeError` for other values."""
    first, last = parts[0], parts[-1]

    def unary(values: Mapping[str, Any]) -> Any:
        return operation(_number(first(values)))

    def binary(values: Mapping[str, Any]) -> Any:
        return operation(_number(first(values)), _number(last(values)))

    return unary if len(parts) == 1 else binary


def _number(value: Any) -> int | float:
    if not isinstance(value, (int, float)):
        raise TypeError("arithmetic is for numbers")
    return value


def _bounded(value: Any) -> Any:
    """Return a value; `OverflowError` for a number that a file cannot hold."""
    for part in value if isinstance(value, list) else [value]:
        if isinstance(part, int | float) and not abs(part) < _MOST:
            raise OverflowError("the result is no number below 2**63")
    return value


def _power(base: float, exponent: float) -> Any:
    if abs(exponent) > _MOST_POWER or abs(base) > 1 << _MOST_POWER:
        raise ValueError("a power of more than 64, or of a number above 2**64")
    return base**exponent
