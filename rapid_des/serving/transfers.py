"""Transfers of keys and values over the fabric, from replicas that compute prompts to those that decode.

Every GPU gets its part from the GPU of its place in the other replica, or, of another layout, from those that
have it (`pools`), all at once when a prompt is computed.
A message goes through the links of its route as it does alone (`message_alone` of `program.collectives`), but
that a link serves whole messages one after the other, in the order in which they reach it. Faults of links
that come and go change what a link takes by their timetables (rule R6), on the server's clock; constant ones
are in the fabric.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import simpy
from msgspec import Struct, field

from rapid_des.bounded_cache import BoundedCache
from rapid_des.errors import ConfigError, InfeasibleJobError
from rapid_des.machine import Machine
from rapid_des.network.faults import Fault, link_timetables, touches_links
from rapid_des.program.services import message_table
from rapid_des.program.timetable import FOREVER, advance
from rapid_des.units import PS_PER_S, ceil_divide

Transfer = Callable[[simpy.Environment, int, int, int], simpy.Event]
"""Starts to move keys and values of this many tokens between two replicas; the event is their arrival."""
Messages: TypeAlias = Callable[[int, int, int], Iterable[tuple[int, int, int]]]
"""Returns, for two replicas and a number of tokens, (source GPU, destination GPU, bytes); all alike."""
_Table: TypeAlias = tuple[Sequence[int], Sequence[int], Sequence[int]]
_MOST_ROUTES = 1 << 12
"""Number of cached routes."""


class _Hop(NamedTuple):
    """The service of a message on one link, in picoseconds."""

    link: int
    occupancy: int
    head: int
    """Time until the next link may begin, `lag` included."""
    lag: int
    rest: int
    """Time from the end of its service on the link until it has arrived, without other traffic."""


class TransferLinks(Struct):
    """The links of a fabric on a server's clock, and when each is free."""

    machine: Machine
    page: int
    """Tokens per page; transfers consist of whole pages."""
    messages: Messages
    free: dict[int, int] = field(default_factory=dict)
    """The time at which each link has served everything that has reached it, in picoseconds."""
    _routes: BoundedCache = field(default_factory=lambda: BoundedCache(_MOST_ROUTES))
    _tables: dict[int, _Table] = field(default_factory=dict)
    _horizon: int = 0

    def send(self, env: simpy.Environment, tokens: int, source: int, target: int) -> simpy.Event:
        """Start to move keys and values from one replica to another; the event is when all have arrived."""
        pages = ceil_divide(tokens, self.page)
        routes = self._routes.get_or_make(
            (pages, source, target), lambda: self._routed(pages, source, target)
        )
        return env.all_of([env.process(self._travel(env, hops)) for hops in routes])

    def _routed(self, pages: int, source: int, target: int) -> list[list[_Hop]]:
        """Return the hops of every GPU's message; all messages have one size."""
        messages = np.array(list(self.messages(source, target, pages * self.page)), np.int64)
        routes = self.machine.router.routes(messages[:, :2])
        machine, size = self.machine, int(messages[0, 2])
        hops, classes = message_table(machine.fabric, machine.switching, routes, [size])
        rows = zip(
            routes.links.tolist(),
            *(table[0, classes].tolist() for table in (hops.occupancy, hops.head, hops.lag)),
            strict=True,
        )
        every, starts = list(rows), routes.starts.tolist()
        return [_hops(every[begin:end]) for begin, end in zip(starts, starts[1:], strict=False)]

    def _travel(self, env: simpy.Environment, hops: Sequence[_Hop]) -> Generator[simpy.Event, Any, None]:
        """Pass one message along its links, its head ahead of its end."""
        end = 0
        for hop in hops:
            start = max(int(env.now), self.free.get(hop.link, 0))
            done, late = self._served(hop, start)
            self.free[hop.link] = done
            end = max(end, done + late + hop.rest)
            yield env.timeout(start + hop.head + hop.lag + late - int(env.now))
        yield env.timeout(max(0, end - int(env.now)))

    def _served(self, hop: _Hop, start: int) -> tuple[int, int]:
        """Return when a link has served a message, and the extra lag of the link now."""
        if start >= self._horizon:
            self._lay_out(start)
        table = self._tables.get(hop.link)
        if table is None:
            return start + hop.occupancy, 0
        times, rates, lags = table
        done = advance(times, rates, start, hop.occupancy)
        if done >= FOREVER:
            name = self.machine.fabric.link_name(hop.link)
            raise InfeasibleJobError(f"{name} is down and stays so: keys and values wait for it for ever")
        now = int(np.searchsorted(times, start, side="right")) - 1
        return done, lags[now] if now >= 0 else 0

    def _lay_out(self, moment: int) -> None:
        """Tabulate the timed faults up to some time after a moment."""
        self._horizon = 2 * max(moment, 100 * PS_PER_S)
        faults = [fault for fault in self.machine.faults if fault.timed]
        machine = self.machine
        timetables = link_timetables(machine.fabric, faults, self._horizon, machine.spec.gpus_per_node)
        for link, rows in timetables.items():
            times, rates, lags = zip(*rows, strict=True)
            self._tables[link] = times, rates, lags


def _hops(rows: Sequence[tuple[int, int, int, int]]) -> list[_Hop]:
    """Return the links of one message, given of each its number, occupancy, head and lag."""
    hops, rest = list[_Hop](), 0
    for number, (link, occupancy, head, lag) in enumerate(reversed(rows)):
        rest = rest + head + lag if number else occupancy + lag
        hops.append(_Hop(link, occupancy, head, lag, max(0, rest - occupancy)))
    return hops[::-1]


def for_iterations(machine: Machine, *, sends: bool) -> Machine:
    """Return a machine with the faults that are always there, by which iterations are priced.

    `ConfigError` for timed ones that no transfer would meet; `sends`: there are transfers.
    """
    timed = [fault for fault in machine.faults if fault.timed]
    if not timed:
        return machine
    _check_timed(timed, sends=sends)
    return machine.unfaulted.with_faults(fault for fault in machine.faults if not fault.timed)


def _check_timed(faults: Sequence[Fault], *, sends: bool) -> None:
    for fault in faults:
        if fault.relative:
            raise ConfigError("a server has no steps: state from and until as times", file="--fault")
        if not sends or not touches_links(fault):
            problem = "faults that come and go slow the links between prefill_replicas and the others alone"
            raise ConfigError(f"{problem}: of replicas they are outages (--outage)", file="--fault")
