"""One simulation of a study as a value (a job, a machine, settings, how it is run), and its row of figures.

Points are sent to other processes and may name files; a cache keeps the jobs and machines of points.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import Struct, structs

from rapid_des.bounded_cache import BoundedCache
from rapid_des.config import Document
from rapid_des.device.spec import operator_file
from rapid_des.errors import ConfigError
from rapid_des.frontend import Job, load_job
from rapid_des.inputs import LEARNED_FILE, read_input
from rapid_des.machine import Machine, load_machine
from rapid_des.modes.execution import EngineChoice
from rapid_des.network.dimensions import Graph, InfraGraph
from rapid_des.network.faults import Fault
from rapid_des.report.evidence import STEP
from rapid_des.report.result import Result
from rapid_des.report.run_figures import RUN_FIGURES
from rapid_des.simulation import FLATTENED, simulate
from rapid_des.units import Quantity, seconds
from rapid_des.version import __version__

ROOTS = ("job", "machine", "device")
"""The first parts of the keys of settings."""
_MANY = 1 << 10
"""The number of programs that one process runs, about: for this many, loading a compiled kernel pays."""


class MoreFigures(Protocol):
    """Figures that are asked of a point besides those of its step."""

    def figures(self, job: Job, machine: Machine, healthy: Result, cache: BoundedCache) -> dict[str, float]:
        """Return the figures by name, given the step."""

    def content(self) -> Any:
        """Return what the figures depend on besides the job and the machine, as plain data."""


class Point(Struct, frozen=True):
    """One simulation to be run.

    `job` and `machine` are names of presets, paths, what such files hold, or values; `settings` are (key
    path, YAML text) pairs as `--set` has them, `faults` come on top of the machine's own; the rest is as in
    `simulate`.

    >>> point = Point("llama2_7b_train", "dgx_a100", (("job.parallelism.tp", "4"),), mode="analytical")
    >>> point.resolved()[0].gpus
    16
    """

    job: Job | Document | str
    machine: Machine | Document | str
    settings: tuple[tuple[str, str], ...] = ()
    faults: tuple[Fault, ...] = ()
    mode: str = FLATTENED
    engine: str = "auto"
    strict: bool = False
    allow_oom: bool = False
    run: MoreFigures | None = None
    """The run with failures whose figures are asked besides."""

    def resolved(self, cache: BoundedCache | None = None) -> tuple[Job, Machine]:
        """Return the job and the machine with settings and faults applied; `ConfigError` if they do not fit.

        A `cache` reads files that points share once.
        """
        priced = BoundedCache() if cache is None else cache
        split = _split(self.settings)
        job = _job(self.job, split["job"], priced)
        return job, _machine(self.machine, (split["machine"], split["device"]), self.faults, priced)

    def key(self, cache: BoundedCache | None = None) -> str:
        """Return the SHA-256 of the point's content: equal for points with equal results.

        It covers the content of files, faults, the mode and the version of rapid_des, but not the names of
        jobs and machines, the paths of files, or the engine: engines give equal results.
        """
        priced = BoundedCache() if cache is None else cache
        job, machine = self.resolved(priced)
        of_job = priced.get_or_make(("content", job), lambda: content(job.spec))
        parts = (of_job, machine_content(machine, priced), self.mode, self.strict, self.allow_oom)
        run = () if self.run is None else (self.run.content(),)
        return hashlib.sha256(_ENCODER.encode((*parts, *run, __version__))).hexdigest()


def evaluate(point: Point, cache: BoundedCache) -> Result:
    """Return the result of a point, without the data that only pictures and timelines need.

    Raises what `simulate` raises.
    """
    job, machine = point.resolved(cache)
    return simulate(
        job,
        machine,
        mode=point.mode,
        engine=EngineChoice(point.engine, programs=_MANY),
        strict=point.strict,
        allow_oom=point.allow_oom,
        cache=cache,
    ).light


_Pairs = tuple[tuple[str, str], ...]


def _split(settings: Iterable[tuple[str, str]]) -> dict[str, _Pairs]:
    split: dict[str, _Pairs] = dict.fromkeys(ROOTS, ())
    for key, text in settings:
        root, _, rest = key.partition(".")
        if root not in split or not rest:
            raise ConfigError(f"no such key; allowed: {', '.join(f'{root}.KEY' for root in ROOTS)}", key=key)
        split[root] = (*split[root], (rest, text))
    return split


def _job(reference: Job | Document | str, settings: _Pairs, cache: BoundedCache) -> Job:
    if isinstance(reference, Job) and not settings:
        return reference
    key = ("job", reference, settings)
    return cache.get_or_make(key, lambda: load_job(reference, settings=settings), weight=_weight)


def _machine(
    reference: Machine | Document | str,
    settings: tuple[_Pairs, _Pairs],
    faults: tuple[Fault, ...],
    cache: BoundedCache,
) -> Machine:
    def make() -> Machine:
        if isinstance(reference, Machine) and not any(settings):
            return reference
        return load_machine(reference, settings=settings[0], device_settings=settings[1], cache=cache)

    machine = cache.get_or_make(("machine", reference, settings), make, weight=_weight)
    if not faults:
        return machine
    key = ("machine", machine, faults)
    return cache.get_or_make(key, lambda: machine.with_faults(faults), weight=_weight)


def _weight(value: Job | Machine) -> int:
    """Return about how many bytes a job or a machine takes."""
    return 1 << 16 if isinstance(value, Job) else (1 << 16) + 100 * len(value.healthy)


def content(value: object) -> str:
    """Return the SHA-256 of a spec (or a tuple of specs, text and numbers) by what it holds.

    >>> content((1, "a")) == content((1, "a")), content((1, "a")) == content((1, "b"))
    (True, False)
    """
    return hashlib.sha256(_ENCODER.encode(value)).hexdigest()


def _plain(value: object) -> object:
    if isinstance(value, Quantity):
        return int(value)
    if isinstance(value, Fraction):
        return [value.numerator, value.denominator]
    raise NotImplementedError(type(value))


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_plain, order="deterministic")


def machine_content(machine: Machine, cache: BoundedCache) -> str:
    """Return the SHA-256 of a machine: of its file but for its name, its links, and files that it names."""
    return cache.get_or_make(("content", machine), lambda: _machine_content(machine))


def _machine_content(machine: Machine) -> str:
    spec, fabric = machine.as_spec(), machine.healthy
    shapes = tuple(
        structs.replace(part, file="") if isinstance(part, Graph | InfraGraph) else part
        for part in spec.fabric
    )
    columns = (fabric.source, fabric.destination, fabric.bandwidth, fabric.latency, fabric.dimension)
    links = hashlib.sha256(b"".join(column.tobytes() for column in columns)).hexdigest()
    device = machine.device.as_spec()
    learned = ""
    source, file = operator_file(device.operators)
    if file:
        learned = f"{source} {hashlib.sha256(read_input(Path(file), LEARNED_FILE)).hexdigest()}"
        device = structs.replace(device, operators="native")
    stated = structs.replace(spec, name="", device=device, fabric=shapes)
    return content((stated, links, learned))


OK = "ok"
"""The status of a point that was simulated; for other points it is the error's class."""
PARTS = ("compute", "tp", "cp", "ep", "dp", "pp", "offload", "bubble", "host", "idle")
"""The parts of the critical rank's time: columns `compute_s`, `tp_s` and so on."""
FIGURES: Mapping[str, str] = {
    "step_time_s": "less",
    "tokens_per_s": "more",
    "tokens_per_gpu_s": "more",
    "mfu": "more",
    "gpus": "less",
    "memory_bytes": "less",
    "energy_j": "less",
    "tokens_per_joule": "more",
    "time_to_first_token_s": "less",
    "time_per_output_token_s": "less",
    "step_low_s": "less",
    "step_high_s": "less",
    "mode_low_s": "less",
    "mode_high_s": "less",
    **{f"{part}_s": "less" for part in PARTS},
    **dict.fromkeys(RUN_FIGURES, "more"),
    "tokens": "",
    "memory_capacity_bytes": "",
    "step_time_ps": "",
    "bound": "",
    "status": "",
    "error": "",
    "key": "",
    "wall_s": "",
    "point_settings": "",
    "point_faults": "",
    "result": "",
}
"""The columns of every result, and whether less or more is better; empty: neither."""
_WHOLE = ("gpus", "memory_bytes", "tokens", "memory_capacity_bytes", "step_time_ps")
_TEXT = ("bound", "status", "error", "key", "point_settings", "point_faults", "result")


_MOST: Mapping[str, int] = {"gpus": 1 << 24, "step_time_ps": (1 << 63) - 1}
_MOST_WHOLE = 1 << 53
"""The largest value of the other whole numbers: tokens, and bytes of a GPU's memory."""


def most_of(figure: str) -> float:
    """Return the largest value of a figure's column that is a number; the least is 0.

    >>> most_of("gpus"), most_of("mfu")
    (16777216, 1.7976931348623157e+308)
    """
    if kind_of(figure) == "int64":
        return _MOST.get(figure, _MOST_WHOLE)
    return sys.float_info.max


def kind_of(figure: str) -> str:
    """Return the type of a figure's column, as Arrow calls it.

    >>> kind_of("gpus"), kind_of("mfu"), kind_of("bound")
    ('int64', 'float64', 'string')
    """
    return "int64" if figure in _WHOLE else "string" if figure in _TEXT else "float64"


def measured(point: Point, cache: BoundedCache) -> dict[str, Any]:
    """Return the row of a point that is simulated; points with one content share one simulation.

    Raises what `evaluate` raises.
    """
    key = point.key(cache)
    row = cache.get_or_make(("row", key), lambda: _row(point, cache), weight=_row_weight)
    return {**row, "key": key}


def _row(point: Point, cache: BoundedCache) -> dict[str, Any]:
    result = evaluate(point, cache)
    run = {} if point.run is None else point.run.figures(*point.resolved(cache), result, cache)
    return row_of(result) | run


def _row_weight(row: Mapping[str, Any]) -> int:
    return 4000 + len(row["result"])


def row_of(result: Result) -> dict[str, Any]:
    """Return the figures of a result as a row; figures that do not apply are left out."""
    row: dict[str, Any] = {
        "status": OK,
        "step_time_s": seconds(result.step_time),
        "step_time_ps": int(result.step_time),
        "bound": result.bound,
        **{f"{part}_s": seconds(spent) for part, spent in result.breakdown.items()},
        "result": json.dumps(result.as_json(), separators=(",", ":")),
    }
    if STEP in result.intervals:
        expected = result.intervals[STEP]
        row |= {"step_low_s": seconds(expected.low), "step_high_s": seconds(expected.high)}
    if result.mode_bound is not None:
        ends = result.mode_bound.as_json()
        row |= {"mode_low_s": ends["low"], "mode_high_s": ends["high"]}
    figures = result.figures
    if figures is None:
        return row
    row |= {
        "gpus": figures.gpus,
        "tokens": figures.tokens,
        "tokens_per_s": figures.tokens_per_s,
        "tokens_per_gpu_s": figures.tokens_per_s / figures.gpus,
        "mfu": figures.mfu,
        "memory_bytes": figures.memory.fullest.peak,
        "memory_capacity_bytes": figures.memory_capacity,
    }
    if figures.energy is not None:
        row |= {"energy_j": figures.energy.joules, "tokens_per_joule": figures.energy.tokens_per_joule}
    if figures.requests is not None:
        row["time_to_first_token_s"] = seconds(figures.requests.first_token)
        row["time_per_output_token_s"] = seconds(figures.requests.per_output_token)
    return row


class Rerun(Struct, frozen=True):
    """A point simulated again beside its row.

    `differs` are the figures that are not equal to those of the row.
    """

    row: Mapping[str, Any]
    again: Mapping[str, Any]
    same_content: bool
    """Whether the job, the machine and rapid_des have not changed."""
    differs: tuple[str, ...]


def source_content() -> str:
    """Return the SHA-256 of the source of rapid_des."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package).as_posix()}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
