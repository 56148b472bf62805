"""Items given to workers somewhere else, in batches, and given again when a worker dies."""

from __future__ import annotations

import io
import pickle
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol, Self

from rapid_des.bounded_cache import BoundedCache
from rapid_des.config import Document
from rapid_des.errors import CannotFinishError
from rapid_des.frontend import Job
from rapid_des.machine import Machine
from rapid_des.studies.executors import CACHE, Failed, Item, Meanwhile, Outcome, Value, Work, attempt

DEATHS = 3
"""How many workers may die of an item before it counts as failed, or as they start before all ends."""
_BATCH_S = 0.05
"""About how long the items take that a worker holds at a time."""
_HIRING_S, _GLANCE_S = 0.5, 0.005
"""About how long it takes until a new worker has started, and how often one looks who has ended meanwhile."""
_LEAST_S = 1e-6
_MOST = 64
"""Items that a worker holds at most, and things that are sent to it once."""


class Crew(Protocol):
    """Workers somewhere else: what `Remote` asks of them."""

    def hire(self) -> Any:
        """Begin to start a worker and return it at once; when it has started it says `HELLO`."""
        ...

    def tell(self, worker: Any, message: bytes) -> None:
        """Give a worker a message; a dead one may take it."""
        ...

    def listen(self, workers: list[Any], *, wait: bool) -> list[tuple[Any, list[bytes] | str]]:
        """Return what workers have to say, their answers or what they died of; `wait` until one has."""
        ...

    def dismiss(self, worker: Any) -> None:
        """End a worker."""
        ...

    def close(self) -> None:
        """Give back what all workers shared; whoever hires again gets it again."""
        ...


HELLO = b""
"""What a worker says when it has started."""


class Desk:
    """A worker's own side: takes messages, does the items in them and returns the answers one by one."""

    def __init__(self) -> None:
        self._cache = BoundedCache(CACHE)
        self._things: dict[int, Any] = {}
        self._function: Work[Any, Any] | None = None

    def answers(self, message: bytes) -> Iterator[bytes]:
        """Yield an answer for every item of a message."""
        new, dropped, body = pickle.loads(message)
        self._things.update((number, pickle.loads(thing)) for number, thing in new.items())
        unpickler = pickle.Unpickler(io.BytesIO(body))
        unpickler.persistent_load = self._things.__getitem__  # type: ignore[method-assign]
        function, items = unpickler.load()
        for number in dropped:
            del self._things[number]
        self._function = function or self._function
        assert self._function is not None, "the first message brings a function"
        for position, item in items:
            yield pickle.dumps((position, attempt(self._function, item, self._cache)))


class _Pickler(pickle.Pickler):
    """Writes a message in which jobs and machines are numbers."""

    def __init__(self, file: io.BytesIO, number: Callable[[Any], int]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._number = number

    def persistent_id(self, obj: Any) -> int | None:
        """Return the number of a job or a machine; other values are written as they are."""
        return self._number(obj) if isinstance(obj, Job | Machine | Document) else None


class _Outbox:
    """Packs messages for one worker: a job or a machine goes once, however many items have it."""

    def __init__(self) -> None:
        self._known: deque[tuple[int, object]] = deque()
        self._count = 0

    def pack(self, function: Work[Any, Any] | None, items: list[tuple[int, Any]]) -> bytes:
        """Return the message that asks for some items (position, item), by the function of before if None."""
        new: dict[int, bytes] = {}
        body = io.BytesIO()
        _Pickler(body, lambda thing: self._number(thing, new)).dump((function, items))
        dropped = []
        while len(self._known) > _MOST:
            dropped.append(self._known.popleft()[0])
        return pickle.dumps((new, dropped, body.getvalue()), pickle.HIGHEST_PROTOCOL)

    def _number(self, thing: object, new: dict[int, bytes]) -> int:
        """Return the number of this very object: equal jobs may have different names."""
        known = next((pair for pair in reversed(self._known) if pair[1] is thing), None)
        if known is None:
            known = self._count, thing
            new[self._count] = pickle.dumps(thing, pickle.HIGHEST_PROTOCOL)
            self._count += 1
        else:
            self._known.remove(known)
        self._known.append(known)
        return known[0]


class _Queue:
    """Items with their positions: new ones as they are asked for, and those whose worker died, first."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._fresh = enumerate(items)
        self._next: deque[tuple[int, Any]] = deque()
        self._deaths: Counter[int] = Counter()

    def __bool__(self) -> bool:
        """Tell whether there is any item left to give."""
        if not self._next:
            self._next.extend(islice(self._fresh, 1))
        return bool(self._next)

    def take(self, count: int) -> list[tuple[int, Any]]:
        """Return the next items, at most `count`."""
        items = [self._next.popleft() for _ in range(min(count, len(self._next)))]
        return [*items, *islice(self._fresh, count - len(items))]

    def put_back(self, held: OrderedDict[int, Any]) -> int | None:
        """Put back what a dead worker held, the first of which it died of; return that if it is given up."""
        first = next(iter(held), None)
        if first is not None:
            self._deaths[first] += 1
            if self._deaths[first] == DEATHS:
                del held[first]
        self._next.extendleft(reversed(held.items()))
        return first if first is not None and first not in held else None


@dataclass(eq=False)
class _Hand:
    """A worker as its employer sees it."""

    worker: Any
    outbox: _Outbox = field(default_factory=_Outbox)
    has_function: bool = False
    holds: OrderedDict[int, Any] = field(default_factory=OrderedDict)
    """Items by position that it has not answered, in its order."""
    has_started: bool = False


class Remote:
    """Runs items on a crew; what a worker held when it died is done again by another."""

    def __init__(self, crew: Crew, workers: int) -> None:
        self.workers = workers
        self._crew = crew
        self._hands: list[_Hand] = []
        self._item_s = _BATCH_S
        self._false_starts = 0
        self._blocks = 0

    def __enter__(self) -> Self:
        self._blocks += 1
        return self

    def __exit__(self, *_: object) -> None:
        """Dismiss the workers at the end of the outermost block."""
        self._blocks -= 1
        if not self._blocks:
            self._dismiss(list(self._hands))
            self._crew.close()

    def start(self) -> None:
        """Begin to start all workers."""
        while len(self._hands) < self.workers:
            self._hands.append(_Hand(self._crew.hire()))

    def map(
        self, function: Work[Item, Value], items: Iterable[Item], meanwhile: Meanwhile | None = None
    ) -> Generator[tuple[int, Outcome[Value]], None, None]:
        """Yield every item's position and outcome as they finish."""
        queue = _Queue(items)
        for hand in self._hands:
            hand.has_function = False
        try:
            while self._give(function, queue):
                busy = {
                    hand.worker: hand
                    for hand in self._hands
                    if hand.holds or (not hand.has_started and queue)
                }
                idle = meanwhile is None or not meanwhile()
                for worker, said in self._crew.listen(list(busy), wait=idle):
                    hand = busy[worker]
                    if isinstance(said, str):
                        yield from self._lost(hand, said, queue)
                        continue
                    outcomes = self._heard(hand, said)
                    if meanwhile is None:  # else what is next may follow from these
                        self._give(function, queue)
                    yield from outcomes
        except GeneratorExit:  # whoever asked wants no more
            self._let_finish()
            raise
        finally:
            self._dismiss([hand for hand in self._hands if hand.holds])

    def _let_finish(self) -> None:
        """Wait for workers that will soon be done: for as long as it takes to hire others instead."""
        until = time.monotonic() + _HIRING_S
        while (
            busy := {hand.worker: hand for hand in self._hands if hand.holds}
        ) and time.monotonic() < until:
            for worker, said in self._crew.listen(list(busy), wait=False):
                if isinstance(said, str):
                    self._dismiss([busy[worker]])
                else:
                    self._heard(busy[worker], said)
            time.sleep(_GLANCE_S)

    def _give(self, function: Work[Any, Any], queue: _Queue) -> bool:
        """Give items to workers that have little left, hire where there are more; tell if any are left.

        Who has not started gets none: an actor whose node has gone waits for a core till others are done.
        """
        batch = max(1, min(_MOST, round(_BATCH_S / self._item_s)))
        for hand in self._hands:
            if hand.has_started and len(hand.holds) <= batch // 2 and queue:
                self._send(hand, function, queue.take(batch - len(hand.holds)))
        if len(self._hands) < self.workers and queue:
            self.start()
        return any(hand.holds for hand in self._hands) or bool(queue)

    def _send(self, hand: _Hand, function: Work[Any, Any], items: list[tuple[int, Any]]) -> None:
        hand.holds.update(items)
        self._crew.tell(hand.worker, hand.outbox.pack(None if hand.has_function else function, items))
        hand.has_function = True

    def _heard(self, hand: _Hand, answers: list[bytes]) -> list[tuple[int, Outcome[Any]]]:
        """Return the outcomes that a worker sent."""
        hand.has_started, self._false_starts = True, 0
        outcomes = [pickle.loads(answer) for answer in answers if answer != HELLO]
        for position, outcome in outcomes:
            del hand.holds[position]
            self._item_s += (max(outcome.wall_s, _LEAST_S) - self._item_s) / 8
        return outcomes

    def _lost(self, hand: _Hand, cause: str, queue: _Queue) -> Iterator[tuple[int, Outcome[Any]]]:
        """Put back what a dead worker held; yield the item that it died of if others did before."""
        if not hand.has_started:
            self._false_starts += 1
            if self._false_starts == DEATHS:
                raise CannotFinishError(f"workers end as they start: {cause}")
        given_up = queue.put_back(hand.holds)
        self._dismiss([hand])
        if given_up is not None:
            text = f"{DEATHS} workers ended while they ran it ({cause}); too little memory, perhaps"
            yield given_up, Failed("WorkerDied", text, 0.0)

    def _dismiss(self, hands: list[_Hand]) -> None:
        for hand in hands:
            self._hands.remove(hand)
            self._crew.dismiss(hand.worker)
