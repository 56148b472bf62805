"""When the last thread block of a kernel ends: blocks in issue order on SMs that hold several."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rapid_des.arrays import Floats
from rapid_des.compiling import Kernel, compilable

SIMULATED_ROUNDS = 12
"""Rounds of resident blocks that are simulated; a longer grid repeats its period at the steady rate."""
INTERPRETED_BLOCKS = 60_000
"""Blocks that are simulated as Python, 1 µs each: a job has a tenth of them, and a scheduler that goes on
to more is likely to have the many for which loading the compiled form (0.04 s) or compiling it (1 s) pays."""


class BlockScheduler:
    """The simulation: interpreted at first, compiled once enough blocks have come for loading that to pay.

    Both give the same bits. `blocks` counts what was simulated so far.
    """

    def __init__(self) -> None:
        self.blocks = 0

    def makespan(self, pattern: Floats, repeats: int, sms: int, pace: Floats) -> float:
        """Return the seconds until the last block ends.

        `pattern` holds the seconds that each block of one head would take alone on an SM, in issue order, and
        is issued `repeats` times. With k blocks resident on an SM each advances at `pace[k-1]`; `len(pace)`
        blocks fit on one SM. A free slot takes the next block in issue order.

        >>> BlockScheduler().makespan(np.array([1.0, 1.0]), 3, 2, np.array([1.0]))
        3.0
        """
        slots = sms * len(pace)
        simulated = min(repeats, -(-SIMULATED_ROUNDS * slots // len(pattern)))
        rest = (repeats - simulated) * float(pattern.sum()) / (slots * float(pace[-1]))
        work = np.tile(pattern, simulated)
        self.blocks += len(work)
        pays = self.blocks > INTERPRETED_BLOCKS or _SIMULATION.is_loaded
        return (compiled if pays else interpreted)(work, sms, pace) + rest


def interpreted(work: Floats, sms: int, pace: Floats) -> float:
    """Simulate as Python, which indexes lists four times as fast as arrays."""
    left, due = [0.0] * (sms * len(pace)), [np.inf] * sms
    return _simulate(work.tolist(), pace.tolist(), left, due, ([0] * sms, [0.0] * sms, [0] * sms))


def compiled(work: Floats, sms: int, pace: Floats) -> float:
    """Simulate as machine code."""
    left, due = np.zeros(sms * len(pace)), np.full(sms, np.inf)
    scratch = np.zeros(sms, np.int64), np.zeros(sms), np.zeros(sms, np.int64)
    last = np.zeros(1)
    _SIMULATION(np.ascontiguousarray(work), np.ascontiguousarray(pace), left, due, scratch, last)
    return float(last[0])


@compilable
def _simulate(  # noqa: C901, PLR0912, PLR0915 - one loop that compiles as it stands
    work: Sequence[float],
    pace: Sequence[float],
    left: Any,
    due: Any,
    scratch: tuple[Any, Any, Any],
) -> float:
    """Simulate each SM as a processor-sharing server; a binary heap holds the SMs by their next finish.

    `left` holds the work left by SM and slot, `due` when each SM's next block ends; both begin as if all
    were empty. `scratch` is for the blocks on each SM, since when they advance, and the heap.
    """
    count, since, heap = scratch
    blocks, slots, sms = len(work), len(pace), len(due)
    issued = 0
    for slot in range(slots):
        for sm in range(sms):
            if issued < blocks:
                left[sm * slots + slot] = work[issued]
                count[sm] += 1
                issued += 1
    size = 0
    for sm in range(sms):
        if count[sm] > 0:
            least = np.inf
            for slot in range(sm * slots, sm * slots + slots):
                if 0.0 < left[slot] < least:
                    least = left[slot]
            due[sm] = least / pace[count[sm] - 1]
            at = size
            while at > 0 and due[heap[(at - 1) // 2]] > due[sm]:
                heap[at] = heap[(at - 1) // 2]
                at = (at - 1) // 2
            heap[at] = sm
            size += 1
    now = 0.0
    while size > 0:
        sm = heap[0]
        now = due[sm]
        done = (now - since[sm]) * pace[count[sm] - 1]
        since[sm] = now
        least = np.inf
        for slot in range(sm * slots, sm * slots + slots):
            if left[slot] > 0.0:
                rest = left[slot] - done
                if rest <= 1e-15:
                    rest = 0.0
                    if issued < blocks:
                        rest = work[issued]
                        issued += 1
                    else:
                        count[sm] -= 1
                left[slot] = rest
                if 0.0 < rest < least:
                    least = rest
        if count[sm] == 0:
            size -= 1
            sm = heap[size]
        else:
            due[sm] = now + least / pace[count[sm] - 1]
        at, child, key = 0, 1, due[sm]
        while child < size:
            if child + 1 < size and due[heap[child + 1]] < due[heap[child]]:
                child += 1
            if due[heap[child]] >= key:
                break
            heap[at] = heap[child]
            at, child = child, 2 * child + 1
        heap[at] = sm
    return now


def _simulate_to(  # noqa: PLR0913 - as `_simulate`, whose result it writes
    work: Any, pace: Any, left: Any, due: Any, scratch: Any, last: Any
) -> None:
    last[0] = _simulate(work, pace, left, due, scratch)


_SIMULATION = Kernel(_simulate_to, [Path(__file__)])
