"""The sections of a run that need only what `run --json` prints, its critical path and changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rapid_des.report.charts import Bars, HorizontalBar, PageSection, TextFile, Tile, Tiles
from rapid_des.report.charts.breakdown import WAITS, breakdown_bars, part_name, with_share
from rapid_des.report.critical_path import CriticalPath
from rapid_des.report.tables import Column, Part, Plain, Table, change_text, columns, seconds_text, shown
from rapid_des.report.why_text import SimulatedChange, cause_name, simulated_text
from rapid_des.units import time_text

_GIB = 2**30


def headline(plain: Plain, changes: Sequence[SimulatedChange] | None = None) -> PageSection:
    """Return the figures that say what bounds a step, whether it fits, and what to change."""
    tiles = [*_time_tiles(plain), _bound_tile(plain)]
    if "memory_bytes" in plain:
        tiles.append(_memory_tile(plain))
        tiles.append(_rate_tile(plain))
    if changes is not None:
        tiles.append(_change_tile(changes))
    return PageSection("In short", [Tiles(tiles)])


def _time_tiles(plain: Plain) -> Iterator[Tile]:
    simulated, forecast = f"{seconds_text(plain['step_time_s'])} simulated", plain.get("forecast_s")
    what = "A batch of requests" if "time_to_first_token_s" in plain else "A step"
    if forecast is None:
        yield Tile(
            f"{what} takes",
            seconds_text(plain["step_time_s"]),
            "simulated; no measured jobs to forecast from",
        )
    else:
        low, high = seconds_text(forecast["low"]), seconds_text(forecast["high"])
        note = f"forecast of a measurement; 80% between {low} and {high}. {simulated}"
        yield Tile(f"{what} takes", seconds_text(forecast["median"]), note)
    if "time_to_first_token_s" in plain:
        first, later = (
            seconds_text(plain[f"time_{name}_s"]) for name in ("to_first_token", "per_output_token")
        )
        yield Tile("First token", first, f"each next token {later}")


def _bound_tile(plain: Plain) -> Tile:
    parts = plain["breakdown_s"]
    largest = max(parts, key=lambda part: parts[part])
    share = parts[largest] / max(plain["step_time_s"], 1e-12)
    return Tile(
        "What bounds it",
        _bound_name(plain["bound"]),
        f"{part_name(largest)}: {share:.1%} of the time of rank {plain['critical_rank']}",
    )


def _bound_name(bound: str) -> str:
    words = {"hbm": "memory bandwidth", "launch": "kernel launches", "compute": "compute", **WAITS}
    return words.get(bound, f"{bound} communication").partition(":")[0]


def _memory_tile(plain: Plain) -> Tile:
    used, there = plain["memory_bytes"] / _GIB, plain["memory_capacity_bytes"] / _GIB
    note = f"{used:.1f} of {there:.1f} GiB on the fullest GPU, {used / there:.0%}"
    return Tile("Does it fit", "yes" if plain["memory_fits"] else "no: out of memory", note)


def _rate_tile(plain: Plain) -> Tile:
    """Return tokens/s and MFU as a measurement is expected to show them; without forecast as simulated."""
    forecast, simulated = plain.get("forecast_s"), plain["tokens_per_s"]
    slower = 1.0 if forecast is None else plain["step_time_s"] / max(forecast["median"], 1e-12)
    note = f"MFU {slower * plain['mfu']:.1%}, {slower * plain['tokens_per_s_per_gpu']:,.1f} tokens/s a GPU"
    note += "" if forecast is None else f" ({simulated:,.0f} tokens/s simulated)"
    return Tile("How much it does", f"{slower * simulated:,.0f} tokens/s", note)


def _change_tile(changes: Sequence[SimulatedChange]) -> Tile:
    if not changes:
        return Tile("What to change", "nothing alone", "no single change that was tried shortens the step")
    best = changes[0]
    return Tile("What helps most", f"{best.what}: {change_text(best.step_time, best.before)}", _then(best))


def _then(change: SimulatedChange) -> str:
    return f"then {_bound_name(change.bound)} is the largest part" if change.bound else "simulated"


def breakdown_section(plain: Plain) -> PageSection:
    """Return where the time of the critical rank goes, and which operators and messages stand behind it."""
    step = max(plain["step_time_ps"], 1)
    rows = [
        {"part": part, "name": name, "time_ps": time, "share": time / step}
        for part, names in (plain.get("attribution_ps") or {}).items()
        for name, time in names.items()
        if time
    ]
    named = (
        *columns("part", name="operator, collective or wait"),
        Column("time_ps", "time"),
        *columns(share=("share", ".2%")),
    )
    table = Table("what stands behind each part", named, rows)
    return PageSection("Where the time goes", [breakdown_bars(plain), table])


def changes_section(step_time: int, changes: Sequence[SimulatedChange]) -> PageSection:
    """Return the changes that shorten a step the most, each with its simulated step."""
    if not changes:
        return PageSection("What to change", [], "No single change that was tried shortens this step.")
    before = changes[0].before
    bars = [HorizontalBar("as it is", before, time_text(before), "before")]
    bars += [
        HorizontalBar(
            change.what,
            change.step_time,
            f"{change.step_time}  {change_text(change.step_time, before)}",
            "after",
        )
        for change in changes
    ]
    after = [f"{change.what}: {_then(change)}" for change in changes if change.bound]
    lead = f"The step time with one change, {simulated_text(changes, step_time)}."
    return PageSection("What to change", [Bars("step time with one change", bars), *after], lead)


def path_parts(path: CriticalPath) -> list[Part | Bars]:
    """Return the critical path by cause and by operator."""
    step = max(int(path.step_time), 1)
    bars = [
        HorizontalBar(cause_name(cause, path), time, with_share(time, step), cause)
        for cause, time in path.by_cause.items()
    ]
    rows = [
        {"cause": cause, "name": name, "time_ps": time, "share": time / step}
        for (cause, name), time in path.by_operator.items()
    ]
    named = (
        *columns(cause="waits for", name="operator, collective or message"),
        Column("time_ps", "time"),
        *columns(share=("share", ".2%")),
    )
    across = (
        f"It goes on at another rank {path.crossings:,} times, where a rank waits for the other one's work."
    )
    found: list[Part | Bars] = [Bars("what the critical path waits for", bars, step)]
    found += [across] if path.crossings else []
    return [*found, Table("the critical path by operator", named, rows)]


def memory_bars(plain: Plain) -> Bars:
    """Return the fullest GPU's memory by category."""
    parts = sorted(plain["memory_breakdown_bytes"].items(), key=lambda entry: -entry[1])
    bars = [
        HorizontalBar(name.replace("_", " "), size, shown("memory_bytes", size), name)
        for name, size in parts
        if size
    ]
    capacity = plain["memory_capacity_bytes"]
    title = f"memory of the fullest GPU by category; a full bar is all of its {shown('x_bytes', capacity)}"
    return Bars(title, bars, capacity)


def energy_bars(plain: Plain) -> Iterator[Bars]:
    """Yield the energy of a job by part, where it is known."""
    if (energy := plain.get("energy")) is None:
        return
    whole = energy["joules"]
    bars = [
        HorizontalBar(name.replace("_", " "), part, f"{part:.4g} J  {part / whole:.1%}", name)
        for name, part in energy["joules_by_part"].items()
        if part
    ]
    yield Bars(f"energy by part, modelled; left out: {', '.join(energy['left_out'])}", bars, whole)


def basis_section(plain: Plain, inputs: Sequence[TextFile]) -> PageSection:
    """Return the inputs, what priced the run, and what there is to note."""
    priced = plain.get("priced_with") or {}
    facts = {
        "mode": f"{plain['mode']}, {plain['switching']}, engine {plain['engine']}",
        "simulated": f"{plain['hops']:,} link hops",
        "software": priced.get("software") or "-",
        "device": priced.get("device") or "-",
        "clock": priced.get("clock") or "-",
        "collectives": ", ".join(f"{name}: {how}" for name, how in (priced.get("collectives") or {}).items()),
        "validated against measurements of": ", ".join(priced.get("validated") or ())
        or "nothing on this device",
    }
    notes = Table("notes", columns(note=""), [{"note": note} for note in plain["notes"]])
    return PageSection("Inputs and basis", [facts, notes, *inputs])
