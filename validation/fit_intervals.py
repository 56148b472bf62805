"""Residuals of calibration cases behind the intervals of predictions: `rapid_des/report/residuals.json`.

    python -m validation.fit_intervals [DATA_FOLDER]

scores the operators, the collectives as run, and all measured jobs, writes their residuals, and prints for
the test halves how many measurements lie in the intervals that follow, and how often the faster of two
layouts that these tell apart is the faster as measured. Takes some minutes of two cores.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from statistics import fmean

from rapid_des.report import evidence
from rapid_des.report.evidence import COMMUNICATION, LEVEL, distinguishable, interval, spread, stratum
from validation import all_topics, is_calibration, open_folder
from validation.scoring import JobError, Row, Topic

FILE = Path(evidence.__file__).with_name("residuals.json")
KERNELS = {
    "gemm": ("operators/gemm/",),
    "experts": ("operators/moe/",),
    "attention": ("operators/attention/",),
    "vector": ("operators/norm/", "operators/activation/", "operators/pointwise/", "operators/rope/"),
    COMMUNICATION: ("network/as-run/nccl/", "network/as-run/ndr/", "network/as-run/custom-all-reduce/"),
}
"""Topics by class of work; of names with a device, its residuals are its own."""
JOBS = (
    "training/",
    "inference/kundu",
    "inference/koyeb",
    "inference/lmdeploy",
    "inference/nim/",
    "inference/trtllm",
)
"""Steps and static batches: of a server's means no interval is made."""
SAMPLED = {"training/nanotron/": 8}
"""Sets of which one case in so many is run."""
_NAMES = {
    "GB200-NVL72": "GB200",
    "B200-SXM": "B200-SXM-180GB",
    "B300-SXM": "B300-SXM-270GB",
    "GB300-NVL72": "GB300",
}
_DIGITS = 4


def kernels(topics: Sequence[Topic]) -> dict[str, dict[str, list[float]]]:
    """Return ln(measured / predicted) of calibration cases by class and device."""
    found: dict[str, dict[str, list[float]]] = {}
    for kind, starts in KERNELS.items():
        devices = defaultdict[str, list[float]](list)
        for topic in topics:
            if topic.name.startswith(starts) and "excluded" not in topic.name:
                devices[_device(topic.name)] += case_errors(topic)
        found[kind] = {name: sorted(errors) for name, errors in sorted(devices.items()) if errors}
    return found


def case_errors(topic: Topic) -> Iterator[float]:
    """Yield the mean of each calibration case's residuals, differences below the floor counting as none."""
    cases = defaultdict[str, list[float]](list)
    for row in topic.rows():
        if row.predicted and is_calibration(row.case_id):
            cases[row.case_id].append(_log_error(row, topic.floor_us))
    for errors in cases.values():
        yield round(fmean(errors), _DIGITS)


def _log_error(row: Row, floor: float) -> float:
    assert row.predicted is not None
    beyond = max(0.0, abs(row.measured - row.predicted) - floor)
    return math.copysign(math.log1p(beyond / min(row.measured, row.predicted)), row.measured - row.predicted)


def _device(topic: str) -> str:
    parts = topic.split("/")
    name = (
        parts[3]
        if topic.startswith("network/as-run/") and len(parts) > 3
        else parts[2 + ("attention" in topic)]
    )
    return _NAMES.get(name, name)


def jobs(topics: Sequence[Topic]) -> list[JobError]:
    """Return the errors of measured jobs, of large sets a sample by the hash of their names."""
    errors: list[JobError] = []
    for topic in topics:
        name = topic.name
        if topic.job_errors is None or not name.startswith(JOBS) or "excluded" in name:
            continue
        among = next((few for set_, few in SAMPLED.items() if name.startswith(set_)), 1)
        errors += topic.job_errors(partial(is_sampled, among))
        print(f"{name}: {len(errors)} jobs in all", file=sys.stderr)
    return errors


def is_sampled(among: int, case: str) -> bool:
    """Return whether a case is one of those of a large set that are run."""
    return _hash(case) % among == 0


def _hash(case: str) -> int:
    return int(hashlib.sha256(case.encode()).hexdigest()[:8], 16)


def calibrated(errors: Sequence[JobError]) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Return calibration cases' errors over their spreads by figure, software and device."""
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for each in errors:
        scale = spread(each.work, each.origin.device)
        if is_calibration(each.case_id) and scale:
            group = stratum(each.origin.figure, each.work)
            devices = found.setdefault(group, {}).setdefault(each.origin.software, {})
            devices.setdefault(each.origin.device, []).append(round(each.error / scale, 2))
    return found


def pairs(errors: Sequence[JobError], *, calibration: bool) -> Iterator[tuple[JobError, JobError]]:
    """Yield the pairs of layouts of one job in one half."""
    alike = defaultdict[str, list[JobError]](list)
    for each in errors:
        if is_calibration(each.case_id) == calibration and each.origin.figure == "step":
            alike[each.alike].append(each)
    for members in alike.values():
        yield from combinations(members, 2)


def compared(errors: Sequence[JobError]) -> dict[str, list[float]]:
    """Return by how many of their spreads layouts of one job differ beyond what is predicted, by software."""
    found = defaultdict[str, list[float]](list)
    for one, other in pairs(errors, calibration=True):
        scale = math.hypot(*(spread(each.work, each.origin.device) for each in (one, other)))
        if scale:
            found[one.origin.software].append(round(abs(one.error - other.error) / scale, 2))
    return {software: _thinned(sorted(values)) for software, values in found.items()} | {
        "": _thinned(sorted(value for values in found.values() for value in values))
    }


def _thinned(ranked: Sequence[float], most: int = 200) -> list[float]:
    """Return evenly placed order statistics of many."""
    if len(ranked) <= most:
        return list(ranked)
    return [ranked[round(place * (len(ranked) - 1) / (most - 1))] for place in range(most)]


def write(tree: object) -> None:
    """Write what intervals read, and have them read it."""
    FILE.write_text(json.dumps(tree, separators=(",", ":")).replace("},", "},\n") + "\n", encoding="utf-8")
    evidence.forget()


def coverage(errors: Iterable[JobError]) -> Iterator[str]:
    """Yield by figure and software how many of the test half's measurements their intervals hold."""
    groups = defaultdict[tuple[str, ...], list[tuple[bool, float]]](list)
    for each in errors:
        found = interval(10**12, each.work, each.origin)
        if found is not None and not is_calibration(each.case_id):
            name = stratum(each.origin.figure, each.work), each.origin.software, each.origin.device
            groups[name].append((found.holds(math.exp(each.error)), found.high / found.low))
    for parts, held in sorted(groups.items()):
        inside, width = fmean(one for one, _ in held), fmean(width for _, width in held)
        yield " ".join(f"{part:18}" for part in parts) + f"{len(held):4} {inside:5.0%} ends {width:.2f} apart"


def order(errors: Sequence[JobError]) -> str:
    """Return how often pairs of layouts of the test half are in the measured order, told apart or not."""
    right: dict[bool, list[bool]] = {True: [], False: []}
    for one, other in pairs(errors, calibration=False):
        times = round(1e12 * one.predicted), round(1e12 * other.predicted)
        sure = bool(distinguishable(times, (one.work, other.work), one.origin))
        measured = [each.predicted * math.exp(each.error) for each in (one, other)]
        right[sure].append((one.predicted < other.predicted) == (measured[0] < measured[1]))
    return "; ".join(
        f"{'told apart' if sure else 'not'}: {len(held)} pairs, {fmean(held):.0%} in the measured order"
        for sure, held in right.items()
        if held
    )


def main() -> None:
    """Fit, write and judge."""
    data = open_folder(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
    topics = list(all_topics(data))
    tree: dict[str, object] = {"kernels": kernels(topics), "jobs": {}, "pairs": {}}
    write(tree)
    errors = jobs(topics)
    write(tree | {"jobs": calibrated(errors), "pairs": compared(errors)})
    print(f"\n{LEVEL:.0%} intervals, test half")
    print("\n".join(coverage(errors)))
    print(order(errors))


if __name__ == "__main__":
    main()
