"""Reliability files as values that are checked: against themselves, then against a job and its machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from msgspec import Struct

from rapid_des.config import Settings, apply_overrides, as_pairs, decode, open_document
from rapid_des.errors import ConfigError
from rapid_des.frontend import Job
from rapid_des.machine import Machine
from rapid_des.runs.clock import Tier, Treatment
from rapid_des.runs.failures import FailingParts
from rapid_des.runs.laws import Empirical, Log
from rapid_des.runs.spec import PartClass, ReliabilitySpec, RestartSpec
from rapid_des.runs.times import Time, parse_time
from rapid_des.units import LongDuration, ceil_divide


class Reliability(Struct, frozen=True):
    """A reliability file (`load_reliability` checks it)."""

    name: str
    file: str
    spec: ReliabilitySpec

    def refuse(self, key: str, problem: str) -> NoReturn:
        """Raise the `ConfigError` of a key of the file."""
        raise ConfigError(problem, file=self.file, key=key)

    def time(self, key: str, text: str) -> Time:
        """Return the time that a key states."""
        return parse_time(text, file=self.file, key=key)


def load_reliability(
    reference: str | Path | Mapping[str, Any] | Reliability, *, settings: Settings = ()
) -> Reliability:
    """Return the reliability file of a path, a preset's name or a mapping, with settings over it.

    A `ConfigError` names file, key, value and what is allowed.

    >>> len(load_reliability("llama3_h100").spec.classes)
    18
    """
    if isinstance(reference, Reliability):
        return reference
    document = open_document(reference, "reliability", folder=Path())
    spec = decode(apply_overrides(document, as_pairs(settings), root="reliability"), ReliabilitySpec)
    reliability = Reliability(document.path.stem, str(document.path), spec)
    names = [part.name for part in spec.classes]
    for place, part in enumerate(spec.classes):
        if names.index(part.name) != place:
            reliability.refuse(f"classes[{place}].name", f"{part.name!r} stands twice")
        mean_time(reliability, place)
        _check_log(reliability, place)
    treatments(reliability, gpus_per_node=1)
    tiers(reliability)
    for name in RestartSpec.__struct_fields__:
        if isinstance(text := getattr(spec.restart, name), str):
            reliability.time(f"restart.{name}", text)
    return reliability


def mean_time(reliability: Reliability, place: int) -> LongDuration | None:
    """Return the mean time between failures of one part of a class; None: it never fails by itself."""
    part, key = reliability.spec.classes[place], f"classes[{place}]"
    stated = [name for name in ("mtbf", "rate", "observed") if getattr(part, name) is not None]
    if isinstance(part.law, Empirical | Log):
        if stated:
            reliability.refuse(f"{key}.{stated[0]}", f"the law {_kind(part)} states the times by itself")
        return part.law.mean if isinstance(part.law, Empirical) else None
    if len(stated) != 1:
        said = " and ".join(stated) or "none"
        reliability.refuse(key, f"{said} of mtbf, rate and observed is stated, exactly one is allowed")
    if part.mtbf is not None:
        if not part.mtbf:
            reliability.refuse(f"{key}.mtbf", "0 s is no time between failures; allowed: above 0")
        return part.mtbf
    if part.rate is not None:
        return part.rate.mean_time if part.rate else None
    assert part.observed is not None, "one of three"
    failures, fleet_time = part.observed.failures, part.observed.parts * int(part.observed.period)
    if failures and fleet_time < failures:
        reliability.refuse(f"{key}.observed.period", f"{part.observed.period} is too short; allowed: above 0")
    return LongDuration(round(fleet_time / failures)) if failures else None


def _kind(part: PartClass) -> str:
    return str(type(part.law).__struct_config__.tag)


def _check_log(reliability: Reliability, place: int) -> None:
    law = reliability.spec.classes[place].law
    if isinstance(law, Log) and law.parts and len(law.parts) != len(law.at):
        problem = f"{len(law.parts)} parts for {len(law.at)} times; allowed: one for each"
        reliability.refuse(f"classes[{place}].law.parts", problem)


def fleets(reliability: Reliability, job: Job, machine: Machine) -> tuple[FailingParts, ...]:
    """Return the parts of each class that the job's GPUs have; classes that never fail have none."""
    found = []
    for place, part in enumerate(reliability.spec.classes):
        units = 1 if part.per == "job" else ceil_divide(job.gpus, _gpus(reliability, place, "per", machine))
        mean, parts = mean_time(reliability, place), units * part.count
        if isinstance(part.law, Log) and (high := max(part.law.parts, default=0)) >= parts:
            reliability.refuse(f"classes[{place}].law.parts", f"there is no part {high}, the job has {parts}")
        never = mean is None and not isinstance(part.law, Log)
        found.append(
            FailingParts(part.name, 0 if never else parts, part.law, float(mean or 1), int(part.age or 0))
        )
    return tuple(found)


def _gpus(reliability: Reliability, place: int, key: str, machine: Machine) -> int:
    """Return the number of GPUs of the unit that a key of a class names."""
    known = {"gpu": 1, "node": machine.spec.gpus_per_node or machine.fabric.gpus} | reliability.spec.domains
    name = getattr(reliability.spec.classes[place], key)
    if name not in known:
        others = "job" if key == "per" else "nothing"
        problem = f"{name!r} is not one of {', '.join(known)}, {others}"
        reliability.refuse(f"classes[{place}].{key}", problem)
    if known[name] > machine.fabric.gpus:
        problem = f"{name} has {known[name]} GPUs, {machine.name} has {machine.fabric.gpus}"
        reliability.refuse(f"domains.{name}", problem)
    return known[name]


def treatments(
    reliability: Reliability, machine: Machine | None = None, *, gpus_per_node: int
) -> tuple[Treatment, ...]:
    """Return what is done after a failure of each class; without a machine the units are not looked up."""
    found = []
    for place, part in enumerate(reliability.spec.classes):
        times = {}
        for key in ("detection", "diagnosis", "repair"):
            own = getattr(part, key)
            where = key if own is None else f"classes[{place}].{key}"
            times[key] = reliability.time(where, getattr(reliability.spec, key) if own is None else own)
        nodes = 0
        if machine is not None and part.takes != "nothing":
            nodes = ceil_divide(_gpus(reliability, place, "takes", machine), gpus_per_node)
        found.append(Treatment(part.name, **times, nodes=nodes))
    return tuple(found)


def tiers(reliability: Reliability) -> tuple[Tier, ...]:
    """Return the spare nodes in the order in which they are taken; none: one is always at hand."""
    spares = reliability.spec.spares
    if spares is None:
        return ()
    return (
        Tier(spares.hot, reliability.time("spares", "0 s")),
        Tier(spares.warm, reliability.time("spares.warm_start", spares.warm_start)),
        Tier(spares.cold, reliability.time("spares.cold_start", spares.cold_start)),
    )
