"""What a profile says of a device and its host: products with their shapes, and the pace of launches."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, median

import numpy as np
from msgspec import Struct

from rapid_des.config import load_document, resolve
from rapid_des.config.documents import Document, with_base
from rapid_des.device import Gemm
from rapid_des.device.device import Device
from rapid_des.device.operators import Dtype
from rapid_des.errors import InputError
from rapid_des.profiles import Profile, profile_report, read_run
from rapid_des.profiles.products import product_sizes
from rapid_des.studies.calibration.findings import CalibratedPart, MeasuredCase, held_out
from rapid_des.studies.calibration.fits import GemmTimes, check_utilisation
from rapid_des.units import Duration

_DTYPES: Mapping[str, Dtype] = {"c10::BFloat16": "bf16", "c10::Half": "fp16"}
"""Number formats of products by PyTorch's names. `float` may mean TF32, which profiles do not say."""
_MODEL = re.compile(r"[A-Z]*\d+[A-Z]*")
"""The model in the name of a GPU, as A100 or 4090."""
_LEAST_LAUNCHES = 100
_LEAST_PRODUCTS = 3
_PAUSE = 10.0
"""The gaps between two calls that are no pace, in medians: the host waits, or reads its data."""


class ProfileEvidence(Struct, frozen=True):
    """What one profile says."""

    path: Path
    gemms: Sequence[GemmTimes]
    issues: Sequence[float]
    """Microseconds from one launch to the next, the mean of each steady step."""
    notes: Sequence[str]


def fit_host(issues: Mapping[str, Sequence[float]], software: str) -> CalibratedPart:
    """Return the time to issue a kernel, of steps by file, beside that of a software profile."""
    before = _stated(software)
    named = [
        (f"{file} step {number}", each) for file, steps in issues.items() for number, each in enumerate(steps)
    ]
    apart = held_out([name for name, _ in named])
    chosen = median([each for (_, each), out in zip(named, apart, strict=True) if not out])
    after = Duration.parse(f"{chosen:.3g} us")
    cases = [
        MeasuredCase(name, each * 1e-6, before.seconds, after.seconds, out)
        for (name, each), out in zip(named, apart, strict=True)
    ]
    what = f"launches of {len(named)} steps ({', '.join(issues)})"
    return CalibratedPart(what, "software", {"defaults.host.kernel": str(after)}, cases)


def _stated(software: str) -> Duration:
    """Return the time that a software profile says an issue takes."""

    def find(name: str, document: Document) -> Path:
        return resolve(name, "software", folder=document.folder)

    tree = with_base(load_document(resolve(software, "software", folder=Path())), find).tree
    match tree:
        case {"defaults": {"host": {"kernel": kernel}}}:
            return Duration.parse(kernel)
    raise InputError(f"software {software}: states no defaults.host.kernel to compare a host with")


def profile_evidence(paths: Sequence[Path], device: Device) -> ProfileEvidence:
    """Return what a profile, after its host trace if there is one, says of matrix products and launches."""
    path, (profile,) = paths[-1], _one(read_run(paths), paths[-1])
    _check_device(profile, device)
    products = _products(profile)
    notes = (
        []
        if products
        else [f"{path.name}: no shapes of products in bf16 or fp16; record_shapes=True records them"]
    )
    times = []
    for dtype, found in products.items():
        for gemm, micros in found:
            check_utilisation(str(path), gemm, micros, device)
        if len(found) >= _LEAST_PRODUCTS:
            times.append(GemmTimes(path.name, dtype, *map(tuple, zip(*found, strict=True))))
        else:
            notes.append(
                f"{path.name}: {len(found)} shapes of products in {dtype} are too few to calibrate on"
            )
    return ProfileEvidence(path, times, list(_issues(profile)), notes)


def _check_device(profile: Profile, device: Device) -> None:
    """Raise `InputError` if a profile says that it is of another GPU."""
    model = _MODEL.search(profile.device.upper())
    if model and model[0] not in device.spec.name.upper():
        raise InputError(f"{profile.path}: is of {profile.device}; the machine's GPUs are {device.spec.name}")


def _one(profiles: Sequence[Profile], path: Path) -> Sequence[Profile]:
    if len(profiles) > 1:
        raise InputError(f"{path}: has {len(profiles)} GPUs; allowed here: one")
    return profiles


def _products(profile: Profile) -> Mapping[Dtype, list[tuple[Gemm, float]]]:
    """Return each shape of product with the median of its times in microseconds, by number format."""
    events, seen = profile.events, defaultdict[str, list[float]](list)
    for event, shapes in events.products.items():
        if events.classes[events.name[event]] == "gemm":
            seen[shapes].append(float(events.end[event] - events.start[event]) / 1e3)
    found = defaultdict[Dtype, list[tuple[Gemm, float]]](list)
    for shapes, times in seen.items():
        gemm = _gemm(shapes)
        if gemm is not None:
            found[gemm.dtype].append((gemm, median(times)))
    return found


def _gemm(shapes: str) -> Gemm | None:
    """Return the product of two matrices from what the profiler wrote of its inputs; None of others.

    >>> gemm = _gemm("[[4096, 1024], [1024, 512]] ['c10::BFloat16', 'c10::BFloat16']")
    >>> gemm.m, gemm.n, gemm.k, gemm.dtype
    (4096, 512, 1024, 'bf16')
    """
    known = [dtype for name, dtype in _DTYPES.items() if name in shapes]
    match product_sizes(shapes):
        case 1, m, n, k if len(known) == 1:
            return Gemm(m, n, k, dtype=known[0])
    return None


def _issues(profile: Profile) -> Iterator[float]:
    """Yield the mean time from one launch to the next, of each steady step, without the host's pauses."""
    events = profile.events
    (rank,) = profile_report([profile]).ranks
    for number in rank.steady:
        begin, end = rank.windows[number]
        called = np.unique(
            events.called[(events.start >= begin) & (events.start < end) & (events.called >= 0)]
        )
        if len(called) < _LEAST_LAUNCHES:
            continue
        gaps = np.diff(called) / 1e3
        # a call that waited for the GPU lies in a gap
        waited = np.searchsorted(np.sort(profile.waits), called)
        chosen = gaps[(waited[1:] == waited[:-1]) & (gaps <= _PAUSE * np.median(gaps))]
        if len(chosen):
            yield mean(chosen.tolist())
