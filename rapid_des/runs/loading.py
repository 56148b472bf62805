"""Reliability files as values that are checked: against themselves, then against a job and its machine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any, NoReturn

from msgspec import Struct

from rapid_des.config import Document, Settings, apply_overrides, as_pairs, decode, open_document
from rapid_des.errors import ConfigError, InputError
from rapid_des.machine import Machine
from rapid_des.network.faults import parse_fault
from rapid_des.runs.failures import FailingParts
from rapid_des.runs.laws import Empirical, Log
from rapid_des.runs.spares import Tier
from rapid_des.runs.spec import PartClass, ReliabilitySpec, RestartSpec
from rapid_des.runs.steps import SlowClass
from rapid_des.runs.times import Time, parse_time
from rapid_des.runs.treatment import Treatment
from rapid_des.units import LongDuration, ceil_divide

_TOLERATE = re.compile(r"step_slower\s*<\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*%\Z")


class Reliability(Struct, frozen=True):
    """A reliability file (`load_reliability` checks it)."""

    name: str
    file: str
    spec: ReliabilitySpec

    def __hash__(self) -> int:
        return hash((self.name, self.file, len(self.spec.classes)))  # the spec's mappings have no hash

    def refuse(self, key: str, problem: str) -> NoReturn:
        """Raise the `ConfigError` of a key of the file."""
        raise ConfigError(problem, file=self.file, key=key)

    def time(self, key: str, text: str) -> Time:
        """Return the time that a key states."""
        return parse_time(text, file=self.file, key=key)


def load_reliability(
    reference: str | Path | Mapping[str, Any] | Document | Reliability, *, settings: Settings = ()
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
        _check_effect(reliability, place)
        if part.burst is not None:
            _burst_time(reliability, place)
    tolerated(reliability)
    _check_policy(reliability)
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


def fleets(reliability: Reliability, gpus: int, machine: Machine) -> tuple[FailingParts, ...]:
    """Return the parts of each class that a number of GPUs have; classes that never fail have none."""
    found = []
    for place, part in enumerate(reliability.spec.classes):
        units = (
            1 if part.per == "job" else ceil_divide(gpus, gpus_of_unit(reliability, place, "per", machine))
        )
        mean, parts = mean_time(reliability, place), units * part.count
        if isinstance(part.law, Log) and (high := max(part.law.parts, default=0)) >= parts:
            reliability.refuse(f"classes[{place}].law.parts", f"there is no part {high}, the job has {parts}")
        never = mean is None and not isinstance(part.law, Log)
        follow, within = (part.burst.share, _burst_time(reliability, place)) if part.burst else (0.0, None)
        own = (part.law, float(mean or 1), int(part.age or 0), follow, within)
        found.append(
            FailingParts(part.name, 0 if never else parts, *own, _burst_parts(reliability, place, machine))
        )
    return tuple(found)


def _burst_parts(reliability: Reliability, place: int, machine: Machine) -> int | None:
    """Return the number of parts of the unit in which a burst stays; None: it does not."""
    part, key = reliability.spec.classes[place], f"classes[{place}].burst.unit"
    if part.burst is None or part.burst.unit is None:
        return None
    if part.per == "job":
        reliability.refuse(key, "a part of the whole job stands in no unit; allowed: left out")
    gpus = _gpus_of(reliability, key, part.burst.unit, machine)
    own = gpus_of_unit(reliability, place, "per", machine)
    if gpus % own:
        reliability.refuse(key, f"{part.burst.unit} has {gpus} GPUs, {part.per} {own}; allowed: a multiple")
    return gpus // own * part.count


def _burst_time(reliability: Reliability, place: int) -> Time:
    burst = reliability.spec.classes[place].burst
    assert burst is not None, "the caller checks this"
    return reliability.time(f"classes[{place}].burst.within", burst.within)


def gpus_of_node(machine: Machine) -> int:
    """Return the number of GPUs of a node; a machine that states none is one node."""
    return machine.spec.gpus_per_node or machine.fabric.gpus


def gpus_of_unit(reliability: Reliability, place: int, key: str, machine: Machine) -> int:
    """Return the number of GPUs of the unit that a key of a class names."""
    name = getattr(reliability.spec.classes[place], key)
    others = "job" if key == "per" else "nothing"
    return _gpus_of(reliability, f"classes[{place}].{key}", name, machine, others)


def _gpus_of(reliability: Reliability, key: str, name: str, machine: Machine, *others: str) -> int:
    known = {"gpu": 1, "node": gpus_of_node(machine)} | reliability.spec.domains
    if name not in known:
        reliability.refuse(key, f"{name!r} is not one of {', '.join((*known, *others))}")
    if known[name] > machine.fabric.gpus:
        problem = f"{name} has {known[name]} GPUs, {machine.name} has {machine.fabric.gpus}"
        reliability.refuse(f"domains.{name}", problem)
    return known[name]


def _check_effect(reliability: Reliability, place: int) -> None:
    """Refuse a class whose effect lacks a key, or that has a key of another effect."""
    part, key = reliability.spec.classes[place], f"classes[{place}]"
    needed = {"slows": ("fault",), "pauses": ("lasts",)}.get(part.effect, ())
    allowed = {"slows": ("fault", "lasts"), "pauses": ("lasts",)}.get(part.effect, ())
    for name in ("fault", "lasts"):
        stated = getattr(part, name) is not None
        if name in needed and not stated:
            reliability.refuse(f"{key}.{name}", f"the effect {part.effect} needs it")
        if stated and name not in allowed:
            reliability.refuse(f"{key}.{name}", f"the effect {part.effect} has none; allowed: left out")
    if part.fault is not None:
        try:
            SlowClass(part.fault, 1, part.count, 1)
        except ConfigError as error:
            reliability.refuse(f"{key}.fault", str(error))


def _check_policy(reliability: Reliability) -> None:
    """Refuse keys of another policy than the stated one."""
    spec = reliability.spec
    if (spec.policy == "redundant") != (spec.redundancy is not None):
        reliability.refuse("redundancy", "goes with the policy redundant, which needs it; allowed: 2 or more")
    if spec.batch != "keep" and spec.policy != "shrink":
        problem = f"{spec.batch!r} goes with the policy shrink, not {spec.policy}; allowed: keep"
        reliability.refuse("batch", problem)


def tolerated(reliability: Reliability) -> float:
    """Return the share by which steps may be slower before slow parts are replaced."""
    text = reliability.spec.tolerate
    if text is None:
        return inf
    match = _TOLERATE.match(text)
    if match is None:
        reliability.refuse("tolerate", f"{text!r} is no condition; allowed: such as step_slower < 3%")
    return float(match[1]) / 100


def treatments(
    reliability: Reliability, machine: Machine | None = None, *, gpus_per_node: int = 1
) -> tuple[Treatment, ...]:
    """Return what is done after a failure of each class; without a machine the units are not looked up."""
    found, gpus_per_node = [], gpus_per_node if machine is None else gpus_of_node(machine)
    for place, part in enumerate(reliability.spec.classes):
        times = {key: _own_time(reliability, place, key) for key in ("detection", "diagnosis", "repair")}
        lasts = None if part.lasts is None else reliability.time(f"classes[{place}].lasts", part.lasts)
        nodes, unit = 0, 1
        if machine is not None and part.takes != "nothing" and part.effect != "pauses":
            nodes = ceil_divide(gpus_of_unit(reliability, place, "takes", machine), gpus_per_node)
        if machine is not None and part.per != "job":
            unit = gpus_of_unit(reliability, place, "per", machine)
        found.append(
            Treatment(
                part.name,
                **times,
                nodes=nodes,
                effect=part.effect,
                lasts=lasts,
                misdiagnosis=part.misdiagnosis,
                parts_per_node=part.count * gpus_per_node / unit,
            )
        )
    return tuple(found)


def _own_time(reliability: Reliability, place: int, key: str) -> Time:
    """Return a time of a class, or that of the whole file."""
    part = reliability.spec.classes[place]
    own, shared = getattr(part, key), key
    if key == "detection" and part.effect == "hangs":
        shared = "time_out"
    text = own or getattr(reliability.spec, shared)
    if text is None:
        reliability.refuse(shared, f"unset, and classes[{place}] hangs; allowed: a time")
    return reliability.time(shared if own is None else f"classes[{place}].{key}", text)


def slow_classes(reliability: Reliability, machine: Machine) -> dict[int, SlowClass]:
    """Return the classes that slow steps, by their places; their faults hit something on the machine."""
    found = {}
    for place, part in enumerate(reliability.spec.classes):
        if part.fault is not None:
            gpus = (
                machine.fabric.gpus if part.per == "job" else gpus_of_unit(reliability, place, "per", machine)
            )
            found[place] = SlowClass(part.fault, gpus, part.count, gpus_of_node(machine))
            try:
                machine.with_faults([parse_fault(found[place].at(0))])
            except InputError as error:
                reliability.refuse(f"classes[{place}].fault", str(error))
    return found


def spares_unit(reliability: Reliability, machine: Machine) -> int | None:
    """Return the number of nodes of a unit that has spare nodes for itself; None: the whole job has them."""
    spares, node = reliability.spec.spares, gpus_of_node(machine)
    if spares is None or spares.per is None:
        return None
    gpus = _gpus_of(reliability, "spares.per", spares.per, machine)
    if gpus % node:
        problem = f"{spares.per} has {gpus} GPUs, a node {node}; allowed: whole nodes"
        reliability.refuse("spares.per", problem)
    return gpus // node


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
