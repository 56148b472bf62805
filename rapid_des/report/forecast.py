"""What a measurement of a training step is expected to show, from the errors of other jobs.

    published jobs ──► validation/fit_forecast.py ──► forecast.json (cells of jobs alike, scales)
    a run's shares of work, software, GPU family, format ──► posterior ──► median, 80 % interval

ln(measured / simulated) of a job is a mean, a slope for each class of work by its share of the step
(larger where ranks wait for each other: even GPUs and quiet networks wait less than measured ones),
effects of the software, the GPU family, the number format and experts, one of the source (who measured),
one that all sources have in common on which the model was worked out, and a rest. All but the mean have
normal priors around 0, whose variances are those under which the other sources predict each source best
(empirical Bayes): where evidence is thin an effect is small, and where there is none it is the field's mean.
The forecast is the posterior's median of a source that nobody has seen, so that nothing was worked out on
it; its interval holds the uncertainty of the effects, the sources and the rest. Jobs are as their sources
say that they ran.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
from msgspec import Struct, convert, structs, to_builtins

from rapid_des.arrays import Floats
from rapid_des.device.machine_evidence import MeasuredStep
from rapid_des.modes.mode_bound import ModeBound
from rapid_des.report.evidence import COMMUNICATION, ROUTER, STEP, Basis, Interval, Origin, intervals
from rapid_des.units import Duration

CLASSES = ("attention", "vector", "experts", "tp", "dp", "ep", "bubble", "host")
"""Classes of work with a slope; matrix products are what is left of a step."""
WAITING = ("dp", "ep", "bubble")
"""In these, ranks of several nodes or stages wait for each other. Their slopes have a scale of their own."""
GROUPS = ("software", "family", "format", "experts")
_CLASS_OF = {ROUTER: "experts", "cp": "tp", "pp": "bubble"}
_APART = ("compute", "idle")
_WIDE = 1.0
"""The mean's standard deviation before anything is known."""


class JobKind(Struct, frozen=True):
    """What a job's ratio of measured to simulated time may depend on."""

    software: str
    family: str
    format: str
    experts: bool
    shares: Mapping[str, float]
    """The classes' shares of the step."""

    def group(self, name: str) -> str:
        """Return which of a group's members the job is."""
        return str(getattr(self, name))


class Cell(Struct, frozen=True):
    """Measured jobs alike."""

    source: str
    kind: JobKind
    jobs: int
    error: float
    """Median of ln(measured / simulated)."""
    worked: bool = False
    """Whether mechanisms or recipes were worked out on the source, so that its errors are small."""


class Scales(Struct, frozen=True):
    """Standard deviations of what jobs differ by, and how many of its own a forecast's interval spans."""

    slope: float
    software: float
    family: float
    format: float
    experts: float
    source: float
    rest: float
    within: float
    """The standard deviation among the jobs of one cell."""
    width: float = 1.2816
    worked: float = 0.0003
    waiting: float = 0.0003
    """The same as `slope`, for the classes `WAITING`."""
    experts_width: float = 1.2816
    """The same as `width`, for mixtures of experts."""

    def half(self, kind: JobKind, spread: float) -> float:
        """Return how far from its median an interval reaches, for the standard deviation of such a job."""
        return (self.experts_width if kind.experts else self.width) * spread


class Published(Struct, frozen=True):
    """The content of `forecast.json`."""

    scales: Scales
    cells: tuple[Cell, ...]

    @property
    def jobs(self) -> int:
        """Number of measured jobs."""
        return sum(cell.jobs for cell in self.cells)

    @property
    def sources(self) -> int:
        """Number of sources."""
        return len({cell.source for cell in self.cells})


class Posterior(Struct, frozen=True):
    """What a table says of the effects."""

    table: Published
    mean: Floats
    covariance: Floats
    members: tuple[tuple[str, str], ...]

    def ratio(self, kind: JobKind, own: Sequence[Cell] = ()) -> tuple[float, float]:
        """Return ln(measured / simulated) of a job of a source unseen: median and standard deviation.

        `own` are jobs that were measured where this one runs, so that they share what is its source's.
        """
        row, scales = self._effects(kind), self.table.scales
        unseen = sum(getattr(scales, name) ** 2 for name in self._unseen(kind))
        spread = scales.source**2 + scales.rest**2 + scales.within**2
        mean, variance = float(row @ self.mean), float(row @ self.covariance @ row) + unseen + spread
        if not own:
            return mean, math.sqrt(variance)
        # a normal vector's condition on some of its parts: the jobs that were measured here
        rows = np.array([self._effects(cell.kind) for cell in own])
        among = np.array([[self._common(one.kind, other.kind) for other in own] for one in own])
        seen = rows @ self.covariance @ rows.T + among
        seen += np.diag([scales.rest**2 + scales.within**2 / cell.jobs for cell in own])
        shared = rows @ self.covariance @ row + [self._common(cell.kind, kind) for cell in own]
        gains = np.linalg.solve(seen, shared)
        off = np.array([cell.error for cell in own]) - rows @ self.mean
        return mean + float(gains @ off), math.sqrt(max(variance - float(gains @ shared), 0.0))

    def _effects(self, kind: JobKind) -> Floats:
        return np.append(_row(kind, self.members), 0.0)

    def _unseen(self, kind: JobKind) -> list[str]:
        """Return the groups of which the job's members have no published job."""
        return [name for name in GROUPS if (name, kind.group(name)) not in self.members]

    def _common(self, one: JobKind, other: JobKind) -> float:
        """Return the variance that two jobs of a source have in common beyond the published effects."""
        scales = self.table.scales
        alike = (name for name in self._unseen(one) if one.group(name) == other.group(name))
        return float(scales.source**2 + sum(getattr(scales, name) ** 2 for name in alike))


def own_steps(steps: Iterable[MeasuredStep]) -> tuple[Cell, ...]:
    """Return the steps that were measured on a machine as forecasts use them."""
    return tuple(
        Cell(
            "this machine",
            JobKind(step.software, step.family, step.format, step.experts, step.shares),
            1,
            math.log(step.measured / step.simulated),
        )
        for step in steps
    )


def shares_of(work: Mapping[str, int], breakdown: Mapping[str, int]) -> dict[str, float]:
    """Return the shares of a step by class of work, of its work as `work_of` gives it and its breakdown.

    >>> shares_of({"gemm": 60, "attention": 20, "communication": 20}, {"compute": 80, "tp": 15, "cp": 5})
    {'attention': 0.2, 'tp': 0.2}
    """
    whole = sum(breakdown.values()) or 1
    kernels = {kind: time for kind, time in work.items() if kind != COMMUNICATION}
    computed = sum(kernels.values()) or 1
    parts = {kind: time / computed * breakdown.get("compute", 0) for kind, time in kernels.items()}
    parts |= {part: float(time) for part, time in breakdown.items() if part not in _APART}
    shares: dict[str, float] = {}
    for part, time in parts.items():
        name = _CLASS_OF.get(part, part if part in CLASSES or part == "gemm" else "dp")
        if name in CLASSES and time:
            shares[name] = shares.get(name, 0.0) + round(time / whole, 4)
    return shares


def kind_of(basis: Basis | None, work: Mapping[str, int], breakdown: Mapping[str, int]) -> JobKind | None:
    """Return what a forecast of a priced step depends on; None of traces that state their durations."""
    if basis is None or basis.device is None:
        return None
    family, shares = basis.device.family.name, shares_of(work, breakdown)
    return JobKind(basis.software, family, basis.matrix_dtype, ROUTER in work, shares)


def intervals_of(  # noqa: PLR0913, PLR0917 - what an interval rests on
    times: Mapping[str, int],
    work: Mapping[str, int],
    origin: Origin | None,
    kind: JobKind | None,
    bound: ModeBound | None,
    own: Sequence[Cell] = (),
) -> Mapping[str, Interval]:
    """Return where the measurements of a run's times are expected: of a training step by its `kind`.

    `bound` holds what the mode leaves out, `own` the jobs that were measured on the machine.
    """
    if origin is None:
        return {}
    whole = max(times[STEP], 1)
    low, high = (1.0, 1.0) if bound is None else (bound.low / whole, bound.high / whole)
    if kind is None:
        found = intervals(times, work, origin)
        return found if bound is None else {name: each.widened(low, high) for name, each in found.items()}
    step = step_interval(times[STEP], kind, own)
    if step is None:
        return {}
    ends = Duration(round(step.low * min(low, 1.0))), Duration(round(step.high * max(high, 1.0)))
    return {STEP: structs.replace(step, low=ends[0], high=ends[1])}


def step_interval(time: int, kind: JobKind, own: Sequence[Cell] = ()) -> Interval | None:
    """Return where a step's measurement is expected; None of a GPU family without measured jobs."""
    known = table()
    if kind.family not in {cell.kind.family for cell in (*known.cells, *own)}:
        return None
    middle, spread = posterior().ratio(kind, own)
    half = known.scales.half(kind, spread)
    low, median, high = (Duration(round(time * math.exp(middle + step))) for step in (-half, 0.0, half))
    source = f"{known.sources} published sources" + (" and this machine's own steps" if own else "")
    return Interval(Duration(time), low, high, known.jobs + len(own), source, median)


def posterior_of(known: Published, *, without: Collection[str] = ()) -> Posterior:
    """Return what the cells of a table say, without those of some sources."""
    cells = [cell for cell in known.cells if cell.source not in without]
    members = members_of(cells)
    rows = rows_of(cells, members)
    errors = np.array([cell.error for cell in cells])
    weighted = _weighted(cells, known.scales, np.column_stack((rows, errors)))
    prior = np.diag(1 / prior_of(members, known.scales) ** 2)
    covariance = np.array(np.linalg.inv(rows.T @ weighted[:, :-1] + prior), np.float64)
    return Posterior(known, covariance @ (rows.T @ weighted[:, -1]), covariance, members)


def _weighted(cells: Sequence[Cell], scales: Scales, columns: Floats) -> Floats:
    """Return the inverse of `noise_of` times some columns, without the matrix of all pairs of cells.

    Noise is diagonal but for one constant s² within each source, which changes the inverse D^-1 by rank 1 a
    source (Sherman and Morrison): D^-1 x - D^-1 1 s² (1' D^-1 x) / (1 + s² 1' D^-1 1).
    """
    sources, source_of = np.unique([cell.source for cell in cells], return_inverse=True)
    weights = 1 / np.array([scales.rest**2 + scales.within**2 / cell.jobs for cell in cells])
    belongs = np.equal.outer(source_of, np.arange(len(sources))) * weights[:, None]  # [cell, source]
    common = scales.source**2
    shared = common * (belongs.T @ columns) / (1 + common * belongs.sum(axis=0))[:, None]
    weighed: Floats = weights[:, None] * columns - belongs @ shared
    return weighed


def members_of(cells: Sequence[Cell]) -> tuple[tuple[str, str], ...]:
    """Return the members of all groups that cells have, each with its group."""
    return tuple(sorted({(name, cell.kind.group(name)) for cell in cells for name in GROUPS}))


def rows_of(cells: Sequence[Cell], members: Sequence[tuple[str, str]]) -> Floats:
    """Return what each effect counts in each cell: the mean, slopes, members of groups, being worked on."""
    return np.array([[*_row(cell.kind, members), float(cell.worked)] for cell in cells])


def noise_of(cells: Sequence[Cell], scales: Scales) -> Floats:
    """Return the covariance of cells' errors: of their sources, themselves, and the jobs in them."""
    sources = np.array([cell.source for cell in cells])
    own = [scales.rest**2 + scales.within**2 / cell.jobs for cell in cells]
    noise: Floats = np.diag(own) + scales.source**2 * np.equal.outer(sources, sources)
    return noise


def prior_of(members: Sequence[tuple[str, str]], scales: Scales) -> Floats:
    """Return the standard deviations of the mean, the slopes and the effects before anything is known."""
    effects = [getattr(scales, name) for name, _ in members]
    slopes = (scales.waiting if name in WAITING else scales.slope for name in CLASSES)
    return np.array([_WIDE, *slopes, *effects, scales.worked])


def _row(kind: JobKind, members: Sequence[tuple[str, str]]) -> Floats:
    shares = [kind.shares.get(name, 0.0) for name in CLASSES]
    return np.array([1.0, *shares, *(float(kind.group(name) == member) for name, member in members)])


def read(name: str) -> Published:
    """Return a table that ships."""
    return convert(json.loads(Path(__file__).with_name(name).read_text("utf-8")), Published)


@cache
def table() -> Published:
    """Return the published steps."""
    return read("forecast.json")


@cache
def posterior() -> Posterior:
    """Return what all published jobs say."""
    return posterior_of(table())


def as_text(known: Published) -> str:
    """Return a table as its file holds it, a cell a line."""
    text = json.dumps(to_builtins(known), separators=(",", ":"))
    return text.replace('{"source"', '\n{"source"') + "\n"


def write(path: Path, known: Published) -> None:
    """Write a table, and have forecasts read it."""
    path.write_text(as_text(known), encoding="utf-8")
    table.cache_clear()
    posterior.cache_clear()
