"""Reports of plans and sensitivities, from what `--json` prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rapid_des.report.sweep_text import difference_parts, failures_lines, mark_lines, marks, range_text
from rapid_des.report.tables import Column, Part, Plain, Table, columns, seconds_text, shown

_GIB = 2**30
_CHOICES = columns(
    **{name: name for name in ("tp", "cp", "ep", "etp", "pp", "dp")}, micro_batch="mb", batch="batch",
    schedule="schedule", chunks="chunks", sequence_parallel="sp", recompute="recompute", zero_stage="zero",
    order="order",
)  # fmt: skip
_COLUMNS = columns(
    row="", forecast=("forecast", seconds_text), step_time_s="simulated", mfu="mfu",
    memory_bytes=("GiB", lambda size: f"{size / _GIB:.1f}"), fits=("fits", ".0%"),
    bound="bound", energy_j=("kJ", lambda energy: f"{energy / 1e3:.4g}"), cost=("cost", ".4g"),
)  # fmt: skip
_COLUMNS += (*_CHOICES, *columns(flattened="flattened"))
_NO_AXES = ("why", "text", "layers")


def plan_report(plan: Plain, job: str, machine: str) -> Iterator[Part]:
    """Yield a plan's rows as a table, and what became of the other layouts."""
    yield f"{job} over {plan['gpus']} GPUs of {machine}: {plan['ways']:,} layouts"
    if plan["floor_s"] is not None:
        yield from _stopped(plan)
    yield plan_table(plan["rows"])
    yield _first_of(plan)
    if plan["floor_s"] is None and not all(row["certain"] for row in plan["rows"]):
        yield "? a layout that was not simulated may come before it"
    yield from mark_lines(plan["rows"])
    yield from _expected(plan["rows"][0])
    yield _counts(plan)
    yield from _runs(plan.get("runs"))
    if plan["pruned"]:
        yield _pruned(plan["pruned"])


def _runs(runs: Plain | None) -> Iterator[Part]:
    """Yield the rows as runs with failures."""
    if runs is None:
        return
    title = f"{runs['days']:g} days with the failures of {runs['reliability']}"
    figures = columns(id="row", goodput="goodput", tokens_per_day="tokens/day")
    yield Table(title, figures, runs["rows"])
    yield from failures_lines(runs["failures_matter"], "row")
    most, best = runs["others_tokens_per_day"], runs["rows"][0]["tokens_per_day"]
    if most is not None and most > best:
        yield (
            f"a layout that is no row may train up to {most / best - 1:.1%} more tokens a day, if it lost no "
            "time at all; --top takes more rows"
        )


def plan_table(rows: Sequence[Plain]) -> Table:
    """Return layouts as a table, the best first; what is equal in all is stated once."""
    bounded = any(row["mode"] != "flattened" and row["mode_bound_s"] for row in rows)
    cells = [
        {
            **row,
            **_forecasts(row),
            "row": f"{number}{_marks(row, first=number == 1)}",
            "flattened": _range(row) if bounded else None,
        }
        for number, row in enumerate(rows, 1)
    ]
    given = {name for row in cells for name, value in row.items() if value is not None}
    return Table("best first", [column for column in _COLUMNS if column.key in given], cells, shared=True)


def _forecasts(row: Plain) -> Plain:
    """Return the figures that a measurement is expected to show, of those that have a forecast."""
    found = {"forecast": row["forecast_s"], "mfu": row["mfu_forecast"], "cost": row.get("cost_forecast")}
    return {name: ends["median"] for name, ends in found.items() if ends}


def differing_text(rows: Sequence[Plain], row: Plain) -> str:
    """Return a row's choices that are not the same in all rows, as in `tp 4, zero 1`."""
    cells = {column: {column.cell(each) for each in rows} for column in _CHOICES}
    return ", ".join(f"{column.heading} {column.cell(row)}" for column in _CHOICES if len(cells[column]) > 1)


def row_difference_report(difference: Plain, rows: Sequence[Plain], number: int) -> Iterator[Part]:
    """Yield what makes the step of a row differ from that of the first, by part of the step and by name."""
    pair = (rows[0], rows[number - 1])
    first, second = (differing_text(pair, row) for row in pair)
    yield f"row {number} (B: {second}) compared with row 1 (A: {first})"
    yield from difference_parts(difference)


def command_text(command: str | None, number: int) -> str:
    """Return the command that simulates a row, on a line of its own that no terminal's width breaks."""
    if command is None:
        return f"--write-job FILE --row {number} writes row {number} as a job, which `run` simulates"
    return f"row {number} alone:\n    {command}"


def _stopped(plan: Plain) -> Iterator[str]:
    """Yield what is known of a plan that was stopped before its rows were certain."""
    first = plan["rows"][0]["step_time_s"]
    yield "stopped early: the best so far; a layout that was not simulated may come before rows marked ?"
    if not plan["floor_s"]:
        yield "the bounds of some layouts are not known yet: they may be faster by any amount"
        return
    least = seconds_text(plan["floor_s"])
    yield f"no layout that is not listed takes less than {least} ({plan['floor_s'] / first - 1:+.1%})"


def _first_of(plan: Plain) -> str:
    """Return how far another layout may be in front of the first."""
    first, within = f"first of {plan['ways']:,}", plan["within"]
    if plan["floor_s"] == 0:
        return "the first is the best of those that were simulated"
    if within is None:
        return (
            f"{first} by closed forms, which leave out waiting on links and bound nothing; "
            "--mode hierarchical bounds it"
        )
    if within:
        return f"{first} within {within:.2%}: no other layout can be faster by more"
    return f"{first}: no other layout is faster"


def _marks(row: Plain, *, first: bool) -> str:
    """Return the marks of a row: not certain, or as good as the first by the mode or by measurements."""
    uncertain = "" if row["certain"] else "?"
    return uncertain if first else uncertain + marks(row)


def _range(row: Plain) -> str:
    """Return where a row's flattened step lies."""
    if row["mode_bound_s"] is None:
        return "" if row["mode"] != "flattened" else seconds_text(row["step_time_s"])
    return range_text(row["mode_bound_s"])


def _expected(row: Plain) -> Iterator[str]:
    """Yield where a measurement of the best layout is expected, if such jobs were measured."""
    for expected in row["intervals"].values():
        low, high = (seconds_text(end) for end in expected["seconds"])
        yield (
            f"{expected['level']:.0%} interval of the first {low} to {high} "
            f"(as {expected['cases']} measured jobs of {expected['source']})"
        )


def _counts(plan: Plain) -> str:
    counts, done = dict(plan["counts"]), []
    for mode in ("analytical", "hybrid", "hierarchical", "flattened"):
        if counts.get(mode):
            done.append(f"{counts[mode]:,} simulated {mode}")
    refused, left = sum(plan["refused"].values()), []
    if counts.get("memory"):
        left.append(f"{counts['memory']:,} do not fit into memory")
    if refused:
        left.append(f"{refused:,} cannot be run")
    left.append("lower bounds rule out the rest" if plan["floor_s"] is None else "the rest was not simulated")
    return f"{', '.join(done)}; of the others {', '.join(left)}"


def _pruned(pruned: Sequence[Plain]) -> Table:
    rows = [
        {
            **row,
            "layout": " ".join(f"{name} {shown(name, row[name])}" for name in row if name not in _NO_AXES),
        }
        for row in pruned
    ]
    return Table(f"{len(pruned):,} layouts that are no rows", columns("why", "layout", text="because"), rows)


def part_speedup_report(speedups: Sequence[Plain]) -> Iterator[str]:
    """Yield on one line what makes the best step shorter, the most first."""
    moved = [speedup for speedup in speedups if speedup["change"] is not None]
    ranked = sorted(moved, key=lambda speedup: speedup["change"])
    parts = [f"{speedup['part']} {speedup['change']:+.1%}" for speedup in ranked]
    if parts:
        said = f"a quarter more of one part changes the first by: {'; '.join(parts)}"
        yield f"{said} (--sensitivity N by parameter)"
    for speedup in speedups:
        if speedup["change"] is None:
            yield f"{speedup['part']} cannot be moved: {speedup['refused']}"


def sensitivity_report(sensitivities: Plain, job: str, machine: str, *, top: int) -> Iterator[Part]:
    """Yield the strongest elasticities of a step, the rule of sums, and what is idle or cannot be moved."""
    base = sensitivities["step_time_s"]
    step = seconds_text(base)
    change = f"every parameter by {sensitivities['change']:.1%} down and up"
    yield f"{job} on {machine}: step {step}, {sensitivities['mode']}; {change}"
    names = columns(knob="parameter", kind="kind", elasticity=("elasticity", "+.4f"))
    ends = (Column(f"{end}_s", None, lambda step: f"{step / base - 1:+.3%}") for end in ("lower", "higher"))
    rows = sensitivities["rows"][:top]
    yield Table("by how many % the step changes for 1 %", (*names, *ends), rows)
    if len(sensitivities["rows"]) > top:
        yield f"… {len(sensitivities['rows']) - top} weaker"
    sums = sensitivities["sums"]
    yield f"all parameters: rates {sums.get('rate', 0.0):+.4f}, times {sums.get('time', 0.0):+.4f}"
    if sensitivities["scaled"] is not None:
        yield (f"all rates and clocks 1.25 times as high and all times as short, constants of kernels too: "
               f"the step times 1.25 is {sensitivities['scaled']:.4f} of what it was")  # fmt: skip
    if sensitivities["idle"]:
        yield f"nothing in this step depends on {', '.join(sensitivities['idle'])}"
    for name, why in sensitivities["refused"].items():
        yield f"cannot be moved: {name}: {why}"
