"""Names, docstrings, comments and messages are plain technical English: no private dialect, no fragments."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "rapid_des"
DIALECT = {
    r"knobs?": "parameter",
    r"anew": "again",
    r"tells?|told|telling": "return, report, notify",
    r"floors?": "lower bound",
    r"(?<!under )ways?": "direction, route, layout, option",
    r"begin of|the begin": "start",
    r"so many|so much": "this many, a number of",
    r"sets? off|setting off": "start",
    r"oneself": "itself",
    r"likeness": "key, equality",
}
"""The banned words, and what to write instead."""
FIELD_FRAGMENT = re.compile(
    r"(Of|By|As|From|Against|Until|Since|Whose|Who|That of|Those|None:|Less of|More for|For (each|every|all)|"
    r"To how|Over how|How many (are|go|take)|By how|What (is|was|it|its|one|each|of|has)|See) ?\b|"
    r"[^.]*…$|(Bytes|Picoseconds|Microseconds|GPUs|Links|Nodes)( a second)?[.;]?$|.{,11}$"
)
"""Beginnings of a field's docstring that leave out what the field holds, and a bare unit or a word."""
NAMES_OF_FORMATS = frozenset({"ways", "floor"})
"""Keys of file formats, which stay."""
BANNED = re.compile(rf"(?<![\w.])({'|'.join(DIALECT)})(?![\w(])", re.IGNORECASE)

COMMENT = re.compile(r"(?:^|\s)#.*")
"""A comment, or the end of a text that holds the sign; texts are looked at all the same."""


@cache
def banned(text: str) -> tuple[str, ...]:
    """Return the banned words of a text; what stands between backquotes is code."""
    return tuple(match[0] for match in BANNED.finditer(re.sub(r"`[^`]*`", "", text)))


def texts(source: str, nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield line and text of each docstring, message and comment."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value
    for number, line in enumerate(source.splitlines(), 1):
        if comment := COMMENT.search(line):
            yield number, comment[0]


def names(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield line and words of each class, function, argument and variable that is defined."""
    for node in nodes:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.lineno, spelled(node.name)
        elif isinstance(node, ast.arg):
            yield node.lineno, spelled(node.arg)
        elif (
            isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id not in NAMES_OF_FORMATS
        ):
            yield node.lineno, spelled(node.id)


@cache
def spelled(name: str) -> str:
    """Return the words of a name: `_ToldEvery` and `told_every` are `told every`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", name).lower()


def fields(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield line and text of the docstring under each field."""
    for node in nodes:
        if isinstance(node, ast.ClassDef | ast.Module):
            for field, following in zip(node.body, node.body[1:], strict=False):
                match field, following:
                    case ast.AnnAssign() | ast.Assign(), ast.Expr(value=ast.Constant(value=str() as text)):
                        yield following.lineno, text


def faults(path: Path) -> Iterator[str]:
    """Yield place and word of each fault of a module."""
    source = path.read_text(encoding="utf-8")
    nodes = list(ast.walk(ast.parse(source)))
    for line, text in [*texts(source, nodes), *names(nodes)]:
        if banned(text):
            yield f"{path}:{line}: {banned(text)}: {text}"
    for line, text in fields(nodes):
        if FIELD_FRAGMENT.match(text):
            yield f"{path}:{line}: fragment: {text}"


@pytest.mark.parametrize("room", sorted(PACKAGE.iterdir()), ids=lambda path: path.name)
def test_a_room_is_in_plain_words(room: Path) -> None:
    modules = room.rglob("*.py") if room.is_dir() else [room] if room.suffix == ".py" else []
    found = [fault for path in modules for fault in faults(path)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "Of the tuples in it.",
        "Until when after its unit's start.",
        "Bytes a second.",
        "By name.",
        "As `rate`.",
    ],
)
def test_fragments_are_found(text: str) -> None:
    assert FIELD_FRAGMENT.match(text)


@pytest.mark.parametrize(
    "text", ["The bandwidth in bytes a second.", "Whether the node is a switch.", "Bytes of C, by member."]
)
def test_statements_are_not_taken_for_fragments(text: str) -> None:
    assert not FIELD_FRAGMENT.match(text)
    assert not banned(text)


@pytest.mark.parametrize("text", ["always halfway", "`np.floor` rounds down", "stream.tell()", "a gateway"])
def test_words_are_banned_only_as_words(text: str) -> None:
    assert not banned(text)
