"""What stands behind a prediction: what priced it, what of that was measured, and how far off such runs were.

    work of a run ──► spread: residuals of its kernels and collectives, resampled ──► interval
                                                 measured jobs' errors in spreads ──┘

`Basis` is what a run was priced with, as reports say it: device, clock, software, host, and of what there are
measurements. An interval says how far the prediction may be off. A run's spread is the standard deviation of
its logarithmic time when each class of its critical rank's work takes the residual of a measured case of that
class, drawn with replacement (a bootstrap over cases). What no measured kernel shows (hosts, what frameworks
do between kernels) measured jobs do: their errors, in spreads of their own, are the quantiles of which an
interval is made. That is split conformal prediction with the spread as the scale (Lei et al.,
Distribution-free predictive inference for regression, JASA 113 (2018), section 5.2). Both come from
calibration cases alone; `validation/fit_intervals.py` wrote `residuals.json`.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from msgspec import Struct, structs

from rapid_des.arrays import Floats
from rapid_des.chakra.trace import CollectiveType
from rapid_des.device.device import Device, load_device
from rapid_des.device.machine_evidence import MachineEvidence
from rapid_des.device.spec import Clock, DeviceSpec
from rapid_des.frontend import Job
from rapid_des.frontend.software import TIMES, HostSpec
from rapid_des.modes.execution import Run
from rapid_des.modes.pricing import as_used
from rapid_des.network.collectives.libraries.library import library_name
from rapid_des.network.specs import AUTO
from rapid_des.program.collectives.library import libraries_of
from rapid_des.program.collectives.plans import PLAIN, SCALAR, SEND, ServedCollective
from rapid_des.report.measured import GEMM_DTYPES, JOBS, MEASURED
from rapid_des.units import Duration, seconds
from rapid_des.values import fields, replace

LEVEL = 0.8
"""The share of similar jobs whose measurement lies in an interval."""
STEP, FIRST_TOKEN, PER_TOKEN = "step", "first_token", "per_token"
COMMUNICATION = "communication"
ROUTER = "router"
"""Kernels that choose experts: they occur in all mixtures of experts, whatever computes the experts."""
_ENOUGH = 9
"""The least number of cases whose 10th and 90th percentiles lie within them: 1 / (n + 1) is a tenth."""
_DRAWS = 200
_CLASSES = {"gemm": "gemm", "grouped": "experts", "attention": "attention", "vector": "vector"}
_WAITING = ("bubble", "host", "idle")


def measured_topics(device: Device, dtype: str, *, calibrated: bool = False) -> tuple[str, ...]:
    """Return the topics that a device was measured in: none if its numbers are not those of that preset.

    GEMMs count in the `dtype` of the matrices alone. A `calibrated` device's numbers are its own machine's.
    """
    preset, topics = MEASURED.get(device.spec.name, ("", ()))
    if not topics:
        return ()
    if not calibrated and structs.replace(_preset(preset), conditions=device.conditions) != device.spec:
        return ()
    absent = () if dtype in GEMM_DTYPES.get(device.spec.name, ()) else ("gemm",)
    return tuple(topic for topic in topics if topic not in absent)


@cache
def _preset(name: str) -> DeviceSpec:
    """Return a preset from its file, cached: every result needs it."""
    return load_device(name).spec


def jobs_text(software: str, device: str) -> str:
    """Return what a report says where no whole job of this software was measured on this device; else "".

    >>> jobs_text("nanotron", "A100-SXM4-80GB")
    '; jobs of nanotron are not validated on A100-SXM4-80GB'
    """
    measured = device in JOBS.get(software, ())
    return "" if measured or not software else f"; jobs of {software} are not validated on {device}"


def validation_text(topics: Sequence[str], dtype: str) -> str:
    """Return what a report says of measurements behind its prices.

    >>> validation_text((), "bf16")
    'not validated: there are no measurements of this device as it is stated here'
    """
    if not topics:
        return "not validated: there are no measurements of this device as it is stated here"
    missing = "" if "gemm" in topics else f"; matrix products in {dtype} are not validated"
    return f"validated against measurements of {', '.join(topics)}{missing}"


def unmeasured(job: Job, device: Device) -> list[str]:
    """Return the device's name if there are no measurements of it as it is stated; else nothing."""
    return [] if measured_topics(device, _matrix_dtype(job)) else [device.spec.name]


def unmeasured_in(result: Mapping[str, Any] | None) -> list[str]:
    """Return the device of a result as JSON if there are no measurements of it as stated there."""
    priced: Mapping[str, Any] = (result or {}).get("priced_with") or {}
    return [priced["device"]] if "device" in priced and not priced.get("validated") else []


def unmeasured_lines(devices: Iterable[str]) -> Iterator[str]:
    """Yield what a report says of devices without measurements.

    >>> list(unmeasured_lines(["X", "X"]))
    ['not validated: there are no measurements of X as stated here']
    """
    names = ", ".join(dict.fromkeys(devices))
    if names:
        yield f"not validated: there are no measurements of {names} as stated here"


def _matrix_dtype(job: Job) -> str:
    return job.spec.precision.gemm or job.spec.precision.activations


_SERVED = fields(ServedCollective)


class Basis(Struct, frozen=True):
    """What priced a run; for foreign traces, whose durations are stated, only the collectives."""

    collectives: Mapping[str, str]
    """The algorithm by collective that the machine file asks for, `default` for those that it leaves open."""
    served: tuple[ServedCollective, ...] = ()
    """What served the run's collectives."""
    device: Device | None = None
    """The device, at the clock and with the launches that the job runs at."""
    decode_device: Device | None = None
    """The device in decode steps; None in training."""
    validated: tuple[str, ...] = ()
    """The topics that this device was measured in."""
    matrix_dtype: str = ""
    """Number format of the job's matrix products."""
    software: str = ""
    """The job's framework or engine."""
    host: HostSpec | None = None
    """The cost of issuing work; None: launches are in the kernels' times."""
    measured_here: MachineEvidence | None = None
    """The measurements of this very machine; None where there are none."""

    @property
    def launch(self) -> str:
        """How kernels are launched."""
        stated = "" if self.device is None else self.device.conditions.launch
        decode = stated if self.decode_device is None else self.decode_device.conditions.launch
        return f"{stated}, decode {decode}" if decode != stated else stated

    @property
    def apart(self) -> tuple[ServedCollective, ...]:
        """The algorithms of collectives that the machine file leaves open, in words."""
        return tuple(each for each in self.served if each.operation != SEND and self._is_apart(each))

    def _is_apart(self, served: ServedCollective) -> bool:
        asked = self.collectives.get(served.operation, self.collectives["default"]).split("/")
        used = {name.split()[0] for name in served.algorithm.split("/")}
        return len(set(asked)) > 1 or not used <= {*asked, SCALAR, PLAIN[CollectiveType.BARRIER]}

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON; the clock in Hz."""
        plain: dict[str, Any] = {
            "collectives": dict(self.collectives),
            "served": [{name: getattr(each, name) for name in _SERVED} for each in self.served],
        }
        if self.device is None:
            return plain
        spec, used = self.device.spec, self.device.conditions
        return plain | {
            "device": spec.name,
            "clock": used.clock,
            "clock_hz": int(getattr(spec.clock, used.clock)),
            **_sustained_as_json(self.device),
            **_decode_as_json(self.decode_device),
            "launch": self.launch,
            "l2": used.l2,
            "software": self.software,
            "host": None if self.host is None else host_json(self.host),
            "library": used.library,
            "attention": used.attention or used.library,
            "operators": spec.operators,
            "validated": list(self.validated),
            "calibrated_on": list(self.measured_here.calibrated_on if self.measured_here else ()),
            "jobs_validated": not jobs_text(self.software, spec.name),
        }


def basis_of(run: Run, job: Job | None, got: Iterable[ServedCollective]) -> Basis:
    """Return what a machine prices a job with, or traces that state their durations."""
    served, machine = tuple(sorted(got)), run.machine
    stated = machine.collectives
    names = {
        operation: "/".join([choice.algorithm] if isinstance(choice.algorithm, str) else choice.algorithm)
        for operation in stated.operations
        if (operation == "default" or getattr(stated, operation) is not None)
        and (choice := stated.choice(operation)) is not None
    }
    libraries = libraries_of(run.lowered.traces, machine).of("default")
    stores = machine.switching.mode == "store_and_forward"  # of which libraries have no closed form
    if libraries and not stores and "default" not in names:
        names["default"] = library_name(libraries[0])
    collectives = {"default": AUTO} | names
    if job is None:
        return Basis(collectives, served)
    device, serving = as_used(job, machine, machine.device), job.spec.inference
    dtype = _matrix_dtype(job)
    decode = None if serving is None else as_used(job, machine, machine.device, decoding=True)
    return Basis(
        collectives,
        served,
        device,
        decode,
        validated=measured_topics(machine.device, dtype, calibrated=machine.spec.evidence is not None),
        measured_here=machine.spec.evidence,
        matrix_dtype=dtype,
        software=job.software.name,
        host=job.host,
    )


def _decode_as_json(device: Device | None) -> dict[str, Any]:
    if device is None:
        return {}
    clock = device.conditions.clock
    return {"decode_clock": clock, "decode_clock_hz": int(getattr(device.spec.clock, clock))}


def _sustained_as_json(device: Device) -> dict[str, Any]:
    """Return where the sustained clock is from and those of other dtypes; nothing at the boost clock."""
    clock = device.spec.clock
    if device.conditions.clock == "boost":
        return {}
    return {
        "clock_hz_by_dtype": {dtype: int(rate) for dtype, rate in clock.sustained_by_dtype.items()},
        "clock_from": clock.sustained_from,
        "clock_within": clock.sustained_within,
    }


def clock_text(device: Device) -> str:
    """Return the clock in use as reports name it, the sustained one with where it is from.

    >>> from rapid_des.device import load_device
    >>> clock_text(load_device("h100_sxm").under(clock="sustained"))
    'sustained clock 1.36 GHz (measured, within 3%; fp8 1.28 GHz)'
    """
    clock = device.spec.clock
    if device.conditions.clock == "boost":
        return f"boost clock {clock.boost}"
    return f"sustained clock {sustained_text(clock)}"


def sustained_text(clock: Clock) -> str:
    """Return a sustained clock, where it is from, how far off it may be, and those of other dtypes."""
    within = "" if clock.sustained_within is None else f", within {clock.sustained_within:.0%}"
    by_dtype = "".join(f"; {dtype} {rate}" for dtype, rate in clock.sustained_by_dtype.items())
    return f"{clock.sustained} ({clock.sustained_from}{within}{by_dtype})"


def host_json(host: HostSpec) -> dict[str, Any]:
    """Return plain data for JSON; times in seconds."""
    times = {name: getattr(host, name) for name in TIMES}
    plain = {f"{name}_s": None if time is None else seconds(time) for name, time in times.items()}
    return plain | {"captured": host.captured, "waits": list(host.waits), "blocking": host.blocking}


def host_line(host: HostSpec) -> str:
    """Return what the host needs to issue work."""
    graph = {"nothing": "no graphs", "decode": "decode as a graph", "passes": "passes as graphs"}
    fixed = f", {host.step} a step" if host.step else ""
    tensor = f" ({host.tensor_rank} more over tp)" if host.tensor_rank else ""
    each = f"{host.kernel} a kernel, {host.collective} a collective{tensor}"
    waits = ", waits for each launch" * host.blocking
    return f"host: {each}{fixed}, {graph[host.captured]}{waits}"


class Interval(Struct, frozen=True):
    """An interval in which a predicted time's measurement is expected, for similar jobs.

    >>> Interval(Duration(100), Duration(90), Duration(120), 12, "vLLM on A100", Duration(105)).holds(1.1)
    True
    """

    time: Duration
    low: Duration
    high: Duration
    cases: int
    """Number of measured jobs behind it."""
    source: str
    """Software and device of those jobs."""
    median: Duration
    """The forecast: a measurement is as likely above as below."""

    def holds(self, ratio: float) -> bool:
        """Return whether the time times this, a measured ratio to it, lies inside."""
        return self.low <= ratio * self.time <= self.high

    def widened(self, low: float, high: float) -> Interval:
        """Return the interval of a time that may itself be `low` to `high` times what it is.

        >>> interval = Interval(Duration(100), Duration(90), Duration(120), 12, "vLLM on A100", Duration(105))
        >>> interval.widened(0.5, 1.5).low, interval.widened(0.5, 1.5).high
        (Duration('45 ps'), Duration('180 ps'))
        """
        ends = (min(self.low, self.time) * low, max(self.high, self.time) * high)
        return replace(self, low=Duration(round(ends[0])), high=Duration(round(ends[1])))

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON; times in seconds."""
        ends = [seconds(self.low), seconds(self.high)]
        return {"level": LEVEL, "seconds": ends, "cases": self.cases, "source": self.source}

    def forecast(self) -> dict[str, float]:
        """Return the forecast and the interval's ends as plain data, in seconds."""
        return {name: seconds(getattr(self, name)) for name in ("median", "low", "high")}

    def rates(self, rate: float) -> dict[str, float]:
        """Return what a rate at the predicted time is at the forecast, its low and its high.

        >>> half = Interval(Duration(100), Duration(100), Duration(400), 12, "vLLM on A100", Duration(200))
        >>> half.rates(8.0)
        {'median': 4.0, 'low': 2.0, 'high': 8.0}
        """
        times = {"median": self.median, "low": self.high, "high": self.low}
        return {name: rate * self.time / max(time, 1) for name, time in times.items()}


class Origin(Struct, frozen=True):
    """Identifies similar measurements: the device, the job's software, and the kind of time."""

    device: str
    software: str
    figure: str = STEP


def work_of(
    times: Mapping[str, int], models: Mapping[str, str], breakdown: Mapping[str, int]
) -> dict[str, int]:
    """Return the picoseconds of a critical rank's work by class: kernels by model, exposed communication.

    `times` are those of its operators, `models` which model priced each, `breakdown` where its time goes.

    >>> work_of({"a": 30, "b": 10}, {"a": "attention.flash", "b": "gemm"}, {"compute": 20, "tp": 5})
    {'attention': 15, 'gemm': 5, 'communication': 5}
    """
    sums: dict[str, int] = {}
    for name, time in times.items():
        kind = ROUTER if ".router" in name else _CLASSES.get(models.get(name, "").partition(".")[0])
        if kind is not None and time:
            sums[kind] = sums.get(kind, 0) + time
    computed, shown = max(sum(times.values()), 1), breakdown.get("compute", 0)
    work = {kind: time * shown // computed for kind, time in sums.items()}
    sent = sum(time for part, time in breakdown.items() if part not in (*_WAITING, "compute"))
    return work | ({COMMUNICATION: sent} if sent else {})


def spread(work: Mapping[str, int], device: str) -> float:
    """Return the standard deviation of the logarithm of a run's time, as measured kernels' residuals have it.

    What waits, waits for work like the rank's own, and has its errors. 0 where nothing like it was measured.
    """
    known = {kind: factors for kind in work if len(factors := _factors(kind, device))}
    whole = sum(work[kind] for kind in known)
    if not whole:
        return 0.0
    drawn = sum(work[kind] / whole * factors for kind, factors in known.items())
    return float(np.log(drawn).std())


@cache
def _factors(kind: str, device: str) -> Floats:
    """Return what a class's times are multiplied by in each draw, the same for every run; none if unknown."""
    devices = residuals()["kernels"].get(kind, {})
    sample = devices.get(device, [])
    if len(sample) < _ENOUGH:
        sample = [error for errors in devices.values() for error in errors]
    drawn = random.Random(kind)  # noqa: S311 - no secret
    return np.array([math.exp(drawn.choice(sample)) for _ in range(_DRAWS if sample else 0)])


def interval(time: int, work: Mapping[str, int], origin: Origin) -> Interval | None:
    """Return the range in which a time's measurement is expected; None if too few such jobs were measured."""
    scale, (errors, source) = spread(work, origin.device), _errors(origin, stratum(origin.figure, work))
    if not scale or len(errors) < _ENOUGH:
        return None
    low, high = quantiles(errors)
    ends = [Duration(round(time * math.exp(scale * error))) for error in (low, high, median(errors))]
    return Interval(Duration(time), ends[0], ends[1], len(errors), source, ends[2])


def intervals(times: Mapping[str, int], work: Mapping[str, int], origin: Origin) -> dict[str, Interval]:
    """Return the intervals of a run's times by figure, of those that measurements support."""
    each = {
        name: interval(time, work, replace(origin, figure=name))
        for name, time in times.items()
        if time  # requests of one token have no next one
    }
    return {name: interval for name, interval in each.items() if interval is not None}


def in_order(intervals: Mapping[str, Interval]) -> list[Interval]:
    """Return intervals in the order of reports: first token, each next one, the whole."""
    return [intervals[figure] for figure in (FIRST_TOKEN, PER_TOKEN, STEP) if figure in intervals]


def quantiles(errors: Sequence[float]) -> tuple[float, float]:
    """Return the ends that hold the next of like errors in `LEVEL` of all cases, both tails alike.

    >>> quantiles([float(number) for number in range(9)])
    (0.0, 8.0)
    """
    ranked, tail = sorted(errors), (1 - LEVEL) / 2
    place = min(max(int(tail * (len(ranked) + 1)), 1), len(ranked))
    return ranked[place - 1], ranked[-place]


def distinguishable(
    times: tuple[int, int], works: tuple[Mapping[str, int], Mapping[str, int]], origin: Origin
) -> bool | None:
    """Return whether the faster of two predicted layouts is also measured to be faster, `LEVEL` sure.

    None where no layouts of such jobs were compared.
    """
    least = resolution(works, origin)
    return None if least is None else abs(math.log(times[0] / times[1])) > least


def resolution(works: tuple[Mapping[str, int], Mapping[str, int]], origin: Origin) -> float | None:
    """Return the natural logarithm of the ratio above which two predicted layouts are distinguishable.

    None where no layouts of such jobs were compared.
    """
    one, two = (spread(work, origin.device) for work in works)
    return resolution_of((one, two), origin.software)


def resolution_of(spreads: tuple[float, float], software: str) -> float | None:
    """Return what `resolution` does, given the spreads of both layouts."""
    pairs: Mapping[str, Sequence[float]] = residuals()["pairs"]
    errors = pairs.get(software) or pairs.get("", [])
    scale = math.hypot(*spreads)
    if len(errors) < _ENOUGH or not scale:
        return None
    place = min(math.ceil(LEVEL * (len(errors) + 1)), len(errors))
    return scale * sorted(errors)[place - 1]


def stratum(figure: str, work: Mapping[str, int]) -> str:
    """Return the class of jobs with similar errors: mixtures of experts are predicted less well.

    >>> stratum(STEP, {"gemm": 5, "router": 3})
    'step with experts'
    """
    return f"{figure} with experts" if ROUTER in work else figure


def _errors(origin: Origin, group: str) -> tuple[Sequence[float], str]:
    """Return measured jobs' errors in spreads: of this software here, else anywhere, else of all."""
    jobs = residuals()["jobs"].get(group, {})
    mine = jobs.get(origin.software, {})
    here = mine.get(origin.device, [])
    if len(here) >= _ENOUGH:
        return here, f"{origin.software} on {origin.device}"
    anywhere = [error for errors in mine.values() for error in errors]
    if len(anywhere) >= _ENOUGH:
        return anywhere, origin.software
    every = (error for devices in jobs.values() for errors in devices.values() for error in errors)
    return list(every), "all software"


@cache
def residuals() -> Mapping[str, Any]:
    """Return the fitted residuals of kernels, errors of jobs, and errors of pairs of their layouts."""
    tree: Mapping[str, Any] = json.loads(Path(__file__).with_name("residuals.json").read_text("utf-8"))
    return tree


def forget() -> None:
    """Drop the cached `residuals.json` after it was rewritten."""
    residuals.cache_clear()
    _factors.cache_clear()
