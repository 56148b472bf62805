"""Reports of studies of many points, from the plain data that `--json` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rapid_des.report.evidence import unmeasured_lines
from rapid_des.report.tables import (
    Column,
    Part,
    Plain,
    Table,
    added_text,
    change_text,
    columns,
    counted,
    heading,
    seconds_text,
    shown,
)

_LEVELS = 8
_TERMS = 16
_SMALL = 0.01
"""The least share of the variance with which a pair of axes is listed."""


def points_table(title: str, rows: Sequence[Plain]) -> Table:
    """Return points as a table, a column for every figure that any of them has."""
    names = [name for name in (rows[0] if rows else ()) if any(row[name] is not None for row in rows)]
    return Table(title, columns(*names), rows, shared=True)


def sweep_report(plain: Plain, title: str) -> Iterator[Part]:
    """Yield what a study found: how many points, the best, the front, which axes matter, what failed."""
    failed = sum(failure["points"] for failure in plain["failed"])
    left = f"; {'at least ' * plain['left_at_least']}{plain['left']:,} not reached" if plain["left"] else ""
    yield f"{title}: {counted(plain['points'], 'point')}, {failed:,} failed{left}"
    yield from _compared(plain)
    yield points_table(f"the best by {heading(plain['objective'])}", list(_best(plain)))
    if plain["objective"] == "step_time_s":
        yield from mark_lines(plain["best"])
    yield from failures_lines(plain["failures_matter"], "point")
    if len(plain["best_by_gpus"]) > 1:
        yield points_table("the best for each number of GPUs", plain["best_by_gpus"])
    x, y = (heading(name) for name in plain["pareto"]["columns"])
    if len(plain["pareto"]["points"]) > 1:
        yield points_table(f"no point is better than these in both {x} and {y}", plain["pareto"]["points"])
    yield from _effects(plain)
    for failure in plain["failed"]:
        many = f"{failure['points']:,} points, the first is" if failure["points"] > 1 else "point"
        yield f"{failure['error']}: {many} {failure['first']}: {failure['text'].splitlines()[0]}"
    yield from unmeasured_lines(plain["not_validated"])


def _compared(plain: Plain) -> Iterator[Table]:
    """Yield the best point for each value of the compared axis."""
    axis, rows = plain["compare"], plain["compared"]
    if len(rows) > 1:
        cells = [{**row, "gain": row["gain"] and f"{row['gain']:.2f} x"} for row in rows]
        for cell in cells:
            del cell["breakdown_s"]
        title = f"the best for each {heading(axis)}; gain: how many times as good as {rows[0][axis]}"
        yield points_table(title, cells)


def _best(plain: Plain) -> Iterator[Plain]:
    """Yield the best points: marked as good as the first, and with the ends of the flattened step."""
    left_out = {"breakdown_s", "mode_bound_s", "told_apart", "may_be_faster"}
    bounds = [row["mode_bound_s"] for row in plain["best"]]
    bounded = any(bound and bound["low"] < bound["high"] for bound in bounds)
    for row, bound in zip(plain["best"], bounds, strict=True):
        kept = {name: value for name, value in row.items() if name not in left_out}
        if plain["objective"] == "step_time_s":
            kept["id"] = f"{row['id']}{marks(row)}"
        yield kept | ({"flattened": range_text(bound)} if bounded else {})


def differing_axes(plain: Plain, rows: Sequence[Plain], row: Plain) -> str:
    """Return a point's values on the axes that are not the same in all rows, as in `tp 2, pp 4`."""
    names = [effect["axis"] for effect in plain["main_effects"]]
    several = [name for name in names if len({str(each[name]) for each in rows}) > 1]
    return ", ".join(f"{heading(name)} {row[name]}" for name in several)


def range_text(bound: Plain | None) -> str:
    """Return where a flattened step lies."""
    ends = {} if bound is None else dict.fromkeys(seconds_text(bound[end]) for end in ("low", "high"))
    return " to ".join(ends)


def marks(row: Plain) -> str:
    """Return the marks of a row that is as good as the first by the mode (=) or by measurements (~)."""
    return "=" * (row["may_be_faster"] is True) + "~" * (row["told_apart"] is False)


def mark_lines(rows: Sequence[Plain]) -> Iterator[str]:
    """Yield what the marks mean that rows after the first have."""
    if any(row["told_apart"] is False for row in rows[1:]):
        yield "~ measurements do not distinguish it from the first: predictions of layouts were off by more"
    if any(row["may_be_faster"] for row in rows[1:]):
        yield "= the mode does not distinguish it from the first: the flattened step lies within these ends"


def failures_lines(matter: Plain | None, name: str) -> Iterator[str]:
    """Yield whether the best with failures is the best without them too; None: no runs were asked for."""
    if matter is None:
        return
    if matter["best"] == matter["healthy_best"]:
        yield f"{name} {matter['best']} has the most tokens a day with failures, and without them too"
        return
    yield (
        f"{name} {matter['best']} has the most tokens a day with failures; {name} {matter['healthy_best']}, "
        f"the best without, has {shown('tokens_per_day', matter['tokens_per_day_lost'])} fewer"
    )


def _effects(plain: Plain) -> Iterator[Table]:
    objective, share = plain["objective"], columns(share=("of variance", ".0%"))
    rows = [{**effect, "means": _means(effect["levels"], objective)} for effect in plain["main_effects"]]
    means = columns(means=f"geometric mean of {heading(objective)} by value")
    yield Table("axes, by their share of the differences", columns("axis") + share + means, rows)
    pairs = [pair for pair in plain["interactions"] if pair["share"] >= _SMALL][:5]
    yield Table("pairs, beyond what each axis adds", columns(axes=("pair", " x ".join)) + share, pairs)


def _means(levels: Sequence[Plain], objective: str) -> str:
    """Return the mean of the objective at each value of an axis."""
    more = f", and {len(levels) - _LEVELS} more" if len(levels) > _LEVELS else ""
    typical = (f"{level['value']}: {shown(objective, level['typical'])}" for level in levels[:_LEVELS])
    return f"{', '.join(typical)}{more}"


def difference_report(plain: Plain, names: tuple[str, str]) -> Iterator[Part]:
    """Yield how two results differ: figures, parts, then the operators, collectives and waits behind it."""
    yield f"A  {names[0]}\nB  {names[1]}"
    yield from difference_parts(plain)


def difference_parts(plain: Plain) -> Iterator[Part]:
    """Yield how B differs from A, without their names."""
    before, after = plain["before_s"], plain["after_s"]
    change = f"{added_text(plain['added_ps'])} ({change_text(after, before)})"
    yield from _forecast(plain["forecast_s"])
    yield f"step time {seconds_text(before)} to {seconds_text(after)}: {change}"
    sides = (Column("before", "A", side=">"), Column("after", "B", side=">"))
    yield Table("figures", (Column("name", ""), *sides), list(_figures(_as_expected(plain))))
    parts = [part for part in plain["parts"] if part["added_ps"]]
    added = ("added", added_text)
    yield Table("where the difference is; the rows add up to it", columns("part", added_ps=added), parts)
    terms = [term for term in plain["terms"] if term["added_ps"]]
    named = columns("part", "name", before_s="A", after_s="B", added_ps=added)
    yield Table("what makes it", named, [*terms[:_TERMS], *_rest(terms[_TERMS:])])
    yield from unmeasured_lines(plain["not_validated"])


def _forecast(forecasts: Mapping[str, Plain | None]) -> Iterator[str]:
    """Yield what measurements of both steps are expected to show, if there is evidence for both."""
    one, two = (forecasts[side] for side in ("before", "after"))
    if one is not None and two is not None:
        before, after = one["median"], two["median"]
        change = change_text(after, before)
        yield f"forecast {seconds_text(before)} to {seconds_text(after)}: {change}"


def _as_expected(plain: Plain) -> dict[str, Plain]:
    """Return the figures, those that go with the time as forecast if there is evidence for both results."""
    figures, forecasts = dict(plain["figures"]), plain["forecast_s"]
    if None not in forecasts.values():
        for name in ("tokens_per_s", "mfu"):
            figures[name] = {
                side: value and value * plain[f"{side}_s"] / forecasts[side]["median"]
                for side, value in figures[name].items()
            }
    return figures


def _figures(figures: Mapping[str, Plain]) -> Iterator[Plain]:
    """Yield the figures that differ, as text."""
    for name, figure in figures.items():
        cells = {side: shown(name, figure[side]) for side in ("before", "after")}
        if cells["before"] != cells["after"]:
            yield {"name": heading(name), **cells}


def _rest(terms: Sequence[Plain]) -> list[Plain]:
    """Return a row for all terms that are not listed."""
    added = sum(term["added_ps"] for term in terms)
    return [{"part": "", "name": f"{len(terms)} more", "added_ps": added}] if terms else []
