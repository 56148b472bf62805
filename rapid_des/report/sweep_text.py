"""Studies of many points as lines for a terminal, from the plain data that `--json` prints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rapid_des.report.evidence import unmeasured_lines
from rapid_des.report.result_text import time_text
from rapid_des.report.tables import table
from rapid_des.units import PS_PER_S, Size

Plain = Mapping[str, Any]
_LEVELS = 8
_GIB = 2**30
_TERMS = 16
_NAMES = {
    "id": "point",
    "step_time_s": "step time",
    "tokens_per_s": "tokens/s",
    "tokens_per_gpu_s": "tokens/s/GPU",
    "mfu": "MFU",
    "memory_bytes": "memory",
    "gpus": "GPUs",
    "energy_j": "energy",
}


def heading(name: str) -> str:
    """Return the title of a column.

    >>> heading("step_time_s"), heading("tp")
    ('step time', 'tp')
    """
    return _NAMES.get(name, name)


def cell(name: str, value: Any) -> str:
    """Return a value of a column as text.

    >>> cell("step_time_s", 0.0015), cell("mfu", 0.5), cell("memory_bytes", 2**30), cell("mfu", None)
    ('1.5 ms', '50.0 %', '1 GiB', '-')
    """
    if value is None:
        return "-"
    if name == "mfu":
        return f"{value:.1%}".replace("%", " %")
    if name.endswith("_bytes"):
        return f"{value / _GIB:.4g} GiB" if value >= _GIB else str(Size(round(value)))
    if name.endswith("_s") and not name.startswith("tokens"):
        return time_text(round(value * PS_PER_S))
    if name == "energy_j":
        return f"{value / 1000:.4g} kJ"
    if name.startswith("tokens_per"):
        return f"{value:,.0f}" if value >= 100 else f"{value:.4g}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def points_lines(title: str, rows: Sequence[Plain]) -> Iterator[str]:
    """Yield points as a table, a column for every figure that any of them has."""
    names = [name for name in (rows[0] if rows else ()) if any(row[name] is not None for row in rows)]
    cells = [[cell(name, row[name]) for name in names] for row in rows]
    sides = "".join("<" if all(isinstance(row[name], str) for row in rows) else ">" for name in names)
    yield from table(title, [heading(name) for name in names], sides, cells)


def sweep_lines(plain: Plain, title: str) -> Iterator[str]:
    """Yield what a study found: how many points, the best, the front, which axes matter, what failed."""
    failed = sum(failure["points"] for failure in plain["failed"])
    yield f"{title}: {plain['points']:,} point{'s' * (plain['points'] != 1)}, {failed:,} failed" + (
        f"; {'at least ' * plain['left_at_least']}{plain['left']:,} not reached" if plain["left"] else ""
    )
    objective = plain["objective"]
    yield from points_lines(f"the best by {heading(objective)}", plain["best"])
    if len(plain["best_by_gpus"]) > 1:
        yield from points_lines("the best for each number of GPUs", plain["best_by_gpus"])
    x, y = (heading(name) for name in plain["pareto"]["columns"])
    if len(plain["pareto"]["points"]) > 1:
        yield from points_lines(f"no point beats these in both {x} and {y}", plain["pareto"]["points"])
    yield from _effect_lines(plain)
    for failure in plain["failed"]:
        first = failure["text"].splitlines()[0]
        many = f"{failure['points']:,} points, the first is" if failure["points"] > 1 else "point"
        yield f"\n  {failure['error']}: {many} {failure['first']}:"
        yield f"    {first}"
    yield from unmeasured_lines(plain["not_validated"])


def _effect_lines(plain: Plain) -> Iterator[str]:
    objective = plain["objective"]
    rows = []
    for effect in plain["main_effects"]:
        levels = effect["levels"]
        typical = ((level["value"], cell(objective, level["typical"])) for level in levels[:_LEVELS])
        shown = ", ".join(f"{value}: {time}" for value, time in typical)
        more = f", and {len(levels) - _LEVELS} more" if len(levels) > _LEVELS else ""
        rows.append([effect["axis"], f"{effect['share']:.0%}".replace("%", " %"), shown + more])
    header = ["axis", "of variance", f"geometric mean of {heading(objective)} by value"]
    yield from table("axes, by how much of the differences goes with them", header, "<><", rows)
    pairs = [pair for pair in plain["interactions"] if pair["share"] >= 0.01][:5]
    cells = [[" x ".join(pair["axes"]), f"{pair['share']:.0%}".replace("%", " %")] for pair in pairs]
    yield from table("pairs, beyond what each axis adds", ["pair", "of variance"], "<>", cells)


def difference_lines(plain: Plain, names: tuple[str, str]) -> Iterator[str]:
    """Yield how two results differ: figures, parts, then the operators, collectives and waits that did it."""
    before, after = (round(plain[key] * PS_PER_S) for key in ("before_s", "after_s"))
    share = (after - before) / max(before, 1)
    yield f"A  {names[0]}"
    yield f"B  {names[1]}"
    yield f"step time {time_text(before)} to {time_text(after)}: {_signed(plain['added_ps'])} ({share:+.2%})"
    figures = plain["figures"].items()
    rows = [
        [heading(name), cell(name, figure["before"]), cell(name, figure["after"])] for name, figure in figures
    ]
    yield from table("figures", ["", "A", "B"], "<>>", [row for row in rows if row[1] != row[2]])
    parts = [[part["part"], _signed(part["added_ps"])] for part in plain["parts"] if part["added_ps"]]
    yield from table("where the difference is; the rows add up to it", ["part", "added"], "<>", parts)
    yield from table(
        "what makes it", ["part", "name", "A", "B", "added"], "<<>>>", _term_rows(plain["terms"])
    )
    yield from unmeasured_lines(plain["not_validated"])


def _term_rows(terms: Iterable[Plain]) -> list[list[str]]:
    changed = [term for term in terms if term["added_ps"]]
    rows = [
        [
            term["part"],
            term["name"],
            *(time_text(round(term[key] * PS_PER_S)) for key in ("before_s", "after_s")),
            _signed(term["added_ps"]),
        ]
        for term in changed[:_TERMS]
    ]
    if len(changed) > _TERMS:
        rest = sum(term["added_ps"] for term in changed[_TERMS:])
        rows.append(["", f"{len(changed) - _TERMS} more", "", "", _signed(rest)])
    return rows


def _signed(picoseconds: int) -> str:
    return ("+" if picoseconds > 0 else "") + time_text(picoseconds)
