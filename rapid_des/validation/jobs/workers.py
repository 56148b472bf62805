"""Cases run once each: many beside each other in worker processes, few in this one."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from functools import cache

from rapid_des.validation.jobs.cases import Case, Outcome, outcome

FEW = 12
"""Cases that are run in this process: workers take two seconds to begin."""
_TOGETHER = 16
"""Requests that a worker is handed at once: they take tens of milliseconds each."""


class Runs:
    """Outcomes of cases, each worked out once."""

    def __init__(self) -> None:
        self._done: dict[Case, Outcome] = {}
        self._begun: dict[Case, Future[list[Outcome]]] = {}
        self._places: dict[Case, int] = {}

    def begin(self, cases: Iterable[Case]) -> None:
        """Hand cases that are not known yet to the workers, in this order, if they are many."""
        waiting = [
            case for case in dict.fromkeys(cases) if case not in self._done and case not in self._begun
        ]
        if len(waiting) <= FEW:
            return
        for batch in _batches(waiting):
            future = _workers().submit(_outcomes, batch)
            self._begun.update((case, future) for case in batch)
            self._places.update((case, place) for place, case in enumerate(batch))

    def outcome(self, case: Case) -> Outcome:
        """Return what a case's run gives, when it is there."""
        if case not in self._done:
            begun = self._begun.pop(case, None)
            self._done[case] = outcome(case) if begun is None else begun.result()[self._places[case]]
        return self._done[case]


def abandon() -> None:
    """Drop what workers have not begun, and let them end."""
    if _workers.cache_info().currsize:
        _workers().shutdown(wait=False, cancel_futures=True)
        _workers.cache_clear()


def _batches(cases: Sequence[Case]) -> Iterable[Sequence[Case]]:
    """Yield neighbours on one machine together where each takes little time, long runs alone."""
    batch: list[Case] = []
    for case in cases:
        quick = case.only_memory or '"inference"' in case.job
        if batch and (not quick or batch[0].place != case.place or len(batch) == _TOGETHER):
            yield batch
            batch = []
        batch.append(case)
        if not quick:
            yield batch
            batch = []
    if batch:
        yield batch


def _outcomes(cases: Sequence[Case]) -> list[Outcome]:
    return [outcome(case) for case in cases]


@cache
def _workers() -> ProcessPoolExecutor:
    fresh = multiprocessing.get_context("spawn")  # compiled kernels and threads do not fork well
    return ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=fresh, initializer=_begin_worker)


def _begin_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C is for who waits
