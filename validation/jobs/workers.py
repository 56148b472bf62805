"""Cases run once each: many beside each other in worker processes, few in this one."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from threading import Lock

import rapid_des
from rapid_des.processes import Worker
from validation.jobs.cases import Case, Outcome, outcome

FEW = 12
"""Cases that are run in this process: workers take two seconds to begin."""
_TOGETHER = 8
"""Cases that a worker is handed at once, or more: of one model and machine they have much in common."""
_LOOK_S = 0.25
"""How often who waits is told what is done."""
Watch = Callable[[int, int], None]
"""Told, while somebody waits for workers, how many of their cases are done, and of how many."""
NOT_RUN = Outcome(refusal="not finished")
_STATE = ("rapid_des/**/*.py", "validation/jobs/*.py", "topologies/**/*.yaml", "workloads/**/*.yaml")
"""Files that outcomes depend on, below the checkout; a case holds its job."""


@cache
def kept_in(folder: Path) -> Path:
    """Return where a folder keeps the outcomes of the simulator and its data as they stand now."""
    root, state = Path(rapid_des.__file__).parents[1], hashlib.sha256()
    for path in sorted(path for pattern in _STATE for path in root.glob(pattern)):
        state.update(path.read_bytes())
    kept = folder / state.hexdigest()[:16]
    kept.mkdir(parents=True, exist_ok=True)
    return kept


class Runs:
    """Outcomes of cases, each worked out once."""

    def __init__(self) -> None:
        self._done: dict[Case, Outcome] = {}
        self._queued: dict[Case, None] = {}
        self._begun: dict[Case, Future[list[Outcome]]] = {}
        self._places: dict[Case, int] = {}
        self._abandoned = False
        self.watch: Watch = lambda *_: None
        self.keep: Path | None = None
        """A folder of outcomes, so that a run which was stopped goes on; None: none are kept."""

    def begin(self, cases: Iterable[Case]) -> None:
        """Queue cases that are not known yet; the first who asks for an outcome has all of them begun."""
        self._abandoned = False
        self._queued |= {case: None for case in cases if case not in self._done and case not in self._begun}

    def outcome(self, case: Case) -> Outcome:
        """Return what a case's run gives, when it is there; after `abandon` `NOT_RUN` where it is not."""
        if case in self._done:
            return self._done[case]
        self._hand_out()
        begun = self._begun.get(case)
        if self._abandoned:
            return begun.result()[self._places[case]] if begun and _is_there(begun) else NOT_RUN
        found = self._waited_for(begun)[self._places[case]] if begun else _kept(case, self.keep)
        self._done[case] = found
        return self._done[case]

    def _hand_out(self) -> None:
        """Hand what is queued to the workers, those with most in common together, if that is much."""
        waiting = [case for case in self._queued if case not in self._done and not _is_kept(case, self.keep)]
        self._queued = {}
        for batch in _batches(waiting) if len(waiting) > FEW else ():
            future = _workers().submit(batch, self.keep)
            self._begun.update((case, future) for case in batch)
            self._places.update((case, place) for place, case in enumerate(batch))

    def abandon(self) -> None:
        """End the workers; what they have done is kept."""
        self._abandoned, self._queued = True, {}
        self._begun = {case: future for case, future in self._begun.items() if _is_there(future)}
        if _workers.cache_info().currsize:
            _workers().close()
            _workers.cache_clear()

    def _waited_for(self, begun: Future[list[Outcome]]) -> list[Outcome]:
        while True:
            try:
                return begun.result(timeout=_LOOK_S)
            except TimeoutError:
                self.watch(sum(future.done() for future in self._begun.values()), len(self._begun))


def _is_there(future: Future[list[Outcome]]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def _batches(cases: Sequence[Case]) -> Iterable[Sequence[Case]]:
    """Yield cases of one model, split alike inside blocks, on one machine together.

    Servers whose iterations cost the same are never apart.
    """
    alike: dict[object, list[Case]] = {}
    for case in cases:
        alike.setdefault(_likeness(case), []).append(case)
    for members in alike.values():
        batch: list[Case] = []
        for _, same in groupby(sorted(members, key=_priced), _priced):
            batch += same
            if len(batch) >= _TOGETHER:
                yield batch
                batch = []
        if batch:
            yield batch


def _likeness(case: Case) -> object:
    """Return what cases share whose blocks are alike."""
    job = json.loads(case.job)
    axes = job.get("parallelism", {})
    inside = [axes.get(axis, 1) for axis in ("tp", "cp", "ep")]
    return case.place, case.only_memory, json.dumps(job["model"]), str(inside)


def _priced(case: Case) -> str:
    """Return what a server's iterations cost by: its job without its `serving` section."""
    return json.dumps({key: value for key, value in json.loads(case.job).items() if key != "serving"})


def _outcomes(cases: Sequence[Case], keep: Path | None) -> list[Outcome]:
    return [_kept(case, keep) for case in cases]


def _path(case: Case, keep: Path) -> Path:
    return kept_in(keep) / f"{hashlib.sha256(repr(case).encode()).hexdigest()[:24]}.pickle"


def _is_kept(case: Case, keep: Path | None) -> bool:
    return keep is not None and _path(case, keep).is_file()


def _kept(case: Case, keep: Path | None) -> Outcome:
    """Return what a case's run gives, from the folder of outcomes if it is there."""
    if keep is None:
        return outcome(case)
    path = _path(case, keep)
    if path.is_file():
        found: Outcome = pickle.loads(path.read_bytes())
        return found
    found = outcome(case)
    part = path.with_suffix(f".{os.getpid()}")
    part.write_bytes(pickle.dumps(found))
    part.replace(path)
    return found


class _Workers:
    """A process for each core; each takes the next batch when it is done with one."""

    def __init__(self) -> None:
        self._free = [Worker() for _ in os.sched_getaffinity(0)]
        self._all = tuple(self._free)
        self._waiting: deque[tuple[Sequence[Case], Path | None, Future[list[Outcome]]]] = deque()
        self._lock = Lock()

    def submit(self, batch: Sequence[Case], keep: Path | None) -> Future[list[Outcome]]:
        """Have a batch run after those of before."""
        future = Future[list[Outcome]]()
        self._waiting.append((batch, keep, future))
        self._hand_out()
        return future

    def _hand_out(self) -> None:
        while True:
            with self._lock:  # not while a worker answers at once, which hands out the next batch
                if not (self._free and self._waiting):
                    return
                worker, (batch, keep, future) = self._free.pop(), self._waiting.popleft()
            answer = worker.submit(_outcomes, batch, keep)
            answer.add_done_callback(partial(self._pass_on, worker, future))

    def _pass_on(
        self, worker: Worker, future: Future[list[Outcome]], answered: Future[list[Outcome]]
    ) -> None:
        """Give an answer to who waits for it, and the worker its next batch."""
        error = answered.exception()
        if error is not None:  # it died, or was ended
            future.set_exception(error)
            while self._waiting:
                self._waiting.popleft()[2].set_exception(error)
            return
        future.set_result(answered.result())
        self._free.append(worker)
        self._hand_out()

    def close(self) -> None:
        """End all processes, whatever they do."""
        self._waiting.clear()
        for worker in self._all:
            worker.release()
        for worker in self._all:
            worker.close()


@cache
def _workers() -> _Workers:
    return _Workers()
