"""Reports of plans and sensitivities, from what `--json` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rapid_des.report.tables import Column, Part, Table, time_text
from rapid_des.units import PS_PER_S, Size

Plain = Mapping[str, Any]
_GIB = int(Size.parse("1 GiB"))
_SHORT = {
    "sequence_parallel": "sp",
    "micro_batch": "mb",
    "zero_stage": "zero",
    "memory_bytes": "GiB",
    "row": "",
    "step_time_s": "step",
    "energy_j": "kJ",
}


def plan_report(plan: Plain, job: str, machine: str) -> Iterator[Part]:
    """Yield a plan's rows as a table, and what became of the other layouts."""
    yield f"{job} over {plan['gpus']} GPUs of {machine}: {plan['ways']:,} layouts"
    if plan["floor_s"] is not None:
        yield from _stopped(plan)
    yield plan_table(plan["rows"])
    yield _first_of(plan)
    if any(map(_as_good, plan["rows"][1:])):
        yield "~ measurements do not distinguish it from the first: predictions of layouts were off by more"
    if any(row["may_be_faster"] for row in plan["rows"]):
        yield "= the mode does not distinguish it from the first: the flattened step lies within these ends"
    yield from _expected(plan["rows"][0])
    yield _counts(plan)
    if plan["pruned"]:
        yield _pruned(plan["pruned"])


def plan_table(rows: Sequence[Plain]) -> Table:
    """Return layouts as a table, the best first; what is equal in all is stated once."""
    bounded = any(row["mode"] != "flattened" and row["mode_bound_s"] for row in rows)
    cells = [
        {"row": f"{number}{_marks(row, first=number == 1)}", **_cells(row)}
        for number, row in enumerate(rows, 1)
    ]
    for row, shown in zip(rows, cells, strict=True) if bounded else ():
        shown["flattened"] = _range(row)
    names = [Column(name, _SHORT.get(name), side=">") for name in (cells[0] if rows else ())]
    return Table("best first", names, cells, shared=True)


def _stopped(plan: Plain) -> Iterator[str]:
    """Yield what is known of a plan that was stopped before its rows were certain."""
    first = plan["rows"][0]["step_time_s"]
    yield "stopped before it was sure: the best so far, of which those marked ? are not certain"
    if not plan["floor_s"]:
        yield "not all layouts were looked at: others may be faster by any amount"
        return
    least = time_text(round(plan["floor_s"] * PS_PER_S))
    yield f"no layout that is not listed takes less than {least} ({plan['floor_s'] / first - 1:+.1%})"


def _first_of(plan: Plain) -> str:
    """Return how far another layout may be in front of the first."""
    first, within = f"first of {plan['ways']:,}", plan["within"]
    if plan["floor_s"] == 0:
        return f"first of {plan['ways']:,} that were looked at"
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
    marks = "" if row["certain"] else "?"
    return marks if first else marks + "=" * (row["may_be_faster"] is True) + "~" * _as_good(row)


def _range(row: Plain) -> str:
    """Return where a row's flattened step lies."""
    if row["mode_bound_s"] is None:
        return "" if row["mode"] != "flattened" else time_text(round(row["step_time_s"] * PS_PER_S))
    low, high = (time_text(round(row["mode_bound_s"][end] * PS_PER_S)) for end in ("low", "high"))
    return f"{low} to {high}"


def _expected(row: Plain) -> Iterator[str]:
    """Yield where a measurement of the best layout is expected, if such jobs were measured."""
    for expected in row["intervals"].values():
        low, high = (time_text(round(end * PS_PER_S)) for end in expected["seconds"])
        yield (
            f"{expected['level']:.0%} interval of the first {low} to {high} "
            f"(as {expected['cases']} measured jobs of {expected['source']})"
        )


def _as_good(row: Plain) -> bool:
    """Return whether measurements do not distinguish a layout from the best one."""
    return row["told_apart"] is False


def _cells(row: Plain) -> dict[str, str]:
    """Return what a table shows of a row, by column."""
    cells = {
        "step_time_s": time_text(round(row["step_time_s"] * PS_PER_S)),
        "mfu": "" if row["mfu"] is None else f"{row['mfu']:.1%}",
        "memory_bytes": f"{row['memory_bytes'] / _GIB:.1f}",
        "bound": row["bound"],
    }
    if row["energy_j"] is not None:
        cells["energy_j"] = f"{row['energy_j'] / 1e3:.4g}"
    if "cost" in row:
        cells["cost"] = f"{row['cost']:.4g}"
    for name in ("tp", "cp", "ep", "etp", "pp", "dp", "micro_batch", "batch", "schedule", "chunks",
                 "sequence_parallel", "recompute", "zero_stage", "order"):  # fmt: skip
        if name in row:
            cells[name] = _value(row[name])
    return cells


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _counts(plan: Plain) -> str:
    counts, done = dict(plan["counts"]), []
    for mode in ("analytical", "hybrid", "hierarchical", "flattened"):
        if counts.get(mode):
            done.append(f"{counts[mode]:,} simulated {mode}")
    if counts.get("memory"):
        done.append(f"{counts['memory']:,} looked at do not fit into memory")
    cut = f"; lower bounds exclude the rest ({sum(plan['refused'].values()):,} refusals before)"
    return ", ".join(done) + cut


def _pruned(pruned: Sequence[Plain]) -> Table:
    rows = [
        {
            "why": row["why"],
            "layout": " ".join(
                f"{name} {_value(value)}"
                for name, value in row.items()
                if name not in ("why", "text", "layers")
            ),
            "text": row["text"],
        }
        for row in pruned
    ]
    columns = (Column("why"), Column("layout"), Column("text", "because"))
    return Table(f"{len(pruned):,} layouts that are no rows", columns, rows)


def leaning_report(leanings: Sequence[Plain]) -> Iterator[str]:
    """Yield on one line what makes the best step shorter, the most first."""
    moved = [leaning for leaning in leanings if leaning["change"] is not None]
    ranked = sorted(moved, key=lambda leaning: leaning["change"])
    parts = [f"{leaning['part']} {leaning['change']:+.1%}" for leaning in ranked]
    if parts:
        yield f"the first with a quarter more of one part: {'; '.join(parts)} (--sensitivity N by parameter)"
    for leaning in leanings:
        if leaning["change"] is None:
            yield f"{leaning['part']} can not be moved: {leaning['refused']}"


def sensitivity_report(sensitivities: Plain, job: str, machine: str, *, top: int) -> Iterator[Part]:
    """Yield the strongest elasticities of a step, the rule of sums, and what is idle or can not be moved."""
    base = sensitivities["step_time_s"]
    step = time_text(round(base * PS_PER_S))
    change = f"every parameter by {sensitivities['change']:.1%} down and up"
    yield f"{job} on {machine}: step {step}, {sensitivities['mode']}; {change}"
    yield Table(
        "by how many % the step changes for 1 %",
        (
            Column("knob", "parameter"),
            Column("kind"),
            Column("elasticity", None, lambda value: f"{value:+.4f}"),
            *(Column(f"{end}_s", None, lambda step: _changed(step, base)) for end in ("lower", "higher")),
        ),
        sensitivities["rows"][:top],
    )
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
        yield f"can not be moved: {name}: {why}"


def _changed(step: float | None, base: float) -> str:
    return "–" if step is None else f"{step / base - 1:+.3%}"
