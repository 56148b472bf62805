"""What a launch script passes to the program that it starts: its text read, never run; and arguments by name.

Variables, arrays, defaults (`${TP:-8}`) and arithmetic are followed in the order of the lines. Branches and
loops are not: what stands in them is read as if it ran, and variables that it sets are named. Arguments are
taken as Megatron-LM's parser takes them.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct, field

from rapid_des.errors import ConfigError
from rapid_des.importers.keys import Keys, Tree, shortened

Words = list[str]

_ASSIGNMENT = re.compile(r"(?:(?:export|local|readonly|declare(?:\s+-\w+)*)\s+)?([A-Za-z_]\w*)(\+?)=")
_REFERENCE = re.compile(
    r"\$\(\((?P<sum>.{0,400}?)\)\)"
    r"|\$\{(?P<braced>\w+)(?:\[[@*]\])?(?::?[-=](?P<default>[^{}]*))?\}|\$(?P<plain>\w+)"
)
_OPENS = re.compile(r"(if|for|while|case|until)\b")
_CLOSES = re.compile(r"(fi|done|esac)\b")
_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_MOST_DEEP = 50
_LONGEST = 1 << 18
"""Largest script, in characters."""
_MOST_EXPANDED = 1 << 22
"""Most characters that all variables of a script may expand to."""
_LONGEST_VALUE, _MOST_VARIABLES = 1 << 16, 1 << 12
"""Limits of one word's characters and of variables, which stop variables that refer to themselves."""
_LONGEST_SUM = 400
_INT64 = range(-(2**63), 2**63)


class _Value(Struct):
    """The value of a variable, and which other variables it depends on."""

    text: str
    uses: set[str] = field(default_factory=set)


class LaunchCommand(Struct):
    """One program started by a script."""

    launcher: Words
    """The words before the program: torchrun and its options."""
    arguments: Words
    """The words after the program."""
    conditional: tuple[str, ...]
    """Variables in them that the script sets in a branch or loop."""


def read_launch(text: str, known: Mapping[str, str], marks: frozenset[str], *, file: str) -> LaunchCommand:
    """Return the last command that passes one of `marks` (`--num-layers`) to a Python program.

    `known` are variables that hold whatever the script sets. A text without such a command is a list of
    arguments. Words that refer to variables nobody sets keep their `$`.
    """
    if len(text) > _LONGEST:
        problem = f"a script of {len(text):,} characters; allowed: up to {_LONGEST:,}"
        raise ConfigError(problem, file=file)
    variables = {name: _Value(value) for name, value in known.items()}
    script = _Script(variables, frozenset(known), file)
    commands = list(script.commands(text))
    for words, uses in reversed(commands):
        programs = [place for place, word in enumerate(words) if word.endswith(".py")]
        if programs and marks.intersection(words):
            first = programs[0]
            return LaunchCommand(words[:first], words[first + 1 :], _sorted(uses & script.conditional))
    everything = [word for words, _ in commands for word in words]
    uses = {name for _, names in commands for name in names}
    return LaunchCommand([], everything, _sorted(uses & script.conditional))


def _sorted(names: set[str]) -> tuple[str, ...]:
    return tuple(sorted(names))


class _Script(Struct):
    """A script that is being read: its variables so far."""

    variables: dict[str, _Value]
    fixed: frozenset[str]
    file: str = ""
    """Name of the file, for error messages."""
    conditional: set[str] = field(default_factory=set)
    depth: int = 0
    room: int = _MOST_EXPANDED

    def commands(self, text: str) -> Iterator[tuple[Words, set[str]]]:
        """Yield the words of every command, and the variables they depend on."""
        for statement in _statements(text):
            if _CLOSES.match(statement):
                self.depth = max(0, self.depth - 1)
            if _OPENS.match(statement):
                self.depth += 1
            rest = self._assigned(statement)
            if rest:
                value = self._expanded(rest)
                yield _words(value.text), value.uses

    def _assigned(self, statement: str) -> str:
        """Make the assignments that a statement begins with; return what follows."""
        place = 0
        while match := _ASSIGNMENT.match(statement, place):
            end = _end_of_value(statement, match.end())
            text = statement[match.end() : end]
            place = _first_after_blanks(statement, end)
            if match[1] not in self.fixed:
                value = self._expanded(text[1:-1] if text.startswith("(") else text)
                self._assign(match[1], value, adds=bool(match[2]))
        return statement[place:]

    def _assign(self, name: str, value: _Value, *, adds: bool) -> None:
        before = self.variables.get(name)
        if adds and before is not None:
            value = _Value(f"{before.text} {value.text}", value.uses | before.uses)
        if self.depth and before is not None and before.text != value.text:
            self.conditional.add(name)
        self.variables[name] = value
        if len(value.text) > _LONGEST_VALUE:
            problem = f"{len(value.text):,} characters; allowed: up to {_LONGEST_VALUE:,}"
            raise ConfigError(problem, file=self.file, key=name)
        if len(self.variables) > _MOST_VARIABLES:
            raise ConfigError(f"more than {_MOST_VARIABLES:,} variables", file=self.file)

    def _expanded(self, text: str, *, sums: bool = True) -> _Value:
        """Return a text with variables replaced; with `sums` also arithmetic."""
        uses: set[str] = set()
        room = _LONGEST_VALUE

        def replaced(match: re.Match[str]) -> str:
            if match["sum"] is not None:
                return (self._sum(match["sum"], uses) if sums else None) or match[0]
            nonlocal room
            name = match["braced"] or match["plain"]
            value = self.variables.get(name)
            uses.add(name)
            if value is not None and (value.text or match["default"] is None):
                uses.update(value.uses)
                room -= len(value.text)
                if room < 0:
                    return match[0]
                self.room -= len(value.text)
                if self.room < 0:
                    problem = f"its variables stand for more than {_MOST_EXPANDED:,} characters"
                    raise ConfigError(problem, file=self.file)
                return value.text
            return match[0] if match["default"] is None else match["default"]

        for _ in range(_MOST_DEEP):  # a default may refer to another variable
            changed = _REFERENCE.sub(replaced, text)
            if changed == text:
                break
            text = changed
        return _Value(text, uses)

    def _sum(self, text: str, used: set[str]) -> str | None:
        """Return the value of an arithmetic expression, in which names need no `$`; None if it is invalid."""
        named = self._expanded(re.sub(r"\b([A-Za-z_]\w*)\b", r"$\1", text.replace("$", "")), sums=False)
        used.update(named.uses)
        result = _calculated(named.text)
        return None if result is None else str(result)


def _calculated(text: str) -> int | None:
    """Return the value of an integer expression; None if it is invalid.

    >>> _calculated("8 * (2 + 1)"), _calculated("8 * $NODES")
    (24, None)
    """
    if len(text) > _LONGEST_SUM:
        return None
    try:
        return _sum_of(ast.parse(text.strip().strip("\"'"), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _sum_of(node: ast.expr) -> int:
    """Return the value of an expression in 64 bits, as in a shell; `ValueError` if it is invalid."""
    value = None
    if isinstance(node, ast.Constant) and type(node.value) is int:
        value = node.value
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        value = _OPERATORS[type(node.op)](_sum_of(node.left), _sum_of(node.right))
    if value is None or value not in _INT64:
        raise ValueError("no sum")
    return value


def _words(text: str) -> Words:
    """Return the words of a text, quotes taken off."""
    return re.sub(r"[\"'\\]", "", text).split()


def _statements(text: str) -> Iterator[str]:
    """Yield the statements of a script: lines without comments, joined where a quote or list goes on."""
    collected: list[str] = []
    going = _Going()
    for line in text.replace("\\\n", " ").splitlines():
        part = _without_comment(line).strip()
        collected.append(part)
        going.take(f"{part} ")
        if not going.is_open:
            yield from _split(" ".join(collected).strip())
            collected, going = [], _Going()
    yield from _split(" ".join(collected).strip())


class _Going(Struct):
    """Whether a statement continues in the next line: open quotes, lists and loops so far."""

    quote: str = ""
    brackets: int = 0
    listed: bool = False

    def take(self, text: str) -> None:
        """Read a line."""
        *_, self.quote = ("", *_quotes(text, self.quote))
        self.brackets += text.count("(") - text.count(")")
        self.listed = self.listed or bool(re.search(r"\w\+?=\(", text))

    @property
    def is_open(self) -> bool:
        """Whether a quote or a list is open."""
        return bool(self.quote) or (self.listed and self.brackets > 0)


def _quotes(text: str, quote: str = "") -> list[str]:
    """Return which quote is open behind each letter of a text; `quote` is open before it."""
    opened = []
    before = ""
    for letter in text:
        if letter in "\"'" and quote in {"", letter} and before != "\\":
            quote = "" if quote else letter
        before = letter
        opened.append(quote)
    return opened


def _without_comment(line: str) -> str:
    if "#" not in line:
        return line
    opened = ["", *_quotes(line)]
    for match in re.finditer(r"(?:^|\s)#", line):
        if not opened[match.start()]:
            return line[: match.start()]
    return line


def _split(text: str) -> Iterator[str]:
    """Yield the parts of a statement between semicolons and keywords outside quotes."""
    start, opened = 0, ["", *_quotes(text)]
    for match in re.finditer(r";+|&&|\|\|", text):
        if not opened[match.start()]:
            yield from _without_keyword(text[start : match.start()])
            start = match.end()
    yield from _without_keyword(text[start:])


_BLANKS = re.compile(r"\s*")


def _first_after_blanks(text: str, place: int) -> int:
    match = _BLANKS.match(text, place)
    return match.end() if match else place


def _without_keyword(statement: str) -> Iterator[str]:
    statement = re.sub(r"^\s*(then|else|do|\{)\s+", "", statement).strip()
    if statement:
        yield statement


def _end_of_value(statement: str, start: int) -> int:
    """Return where the value that starts at `start` ends: a word, a quoted text, or a list."""
    if statement[start : start + 1] == "(":
        depth = 0
        for place in range(start, len(statement)):
            depth += {"(": 1, ")": -1}.get(statement[place], 0)
            if depth == 0:
                return place + 1
        return len(statement)
    depth, quote, before = 0, "", ""
    for place in range(start, len(statement)):
        letter = statement[place]
        depth += {"(": 1, ")": -1, "{": 1, "}": -1}.get(letter, 0)
        if letter.isspace() and depth <= 0 and not quote:
            return place
        if letter in "\"'" and quote in {"", letter} and before != "\\":
            quote = "" if quote else letter
        before = letter
    return len(statement)


class Arguments(Keys):
    """Arguments by name without dashes; those that refer to a variable nobody sets are refused when read."""

    def value(self, key: str, default: Any = ...) -> Any:
        """Return what stands at an argument; without a default it must be there."""
        value = super().value(key) if default is ... else super().value(key, default)
        if isinstance(value, str) and "$" in value:
            problem = f"{shortened(value)} is set nowhere in the script; give --variable NAME=VALUE"
            raise self.error(problem, key)
        return value

    def given(self, key: str) -> bool:
        """Return whether a flag is given."""
        return self.flag(key, default=False)


def by_name(words: Words) -> Tree:
    """Return arguments by name: True for a flag; of one that stands twice the last holds, as for argparse.

    >>> by_name("--bf16 --num-layers 2 --lr 1e-4 --split 99,1 --num-layers=3".split())
    {'bf16': True, 'num-layers': 3, 'lr': 0.0001, 'split': '99,1'}
    """
    tree: Tree = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, _, value = word[2:].replace("_", "-").partition("=")
            tree[name] = _value(value) if value else True
        elif name:
            before = tree[name]
            tree[name] = _value(word) if before is True else f"{before} {word}"
    return tree


_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,2})?\Z")
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}\Z")


def _value(word: str) -> int | float | str:
    if _WHOLE.match(word):
        return int(word)
    return float(word) if _NUMBER.match(word) else word
