"""YAML, JSON and TOML text read into plain trees, and what is refused: too deep, too large, ambiguous."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import yaml
from yaml import events

from rapid_des.errors import ConfigError

Tree: TypeAlias = dict[str, Any]

DEEPEST = 64
"""The deepest nesting of lists and mappings that is read."""
MOST_NODES = 1_000_000
"""The most values in one document, counting repetitions by aliases."""

_LOADER: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_WORDS = {"": None, "~": None, "null": None, "Null": None, "NULL": None} | {
    spelling: value
    for word, value in (("true", True), ("false", False))
    for spelling in (word, word.capitalize(), word.upper())
}
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)\Z")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")
_AMBIGUOUS = re.compile(r"[-+]?(?:0[0-9]+|\.(?:inf|Inf|INF|nan|NaN|NAN))\Z")
"""The numbers that YAML 1.1 and 1.2 read differently, or that look like numbers and are none."""
_MOST_DIGITS = 400
_MOST_WHOLE = 40
"""The most digits of a whole number; the range of each key is narrower."""
_LONGEST_TOML, _MOST_DOTS = 1 << 20, 1000
"""The most characters of a TOML text and the most dots in one line: tomllib starts at the root for each part
of a dotted key.
"""
_MOST_JSON = 1 << 22
"""The most values in a JSON text; each takes 60 bytes or more."""


def parse_text(text: str, path: Path) -> object:
    """Return the YAML (or JSON) value that `text` holds.

    Plain values are read by YAML 1.2's core schema, so that `1:30`, `no` and `1_000` are text; a key that
    stands twice, tags, numbers that the versions of YAML read differently (`010`), and documents that are too
    deep or too large are refused.
    """
    try:
        return _Tree(yaml.parse(text, Loader=_LOADER)).document()
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        if "nesting depth" in problem:  # libyaml's own limit, met as it looks ahead
            problem = f"more than {DEEPEST} levels of lists and mappings"
        raise ConfigError(f"{place}not valid YAML: {problem}", file=str(path)) from None


class _Tree:
    """Makes plain values of a parser's events.

    NOTE: PyYAML's own composer recurses in C, without a limit, and its resolver speaks YAML 1.1.
    """

    def __init__(self, stream: Iterator[Any]) -> None:
        self._stream = stream
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._nodes = 0

    def document(self) -> Any:
        """Return the value of the only document."""
        value = None
        for number, event in enumerate(
            event for event in self._stream if not isinstance(event, _AROUND_DOCUMENTS)
        ):
            if number:
                raise _refused("one document is expected, here begins another", event)
            value = self._value(event, depth=0)
        return value

    def _value(self, event: Any, *, depth: int) -> Any:
        if isinstance(event, events.AliasEvent):
            return self._aliased(event)
        self._count(1, event)
        if depth == DEEPEST:
            raise _refused(f"more than {DEEPEST} levels of lists and mappings", event)
        if event.tag not in (None, "!"):
            raise _refused(f"the tag {event.tag!r}; tags are not used here", event)
        before = self._nodes
        if isinstance(event, events.ScalarEvent):
            value = _scalar(event)
        elif isinstance(event, events.SequenceStartEvent):
            value = [self._value(item, depth=depth + 1) for item in self._until(events.SequenceEndEvent)]
        else:
            value = self._mapping(depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = value, self._nodes - before + 1
        return value

    def _mapping(self, depth: int) -> Tree:
        tree: Tree = {}
        for event in self._until(events.MappingEndEvent):
            key = self._value(event, depth=depth + 1)
            if not isinstance(key, str) or key in tree:
                problem = "stands twice" if isinstance(key, str) else "is not text: quote it"
                raise _refused(f"the key {key!r} {problem}", event)
            tree[key] = self._value(next(self._stream), depth=depth + 1)
        return tree

    def _aliased(self, event: Any) -> Any:
        if event.anchor not in self._anchors:
            raise _refused(f"found undefined alias {event.anchor!r}", event)
        value, nodes = self._anchors[event.anchor]
        self._count(nodes, event)
        return value

    def _count(self, nodes: int, event: Any) -> None:
        self._nodes += nodes
        if self._nodes > MOST_NODES:
            raise _refused(f"more than {MOST_NODES:,} values", event)

    def _until(self, end: type) -> Iterator[Any]:
        for event in self._stream:
            if isinstance(event, end):
                return
            yield event


_AROUND_DOCUMENTS = (
    events.StreamStartEvent,
    events.StreamEndEvent,
    events.DocumentStartEvent,
    events.DocumentEndEvent,
)


def _scalar(event: Any) -> Any:
    text: str = event.value
    if event.tag == "!" or not event.implicit[0]:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if len(text) <= _MOST_DIGITS and _INTEGER.match(text):
        if len(text) > _MOST_WHOLE:
            raise _refused(f"{text[:20]}… is a whole number of more than {_MOST_WHOLE} digits", event)
        return int(text)
    if _AMBIGUOUS.match(text) or (_FLOAT.match(text) and len(text) > _MOST_DIGITS):
        raise _refused(f"{text[:40]!r} is no finite decimal number; text is quoted", event)
    if not _FLOAT.match(text):
        return text
    if abs(value := float(text)) == float("inf"):
        raise _refused(f"{text!r} is too large a number", event)
    return value if text[0] != "-" else -abs(value)


def _refused(problem: str, event: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


def parse_json(text: str, path: Path, *, infinite: bool = False) -> Any:
    """Return the JSON value that `text` holds; numbers are finite and nesting is bounded as in YAML.

    `infinite`: Python's own words for numbers that are not finite may stand there, as its writer puts them.
    """
    constant = float if infinite else _no_number
    try:
        if sum(map(text.count, ",[{")) > _MOST_JSON:
            raise ValueError(f"more than {_MOST_JSON:,} values")
        value = json.loads(
            text.removeprefix("\ufeff"), parse_constant=constant, parse_float=_finite, parse_int=_integer
        )
        _check_depth(value)
    except (ValueError, RecursionError) as error:
        problem = "nested too deep" if isinstance(error, RecursionError) else error
        raise ConfigError(f"not valid JSON: {problem}", file=str(path)) from None
    return value


def parse_toml(text: str, path: Path) -> Tree:
    """Return the tables of a TOML text; nesting is bounded as in YAML."""
    import tomllib  # 5 ms, for the few who read TOML

    try:
        if len(text) > _LONGEST_TOML:
            raise ValueError(f"more than {_LONGEST_TOML:,} characters")
        if any(line.count(".") > _MOST_DOTS for line in text.splitlines()):
            raise ValueError(f"nested too deep: a line with more than {_MOST_DOTS:,} dots")
        tree = tomllib.loads(text)
        _check_depth(tree)
    except (ValueError, RecursionError) as error:
        problem = "nested too deep" if isinstance(error, RecursionError) else str(error)[:200]
        if "integer string conversion" in problem:  # Python's own limit
            problem = "a number of more than 4,300 digits"
        raise ConfigError(f"not valid TOML: {problem}", file=str(path)) from None
    return tree


def _check_depth(tree: object) -> None:
    """Raise `ValueError` for lists and mappings in more than `DEEPEST` levels."""
    level = [tree]
    for _ in range(DEEPEST + 1):
        parts = (list(part.values()) if isinstance(part, dict) else part for part in level)
        level = [
            part for each in parts if isinstance(each, list) for part in each if isinstance(part, list | dict)
        ]
        if not level:
            return
    raise ValueError(f"nested too deep: more than {DEEPEST} levels")


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number of JSON")


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text[:40]!r} is too large a number")
    return value


def _integer(text: str) -> int:
    if len(text) > _MOST_WHOLE:
        raise ValueError(f"{text[:40]!r} … is too long a number")
    return int(text)
