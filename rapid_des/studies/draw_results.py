"""Draws of faults in a folder: the manifest from which they can be run again, and reading them back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rapid_des.bounded_cache import BoundedCache
from rapid_des.config import to_tree
from rapid_des.errors import InputError
from rapid_des.frontend import load_job
from rapid_des.machine import Machine, load_machine
from rapid_des.network.faults import parse_fault
from rapid_des.studies.fault_rows import FaultSample, Sampling, read
from rapid_des.studies.points import Point, Rerun, evaluate, source_content
from rapid_des.studies.store import ResultStore
from rapid_des.units import seconds
from rapid_des.values import replace


class _Configuration(msgspec.Struct):
    job: dict[str, Any]
    machine: int
    """The position of the machine in the manifest's list."""
    mode: str
    strict: bool
    allow_oom: bool


class _Drawn(msgspec.Struct):
    source: str
    faults: tuple[str, ...]
    seed: int
    sampling: Sampling
    points: dict[str, str]


class _FaultManifest(msgspec.Struct):
    """The manifest of a sample."""

    study: _Drawn
    configurations: dict[str, _Configuration]
    machines: list[dict[str, Any]]


def inputs_of(points: Mapping[str, Point], cache: BoundedCache) -> dict[str, Any]:
    """Return the part of a manifest from which draws can be run again: each job, and each machine once."""
    machines = list[Machine]()
    configurations = dict[str, Any]()
    for name, point in points.items():
        job, machine = point.resolved(cache)
        if machine not in machines:
            machines.append(machine)
        how = {"mode": point.mode, "strict": point.strict, "allow_oom": point.allow_oom}
        configurations[name] = {"job": to_tree(job.spec, "job"), "machine": machines.index(machine), **how}
    stated = [to_tree(machine.as_spec(), "machine") for machine in machines]
    return {"configurations": configurations, "machines": stated}


def kept_points(store: ResultStore) -> dict[str, Point]:
    """Return the configurations in a folder, by name."""
    manifest = store.require(_FaultManifest)
    machines = [load_machine(tree) for tree in manifest.machines]
    return {
        name: Point(
            load_job(stated.job),
            machines[stated.machine],
            mode=stated.mode,
            strict=stated.strict,
            allow_oom=stated.allow_oom,
        )
        for name, stated in manifest.configurations.items()
    }


def kept_sample(store: ResultStore) -> FaultSample:
    """Return the draws in a folder."""
    manifest = store.require(_FaultManifest)
    rows = tuple(read(row) for row in store.table().to_pylist())
    drawn = manifest.study
    return FaultSample(tuple(manifest.configurations), rows, drawn.faults, drawn.seed, drawn.sampling)


def rerun_draw(store: ResultStore, number: int) -> Rerun:
    """Simulate the draw of a row and its healthy step again, from the manifest."""
    row, cache = store.row(number), BoundedCache()
    name, manifest = row["configuration"], store.require(_FaultManifest)
    point = kept_points(store)[name]
    drawn = read(row)
    if drawn.error:
        raise InputError(f"{store.folder}: draw {drawn.draw} of {name} failed: {drawn.error}")
    healthy = evaluate(point, cache)
    faulty = evaluate(replace(point, faults=tuple(map(parse_fault, drawn.faults))), cache)
    again = {
        "step_time_ps": int(faulty.step_time),
        "step_time_s": seconds(faulty.step_time),
        "healthy_ps": int(healthy.step_time),
        "critical_rank": faulty.critical_rank,
    }
    same = manifest.study.source == source_content() and manifest.study.points.get(name) == point.key(cache)
    return Rerun(row, again, same, tuple(key for key, value in again.items() if row[key] != value))
