"""When the last thread block of a kernel ends: blocks in issue order on SMs that hold several."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

Floats = npt.NDArray[np.float64]

SIMULATED_ROUNDS = 12
"""Rounds of resident blocks that are simulated; a longer grid repeats its period at the steady rate."""


def makespan(pattern: Floats, repeats: int, sms: int, pace: Floats) -> float:
    """Return the seconds until the last block ends.

    `pattern` holds the seconds that each block of one head would take alone on an SM, in issue order, and is
    issued `repeats` times. With k blocks resident on an SM each advances at `pace[k-1]`; `len(pace)` blocks
    fit on one SM. A free place takes the next block in issue order.

    >>> makespan(np.array([1.0, 1.0]), 3, 2, np.array([1.0]))
    3.0
    """
    slots = sms * len(pace)
    kept = min(repeats, -(-SIMULATED_ROUNDS * slots // len(pattern)))
    rest = (repeats - kept) * float(pattern.sum()) / (slots * float(pace[-1]))
    return _simulate(np.tile(pattern, kept), sms, pace) + rest


@njit(cache=True)
def _simulate(work: Floats, sms: int, pace: Floats) -> float:  # noqa: C901, PLR0912, PLR0915 - one compiled loop
    """Simulate each SM as a processor-sharing server; a binary heap holds the SMs by their next finish."""
    places = pace.shape[0]
    left = np.zeros((sms, places))
    count = np.zeros(sms, np.int64)
    since = np.zeros(sms)
    due = np.full(sms, np.inf)
    heap = np.empty(sms, np.int64)
    issued = 0
    for place in range(places):
        for sm in range(sms):
            if issued < work.shape[0]:
                left[sm, place] = work[issued]
                count[sm] += 1
                issued += 1
    size = 0
    for sm in range(sms):
        if count[sm] > 0:
            due[sm] = _least(left[sm]) / pace[count[sm] - 1]
            heap[size] = sm
            _rise(heap, due, size)
            size += 1
    now = 0.0
    while size > 0:
        sm = heap[0]
        now = due[sm]
        done = (now - since[sm]) * pace[count[sm] - 1]
        since[sm] = now
        for place in range(places):
            if left[sm, place] > 0.0:
                left[sm, place] -= done
                if left[sm, place] <= 1e-15:
                    left[sm, place] = 0.0
                    if issued < work.shape[0]:
                        left[sm, place] = work[issued]
                        issued += 1
                    else:
                        count[sm] -= 1
        if count[sm] == 0:
            size -= 1
            heap[0] = heap[size]
        else:
            due[sm] = now + _least(left[sm]) / pace[count[sm] - 1]
        _sink(heap, due, size)
    return now


@njit(cache=True)
def _least(left: Floats) -> float:
    least = np.inf
    for value in left:
        if 0.0 < value < least:
            least = value
    return least


@njit(cache=True)
def _rise(heap: npt.NDArray[np.int64], due: Floats, at: int) -> None:
    while at > 0 and due[heap[(at - 1) // 2]] > due[heap[at]]:
        parent = (at - 1) // 2
        heap[parent], heap[at] = heap[at], heap[parent]
        at = parent


@njit(cache=True)
def _sink(heap: npt.NDArray[np.int64], due: Floats, size: int) -> None:
    at = 0
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and due[heap[child + 1]] < due[heap[child]]:
            child += 1
        if due[heap[child]] >= due[heap[at]]:
            return
        heap[child], heap[at] = heap[at], heap[child]
        at = child
