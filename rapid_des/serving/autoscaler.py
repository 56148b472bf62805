"""A fleet that grows and shrinks: replicas start when the load is high and drain when it is low.

The rule is that of Kubernetes' HorizontalPodAutoscaler (kubernetes.io, "Horizontal Pod Autoscaling"). It
wants the number of replicas that brings the load of each to a target. It changes nothing while the load is
within a tolerance of the target. It shrinks a fleet to the largest number that it wanted within the last
minutes (the stabilization window). A replica that starts serves after its start-up time. A replica that
drains gets no more requests, and stops when it has answered those that it has. The replica with the least
work drains first. If more replicas are wanted, one that drains serves again at once.

The load of the measure `slo` is the number of replicas that serve times the largest part of a limit that
nine tenths of the requests do not exceed. These are the requests that were answered since the last decision,
and those that still wait for an iteration; their waiting counts as the time to their first token. Requests
that were sent before the last replica came up met a smaller fleet, and do not count: if there are no others,
or while replicas start, the fleet stays as it is. Limits that are kept do not say by how much, so such a
fleet shrinks by one replica at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np
import simpy
from msgspec import Struct, field

from rapid_des.frontend.servers import AutoscalerSpec
from rapid_des.serving.engine import Process
from rapid_des.serving.replica import Replica
from rapid_des.serving.requests import Request
from rapid_des.serving.slo import Slo
from rapid_des.units import PS_PER_S

_INTERVAL, _WINDOW = 15 * PS_PER_S, 300 * PS_PER_S
"""Kubernetes' defaults."""
_SAMPLES = 10
"""Number of samples of the load in an interval; a decision takes their mean."""
_TREND = 8
"""Number of decisions by whose loads the coming load is foreseen."""
_SHARE = 0.9
"""The share of requests whose part of a limit is the load of the measure `slo`."""
_LOOK = PS_PER_S // 10
"""Picoseconds between two looks at whether a replica that drains is done."""

MEASURES: Mapping[str, Callable[[Replica], float]] = {
    "requests": lambda replica: replica.outstanding,
    "waiting": lambda replica: replica.sizes[0],
    "kv_occupancy": lambda replica: replica.sizes[2] / replica.pages,
}
"""The load of a replica at an instant by the name of its measure."""


def foreseen(loads: Sequence[float], ahead: float) -> float:
    """Return the load to come `ahead` intervals later, by the straight line through loads; at least the last.

    >>> foreseen([1.0, 2.0, 3.0], 2), foreseen([3.0, 2.0], 1), foreseen([4.0], 9)
    (5.0, 2.0, 4.0)
    """
    if len(loads) < 2:
        return loads[-1]
    slope, level = np.polyfit(np.arange(len(loads)) - len(loads) + 1.0, loads, 1)
    return max(loads[-1], round(float(level + slope * ahead), 9))


def looks_back(spec: AutoscalerSpec) -> int:
    """Return the picoseconds after which the loads and sizes of before no longer count."""
    interval = int(_INTERVAL if spec.interval is None else spec.interval)
    trend = 0 if spec.ahead is None else _TREND * interval
    return int(_WINDOW if spec.stabilization is None else spec.stabilization) + interval + trend


class FleetSize(Struct):
    """How many replicas of a pool were up, starting or draining over time."""

    gpus: int = 1
    """Number of GPUs of a replica."""
    name: str = ""
    """Name of the job of its replicas."""
    changes: list[tuple[int, int]] = field(default_factory=list)
    """The times at which the number changed, in picoseconds, and the number from then on."""
    started: int = 0
    """Number of replicas that were started after the beginning."""

    def set(self, now: int, replicas: int) -> None:
        """Record the number from now on."""
        if not self.changes or self.changes[-1][1] != replicas:
            self.changes.append((now, replicas))

    def replica_time(self, end: int) -> int:
        """Return the time of all replicas until `end`, in picoseconds.

        >>> size = FleetSize()
        >>> size.set(0, 2); size.set(10, 5); size.replica_time(12)
        30
        """
        ends = [*(now for now, _ in self.changes[1:]), end]
        return sum(
            count * max(0, min(stop, end) - begin)
            for (begin, count), stop in zip(self.changes, ends, strict=True)
        )

    def as_json(self, end: int) -> dict[str, Any]:
        """Return plain data."""
        counts = [count for _, count in self.changes]
        return {
            "job": self.name,
            "mean_replicas": self.replica_time(end) / max(end, 1),
            "least": min(counts),
            "most": max(counts),
            "started": self.started,
            "changes": [{"at_s": now / PS_PER_S, "replicas": count} for now, count in self.changes],
        }


class Autoscaler:
    """Scales the replicas of one pool; `changed` is called when one more serves."""

    def __init__(
        self,
        env: simpy.Environment,
        spec: AutoscalerSpec,
        members: Sequence[Replica],
        startup: int,
        changed: Callable[[], None],
    ) -> None:
        self._env, self._spec, self._members = env, spec, members
        self._startup, self._changed = startup, changed
        self._interval = int(_INTERVAL if spec.interval is None else spec.interval)
        self._window = int(_WINDOW if spec.stabilization is None else spec.stabilization)
        self._starting = self._accepted = 0
        self._slo = None if spec.slo is None else Slo.parse(spec.slo, "serving.autoscaler.slo")
        self._used: list[tuple[int, float]] = []
        """When requests were sent that were answered since the last decision, and their parts of limits."""
        self._grown = 0
        """When the last replica came up."""
        self._loads = deque[float](maxlen=_TREND)
        self._wanted = deque[tuple[int, int]]()
        """The numbers that were wanted in the stabilization window, with their times."""
        self.size = FleetSize(members[0].engine.gpus)
        for member in members[: self._least]:
            member.resume()
        self._record()
        env.process(self._scale())

    @property
    def _least(self) -> int:
        return min(self._spec.minimum, len(self._members))

    @property
    def _serving(self) -> list[Replica]:
        return [member for member in self._members if member.alive and not member.draining]

    def _record(self) -> None:
        self.size.set(int(self._env.now), sum(member.alive for member in self._members) + self._starting)

    def answered(self, request: Request) -> None:
        """Record an answered request, if a replica of the pool answered it."""
        if self._slo is not None and self._members[0].number <= request.replica <= self._members[-1].number:
            times = request.first_token - request.arrival, request.finished - request.arrival
            self._used.append((request.arrival, self._slo.used(*times, request.output)))

    def _scale(self) -> Process:
        while True:
            load = yield from self._load()
            current = len(self._serving) + self._starting
            if load is not None:
                self._loads.append(load)
                ahead = 0.0 if self._spec.ahead is None else self._spec.ahead / self._interval
                load = foreseen(self._loads, ahead) if ahead else load
            wanted = self._stabilized(current if load is None else self._asked(load))
            for _ in range(current, wanted):
                self._add()
            for _ in range(wanted, current):
                self._drain()
            self._record()

    def _load(self) -> Generator[simpy.Event, Any, float | None]:
        """Return the load of an interval, in replicas at their target; None where it says nothing."""
        if self._spec.measure in MEASURES:
            measure, load = MEASURES[self._spec.measure], 0.0
            for _ in range(_SAMPLES):
                yield self._env.timeout(max(1, self._interval // _SAMPLES))
                load += sum(map(measure, self._serving)) / _SAMPLES
        else:
            yield self._env.timeout(self._interval)
            part = self._rate() if self._slo is None else self._part_of_limits()
            if part is None:
                return None
            load = part
        return load / self._spec.target

    def _rate(self) -> float:
        """Return the requests a second that came in the last interval."""
        before, self._accepted = self._accepted, sum(member.accepted for member in self._members)
        return (self._accepted - before) / (self._interval / PS_PER_S)

    def _part_of_limits(self) -> float | None:
        """Return the part of a limit that requests of the last interval took, times those that serve.

        None while replicas start, or where all requests were sent before the last one came up.
        """
        assert self._slo is not None
        now, used, self._used = int(self._env.now), self._used, []
        if "ttft" in self._slo.limits:
            sent = [request.arrival for member in self._serving for request in member.unstarted]
            used += [(arrival, (now - arrival) / self._slo.limits["ttft"]) for arrival in sent]
        known = [part for arrival, part in used if arrival >= self._grown]
        if self._starting or (used and not known):
            return None
        return float(np.quantile(known, _SHARE)) * len(self._serving) if known else 0.0

    def _asked(self, load: float) -> int:
        """Return how many replicas are wanted; `load` counts replicas that are at their target."""
        current = len(self._serving) + self._starting
        if abs(load / max(current, 1) - 1) <= self._spec.tolerance:
            return current
        least = self._least if self._slo is None else max(self._least, current - 1)
        return min(max(ceil(load), least), len(self._members))

    def _stabilized(self, asked: int) -> int:
        """Return `asked` if the fleet grows, else the most wanted in the window, at most its size."""
        now = int(self._env.now)
        self._wanted.append((now, asked))
        while self._wanted[0][0] < now - self._window:
            self._wanted.popleft()
        current = len(self._serving) + self._starting
        if asked >= current:
            return asked
        return min(current, max(count for _, count in self._wanted))

    def _add(self) -> None:
        """Have one more replica serve: one that drains, or else one that is down, after its start-up."""
        draining = next((member for member in self._members if member.draining), None)
        if draining is not None:
            draining.draining = False
            self._changed()
            return
        self._starting += 1
        self.size.started += 1
        self._env.process(self._start())

    def _start(self) -> Process:
        yield self._env.timeout(self._startup)
        self._starting -= 1
        next(member for member in self._members if not member.alive).resume()
        self._grown = int(self._env.now)
        self._record()
        self._changed()

    def _drain(self) -> None:
        """Stop sending requests to the replica that has the least work (of several, the last)."""
        if not (serving := self._serving):
            return
        chosen = min(reversed(serving), key=lambda member: member.outstanding_tokens)
        chosen.draining = True
        self._env.process(self._empty(chosen))

    def _empty(self, member: Replica) -> Process:
        while member.draining and member.outstanding:
            yield self._env.timeout(_LOOK)
        if member.draining:
            member.draining = False
            member.stop()
            self._record()
