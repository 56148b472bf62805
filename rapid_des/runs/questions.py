"""Questions about a run under common failures: what a change is worth, and which values are best."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

from msgspec import Struct, structs

from rapid_des.bounded_cache import BoundedCache
from rapid_des.config import to_tree
from rapid_des.errors import ConfigError, InputError
from rapid_des.executors import Executor
from rapid_des.means import MeanInterval
from rapid_des.runs.changes import changes_of
from rapid_des.runs.goodput import Replications, RunRequest, play
from rapid_des.runs.loading import Reliability, load_reliability
from rapid_des.runs.result import GoodputResult
from rapid_des.units import PS_PER_US, LongDuration

_INTERVALS = tuple(2 ** (power / 2) for power in range(-4, 5))
_REFINED = (2**-0.25, 2**0.25)
_SPARES = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_MOST_POINTS = 400
KEYS = ("checkpoint.interval", "spares.hot", "spares.warm", "spares.cold")
"""The keys of a reliability file that `optimize` chooses values for."""


class Asking(Struct, frozen=True):
    """How a question is answered: the number of replications, where they run, and a function for progress."""

    replications: Replications
    executor: Executor | None = None
    cache: BoundedCache | None = None
    on_progress: Callable[[int, int], None] = lambda *_: None

    def play(self, request: RunRequest, *, unseen: bool = False) -> GoodputResult:
        """Play a run; `unseen` with failures that no other call meets."""
        first = self.replications.first + (self.replications.most if unseen else 0)
        wanted = Replications(self.replications.most, first=first)
        return play(request, wanted, executor=self.executor, cache=self.cache)


class ChangeWorth(Struct, frozen=True):
    """What one change is worth."""

    change: str
    goodput: float
    gain: MeanInterval
    """The goodput with the change less that without it."""

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {"change": self.change, "goodput": self.goodput, "gain": self.gain.as_json()}


def worth(request: RunRequest, today: GoodputResult, asking: Asking) -> tuple[ChangeWorth, ...]:
    """Return what one more unit of each thing is worth, the best first, under the failures of today's run."""
    found = []
    names = [name for name in changes_of(request.file) if _matters(name, today)]
    for number, name in enumerate(names, start=1):
        changed = asking.play(structs.replace(request, change=name))
        found.append(ChangeWorth(name, changed.figures["goodput"].mean, today.gain(changed)))
        asking.on_progress(number, len(names))
    return tuple(sorted(found, key=lambda each: -each.gain.mean))


def _matters(name: str, today: GoodputResult) -> bool:
    """Return whether a class has any incidents at all, where a change is of a class."""
    part = name.removeprefix("half the failures: ")
    return part == name or today.incidents_by_class()[part] > 0


class Optimum(Struct, frozen=True):
    """The best values of some keys."""

    values: dict[str, str]
    goodput: MeanInterval
    regret: MeanInterval
    """The objective with the best values less that of today, on failures that the search did not meet. The
    objective is the goodput for each GPU held, spare nodes included, over the job's.
    """
    points: int
    """The number of combinations that were played."""

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        intervals = {"goodput": self.goodput.as_json(), "regret": self.regret.as_json()}
        return {"values": self.values, **intervals, "points": self.points}


def optimize(request: RunRequest, keys: Sequence[str], asking: Asking) -> Optimum:
    """Return the values of keys of the reliability file with the best goodput for each GPU held."""
    unknown = [key for key in keys if key not in KEYS]
    if unknown or len(set(keys)) < len(keys) or not keys:
        raise InputError(
            f"optimize: {', '.join(unknown or keys) or 'nothing'}; allowed: {', '.join(KEYS)}, each once"
        )
    search = _ValueSearch(request, asking)
    grid = product(*(search.values(key) for key in keys))
    points = [dict(zip(keys, values, strict=True)) for values in grid]
    if len(points) > _MOST_POINTS:
        raise InputError(f"optimize: {len(points):,} combinations; allowed: {_MOST_POINTS}, so fewer keys")
    best = search.best(points)
    if "checkpoint.interval" in best:
        best = search.best([best, *_finer(best)])
    today, then = asking.play(request, unseen=True), asking.play(search.request(best), unseen=True)
    regret = MeanInterval.of(
        [after - before for before, after in zip(_objectives(today), _objectives(then), strict=True)]
    )
    return Optimum(best, then.figures["goodput"], regret, search.played)


def _objectives(result: GoodputResult) -> list[float]:
    return [each * result.gpus / result.gpus_held for each in result.goodputs]


def _finer(point: dict[str, str]) -> Iterator[dict[str, str]]:
    interval = int(LongDuration.parse(point["checkpoint.interval"]))
    for factor in _REFINED:
        yield point | {"checkpoint.interval": str(LongDuration(round(interval * factor)))}


class _ValueSearch:
    """The points that were played, all under the same failures."""

    def __init__(self, request: RunRequest, asking: Asking) -> None:
        self._request, self._asking = request, asking
        self.played = 0

    def values(self, key: str) -> list[str]:
        """Return the values of a key that are tried."""
        if key != "checkpoint.interval":
            return [str(count) for count in _SPARES]
        if self._request.reliability.spec.checkpoint is None:
            self._request.reliability.refuse("checkpoint", "unset, so that no interval is best")
        cache = self._asking.cache or BoundedCache()
        course = self.request({key: "auto"}).planned(cache).plan.course
        interval = course.levels[-1].every * course.step // PS_PER_US
        return [str(LongDuration(round(min(interval, 10**15) * factor))) for factor in _INTERVALS]

    def request(self, point: dict[str, str]) -> RunRequest:
        """Return the run with the values of a point."""
        return structs.replace(self._request, reliability=changed(self._request.reliability, point))

    def best(self, points: Sequence[dict[str, str]]) -> dict[str, str]:
        """Play points and return the best; those that do not fit are left out."""
        found = list[tuple[float, int]]()
        refusal: ConfigError | None = None
        for place, point in enumerate(points):
            try:
                objectives = _objectives(self._asking.play(self.request(point)))
            except ConfigError as error:
                refusal = error
                continue
            self.played += 1
            found.append((sum(objectives), -place))
            self._asking.on_progress(place + 1, len(points))
        if not found:
            assert refusal is not None, "there are points"
            raise refusal
        return points[-max(found)[1]]


def changed(reliability: Reliability, settings: dict[str, str]) -> Reliability:
    """Return a reliability file with settings over it."""
    tree = to_tree(reliability.spec, "reliability")
    stated = load_reliability(tree, settings=list(settings.items()))
    return structs.replace(stated, name=reliability.name, file=reliability.file)
