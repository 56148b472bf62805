"""Where the simulations of a study run: in this process, in others on this machine, or on a Ray cluster.

    items ──► executor.map(function, items) ──► (position, outcome), as they finish

An executor calls `function(item, cache)`. The cache belongs to one worker and lasts, so that work that items
share is done once. The outcome does not depend on the worker. Functions are pickled by name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Generic, Protocol, Self, TypeAlias, TypeVar

from rapid_des.bounded_cache import BoundedCache
from rapid_des.errors import RapidDesError

Item = TypeVar("Item")
Value = TypeVar("Value")

CACHE = 1 << 28
"""The size of a worker's cache in bytes."""


@dataclass(frozen=True)
class Done(Generic[Value]):
    """The value that a function returned for an item, and the seconds that it took."""

    value: Value
    wall_s: float = field(compare=False)


@dataclass(frozen=True)
class Failed:
    """The error that a function raised for an item: its class, its text and the seconds that it took."""

    error: str
    text: str
    wall_s: float = field(compare=False)


Outcome: TypeAlias = Done[Value] | Failed
Work: TypeAlias = Callable[[Item, BoundedCache], Value]
Meanwhile: TypeAlias = Callable[[], bool]
"""A function that does a piece of the caller's own work while workers are busy; false if none is left."""


class Executor(Protocol):
    """Runs a function over items; used in a `with` block, or several inside one: its workers stay warm."""

    workers: int

    def start(self) -> None:
        """Begin to start all workers; without this call they start when they are needed."""
        ...

    def map(
        self, function: Work[Item, Value], items: Iterable[Item], meanwhile: Meanwhile | None = None
    ) -> Generator[tuple[int, Outcome[Value]], None, None]:
        """Yield every item's position and outcome as they finish; items are taken as workers become free."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def attempt(function: Work[Item, Value], item: Item, cache: BoundedCache) -> Outcome[Value]:
    """Return the value or the error of a function for an item; only ^C and its like are raised."""
    began = time.perf_counter()
    try:
        value = function(item, cache)
    except Exception as error:  # noqa: BLE001 - one item that fails is recorded and does not stop the others
        return Failed(type(error).__name__, _text(error), time.perf_counter() - began)
    return Done(value, time.perf_counter() - began)


def _text(error: Exception) -> str:
    if isinstance(error, RapidDesError):
        return str(error)
    return str(error) or "a defect of rapid_des, please report it"


class InProcess:
    """Runs items one after the other where it is called.

    >>> with InProcess() as executor:
    ...     [(place, outcome.value) for place, outcome in executor.map(lambda item, _: item + 1, [1, 2])]
    [(0, 2), (1, 3)]
    """

    workers = 1

    def __init__(self, cache: BoundedCache | None = None) -> None:
        self._cache = BoundedCache(CACHE) if cache is None else cache

    def start(self) -> None:
        """Do nothing: this process runs already."""

    def map(
        self,
        function: Work[Item, Value],
        items: Iterable[Item],
        meanwhile: Meanwhile | None = None,  # noqa: ARG002 - nobody else works
    ) -> Generator[tuple[int, Outcome[Value]], None, None]:
        """Yield every item's position and outcome, in order."""
        for position, item in enumerate(items):
            yield position, attempt(function, item, self._cache)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass
