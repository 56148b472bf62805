"""Names, docstrings, comments and messages are plain technical English: no private dialect, no fragments."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "rapid_des"
HELD = (
    "arrays.py",
    "bounded_cache.py",
    "chakra",
    "cli",
    "compiling",
    "config",
    "device",
    "engines",
    "errors.py",
    "extensions.py",
    "frontend",
    "importers",
    "inputs.py",
    "learned",
    "machine.py",
    "modes",
    "network",
    "processes.py",
    "program",
    "public_names.py",
    "report",
    "runs",
    "serving",
    "simulation.py",
    "studies/__init__.py",
    "studies/alone.py",
    "studies/axes.py",
    "studies/bench.py",
    "studies/bench_cases.py",
    "studies/capacity.py",
    "studies/capacity_report.py",
    "studies/choices.py",
    "studies/closed_form_bounds.py",
    "studies/collective_bench.py",
    "studies/criticality.py",
    "studies/database.py",
    "studies/deadline.py",
    "studies/difference.py",
    "studies/draw_statistics.py",
    "studies/effects.py",
    "executors.py",
    "studies/expressions.py",
    "studies/fault_rows.py",
    "studies/fault_sample.py",
    "studies/faults.py",
    "studies/lower_bounds.py",
    "studies/made_of.py",
    "studies/memory_bounds.py",
    "studies/overlap_bound.py",
    "studies/parameters.py",
    "studies/points.py",
    "studies/ray_cluster.py",
    "studies/results.py",
    "studies/search.py",
    "studies/sensitivity.py",
    "studies/settings.py",
    "studies/sharded_gemm.py",
    "studies/spaces.py",
    "studies/splits.py",
    "studies/stage_paths.py",
    "studies/stand_ins.py",
    "studies/store.py",
    "studies/stream_paths.py",
    "studies/sweep.py",
    "studies/traffic.py",
    "studies/worker_pools.py",
    "units.py",
    "values.py",
    "version.py",
)
"""The files and folders of the package to which the rule applies; it grows until it holds all of them."""
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
NAMES_OF_FORMATS = frozenset({"ways"})
"""Keys of file formats, which stay."""


def sources() -> list[Path]:
    """Return the modules to which the rule applies."""
    places = [PACKAGE / place for place in HELD]
    return sorted(path for place in places for path in (place.rglob("*.py") if place.is_dir() else [place]))


def banned(text: str) -> list[str]:
    """Return the banned words of a text; what stands between backquotes is code."""
    prose = re.sub(r"`[^`]*`", "", text)
    return [word for word in DIALECT if re.search(rf"(?<![\w.])({word})(?![\w(])", prose, re.IGNORECASE)]


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each docstring, message and comment."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def names(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and words of each class, function, argument and variable that is defined."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.lineno, spelled(node.name)
        elif isinstance(node, ast.arg):
            yield node.lineno, spelled(node.arg)
        elif (
            isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id not in NAMES_OF_FORMATS
        ):
            yield node.lineno, spelled(node.id)


def spelled(name: str) -> str:
    """Return the words of a name: `_ToldEvery` and `told_every` are `told every`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", name).lower()


def fields(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of the docstring under each field."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef | ast.Module):
            for field, following in zip(node.body, node.body[1:], strict=False):
                match field, following:
                    case ast.AnnAssign() | ast.Assign(), ast.Expr(value=ast.Constant(value=str() as text)):
                        yield following.lineno, text


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_is_in_plain_words(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    found = [(line, banned(text), text) for line, text in [*texts(source), *names(source)] if banned(text)]
    found += [(line, ["fragment"], text) for line, text in fields(source) if FIELD_FRAGMENT.match(text)]
    assert not found, "\n".join(f"{path}:{line}: {word}: {text}" for line, word, text in found)


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
