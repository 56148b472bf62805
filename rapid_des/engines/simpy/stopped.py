"""R8: what closed links stopped, until that is noticed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from simpy.events import Timeout

from rapid_des.engines.simpy.links import Links, Message
from rapid_des.engines.simpy.servers import Chooser
from rapid_des.program.faults.closures import Closures, Remaining, Stopped, down_at, new_routes


@dataclass(eq=False)
class Waiting:
    """Messages that closed links stopped; each gets another route once that is noticed, and sets off again.

    All that has stopped until the end of an instant and shall leave at that instant is routed as one batch.
    """

    links: Links
    closures: Closures
    sets_off: Callable[[Message, tuple[int, ...], int, int], None]
    """Given a message, the links that so many bytes of it take now, and the number of that piece."""
    waker: Chooser
    """Who calls `wake` at the end of an instant."""
    touch: Callable[[Chooser], None]
    _batches: dict[int, list[tuple[Message, Stopped]]] = field(default_factory=dict)
    """By the time at which the closure is noticed."""
    _again: int = 0

    def stop(
        self, message: Message, which: tuple[int, int], remaining: Remaining, links: Sequence[int]
    ) -> None:
        """Keep bytes of a piece, `which` by part and number, that the first closed link of some stopped."""
        env = self.links.env
        until = self.closures.stopped_until(links, env.now)
        assert until is not None, "nothing stops at open links"
        moment, together = until
        message.pieces += 1
        if moment not in self._batches:
            self._batches[moment] = []
            if moment == env.now:
                self.touch(self.waker)
            else:
                Timeout(env, moment - env.now).callbacks.append(lambda _: self.touch(self.waker))
        self._batches[moment].append((message, Stopped((*message.order, *which), remaining, together)))

    def wake(self) -> None:
        """Send again what stopped at links of which it is now known that they are closed."""
        now = self.links.env.now
        if now not in self._batches:
            return
        batch = self._batches.pop(now)
        dead = down_at(self.links.program.link_timetables, now)
        for which, route in new_routes([rest for _, rest in batch], self.closures, dead, now):
            message, rest = batch[which]
            self._again += 1
            self.sets_off(message, route, rest.remaining.size, self._again)
