"""The executors by name, and the pools of workers behind them: processes of this machine, or a Ray cluster.

    items ──► batches of about 0.05 s ──► worker.submit(batch) ──► future ──► outcomes

Both kinds of workers answer by futures. A worker keeps a cache, and the jobs and machines that it received.
If a worker dies, another one repeats its items.
"""

from __future__ import annotations

import io
import os
import pickle
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from hashlib import sha256
from itertools import islice
from typing import Any, Protocol, Self

from rapid_des.bounded_cache import BoundedCache
from rapid_des.config import Document
from rapid_des.errors import CannotFinishError, InputError
from rapid_des.executors import (
    CACHE,
    Executor,
    Failed,
    InProcess,
    Item,
    Meanwhile,
    Outcome,
    Value,
    Work,
    attempt,
)
from rapid_des.frontend import Job
from rapid_des.machine import Machine
from rapid_des.processes import Worker
from rapid_des.report.writing import require_extra

EXECUTORS = ("processes", "local", "ray")
"""Names of executors; `local` is in this process."""
DEATHS = 3
"""The number of workers that may die of one item before it fails, or while they start before all ends."""
_BATCH_S = 0.05
"""The seconds that the items of a batch should take."""
_FINISH_S = 0.5
"""The seconds that an unneeded worker has to finish: a new one takes as long to start."""
_LEAST_S = 1e-6
_MOST = 64
"""The most items of a batch, and the most jobs and machines that each side keeps."""

_Batch = list[tuple[int, Any]]
"""The items of a batch with their positions."""


def executor_of(name: str = "processes", workers: int | None = None, address: str | None = None) -> Executor:
    """Return an executor by its name, with a number of workers (default: all cores).

    `address` is that of a Ray cluster; without it `ray` starts one here. `InputError` if there is none.

    >>> executor_of("local").workers
    1
    """
    if name not in EXECUTORS:
        raise InputError(f"executor {name!r} is not one of {', '.join(EXECUTORS)}")
    if workers is not None and (not isinstance(workers, int) or workers < 1):
        raise InputError(f"workers {workers!r}; allowed: a whole number from 1 on")
    if address is not None and name != "ray":
        raise InputError(f"an address is for the executor ray, not for {name}")
    if name == "ray":
        require_extra("ray", "ray", "the executor ray")
        from rapid_des.studies.ray_cluster import RayCluster

        cluster = RayCluster(address)
        return WorkerPool(cluster, workers or cluster.cpus)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if name == "local" or (workers or cores) == 1:
        return InProcess()
    return WorkerPool(Processes(), workers or cores)


class Submits(Protocol):
    """A worker of a pool."""

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Call a function after the earlier ones; return the future of its result."""
        ...

    def release(self) -> None:
        """Begin to stop the worker, even if it is busy."""
        ...

    def close(self) -> None:
        """Wait until the worker has stopped."""
        ...


class Workers(Protocol):
    """A kind of workers: processes or Ray tasks."""

    died: tuple[type[BaseException], ...]
    """The errors that a future raises if its worker died."""

    def worker(self) -> Submits:
        """Return a new worker; it starts with the first call."""
        ...

    def shared(self, pickled: bytes) -> Any:
        """Return a large value as messages carry it: itself, or a reference for `loaded`."""
        ...

    def close(self) -> None:
        """Release what all workers share; a later worker gets it again."""
        ...


class Processes:
    """Workers that are processes of this machine.

    Large values are part of every message: a machine of 1,024 GPUs has 0.4 MB, which a pipe takes in 0.2 ms.
    """

    died: tuple[type[BaseException], ...] = (BrokenProcessPool,)

    def worker(self) -> Submits:
        """Return a new worker."""
        return Worker()

    def shared(self, pickled: bytes) -> Any:
        """Return the value itself."""
        return pickled

    def close(self) -> None:
        """Do nothing: processes share nothing."""


@cache
def _of_this_worker() -> tuple[BoundedCache, OrderedDict[bytes, Any]]:
    """Return the cache of this worker, and its large values by their digest."""
    return BoundedCache(CACHE), OrderedDict()


def _started() -> bytes:
    return pickle.dumps([])


def _perform(values: dict[bytes, Any], message: bytes) -> bytes:
    """Run the items of a message in a worker; return their positions and outcomes."""
    kept, known = _of_this_worker()
    for digest, value in values.items():
        if digest not in known:
            known[digest] = pickle.loads(value if isinstance(value, bytes) else value.loaded())
        known.move_to_end(digest)
    unpickler = pickle.Unpickler(io.BytesIO(message))
    unpickler.persistent_load = known.__getitem__  # type: ignore[method-assign]
    function, batch = unpickler.load()
    while len(known) > max(_MOST, len(values)):
        known.popitem(last=False)
    return pickle.dumps([(position, attempt(function, item, kept)) for position, item in batch])


class _Pickler(pickle.Pickler):
    """Writes a message in which digests stand for jobs and machines."""

    def __init__(self, file: io.BytesIO, digest: Callable[[Any], bytes]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._digest = digest

    def persistent_id(self, obj: Any) -> bytes | None:
        """Return the digest of a job or a machine; other values are written as they are."""
        return self._digest(obj) if isinstance(obj, Job | Machine | Document) else None


class _MessagePacker:
    """Packs messages; a job or a machine is pickled once, however many items have it."""

    def __init__(self, shared: Callable[[bytes], Any]) -> None:
        self._shared = shared
        self._known: OrderedDict[int, tuple[object, bytes, Any]] = OrderedDict()
        """The object by its id, its digest and what stands for it: equal jobs may have different names."""

    def pack(self, function: Work[Any, Any], batch: _Batch) -> tuple[dict[bytes, Any], bytes]:
        """Return the large values of a message by their digest, and the message."""
        values: dict[bytes, Any] = {}

        def digest(thing: object) -> bytes:
            _, digest, values[digest] = self._pickled(thing)
            return digest

        body = io.BytesIO()
        _Pickler(body, digest).dump((function, batch))
        while len(self._known) > _MOST:
            self._known.popitem(last=False)
        return values, body.getvalue()

    def _pickled(self, thing: object) -> tuple[object, bytes, Any]:
        if id(thing) not in self._known:
            pickled = pickle.dumps(thing, pickle.HIGHEST_PROTOCOL)
            self._known[id(thing)] = thing, sha256(pickled).digest(), self._shared(pickled)
        self._known.move_to_end(id(thing))
        return self._known[id(thing)]


class _Queue:
    """Items with their positions, taken as they are needed; those whose worker died first, one by one."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._fresh = enumerate(items)
        self._next: deque[tuple[int, Any]] = deque()
        self._again: deque[tuple[int, Any]] = deque()
        self._deaths: Counter[int] = Counter()

    def __bool__(self) -> bool:
        """Return whether any item is left."""
        if not self._again and not self._next:
            self._next.extend(islice(self._fresh, 1))
        return bool(self._again or self._next)

    def take(self, count: int) -> _Batch:
        """Return the next items, at most `count`; an item of a dead worker comes alone."""
        if self._again:
            return [self._again.popleft()]
        batch = [self._next.popleft() for _ in range(min(count, len(self._next)))]
        return [*batch, *islice(self._fresh, count - len(batch))]

    def put_back(self, batch: _Batch) -> int | None:
        """Requeue the items of a dead worker; return the position of an item that is given up instead.

        If it had several items, the cause is not known: each is then tried alone before it counts.
        """
        if len(batch) == 1:
            position = batch[0][0]
            self._deaths[position] += 1
            if self._deaths[position] == DEATHS:
                return position
        self._again.extendleft(reversed(batch))
        return None


class WorkerPool:
    """Runs items on workers, in batches."""

    def __init__(self, kind: Workers, workers: int) -> None:
        self.workers = workers
        self._kind = kind
        self._messages = _MessagePacker(kind.shared)
        self._workers: list[Submits] = []
        self._pending: dict[Future[bytes], tuple[Submits, _Batch | None]] = {}
        """The pending futures in order, with their workers and batches; None: the worker starts."""
        self._item_s = _BATCH_S
        self._false_starts = 0
        self._blocks = 0

    def __enter__(self) -> Self:
        self._blocks += 1
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the workers at the end of the outermost block."""
        self._blocks -= 1
        if not self._blocks:
            self._stop(self._workers)
            self._kind.close()

    def start(self) -> None:
        """Begin to start all workers."""
        while len(self._workers) < self.workers:
            self._workers.append(worker := self._kind.worker())
            self._pending[worker.submit(_started)] = worker, None

    def map(
        self, function: Work[Item, Value], items: Iterable[Item], meanwhile: Meanwhile | None = None
    ) -> Generator[tuple[int, Outcome[Value]], None, None]:
        """Yield every item's position and outcome as they finish."""
        queue = _Queue(items)
        try:
            while self._submit_batches(function, queue):
                idle = meanwhile is None or not meanwhile()
                for future in self._answered(None if idle else 0):
                    outcomes = self._outcomes_of(future, queue)
                    self._submit_batches(function, queue)
                    yield from outcomes
        except GeneratorExit:  # whoever asked wants no more
            wait(self._pending, timeout=_FINISH_S)
            for future in self._answered(0):
                del self._pending[future]
            raise
        finally:
            self._stop([worker for worker, batch in self._pending.values() if batch is not None])

    def _answered(self, patience_s: float | None) -> list[Future[bytes]]:
        """Return the futures that are done, in the order of submission."""
        done, _ = wait(self._pending, timeout=patience_s, return_when=FIRST_COMPLETED)
        return [future for future in self._pending if future in done]

    def _submit_batches(self, function: Work[Any, Any], queue: _Queue) -> bool:
        """Submit items to workers with few left, start workers if needed; return whether any item is left.

        A worker that has not started gets no items: it may wait for a core until others are done.
        """
        size = max(1, min(_MOST, round(_BATCH_S / self._item_s)))
        ahead = 1 if size == 1 else 2  # short items: the next batch is there when one is done
        held = Counter(id(worker) for worker, _ in self._pending.values())
        starting = {id(worker) for worker, batch in self._pending.values() if batch is None}
        for worker in self._workers:
            if id(worker) not in starting and held[id(worker)] < ahead and queue:
                batch = queue.take(size if ahead == 1 else -(-size // 2))
                self._pending[worker.submit(_perform, *self._messages.pack(function, batch))] = worker, batch
        if len(self._workers) < self.workers and queue:
            self.start()
        return any(batch for _, batch in self._pending.values()) or bool(queue)

    def _outcomes_of(self, future: Future[bytes], queue: _Queue) -> list[tuple[int, Outcome[Any]]]:
        """Return the outcomes that a worker sent; requeue its items if it died."""
        worker, batch = self._pending.pop(future)
        try:
            outcomes: list[tuple[int, Outcome[Any]]] = pickle.loads(future.result())
        except self._kind.died as cause:
            return list(self._requeued(worker, batch, _short(cause), queue))
        self._false_starts = 0
        for _, outcome in outcomes:
            self._item_s += (max(outcome.wall_s, _LEAST_S) - self._item_s) / 8
        return outcomes

    def _requeued(
        self, worker: Submits, batch: _Batch | None, cause: str, queue: _Queue
    ) -> Iterator[tuple[int, Outcome[Any]]]:
        """Requeue the items of a dead worker; yield an item as failed if too many workers died of it."""
        if batch is None:
            self._false_starts += 1
            if self._false_starts == DEATHS:
                raise CannotFinishError(f"workers end as they start: {cause}")
        given_up = queue.put_back(batch or [])
        if worker in self._workers:  # other batches of it come to this too
            self._workers.remove(worker)
            worker.close()
        if given_up is not None:
            text = f"{DEATHS} workers ended while they ran it ({cause}); too little memory, perhaps"
            yield given_up, Failed("WorkerDied", text, 0.0)

    def _stop(self, workers: Iterable[Submits]) -> None:
        leaving = [worker for worker in self._workers if worker in workers]
        for worker in leaving:
            worker.release()
        for worker in leaving:
            self._workers.remove(worker)
            worker.close()
        self._pending = {
            future: (worker, batch)
            for future, (worker, batch) in self._pending.items()
            if worker in self._workers
        }


def _short(error: BaseException) -> str:
    """Return in one line why a worker ended: its exit code if that is known."""
    lines = str(error).splitlines() or [type(error).__name__]
    return next((line for line in lines if "exit code" in line), lines[0]).rstrip(".")
