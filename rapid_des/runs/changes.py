"""Changes of a run by name, and what each is worth: the same failures with and without it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct, structs

from rapid_des.runs.failures import FailingParts
from rapid_des.runs.laws import Empirical, Log
from rapid_des.runs.loading import Reliability
from rapid_des.runs.planned import PlannedRun
from rapid_des.runs.spares import Tier
from rapid_des.runs.spec import CheckpointSpec
from rapid_des.runs.times import Time
from rapid_des.runs.treatment import NOTHING
from rapid_des.units import Bandwidth, LongDuration

_MINUTE = float(LongDuration.parse("1 min"))


class RunChange(Struct, frozen=True):
    """One change: of the reliability file, or of the run that follows from it."""

    name: str
    of_file: Callable[[Reliability], Reliability] = lambda same: same
    of_run: Callable[[PlannedRun], PlannedRun] = lambda same: same


def changes_of(reliability: Reliability) -> Mapping[str, RunChange]:
    """Return by name the changes that make sense for a reliability file."""
    spec = reliability.spec
    found = [
        RunChange("detection a minute faster", of_run=lambda run: _treated(run, "detection")),
        RunChange("diagnosis a minute faster", of_run=lambda run: _treated(run, "diagnosis")),
        RunChange("restart a minute faster", of_run=_restarted),
    ]
    if spec.spares is not None:
        each = "" if spec.spares.per is None else f" in each {spec.spares.per}"
        found.append(RunChange(f"one hot spare more{each}", of_run=_one_spare_more))
    if spec.checkpoint is not None:
        if spec.checkpoint.storage is not None or spec.checkpoint.stall is not None:
            found.append(RunChange("storage twice as fast", of_file=_faster_storage))
        if spec.checkpoint.interval != "auto":
            found.append(RunChange("the best checkpoint interval", of_file=_best_interval))
    drawn = [part for part in spec.classes if not isinstance(part.law, Empirical | Log)]
    found += [_half_as_many(spec.classes.index(part), part.name) for part in drawn]
    return {change.name: change for change in found}


def _half_as_many(place: int, name: str) -> RunChange:
    def changed(run: PlannedRun) -> PlannedRun:
        parts = list(run.parts)
        parts[place] = _rarer(parts[place])
        return structs.replace(run, parts=tuple(parts))

    return RunChange(f"half the failures: {name}", of_run=changed)


def _rarer(fleet: FailingParts) -> FailingParts:
    return structs.replace(fleet, mean=2 * fleet.mean)


def _sooner(time: Time) -> Time:
    return Time(time.text, lambda uniform: max(time.quantile(uniform) - _MINUTE, 0.0))


def _treated(run: PlannedRun, name: str) -> PlannedRun:
    treatments = tuple(structs.replace(each, **{name: _sooner(getattr(each, name))})
                       for each in run.plan.treatments)  # fmt: skip
    return structs.replace(run, plan=structs.replace(run.plan, treatments=treatments))


def _restarted(run: PlannedRun) -> PlannedRun:
    """Make the longest phase a minute shorter."""
    phases = dict(run.plan.restart)
    longest = max(phases, key=lambda name: phases[name].mean, default=None)
    if longest is not None:
        phases[longest] = _sooner(phases[longest])
    return structs.replace(run, plan=structs.replace(run.plan, restart=phases))


def _one_spare_more(run: PlannedRun) -> PlannedRun:
    hot, *others = run.plan.tiers or (Tier(0, NOTHING),)
    tiers = (Tier(hot.count + 1, hot.start), *others)
    return structs.replace(run, plan=structs.replace(run.plan, tiers=tiers))


def _with_checkpoint(reliability: Reliability, checkpoint: CheckpointSpec) -> Reliability:
    return structs.replace(reliability, spec=structs.replace(reliability.spec, checkpoint=checkpoint))


def _best_interval(reliability: Reliability) -> Reliability:
    checkpoint = reliability.spec.checkpoint
    assert checkpoint is not None, "the change is there for files that have one"
    return _with_checkpoint(reliability, structs.replace(checkpoint, interval="auto"))


def _faster_storage(reliability: Reliability) -> Reliability:
    checkpoint = reliability.spec.checkpoint
    assert checkpoint is not None, "the change is there for files that have one"
    faster = {
        name: Bandwidth(2 * int(rate))
        for name in ("storage", "storage_per_node")
        if (rate := getattr(checkpoint, name)) is not None
    }
    write = None if checkpoint.write is None else LongDuration(int(checkpoint.write) // 2)
    stall = checkpoint.stall
    if stall is not None and checkpoint.scheme == "synchronous":
        stall = LongDuration(int(stall) // 2)
    return _with_checkpoint(reliability, structs.replace(checkpoint, write=write, stall=stall, **faster))
