"""Whether `plan` finds what simulating every layout finds, and whether its bounds are bounds.

    python -m validation.plan_exhaustive [NUMBER ...]

simulates every layout that fits into memory of five spaces (or of those with these numbers, from 1), by
closed forms and flattened (some minutes of two cores). It prints a row a space: layouts, those that fit, what
`plan` simulated of them, whether its rows are the best of all to the picosecond, and how near the bounds come
to the steps. It ends with code 1 if a row differs, a bound is above a step, closed forms are by more than
`MARGIN`, or less memory is needed than a bound says.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import rapid_des as rd
from rapid_des.bounded_cache import BoundedCache
from rapid_des.executors import Done
from rapid_des.frontend import memory
from rapid_des.frontend.schedules import SCHEDULES
from rapid_des.studies.lower_bounds import LowerBounds
from rapid_des.studies.memory_bounds import MemoryBounds
from rapid_des.studies.plan import HEADROOM, Wanted, plan
from rapid_des.studies.points import Point, evaluate
from rapid_des.studies.refinement import MARGIN
from rapid_des.studies.shared_work import SharedWork
from rapid_des.studies.splits import Space, checked
from rapid_des.studies.worker_pools import executor_of

TOP = 5
MODES = ("analytical", "flattened")


@dataclass(frozen=True)
class Case:
    """A space that is small enough to be simulated whole."""

    name: str
    job: str
    machine: str
    gpus: int
    vary: Mapping[str, Sequence[Any]]
    settings: Mapping[str, str] = field(default_factory=dict)


ORDER = [("tp", "cp", "ep", "dp", "pp")]
CASES = (
    Case(
        "Llama 2 7B, 8 A100",
        "llama2_7b_train",
        "dgx_a100",
        8,
        {"cp": [1], "order": ORDER, "micro_batch": [1, 2, 4]},
    ),
    Case(
        "Llama 2 7B, 16 A100, both orders",
        "llama2_7b_train",
        "dgx_a100_x2",
        16,
        {"cp": [1], "micro_batch": [1, 2], "recompute": ["none"]},
    ),
    Case(
        "Llama 3.1 70B, 64 H100, thinned",
        "llama3_1_70b_train_64",
        "dgx_h100_x8",
        64,
        {
            "tp": [2, 4, 8],
            "cp": [1],
            "micro_batch": [1, 2],
            "recompute": ["none", "full"],
            "order": ORDER,
            "chunks": [2, 5],
            "zero_stage": [1, 3],
            "sequence_parallel": [True],
        },
    ),
    Case(
        "Llama 2 7B, 8 A100, every schedule",
        "llama2_7b_train",
        "dgx_a100",
        8,
        {
            "tp": [2],
            "cp": [1],
            "schedule": list(SCHEDULES),
            "recompute": ["none"],
            "order": ORDER,
            "zero_stage": [1],
            "micro_batch": [1],
        },
    ),
    Case(
        "DeepSeek-V3 of 8 layers, 16 H100",
        "deepseek_v3_train_2048",
        "dgx_h100_x8",
        16,
        {
            "tp": [1, 2],
            "recompute": ["none"],
            "order": ORDER,
            "micro_batch": [1],
            "zero_stage": [1, 3],
            "schedule": ["1f1b", "dualpipe"],
        },
        {
            "model.layers": "8",
            "model.exceptions": "[]",
            "parallelism": "{pp: 1, dp: 16, ep: 8}",
            "training.global_batch": "64",
            "training.schedule": "1f1b",
            "model.feed_forward.experts": "32",
        },
    ),
)


@dataclass(frozen=True)
class TriedLayout:
    """A layout of a job: its bounds, and what it really takes, times in picoseconds."""

    fits: bool
    least_memory: int
    """Bytes that the bound says it needs at least."""
    needed: int
    """Bytes that it needs."""
    bound: int
    """What its step takes at least."""
    steps: Mapping[str, int]
    """Its step by mode."""


def tried_layouts(case: Case, job: rd.Job, machine: rd.Machine) -> Iterator[TriedLayout]:
    """Yield every layout of a space, those that fit simulated in all modes."""
    work = SharedWork(machine, BoundedCache(1 << 28))
    lower_bounds, memory_bounds = LowerBounds(work), MemoryBounds(work)
    capacity = int(HEADROOM * machine.device.spec.hbm.capacity)
    all_legal = (checked(one, lambda _: None) for one in Space(job, machine, case.gpus, case.vary))
    legal = [one for one in all_legal if one is not None]
    needed = [memory(one).fullest.peak for one in legal]
    points = [
        (number, mode, Point(one, machine, mode=mode, allow_oom=True))
        for number, one in enumerate(legal)
        if needed[number] <= capacity
        for mode in MODES
    ]
    steps = dict[tuple[int, str], int]()
    with executor_of() as pool:
        for place, outcome in pool.map(evaluate, [point for _, _, point in points]):
            if isinstance(outcome, Done):
                steps[points[place][:2]] = int(outcome.value.step_time)
    for number, one in enumerate(legal):
        fits = needed[number] <= capacity
        bound = lower_bounds.step(one) if fits else 0
        found = {mode: steps[number, mode] for mode in MODES if (number, mode) in steps}
        yield TriedLayout(fits, memory_bounds.memory(one), needed[number], bound, found)


def row(case: Case) -> tuple[str, bool]:
    """Return a space's row, and whether all is as it should be."""
    job, machine = rd.load_job(case.job, settings=case.settings), rd.load_machine(case.machine)
    every = list(tried_layouts(case, job, machine))
    done = [layout for layout in every if len(layout.steps) == len(MODES)]
    found = plan(job, machine, Wanted(gpus=case.gpus, top=TOP, vary=case.vary), executor_of())
    best = sorted(layout.steps["flattened"] for layout in done)[:TOP]
    same = [int(row.step_time) for row in found.rows] == best
    near = [layout.bound / min(layout.steps.values()) for layout in done]
    memories = [layout.least_memory / layout.needed for layout in every]
    closed = [layout.steps["analytical"] / layout.steps["flattened"] for layout in done]
    lessened = [layout.steps["analytical"] * (1 - MARGIN) <= layout.steps["flattened"] for layout in done]
    counts = found.counts
    text = (
        f"| {case.name} | {found.ways:,} | {len(done):,} | {counts['analytical']}, {counts['flattened']} "
        f"| {'the same' if same else 'DIFFERENT'} | {statistics.median(near):.1%}, {max(near):.1%} "
        f"| {max(closed):.2%} | {statistics.median(memories):.1%}, {max(memories):.1%} |"
    )
    return text, same and max(near) <= 1 and all(lessened) and max(memories) <= 1


def main() -> int:
    """Print the table; return 1 if a plan is wrong."""
    print("| space | layouts | fit and run | simulated by plan | first five | bound / step: median, most "
          "| closed forms / step: most | memory's bound: median, most |")  # fmt: skip
    print("|---|---:|---:|---:|---|---:|---:|---:|")
    right = True
    chosen = [CASES[int(number) - 1] for number in sys.argv[1:]] or CASES
    for case in chosen:
        text, fine = row(case)
        print(text, flush=True)
        right = right and fine
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
