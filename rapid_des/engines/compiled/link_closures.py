"""R8 in the compiled engine: the kernel returns at each closure, and continues with other routes.

The kernel plays up to the instant at which a closure begins, is noticed or ends. What `engines.simpy` then
does with processes (`simpy/link_closures.py`) is done here with the kernel's arrays: transfers on a link that
closes keep the bytes that got through; the rest waits until the closure is noticed, and is sent again.
Between these instants the kernel runs alone (see `stopping`).
"""

from __future__ import annotations

import numpy as np

from rapid_des.engines.compiled import work
from rapid_des.engines.compiled.flat import Array
from rapid_des.engines.compiled.fluid_kernel import leave_links
from rapid_des.engines.compiled.instances import pass_turn
from rapid_des.engines.compiled.stopping import LinkService, StoppedTransfers
from rapid_des.network.fluid import Fluid, end_flow, remaining
from rapid_des.network.fluid.state import bytes_out
from rapid_des.program.program import NONE, Timetable
from rapid_des.program.timetable import FULL_RATE, hop_times, tail_crosses, work_done

_ALWAYS = Timetable(*np.zeros((3, 0), np.int64))


class LinkClosures:
    """Closes the links of a run: cuts what they serve, and stops what waits for them."""

    def __init__(self, stopped: StoppedTransfers) -> None:
        self._kernel, self._closures = stopped.kernel, stopped.closures
        self._tables, self._stopped = stopped.tables, stopped
        self._changes: dict[int, set[int]] = {}
        """Maps a time in picoseconds to the links whose closures begin, are noticed or end then."""
        for closure in self._closures.closures:
            for moment in (closure.start, closure.noticed, closure.end):
                if moment is not None:
                    self._changes.setdefault(moment, set()).add(closure.link)
        self._starts = {closure.start for closure in self._closures.closures}

    @property
    def moments(self) -> list[int]:
        """The times in picoseconds at which closures begin, are noticed or end, in order."""
        return sorted(self._changes)

    def change(self, moment: int) -> None:
        """Let closures begin, be noticed and end, before all other events of an instant."""
        self._stopped.collect()
        avoided = set(self._stopped.avoided)  # closed links of which senders know
        for link in self._changes[moment]:
            closure = self._closures.closed(link, moment)
            self._kernel.noticed[link] = NONE if closure is None else closure.noticed
            avoided.discard(link)
            if closure is not None and closure.noticed <= moment:
                avoided.add(link)
        if avoided != self._stopped.avoided:
            self._stopped.avoided = frozenset(avoided)
            self._tables.avoid(self._stopped.avoided)
        if moment in self._starts and self._kernel.fluid is not None:
            self._cut_flows(moment)
        elif moment in self._starts:
            closing = [each for each in self._changes[moment] if self._closures.begins(each, moment)]
            self._close_links(sorted(closing), moment)
        # Links choose at this instant even if no other event touches them.
        self._stopped.push(moment, work.RESTART, 0, 0)

    def _close_links(self, closing: list[int], now: int) -> None:
        """Cut the transfers that links serve, the farthest on its route first, and stop those that wait."""
        served = [hop for link in closing if (hop := self._in_service(link, now)) is not None]
        served.sort(key=lambda hop: (-hop.place, hop.link))
        # All sizes are known before any changes: a cut changes what earlier links of the route serve.
        through = [self._got_through(hop, now) for hop in served]
        for hop, size in zip(served, through, strict=True):
            self._end_earlier(hop, now, size, now)
        for hop, size in zip(served, through, strict=True):
            if hop.transfer != NONE and self._stopped.served.transfer[hop.link] == hop.transfer:
                self._cut(hop, size, now)
        for link in closing:
            waiting = int(self._kernel.state.queue[link])
            self._kernel.state.queue[link] = NONE
            while waiting != NONE:
                following = int(self._kernel.pools.transfers.next[waiting])
                self._stopped.stop_whole(waiting, now)
                waiting = following

    def _in_service(self, link: int, now: int) -> LinkService | None:
        """Return the hop that a link serves, or None."""
        if self._kernel.state.busy[link] <= now:
            return None
        transfer = int(self._stopped.served.transfer[link])
        if transfer == NONE:
            return self._stopped.lost[link]
        links = self._tables.links_of(int(self._kernel.pools.transfers.route[transfer]))
        return self._stopped.hop(transfer, links.index(link))

    def _got_through(self, hop: LinkService, now: int) -> int:
        """Return the bytes of the whole segments that a link has served until now, 0 without segments."""
        unit = self._closures.segment
        if unit is None:
            return 0
        occupancy = self._closures.services(hop.links, hop.size)[hop.place][0]
        table = self._kernel.program.link_timetables.get(hop.link, _ALWAYS)
        done = work_done(table.time.tolist(), table.rate.tolist(), hop.start, now)
        return hop.size * done // (occupancy * FULL_RATE) // unit * unit

    def _end_earlier(self, hop: LinkService, free: int, size: int, now: int) -> None:
        """End a link's service of a hop earlier, after fewer bytes; correct what was recorded."""
        state, change = self._kernel.state, free - int(self._kernel.state.busy[hop.link])
        state.link_bytes[hop.link, hop.label] += size - hop.size
        state.link_busy[hop.link, hop.label] += change
        if state.flags[work.RECORDING]:
            self._kernel.pools.trail.finish[hop.row] += change
            self._kernel.pools.trail.arrival[hop.row] += change
        state.busy[hop.link], hop.size = free, size
        if hop.transfer != NONE:
            self._stopped.served.size[hop.transfer, hop.place] = size
        self._stopped.push(max(free, now), work.LINK_FREE, hop.link, 0)

    def _cut(self, closed: LinkService, through: int, now: int) -> None:
        """Stop the bytes that did not get through a closed link; the rest continues as a smaller transfer."""
        transfers, transfer = self._kernel.pools.transfers, closed.transfer
        size = int(self._tables.flat.network.payload[transfers.size[transfer]])
        self._stopped.stop(transfer, closed.place, size - through, now)
        crossed, due = self._shrink_later_hops(closed, through, now)
        self._stopped.mark_lost(transfer, closed.place)
        waits = transfers.due[transfer] == NONE
        if not through:  # nothing is left of the transfer
            if waits:
                place = transfers.hop[transfer] - transfers.begin[transfer]
                self._leave_queue(closed.links[place], transfer)
            self._stopped.free_slot(transfer)
            return
        transfers.missing[transfers.message[transfer]] += 1
        transfers.size[transfer] = self._tables.resized(int(transfers.route[transfer]), through)
        transfers.crossed[transfer] = crossed
        if not waits:
            transfers.due[transfer] = max(now, due)
            self._stopped.push(max(now, due), work.FLOW, transfer, work.TRANSFER_DUE)

    def _shrink_later_hops(self, closed: LinkService, through: int, now: int) -> tuple[int, int]:
        """Reduce the service of a transfer's later links to fewer bytes.

        Return when the last byte has crossed the hops so far, and when the next hop is ready.
        """
        transfers, transfer = self._kernel.pools.transfers, closed.transfer
        services = self._closures.services(closed.links, through)
        before = crossed = due = 0
        for place in range(int(transfers.hop[transfer] - transfers.begin[transfer])):
            hop, service = self._stopped.hop(transfer, place), services[place]
            table, busy = self._table(hop.link), int(self._kernel.state.busy[hop.link])
            free, forward, _ = hop_times(service[:3], table, hop.start)
            # The link serves it now: its service ends earlier. Otherwise it ended as it was recorded.
            on_link = self._stopped.served.transfer[hop.link] == transfer and busy >= now
            left = busy if on_link else free
            if place > closed.place and on_link:
                left = max(now, free)
                self._end_earlier(hop, left, through, now)
            before, crossed = crossed, tail_crosses(service[3:], table, hop.start, free, crossed)
            due = tail_crosses(service[3:], table, hop.start, left, before)
            due = due if place + 1 == len(closed.links) else min(forward, due)
        return crossed, due

    def _table(self, link: int) -> tuple[Array, Array, Array]:
        """Return a link's timetable as (time, rate, lag), without steps if it has none."""
        table = self._kernel.program.link_timetables.get(link, _ALWAYS)
        return table.time, table.rate, table.lag

    def _leave_queue(self, link: int, transfer: int) -> None:
        """Remove a transfer from the queue of a link."""
        following, other = self._kernel.pools.transfers.next, int(self._kernel.state.queue[link])
        if other == transfer:
            self._kernel.state.queue[link] = following[transfer]
            return
        while following[other] != transfer:
            other = int(following[other])
        following[other] = following[transfer]

    def _cut_flows(self, now: int) -> None:
        """Cut the flows on closing links: whole packets that got through arrive, the rest stops."""
        fluid, transfers = self._kernel.fluid, self._kernel.pools.transfers
        assert fluid is not None
        for flow in np.flatnonzero(fluid.hops).tolist():
            crossed = self._tables.crossed(int(transfers.route[flow]))
            if fluid.finish[flow] != now and self._closures.stopped_until(crossed, now) is not None:
                self._cut_flow(fluid, flow, now)

    def _cut_flow(self, fluid: Fluid, flow: int, now: int) -> None:
        """Take a flow off its links; deliver what got through and stop the rest."""
        transfers, network = self._kernel.pools.transfers, self._tables.flat.network
        row, route = int(transfers.size[flow]), int(transfers.route[flow])
        left, fraction = remaining(fluid, flow, now)
        end_flow(fluid, flow)
        self._stopped.ensure_event_room()  # for the flow that joins next
        pass_turn(self._tables.flat, self._kernel.pools, flow, now)
        transfers.flowing[flow] = 0
        size, wire = int(network.payload[row]), int(network.wire[row])
        through = self._closures.got_through(bytes_out(wire, int(left), int(fraction)))
        self._stopped.stop(flow, 0, size - through, now)
        if not through:
            self._stopped.free_slot(flow)
            return
        transfers.missing[transfers.message[flow]] += 1
        transfers.size[flow] = self._tables.resized(route, through)
        self._stopped.ensure_event_room()
        leave_links(self._tables.flat, self._kernel.state, self._kernel.pools, flow, now)
