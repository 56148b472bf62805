"""Files of a machine from what was measured on it: what it was, what that changed, and how far off it was.

    evidence ──► findings (fitted part, held-out part) ──► machine, device, NCCL and software files
    measured steps of jobs, simulated on these files ──► the machine's evidence, which forecasts use

A step's time moves no constant: a forecast learns from it how far off such jobs are on this machine.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from rapid_des.config import load_document, resolve, to_tree, to_yaml
from rapid_des.config.texts import Tree
from rapid_des.device.device import Device
from rapid_des.device.machine_evidence import MachineEvidence, MeasuredStep
from rapid_des.errors import InputError
from rapid_des.frontend import Job
from rapid_des.machine import Machine, load_machine
from rapid_des.profiles.reading import is_host_trace, is_profile
from rapid_des.report.forecast import JobKind, own_steps, step_interval
from rapid_des.report.result import Result
from rapid_des.simulation import simulate
from rapid_des.studies.calibration.findings import CalibratedPart, MeasuredCase
from rapid_des.studies.calibration.fits import (
    GemmTimes,
    fit_clock,
    fit_gemms,
    fit_nccl,
    fit_network,
    gemms_of,
    joined,
)
from rapid_des.studies.calibration.profiled import fit_host, profile_evidence
from rapid_des.studies.calibration.readings import (
    NcclRun,
    kind_of,
    read_bandwidths,
    read_clocks,
    read_gemms,
    read_nccl_tests,
)
from rapid_des.units import Duration, seconds

Progress = Callable[[int, int], None]
MACHINE, DEVICE, NCCL, SOFTWARE = "machine.yaml", "device.yaml", "nccl.yaml", "software.yaml"


class Questions(Struct, frozen=True):
    """What is to be calibrated, and by what."""

    machine: str
    """The machine file or preset that is the base."""
    files: Sequence[Path] = ()
    steps: Sequence[tuple[Job, Duration]] = ()
    """Training jobs and the measured times of their steps."""
    software: str = "torchtitan"
    """The software profile that a profile's host is compared with."""


class Calibrated(Struct, frozen=True):
    """The files of a calibrated machine as text by name, and what they are made of."""

    files: Mapping[str, str]
    findings: Sequence[CalibratedPart]
    steps: Sequence[MeasuredCase]
    """Measured steps: the forecast on the base, and on the calibrated machine from the other steps."""
    notes: Sequence[str]

    def as_json(self) -> dict[str, Any]:
        """Return what `calibrate --json` prints."""
        return {
            "files": list(self.files),
            "findings": [finding.as_json() for finding in self.findings],
            "steps": [case.as_json() for case in self.steps],
            "notes": list(self.notes),
        }


def calibrate_machine(asked: Questions, *, progress: Progress = lambda _done, _all: None) -> Calibrated:
    """Return the files of a machine that differ from its base by what was measured."""
    machine, whole = load_machine(asked.machine), len(asked.files) + len(asked.steps)
    if not whole:
        raise InputError("calibrate needs evidence: files, or --step JOB=TIME")
    findings, notes = _findings(asked, machine, lambda done: progress(done, whole))
    kept = [finding for finding in findings if finding.kept]
    for finding in findings:
        if not finding.kept:
            notes.append(
                f"{finding.what}: the cases held out are not closer to new values, so none are written"
            )
    trees = _trees(asked, machine, kept)
    steps, cases = _steps(asked, machine, trees, lambda done: progress(len(asked.files) + done, whole))
    evidence = MachineEvidence(
        calibrated_on=(*(finding.what for finding in kept), *_steps_text(steps)), steps=tuple(steps)
    )
    if not evidence.calibrated_on:
        raise InputError("; ".join(notes))
    trees[MACHINE]["evidence"] = to_tree(evidence, "machine")
    texts = {name: _comment(name, kept) + to_yaml(tree) for name, tree in trees.items()}
    return Calibrated(texts, findings, cases, notes)


def _steps_text(steps: Sequence[MeasuredStep]) -> Sequence[str]:
    return (
        [f"measured step{'s' * (len(steps) > 1)} of {', '.join(step.job for step in steps)}"] if steps else []
    )


class _Evidence(Struct):
    """What the files hold, by kind; files of one kind are one piece of evidence."""

    runs: list[NcclRun] = []
    bandwidths: dict[str, dict[int, float]] = {}
    clocks: dict[str, list[float]] = {}
    products: list[GemmTimes] = []
    issues: dict[str, list[float]] = {}
    notes: list[str] = []
    host: Path | None = None
    """A host trace that belongs to the next profile."""

    def read(self, path: Path, device: Device) -> None:
        """Add what a file holds."""
        if is_host_trace(path):
            self.host = path
            return
        if is_profile(path):
            paths = [path] if self.host is None else [self.host, path]
            profiled, self.host = profile_evidence(paths, device), None
            self.notes += profiled.notes
            self.products += profiled.gemms
            if profiled.issues:
                self.issues[path.name] = list(profiled.issues)
            return
        match kind_of(path):
            case "nccl-tests":
                self.runs.append(read_nccl_tests(path))
            case "ib_write_bw":
                self.bandwidths[str(path)] = dict(read_bandwidths(path))
            case "monitor":
                self.clocks[str(path)] = list(read_clocks(path))
            case "gemms":
                self.products += gemms_of(path, read_gemms(path), device)


def _findings(
    asked: Questions, machine: Machine, progress: Callable[[int], None]
) -> tuple[list[CalibratedPart], list[str]]:
    device, seen = machine.device, _Evidence()
    for number, path in enumerate(asked.files):
        seen.read(path, device)
        progress(number + 1)
    found = [fit_clock(seen.clocks, device)] if seen.clocks else []
    found += [fit_network(seen.bandwidths, machine)] if seen.bandwidths else []
    found += [fit_gemms(times, device) for times in joined(seen.products)]
    wires = {
        key: value
        for each in found
        if each.target == "machine" and each.kept
        for key, value in each.changes.items()
    }
    found += fit_nccl(seen.runs, load_machine(asked.machine, settings=wires)) if seen.runs else []
    found += [fit_host(seen.issues, asked.software)] if seen.issues else []
    return found, seen.notes


def _trees(asked: Questions, machine: Machine, kept: Sequence[CalibratedPart]) -> dict[str, Tree]:
    """Return the tree of each file that is written: its base, and the constants that changed."""
    stated, base = machine.spec, {"base": str(_settled(asked.machine))}
    trees: dict[str, Tree] = {MACHINE: {**base, "name": f"{machine.name}, calibrated"}}
    below = load_document(resolve(asked.machine, "machine", folder=Path()))
    bases = {
        "device": (DEVICE, stated.device if isinstance(stated.device, str) else None),
        "nccl": (NCCL, stated.collectives.measured.nccl),
        "software": (SOFTWARE, asked.software),
    }
    for finding in kept:
        name, reference = bases.get(finding.target, (MACHINE, None))
        if name == DEVICE and reference is None:
            raise InputError(f"{below.path}: device: its keys stand in the file; name a device file instead")
        tree = trees.setdefault(name, {"base": reference})
        for key, value in finding.changes.items():
            _set(tree, key, value)
    if DEVICE in trees:
        trees[MACHINE]["device"] = DEVICE
    if NCCL in trees:
        _set(trees[MACHINE], "collectives.measured.nccl", NCCL)
    return trees


def _settled(reference: str) -> Path | str:
    """Return a preset's name, or the absolute path of a file."""
    path = Path(reference)
    return path.absolute() if path.is_file() else reference


def _set(tree: Tree, key: str, value: object) -> None:
    *above, last = key.split(".")
    for step in above:
        tree = tree.setdefault(step, {})
    tree[last] = value


def _comment(name: str, kept: Sequence[CalibratedPart]) -> str:
    """Return the head of a file: the evidence of its constants, and the errors before and after."""
    targets = {DEVICE: "device", NCCL: "nccl", MACHINE: "machine", SOFTWARE: "software"}
    lines = ["# Written by `rapid-des calibrate`."]
    for finding in kept:
        if finding.target == targets[name]:
            (fitted, fitted_after), (before, after) = (
                finding.errors(held_out=held) for held in (False, True)
            )
            lines += [
                f"# {', '.join(finding.changes)}: {finding.what};",
                f"#   mean error {fitted:.1f} % before and {fitted_after:.1f} % after where fitted, "
                f"{before:.1f} % and {after:.1f} % where held out",
            ]
    return "\n".join(lines) + "\n"


def _steps(
    asked: Questions, machine: Machine, trees: Mapping[str, Tree], progress: Callable[[int], None]
) -> tuple[list[MeasuredStep], list[MeasuredCase]]:
    """Return the measured steps, and each beside its forecast: on the base, and from the others."""
    if not asked.steps:
        return [], []
    calibrated = in_memory(trees)
    steps, firsts = list[MeasuredStep](), list[Result]()
    for number, (job, measured) in enumerate(asked.steps):
        firsts.append(simulate(job, machine, allow_oom=True))
        result = (
            simulate(job, calibrated, allow_oom=True)
            if len(trees) > 1 or len(trees[MACHINE]) > 2
            else firsts[-1]
        )
        steps.append(_step_of(job, measured, result))
        progress(number + 1)
    cases = []
    for number, (step, first) in enumerate(zip(steps, firsts, strict=True)):
        others = [*steps[:number], *steps[number + 1 :]]
        before = first.step_time if first.forecast is None else first.forecast.median
        after = step_interval(int(step.simulated), _kind(step), own_steps(others))
        names = seconds(step.measured), seconds(before), seconds(after.median if after else step.simulated)
        cases.append(MeasuredCase(step.job, *names, held_out=bool(others)))
    return steps, cases


def in_memory(trees: Mapping[str, Tree]) -> Machine:
    """Return the machine of some files that are not written yet."""
    with tempfile.TemporaryDirectory() as folder:
        for name, tree in trees.items():
            (Path(folder) / name).write_text(to_yaml(tree), encoding="utf-8")
        return load_machine(Path(folder) / MACHINE)


def _step_of(job: Job, measured: Duration, result: Result) -> MeasuredStep:
    kind = result.kind
    if kind is None:
        raise InputError(f"{job.name}: --step is for training jobs; requests have no step")
    used = result.figures.mfu * result.step_time / measured if result.figures else 0.0
    if used > 1.0:
        raise InputError(
            f"{job.name}: a step of {measured} would use {used:.2f} of the GPUs' peak; allowed: up to 1"
        )
    return MeasuredStep(
        job=job.name,
        measured=measured,
        simulated=Duration(result.step_time),
        **{name: getattr(kind, name) for name in ("software", "family", "format", "experts")},
        shares=dict(kind.shares),
    )


def _kind(step: MeasuredStep) -> JobKind:
    return JobKind(step.software, step.family, step.format, step.experts, step.shares)
