"""Studies as lines for a terminal: faults, benches, a sharded GEMM, validation.

Each function takes the plain data that `--json` prints.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rapid_des.report.evidence import unmeasured_lines
from rapid_des.report.result_text import drawn_line, time_text
from rapid_des.report.sweep_text import heading, points_lines
from rapid_des.units import PS_PER_S, Size

Plain = Mapping[str, Any]

_BINARY = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10}
_BYTES = re.compile(r"\b(\d+) B\b")

_CHANGES = 8


def scenario_lines(scenario: Plain) -> Iterator[str]:
    """Yield a step with faults beside the one without, the largest changes first."""
    healthy, faulty = scenario["healthy"], scenario["faulty"]
    yield f"healthy      {time_text(healthy['step_time_ps'])}"
    yield f"with faults  {time_text(faulty['step_time_ps'])}  ({scenario['slowdown'] - 1:+.2%})"
    yield f"critical rank {healthy['critical_rank']} without, {faulty['critical_rank']} with the faults"
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
        yield from _changes(title, scenario[name])


def _changes(title: str, rows: Sequence[Plain]) -> Iterator[str]:
    if not rows:
        return
    yield f"\n{title}"
    shown = rows if len(rows) <= _CHANGES else [*rows[: _CHANGES - 2], *rows[-2:]]
    names = [_BYTES.sub(lambda count: _rounded(int(count[1])), row["name"]) for row in shown]
    width = max(map(len, names))
    for name, row in zip(names, shown, strict=True):
        before, after = (round(row[name] * PS_PER_S) for name in ("healthy_s", "faulty_s"))
        sign = "" if after < before else "+"
        yield (
            f"  {name:<{width}}  {time_text(before):>10} to {time_text(after):>10}  "
            f"{sign}{time_text(after - before)}"
        )
    if len(rows) > len(shown):
        yield f"  … {len(rows) - len(shown)} more in between"


def _rounded(size: int) -> str:
    unit, factor = next(((u, f) for u, f in _BINARY.items() if size >= f), ("B", 1))
    return f"{size / factor:.4g} {unit}"


def criticality_lines(study: Plain, parts: int) -> Iterator[str]:
    """Yield a ranking of `parts` parts, of which the first rows may be all that the study lists."""
    healthy, rows = round(study["healthy_s"] * PS_PER_S), study["rows"]
    yield f"healthy step {time_text(healthy)}; each part alone at {study['derate']:g} of its speed"
    width = max([5, *(len(row["kind"]) for row in rows)])
    yield f"{'kind':<{width}} {'part':<22} {'step time':>12} {'cost':>12} {'slower':>8}  from"
    for row in rows:
        step, cost = (time_text(round(row[name] * PS_PER_S)) for name in ("step_time_s", "cost_s"))
        part = f"{row['kind']:<{width}} {row['name']:<22}"
        yield f"{part} {step:>12} {cost:>12} {row['slowdown'] - 1:>8.2%}  {row['source']}"
    hidden = parts - len(rows)
    yield f"{study['simulations']} simulations for {parts} parts" + (
        f"; {hidden} rows not shown" if hidden else ""
    )
    if study["left"]:
        yield f"interrupted: {study['left']} parts were not reached"


def sample_lines(sample: Plain) -> Iterator[str]:
    """Yield a sample of fault draws: configurations by their mean, the best by other figures, then draws.

    Of the best configurations the slowest draws are shown, of the others those that speed a job up.
    """
    configurations = sample["configurations"]
    drawn = {"exact": "every place, once a class of alike ones", "latin": "Latin hypercubes of 30"}
    how = drawn.get(sample["sampling"], "independent draws")
    yield f"{'; '.join(sample['faults'])}: seed {sample['seed']}, {how}"
    able = [configuration for configuration in configurations if configuration["step_time_s"] is not None]
    ranked = sorted(able, key=lambda configuration: configuration["step_time_s"]["mean"])
    yield from _table(ranked)
    yield from _orders(ranked)
    unable = {
        configuration["configuration"]: configuration["error"]
        for configuration in configurations
        if configuration not in able
    }
    for what, which in (("can not be run", unable), ("can not be made a job", sample["refused"])):
        if which:
            name, why = next(iter(which.items()))
            yield f"{len(which)} configuration{'s' * (len(which) > 1)} {what}; the first, {name}: {why}"
    if sample["until"]:
        yield f"until {sample['until']}: {'reached' if sample['met'] else 'NOT reached; more --draws would'}"
    if sample["left"]:
        yield f"interrupted: {sample['left']} draws were not run"
    yield from _draws(ranked)


def _table(configurations: Sequence[Plain]) -> Iterator[str]:
    width = max([13, *(len(configuration["configuration"]) for configuration in configurations)])
    titles = ("healthy", "mean", "±", "p50", "p95", "CVaR 95", "worst", "slower")
    if configurations:
        yield f"{'configuration':<{width}} {'draws':>6} " + " ".join(f"{title:>9}" for title in titles)
    for configuration in configurations:
        yield from _sampled(configuration, width)


_MOST_SHOWN = 3
"""Number of configurations whose slowest draws are shown, and of the best ones by each figure."""


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


def _sampled(configuration: Plain, width: int) -> Iterator[str]:
    spread = configuration["step_time_s"]
    healthy = configuration["healthy_s"]
    figures = [healthy, spread["mean"], None, *(spread[name] for name in ("p50", "p95", "cvar95", "worst"))]
    cells = ["-" if value is None else f"{value:.4g} s" for value in figures]
    if spread["mean_half"] is not None:
        cells[2] = f"{spread['mean_half'] / spread['mean']:.2%}"
    cells = [f"{cell:>9}" for cell in cells]
    cells.append(f"{spread['mean'] / max(healthy, 1e-12) - 1:>+9.2%}")
    yield f"{configuration['configuration']:<{width}} {spread['draws']:>6} " + " ".join(cells)
    if configuration["failed"]:
        yield f"  {configuration['failed']} draws could not be run: {configuration['error']}"


def _draws(ranked: Sequence[Plain]) -> Iterator[str]:
    for configuration in ranked[:_MOST_SHOWN]:
        yield from _slowest(configuration)
    for configuration in ranked[_MOST_SHOWN:]:
        faster = [row for row in configuration["rows"] if row["faster"]]
        yield from _slowest({**configuration, "rows": faster}, "faster than without faults")


def _slowest(configuration: Plain, which: str = "the slowest first") -> Iterator[str]:
    if not configuration["rows"]:
        return
    yield f"\ndraws of {configuration['configuration']}, {which}"
    for row in configuration["rows"]:
        parts = sorted(row["added_s"].items(), key=lambda entry: -entry[1])[:2]
        added = ", ".join(f"{name} {time * 1e3:+.4g} ms" for name, time in parts)
        where = f"  (rank {row['critical_rank']}: {added})" if added else ""
        yield f"  {row['draw']:>5} {row['slowdown'] - 1:>+8.2%}  {'; '.join(row['faults']) or 'none'}{where}"
        if row["faster"]:
            yield f"        faster: {row['faster']}"


def search_lines(search: Plain) -> Iterator[str]:
    """Yield what a search found: how many points it took, and its best ones."""
    objectives = search["objectives"]
    failed = sum(row["status"] != "ok" for row in search["rows"])
    yield f"{search['simulated']} of {search['points']} points simulated, {search['estimated']} estimated" + (
        f"; {failed} failed" if failed else ""
    )
    shown = [
        {"id": row["id"], **row["labels"], **{name: row[name] for name in objectives}}
        for row in (search["front"] if len(objectives) > 1 else [search["best"]])
        if row is not None
    ]
    names = [heading(name) for name in objectives]
    title = "the best by" if len(names) == 1 else "no point simulated beats these in"
    yield from points_lines(f"{title} {' and '.join(names)}", shown)
    if search["best"] is None:
        yield "no point could be simulated: " + next(
            (row["error"] for row in search["rows"]), "none was asked"
        )
    yield from unmeasured_lines(search["not_validated"])


def collective_lines(rows: Sequence[Plain], title: str) -> Iterator[str]:
    """Yield a collective over its sizes, columns as in nccl-tests, then the bound."""
    columns = {
        "size_bytes": ("size", "(B)"),
        "time_s": ("time", "(us)"),
        "algbw_GBps": ("algbw", "(GB/s)"),
        "busbw_GBps": ("busbw", "(GB/s)"),
        "bound_s": ("bound", "(us)"),
        "bound_pct": ("of bound", "(%)"),
    }
    yield title
    yield "".join(f"{name:>13}" for name, _ in columns.values()) + "  limited by  algorithm"
    yield "".join(f"{unit:>13}" for _, unit in columns.values())
    for row in rows:
        size, *figures = (row[name] * (1e6 if name.endswith("_s") else 1) for name in columns)
        cells = "".join(f"{figure:>13.2f}" for figure in figures)
        nccl, protocol = "", f" {row['protocol']}" if "protocol" in row else ""
        if "nccl_s" in row:
            nccl = f"  NCCL {row['nccl_s'] * 1e6:.2f} us ({row['nccl_algorithm']}, {row['nccl_protocol']})"
        yield f"{size:>13}{cells}  {row['bound']:<11} {row['algorithm']}{protocol}{nccl}"


def compared_lines(rows: Sequence[Plain], title: str) -> Iterator[str]:
    """Yield a collective by all its algorithms, the fastest of each size first."""
    yield title
    yield f"{'size':>13}{'time':>13}{'estimate':>13}  algorithm"
    yield f"{'(B)':>13}{'(us)':>13}{'(us)':>13}"
    size = None
    for row in rows:
        shown = row["size_bytes"] if row["size_bytes"] != size else ""
        size = row["size_bytes"]
        times = "".join(f"{row[name] * 1e6:>13.2f}" for name in ("time_s", "estimate_s"))
        chunks = f" in {row['chunks']} chunks" if row["chunks"] > 1 else ""
        marks = ", ".join(name for name in ("best", "auto") if row[name])
        marked = f"  <- {marks}" if marks else ""
        yield f"{shown:>13}{times}  {row['algorithm']}{chunks}{marked}"


def sharded_lines(phases: Sequence[Plain]) -> Iterator[str]:
    """Yield the phases of a GEMM cut over several GPUs, each with its collectives."""
    yield f"{'phase':<16} {'GEMM m x n x k':>22} {'GEMM':>12} {'bound':>8} {'collective':>34} {'total':>12}"
    for phase in phases:
        moved = ", ".join(
            f"{collective['name']} {Size(collective['bytes'])} {_from_seconds(collective['time_s'])}"
            for collective in phase["collectives"]
        )
        shape = " x ".join(str(phase["gemm"][axis]) for axis in "mnk")
        yield (
            f"{phase['phase']:<16} {shape:>22} {_from_seconds(phase['gemm_s']):>12} {phase['bound']:>8} "
            f"{moved or '-':>34} {_from_seconds(phase['total_s']):>12}"
        )
    yield f"{'all':<16} {_from_seconds(sum(phase['total_s'] for phase in phases)):>107}"


def _from_seconds(seconds: float) -> str:
    return time_text(round(seconds * PS_PER_S))


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
}


def validation_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield a validation: one line a topic, the calibration split's mean in the last column."""
    topics = report["topics"]
    scored = {name: figures for name, figures in topics.items() if "shares_pct" not in figures}
    width = max((len(name) for name in scored), default=5)
    yield (
        f"{'topic':{width}} "
        + " ".join(f"{title:>8}" for title in _VALIDATION_COLUMNS.values())
        + "  calib.%"
    )
    for name, figures in scored.items():
        cells = [_cell(figures[key]) for key in _VALIDATION_COLUMNS]
        calibration = figures.get("calibration", {}).get("mean_abs_pct")
        yield f"{name:{width}} " + " ".join(f"{cell:>8}" for cell in cells) + f" {_cell(calibration):>8}"
    for name, figures in topics.items():
        yield from _remarks(name, figures)
    if report["absent"]:
        yield "files not in the folder: " + ", ".join(report["absent"])


def _remarks(name: str, figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield the remarks of a topic besides its line of figures."""
    if figures.get("shares_pct"):
        shares = ", ".join(f"{part} {share:.1f} %" for part, share in figures["shares_pct"].items())
        yield f"{name}: {shares}{_blame(figures.get('bias_by_part_pct'))}"
    if "rank_correlation" in figures:
        yield f"{name}: rank correlation {_cell(figures['rank_correlation'])}"
    for why, count in figures["unsupported"].items():
        yield f"{name}: {count} rows not supported: {why}"


_SMALL = 0.05
"""Changes below this many percent are not named."""


def _blame(errors: Mapping[str, float] | None) -> str:
    if not errors:
        return ""
    parts = ", ".join(f"{part} {error:+.1f}" for part, error in errors.items() if abs(error) >= _SMALL)
    return f"; of a bias of {sum(errors.values()):+.1f} %: {parts}"


def _cell(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"
