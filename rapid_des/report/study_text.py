"""Reports of studies: faults, benches, a sharded GEMM, validation.

Each function takes the plain data that `--json` prints.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rapid_des.report.evidence import unmeasured_lines
from rapid_des.report.notes import drawn_line
from rapid_des.report.sweep_text import failures_lines, points_table
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
)
from rapid_des.units import PS_PER_S, Size, time_text

_BINARY = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10}
_BYTES = re.compile(r"\b(\d+) B\b")
_CHANGES = 8
_MOST_SHOWN = 3
"""Number of configurations whose slowest draws are shown, and of the best ones by each figure."""


def scenario_report(scenario: Plain) -> Iterator[Part]:
    """Yield a step with faults beside the one without, the largest changes first."""
    healthy, faulty = scenario["healthy"], scenario["faulty"]
    yield {
        "healthy": time_text(healthy["step_time_ps"]),
        "with faults": f"{time_text(faulty['step_time_ps'])}  ({change_text(scenario['slowdown'], 1)})",
        "critical rank": f"{healthy['critical_rank']} without, {faulty['critical_rank']} with the faults",
    }
    if scenario["faster"]:
        yield f"faster with the faults: {scenario['faster']}"
    if scenario["drawn"]:
        yield drawn_line(scenario["drawn"])
    titles = {
        "kinds": f"where the time of rank {scenario['rank']} goes, critical with the faults",
        "collectives": "collectives, summed over their members",
        "busy": "links: time that they serve",
        "links": "links: time that transfers wait for them",
        "ranks": "ranks: waiting for peers",
    }
    for name, title in titles.items():
        yield _changes(title, scenario[name])


def _changes(title: str, rows: Sequence[Plain]) -> Table:
    listed = rows if len(rows) <= _CHANGES else [*rows[: _CHANGES - 2], *rows[-2:]]
    left_out = len(rows) - len(listed)
    changed = [
        {
            **row,
            "name": _BYTES.sub(lambda size: _rounded(int(size[1])), row["name"]),
            "added": round(row["faulty_s"] * PS_PER_S) - round(row["healthy_s"] * PS_PER_S),
        }
        for row in listed
    ]
    names = columns(name="", healthy_s="healthy", faulty_s="with faults", added=("added", added_text))
    return Table(f"{title} ({left_out} in between are left out)" if left_out else title, names, changed)


def _rounded(size: int) -> str:
    unit, factor = next(((u, f) for u, f in _BINARY.items() if size >= f), ("B", 1))
    return f"{size / factor:.4g} {unit}"


def _from_one(ratio: float) -> str:
    return f"{ratio - 1:+.2%}"


def criticality_report(study: Plain, top: int | None = None) -> Iterator[Part]:
    """Yield a ranking of parts, those of one kind and cost in one row; `top` rows at most."""
    step = seconds_text(study["healthy_s"])
    yield f"healthy step {step}; each part alone at {study['derate']:g} of its speed"
    classes = _alike(study["rows"])
    listed = classes[:top]
    most = max((row["cost_s"] for row in listed), default=0.0)
    kinds = columns("kind", parts="parts", count="alike", step_time_s="step time", cost_s="cost")
    bar = Column("cost_s", "", lambda cost: "█" * round(20 * max(cost, 0) / (most or 1)), side="<")
    yield Table("", (*kinds, *columns(slowdown=("slower", _from_one)), bar), listed)
    hidden = len(classes) - len(listed)
    yield (
        f"{counted(study['simulations'], 'simulation')} for {counted(len(study['rows']), 'part')}; "
        "parts in one row cost the same" + (f"; {counted(hidden, 'row')} not shown" if hidden else "")
    )
    if study["left"]:
        yield f"interrupted: {study['left']} parts were not reached"


def _alike(rows: Sequence[Plain]) -> list[Plain]:
    """Return a row for all parts of a kind with one cost: the first of them, their names and their number."""
    classes: dict[tuple[str, float, bool], list[Plain]] = {}
    for row in rows:
        idle = row["source"] == "carries nothing"
        classes.setdefault((row["kind"], row["step_time_s"], idle), []).append(row)
    return [
        {**alike[0], "parts": _names([row["name"] for row in alike], idle=idle), "count": len(alike)}
        for (_, _, idle), alike in classes.items()
    ]


_FEW_NAMES = 3


def _names(names: Sequence[str], *, idle: bool) -> str:
    """Return the names of some parts, the middle left out where there are many.

    >>> _names(["gpu0", "gpu1", "gpu2", "gpu3"], idle=False)
    'gpu0, gpu1, … gpu3'
    """
    few = names if len(names) <= _FEW_NAMES else [*names[:2], f"… {names[-1]}"]
    return ", ".join(few) + " (carries nothing)" * idle


def sample_report(sample: Plain) -> Iterator[Part]:
    """Yield a sample of fault draws: configurations by their mean, the best by other figures, then draws.

    Of the best configurations the slowest draws are shown, of the others those that speed a job up.
    """
    configurations = sample["configurations"]
    drawn = {"exact": "every place, once a class of equal ones", "latin": "Latin hypercubes of 30"}
    how = drawn.get(sample["sampling"], "independent draws")
    yield f"{'; '.join(sample['faults'])}: seed {sample['seed']}, {how}"
    able = [configuration for configuration in configurations if configuration["step_time_s"] is not None]
    ranked = sorted(able, key=lambda configuration: configuration["step_time_s"]["mean"])
    yield _sample_table(ranked)
    for each in ranked:
        if each["failed"]:
            failed = counted(each["failed"], "draw")
            yield f"{each['configuration']}: {failed} could not be run: {each['error']}"
    yield from _orders(ranked)
    unable = {each["configuration"]: each["error"] for each in configurations if each not in able}
    for what, which in (("cannot be run", unable), ("cannot be made a job", sample["refused"])):
        if which:
            name, why = next(iter(which.items()))
            yield f"{counted(len(which), 'configuration')} {what}; the first, {name}: {why}"
    if sample["until"]:
        yield f"until {sample['until']}: {'reached' if sample['met'] else 'NOT reached; more --draws would'}"
    if sample["left"]:
        yield f"interrupted: {sample['left']} draws were not run"
    yield from _draws(ranked)


def _sample_table(configurations: Sequence[Plain]) -> Table:
    """Return configurations with the spread of their steps under faults."""
    rows = [
        {
            "configuration": each["configuration"],
            "draws": spread["draws"],
            "healthy": each["healthy_s"],
            "mean": spread["mean"],
            "±": None if spread["mean_half"] is None else spread["mean_half"] / spread["mean"],
            **{name: spread[name] for name in ("p50", "p95", "cvar95", "worst")},
            "slower": spread["mean"] / max(each["healthy_s"], 1e-12),
        }
        for each in configurations
        for spread in [each["step_time_s"]]
    ]
    shows = {"cvar95": ("CVaR 95", _in_seconds), "slower": ("slower", _from_one), "±": ("±", ".2%")}
    shows |= {name: (name, _in_seconds) for name in ("healthy", "mean", "p50", "p95", "worst")}
    return Table("", [Column(name, *shows.get(name, ())) for name in (rows[0] if rows else ())], rows)


def _in_seconds(seconds: float) -> str:
    return f"{seconds:.4g} s"


def _orders(configurations: Sequence[Plain]) -> Iterator[str]:
    """Yield which configurations are the best without faults and under them."""
    figures: Mapping[str, Callable[[Plain], float]] = {
        "healthy": lambda one: one["healthy_s"],
        "mean": lambda one: one["step_time_s"]["mean"],
        "CVaR 95": lambda one: one["step_time_s"]["cvar95"],
    }
    for title, figure in figures.items() if len(configurations) > 1 else ():
        best = sorted(configurations, key=figure)[:_MOST_SHOWN]
        yield f"best by {title}: " + "; ".join(f"{one['configuration']} {figure(one):.4g} s" for one in best)


def _draws(ranked: Sequence[Plain]) -> Iterator[Part]:
    for configuration in ranked[:_MOST_SHOWN]:
        yield from _slowest(configuration, configuration["rows"], "the slowest first")
    for configuration in ranked[_MOST_SHOWN:]:
        faster = [row for row in configuration["rows"] if row["faster"]]
        yield from _slowest(configuration, faster, "faster than without faults")


def _slowest(configuration: Plain, draws: Sequence[Plain], which: str) -> Iterator[Part]:
    rows = [{**row, "faults": "; ".join(row["faults"]) or "none", "added": _added(row)} for row in draws]
    names = columns("draw", slowdown=("slower", _from_one), faults="faults", added="what takes longer")
    yield Table(f"draws of {configuration['configuration']}, {which}", names, rows)
    yield from (f"draw {row['draw']} is faster: {row['faster']}" for row in draws if row["faster"])


def _added(row: Plain) -> str:
    parts = sorted(row["added_s"].items(), key=lambda entry: -entry[1])[:2]
    added = ", ".join(f"{name} {time * 1e3:+.4g} ms" for name, time in parts)
    return f"rank {row['critical_rank']}: {added}" if added else ""


def search_report(search: Plain) -> Iterator[Part]:
    """Yield what a search found: how many points it took, and its best ones."""
    objectives = search["objectives"]
    failed = sum(row["status"] != "ok" for row in search["rows"])
    yield f"{search['simulated']} of {search['points']} points simulated, {search['estimated']} estimated" + (
        f"; {failed} failed" if failed else ""
    )
    best = [
        {"id": row["id"], **row["labels"], **{name: row[name] for name in objectives}}
        for row in (search["front"] if len(objectives) > 1 else [search["best"]])
        if row is not None
    ]
    names = [heading(name) for name in objectives]
    title = "the best by" if len(names) == 1 else "no point simulated is better in all of"
    yield points_table(f"{title} {' and '.join(names)}", best)
    yield from failures_lines(search["failures_matter"], "point")
    if search["best"] is None:
        yield "no point could be simulated: " + next(
            (row["error"] for row in search["rows"]), "none was asked for"
        )
    yield from unmeasured_lines(search["not_validated"])


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:.2f}"


_TIMED = (Column("size_bytes", "size B", str, 11), Column("time_s", "time us", _microseconds, 10))


def collective_report(rows: Sequence[Plain], title: str) -> Iterator[Part]:
    """Yield a collective over its sizes, columns as in nccl-tests, then the bound."""
    yield title
    names = columns(
        algbw_GBps=("algbw GB/s", ".2f"),
        busbw_GBps=("busbw GB/s", ".2f"),
        bound_s=("bound us", _microseconds),
    )
    names += columns(bound_pct=("of bound %", ".2f"), bound="limited by", algorithm="algorithm")
    if any("nccl_s" in row for row in rows):
        names += columns(nccl="NCCL")
    yield Table("", (*_TIMED, *names), [{**row, **_served(row)} for row in rows])


def _served(row: Plain) -> dict[str, str]:
    """Return the algorithm with its protocol, and NCCL's own time where that is known."""
    algorithm = {"algorithm": f"{row['algorithm']} {row.get('protocol', '')}".rstrip()}
    if "nccl_s" not in row:
        return algorithm
    chosen = f"({row['nccl_algorithm']}, {row['nccl_protocol']})"
    return algorithm | {"nccl": f"{_microseconds(row['nccl_s'])} us {chosen}"}


def compared_report(rows: Sequence[Plain], title: str) -> Iterator[Part]:
    """Yield a collective by all its algorithms, the fastest of each size first."""
    yield title
    names = columns(
        estimate_s=("estimate us", _microseconds), algorithm="algorithm", chunks="chunks", mark=""
    )
    marked = [{**row, "mark": ", ".join(name for name in ("best", "auto") if row[name])} for row in rows]
    yield Table("", (*_TIMED, *names), marked)


def sharded_report(phases: Sequence[Plain]) -> Iterator[Part]:
    """Yield the phases of a GEMM cut over several GPUs, each with its collectives."""
    yield f"all phases take {seconds_text(sum(phase['total_s'] for phase in phases))}"
    rows = [
        {
            **phase,
            "shape": " x ".join(str(phase["gemm"][axis]) for axis in "mnk"),
            "moved": ", ".join(
                f"{moved['name']} {Size(moved['bytes'])} {seconds_text(moved['time_s'])}"
                for moved in phase["collectives"]
            ),
        }
        for phase in phases
    ]
    names = columns("phase", shape="GEMM m x n x k", gemm_s="GEMM", bound="bound", moved="collectives")
    yield Table("", (*names, Column("total_s")), rows)


_SPEED = (
    Column("case", side="<"),
    Column("hops", "hops", ",", 12),
    Column("hops_per_s", "Mhops/s", lambda rate: f"{rate / 1e6:.2f}", 9),
    Column("wall_s", "wall s", ".3f", 9),
    Column("processor_s", "proc. s", ".3f", 9),
    Column("memory_mb", "MB", ".0f", 7),
    Column("cost", "cost", ".2f", 8),
    Column("against_stored", "of stored", lambda ratio: "" if ratio is None else f"{ratio:.2f}", 9),
    Column("right", "answer", lambda right: "right" if right else "WRONG", 7),
)
_GROWTH = (
    Column("ladder", side="<"),
    Column("exponent", "grows as size^", ".2f", 14),
    Column("stated", "stated at most", ".2f", 14),
)


def speed_report(measured: Plain) -> Iterator[Part]:
    """Yield the speed cases as measured, then how the cost of each ladder grows."""
    yield Table("", _SPEED, measured["cases"])
    yield "cost: processor time over that of the yardstick, which sorts numbers and queues events"
    yield Table("growth", _GROWTH, measured["growth"])


_SCORES = {"rows": "rows", "cases": "cases", "mean_abs_pct": "mean%", "bias_pct": "bias%"}
_SCORES |= {"median_abs_pct": "median%", "p90_abs_pct": "p90%", "max_abs_pct": "worst%"}
_SCORES |= {"null_mean_abs_pct": "null%", "covered_pct": "inside%", "calibration_pct": "calib.%"}


def validation_report(report: Plain) -> Iterator[Part]:
    """Yield a validation: one row a topic, the calibration split's mean in the last column."""
    topics = report["topics"]
    rows = [
        {"topic": name, **figures, "calibration_pct": figures.get("calibration", {}).get("mean_abs_pct")}
        for name, figures in topics.items()
        if "shares_pct" not in figures
    ]
    scores = (Column(key, title, _score, 7) for key, title in _SCORES.items())
    yield Table("", (Column("topic"), *scores), rows)
    for name, figures in topics.items():
        yield from _remarks(name, figures)
    if report["absent"]:
        yield "files not in the folder: " + ", ".join(report["absent"])


def _remarks(name: str, figures: Plain) -> Iterator[str]:
    """Yield the remarks of a topic besides its line of figures."""
    if figures.get("shares_pct"):
        shares = ", ".join(f"{part} {share:.1f} %" for part, share in figures["shares_pct"].items())
        yield f"{name}: {shares}{_blame(figures.get('bias_by_part_pct'))}"
    if "rank_correlation" in figures:
        by_forecast = figures.get("forecast_rank_correlation")
        also = "" if by_forecast is None else f", by forecast {_score(by_forecast)}"
        yield f"{name}: rank correlation {_score(figures['rank_correlation'])}{also}"
    for why, rows in figures["unsupported"].items():
        yield f"{name}: {rows} rows not supported: {why}"


_SMALL = 0.05
"""Changes below this many percent are not named."""


def _blame(errors: Mapping[str, float] | None) -> str:
    if not errors:
        return ""
    parts = ", ".join(f"{part} {error:+.1f}" for part, error in errors.items() if abs(error) >= _SMALL)
    return f"; of a bias of {sum(errors.values()):+.1f} %: {parts}"


def _score(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"
