"""Reports of studies: faults, benches, a sharded GEMM, validation.

Each function takes the plain data that `--json` prints.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rapid_des.report.evidence import unmeasured_lines
from rapid_des.report.result_text import drawn_line
from rapid_des.report.sweep_text import points_table
from rapid_des.report.tables import (
    Column,
    Facts,
    Part,
    Plain,
    Table,
    added_text,
    change_text,
    columns,
    count,
    counted,
    heading,
    seconds_text,
    time_text,
)
from rapid_des.units import PS_PER_S, Size

_BINARY = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10}
_BYTES = re.compile(r"\b(\d+) B\b")
_CHANGES = 8
_MOST_SHOWN = 3
"""Number of configurations whose slowest draws are shown, and of the best ones by each figure."""
_SPREAD = {"mean": "mean", "p50": "p50", "p95": "p95", "cvar95": "CVaR 95", "worst": "worst"}


def scenario_report(scenario: Plain) -> Iterator[Part]:
    """Yield a step with faults beside the one without, the largest changes first."""
    healthy, faulty = scenario["healthy"], scenario["faulty"]
    yield "a step with faults"
    slower = change_text(scenario["slowdown"], 1)
    facts = {
        "healthy": time_text(healthy["step_time_ps"]),
        "with faults": f"{time_text(faulty['step_time_ps'])}  ({slower})",
        "critical rank": f"{healthy['critical_rank']} without, {faulty['critical_rank']} with the faults",
    }
    yield Facts(facts | ({"faster": scenario["faster"]} if scenario["faster"] else {}))
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
        yield from _changes(title, scenario[name])


def _changes(title: str, rows: Sequence[Plain]) -> Iterator[Part]:
    listed = rows if len(rows) <= _CHANGES else [*rows[: _CHANGES - 2], *rows[-2:]]
    hidden = len(rows) - len(listed)
    changed = [
        {
            "name": _BYTES.sub(lambda size: _rounded(int(size[1])), row["name"]),
            "healthy_s": row["healthy_s"],
            "faulty_s": row["faulty_s"],
            "added": round(row["faulty_s"] * PS_PER_S) - round(row["healthy_s"] * PS_PER_S),
        }
        for row in listed
    ]
    shortened = f"{title} ({hidden} in between are left out)" if hidden else title
    yield Table(
        shortened,
        (*columns(name="", healthy_s="healthy", faulty_s="with faults"), Column("added", None, added_text)),
        changed,
    )


def _rounded(size: int) -> str:
    unit, factor = next(((u, f) for u, f in _BINARY.items() if size >= f), ("B", 1))
    return f"{size / factor:.4g} {unit}"


def _from_one(ratio: float) -> str:
    return f"{ratio - 1:+.2%}"


def criticality_report(study: Plain, parts: int) -> Iterator[Part]:
    """Yield a ranking of `parts` parts, of which the first rows may be all that the study lists."""
    step = seconds_text(study["healthy_s"])
    yield f"healthy step {step}; each part alone at {study['derate']:g} of its speed"
    yield Table(
        "",
        (
            *columns("kind", name="part", step_time_s="step time", cost_s="cost"),
            Column("slowdown", "slower", _from_one),
            Column("source", "from"),
        ),
        study["rows"],
    )
    hidden = parts - len(study["rows"])
    more = f"; {hidden} rows not shown" if hidden else ""
    yield f"{study['simulations']} simulations for {parts} parts{more}"
    if study["left"]:
        yield f"interrupted: {study['left']} parts were not reached"


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
    yield sample_table(ranked)
    for each in ranked:
        if each["failed"]:
            failed = counted(each["failed"], "draw")
            yield f"{each['configuration']}: {failed} could not be run: {each['error']}"
    yield from _orders(ranked)
    unable = {each["configuration"]: each["error"] for each in configurations if each not in able}
    for what, which in (("can not be run", unable), ("can not be made a job", sample["refused"])):
        if which:
            name, why = next(iter(which.items()))
            yield f"{counted(len(which), 'configuration')} {what}; the first, {name}: {why}"
    if sample["until"]:
        yield f"until {sample['until']}: {'reached' if sample['met'] else 'NOT reached; more --draws would'}"
    if sample["left"]:
        yield f"interrupted: {sample['left']} draws were not run"
    yield from _draws(ranked)


def sample_table(configurations: Sequence[Plain]) -> Table:
    """Return configurations with the spread of their steps under faults."""
    rows = [
        {
            "configuration": each["configuration"],
            "draws": each["step_time_s"]["draws"],
            "healthy": each["healthy_s"],
            **{name: each["step_time_s"][name] for name in _SPREAD},
            "half": _half(each["step_time_s"]),
            "slower": each["step_time_s"]["mean"] / max(each["healthy_s"], 1e-12),
        }
        for each in configurations
    ]
    mean, *others = (Column(key, title, _in_seconds) for key, title in _SPREAD.items())
    half = Column("half", "±", lambda share: "-" if share is None else f"{share:.2%}")
    names = columns("configuration", "draws")
    slower = Column("slower", None, _from_one)
    return Table("", (*names, Column("healthy", None, _in_seconds), mean, half, *others, slower), rows)


def _half(spread: Plain) -> float | None:
    return None if spread["mean_half"] is None else spread["mean_half"] / spread["mean"]


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
    rows = [
        {
            "draw": row["draw"],
            "slower": row["slowdown"],
            "faults": "; ".join(row["faults"]) or "none",
            "added": _added(row),
        }
        for row in draws
    ]
    slower = Column("slower", None, _from_one)
    kept = (Column("draw"), slower, Column("faults"), Column("added", "what takes longer"))
    yield Table(f"draws of {configuration['configuration']}, {which}", kept, rows)
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
    if search["best"] is None:
        yield "no point could be simulated: " + next(
            (row["error"] for row in search["rows"]), "none was asked for"
        )
    yield from unmeasured_lines(search["not_validated"])


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:.2f}"


def _two_digits(value: float) -> str:
    return f"{value:.2f}"


_SIZE = Column("size_bytes", "size B", str, 11)


def collective_report(rows: Iterable[Plain], title: str) -> Iterator[Part]:
    """Yield a collective over its sizes, columns as in nccl-tests, then the bound."""
    yield title
    yield Table(
        "",
        (
            _SIZE,
            Column("time_s", "time us", _microseconds, 10),
            Column("algbw_GBps", "algbw GB/s", _two_digits),
            Column("busbw_GBps", "busbw GB/s", _two_digits),
            Column("bound_s", "bound us", _microseconds, 10),
            Column("bound_pct", "of bound %", _two_digits),
            *columns(bound="limited by", algorithm="algorithm", nccl="NCCL" if _has_nccl(rows) else ""),
        ),
        [
            {
                **row,
                "algorithm": f"{row['algorithm']} {row.get('protocol', '')}".rstrip(),
                "nccl": _nccl(row) if "nccl_s" in row else "",
            }
            for row in rows
        ],
    )


def _has_nccl(rows: Iterable[Plain]) -> bool:
    return any("nccl_s" in row for row in rows)


def _nccl(row: Plain) -> str:
    return f"{_microseconds(row['nccl_s'])} us ({row['nccl_algorithm']}, {row['nccl_protocol']})"


def compared_report(rows: Iterable[Plain], title: str) -> Iterator[Part]:
    """Yield a collective by all its algorithms, the fastest of each size first."""
    yield title
    yield Table(
        "",
        (
            _SIZE,
            Column("time_s", "time us", _microseconds, 10),
            Column("estimate_s", "estimate us", _microseconds),
            *columns("algorithm", "chunks", mark=""),
        ),
        [{**row, "mark": ", ".join(name for name in ("best", "auto") if row[name])} for row in rows],
    )


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


SPEED_HEADER = (
    f"{'case':<30} {'hops':>12} {'Mhops/s':>9} {'Mevents/s':>10} {'wall s':>9} {'simul. s':>9} {'MB':>8}"
)


def speed_line(case: Plain, answer: int) -> str:
    """Return a speed case as measured, below `SPEED_HEADER`; `answer` is the right one."""
    judged = "right" if case["right"] else f"WRONG: {case['finish']}, not {answer}"
    return (
        f"{case['case']:<30} {case['hops']:>12,} {case['hops_per_s'] / 1e6:>9.2f} "
        f"{case['events_per_s'] / 1e6:>10.2f} {case['wall_s']:>9.3f} {case['simulation_s']:>9.3f} "
        f"{case['memory_mb']:>8.0f} {judged}"
    )


def growth_line(ladder: Plain) -> str:
    """Return how the cost of a ladder of speed cases grows."""
    return (
        f"{ladder['ladder']}: time grows as hops^{ladder['exponent']:.2f}; "
        f"a hop of the largest costs {ladder['cost_ratio']:.2f} of one of the smallest"
    )


_VALIDATION_COLUMNS = {
    "rows": "rows",
    "cases": "cases",
    "mean_abs_pct": "mean%",
    "bias_pct": "bias%",
    "median_abs_pct": "median%",
    "p90_abs_pct": "p90%",
    "max_abs_pct": "worst%",
    "null_mean_abs_pct": "null%",
    "covered_pct": "inside%",
    "calibration_pct": "calib.%",
}


def validation_report(report: Plain) -> Iterator[Part]:
    """Yield a validation: one row a topic, the calibration split's mean in the last column."""
    topics = report["topics"]
    rows = [
        {"topic": name, **figures, "calibration_pct": figures.get("calibration", {}).get("mean_abs_pct")}
        for name, figures in topics.items()
        if "shares_pct" not in figures
    ]
    yield f"predictions against measurements, {counted(len(topics), 'topic')}"
    numbers = (Column(key, title, _score, 7) for key, title in _VALIDATION_COLUMNS.items())
    yield Table("", (Column("topic"), *numbers), rows)
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
        yield f"{name}: rank correlation {_score(figures['rank_correlation'])}"
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
    return count(value) if isinstance(value, int) else f"{value:.2f}"
