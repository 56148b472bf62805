"""A request as it passes through a server, the group of decoding requests, and sessions.

Sessions are conversations: a turn is sent when the answer before it is there, and not before the time at
which it was to come. Its prompt is all that was said before, and the tokens of its own.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from msgspec import Struct, field

from rapid_des.arrays import Int64s
from rapid_des.units import ceil_divide

NEVER = -1


class ContentSpan(NamedTuple):
    """The content of a request's tokens from where the span before it ends."""

    key: int
    """A name of the content; of requests with equal spans before it, equal names are equal content."""
    end: int
    """Number of the request's tokens until its end."""


class Request(Struct, eq=False):
    """One request; times are picoseconds, `NEVER` before the event."""

    number: int
    """Index in the workload."""
    arrival: int
    prompt: int
    """Number of prompt tokens."""
    output: int
    """Number of tokens that it asks for."""
    computed: int = 0
    """Tokens in the KV cache: of its prompt and, after a preemption, of what it had generated."""
    generated: int = 0
    """Tokens generated; while it decodes, those before it joined the decoding group."""
    pages: int = 0
    """Own pages held; while it decodes, those when it joined."""
    shared: int = 0
    """Pages of its prefix, which it shares with others of its replica."""
    joined: int = 0
    """The step of its group at which it began to decode."""
    session: int = NEVER
    """Its session, whose earlier requests hold the start of its prompt; `NEVER`: none."""
    task: int = NEVER
    """Number of the agent's task that it is of; `NEVER`: none."""
    user: int = 0
    kind: int = 0
    """Number of its class in `serving.classes`."""
    turn: int = 0
    """Number of requests of its class that came before it."""
    adapter: int = NEVER
    """The low-rank adapter that it names; `NEVER`: none."""
    priority: int = 0
    """Priority; the highest goes first."""
    prefix: int = 0
    """Number of prompt tokens that are in the KV cache when it arrives: those of a prefix that all share."""
    pooled: int = 0
    """Number of its first pages that the shared pool held when it came to its replica."""
    path: tuple[ContentSpan, ...] = ()
    """The content of its prompt and of its answer, for a cache of prefixes."""
    carried: bool = False
    """Whether keys and values of `computed` tokens come with it: from the host, or another replica."""
    images: int = 0
    """Number of images in its prompt."""
    encoding: int = 0
    """Time until encoders with GPUs of their own have encoded its images."""
    replica: int = NEVER
    front_end_queue: int = 0
    """Time that it waited for a front end."""
    received: int = 0
    """The time at which it arrived from its client and was first sent to a replica."""
    started: int = NEVER
    """The time at which an iteration first computed a part of it."""
    first_token: int = NEVER
    transfer: int = 0
    """Time from the first token until keys and values are at the replica that decodes, if another."""
    finished: int = NEVER
    preemptions: int = 0
    retries: int = 0
    """How often its replica stopped and it was sent to another."""

    def again(self) -> None:
        """Reset what a stopped replica did for it."""
        self.computed = self.generated = self.pages = self.joined = 0
        self.carried = False
        self.replica = self.started = self.first_token = NEVER
        self.transfer = 0
        self.retries += 1

    @property
    def target(self) -> int:
        """Number of tokens that must be in the KV cache before the next one is generated."""
        return self.prompt + self.generated

    def own_pages(self, tokens: int, size: int) -> int:
        """Return how many pages of `size` tokens this many of its tokens take besides the shared ones."""
        return ceil_divide(tokens, size) - self.shared

    def pages_at_end(self, size: int) -> int:
        """Return how many own pages of `size` tokens it holds when its answer ends."""
        return self.own_pages(self.prompt + self.output, size)

    @property
    def to_do(self) -> int:
        """Number of tokens to compute and to generate, while it waits."""
        return self.missing + self.to_make

    @property
    def to_make(self) -> int:
        """Number of tokens to generate."""
        return self.output - self.generated

    @property
    def missing(self) -> int:
        """Number of tokens to compute before it decodes."""
        return self.target - self.computed


class Decoding:
    """The decoding requests; quantities that change with every token are kept for the whole group."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.step = 0
        """Number of steps so far."""
        self.stored = 0
        """Number of their tokens in the KV cache."""
        self.to_come = 0
        """Number of tokens that they still have to make."""
        self._members: dict[int, Request] = {}
        self._ends: list[tuple[int, int]] = []
        self._phases = [0] * page_size
        """Number of requests by (stored tokens - step) modulo the page size."""

    @property
    def checked(self) -> int:
        """Tokens of each request that pass the model in a step."""
        return 1

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._members.values())

    def __reversed__(self) -> Iterator[Request]:
        return reversed(self._members.values())

    @property
    def keys(self) -> int:
        """Number of positions that the next tokens attend to, these tokens included."""
        return self.stored + self.checked * len(self._members)

    def keys_in(self, steps: int) -> Int64s:
        """Return the number of positions that tokens attend to, for each of the next decode steps."""
        return self.keys + len(self._members) * np.arange(steps)

    def to_come_after(self, steps: int) -> int:
        """Return the number of tokens still to be made after this many steps."""
        return self.to_come - steps * len(self._members)

    def join(self, request: Request) -> None:
        """Add a request whose tokens are all stored except the newest."""
        request.joined = self.step
        self._members[request.number] = request
        self.stored += request.computed
        self.to_come += request.output - request.generated
        self._phases[(request.computed - self.step) % self.page_size] += 1
        heappush(self._ends, (self.step + request.output - request.generated, request.number))

    def leave(self, request: Request) -> None:
        """Remove a request, with the tokens and pages that it has by now."""
        del self._members[request.number]
        self._phases[(request.computed - request.joined) % self.page_size] -= 1
        passed = self.step - request.joined
        request.computed += passed
        request.generated += passed
        request.pages = max(request.pages, request.own_pages(request.computed, self.page_size))
        self.stored -= request.computed
        self.to_come -= request.output - request.generated

    def new_pages(self, ahead: int = 0) -> int:
        """Return the number of new pages in the next step, or in a later one."""
        return self._phases[-(self.step + ahead) % self.page_size]

    def pages_within(self, steps: int) -> int:
        """Return the number of new pages in the next this many steps."""
        # Every request needs one new page in each `page_size` steps, at a step given by its phase.
        rounds, rest = divmod(steps, self.page_size)
        return rounds * len(self._members) + sum(map(self.new_pages, range(rest)))

    def pages_in(self, steps: int) -> Int64s:
        """Return the number of new pages by the beginning of each of the next decode steps."""
        places = -(self.step + np.arange(steps - 1)) % self.page_size
        return np.concatenate(([0], np.cumsum(np.array(self._phases)[places])))

    def steps_within(self, free: int, most: int) -> int:
        """Return for how many steps, at most `most`, this many free pages suffice."""
        whole = max(0, free // max(1, len(self._members)) - 1) * self.page_size
        if whole >= most:
            return most
        pages = 0
        for ahead in range(most):
            pages += self.new_pages(ahead)
            if pages > free:
                return ahead
        return most

    def steps_to_end(self) -> int:
        """Return the number of steps until the first request has all its tokens."""
        while self._ends and not self._is_there(*self._ends[0]):
            heappop(self._ends)
        return self._ends[0][0] - self.step

    def advance(self, steps: int) -> list[Request]:
        """Advance by this many steps; return the requests that have all their tokens and left."""
        self.step += steps
        self.stored += steps * len(self._members)
        self.to_come -= steps * len(self._members)
        ended = []
        while self._ends and self._ends[0][0] <= self.step:
            end, number = heappop(self._ends)
            if self._is_there(end, number):
                ended.append(self._members[number])
                self.leave(ended[-1])
        return ended

    def _is_there(self, end: int, number: int) -> bool:
        """Return whether an entry is about a request that has not been preempted since."""
        request = self._members.get(number)
        return request is not None and request.joined + request.output - request.generated == end


def with_history(prompt: Int64s, output: Int64s, session: Int64s, most: int | None) -> tuple[Int64s, Int64s]:
    """Return whole prompts, given the new tokens of each turn, and the turns' sessions.

    A session whose next turn would have more than `most` tokens, its answer included, starts over as another.

    >>> ones = np.ones(4, np.int64)
    >>> [column.tolist() for column in with_history(10 * ones, 5 * ones, 0 * ones, 50)]
    [[10, 25, 40, 10], [0, 0, 0, 1]]
    """
    said, names = dict[int, int](), dict[int, int]()
    unused = int(session.max()) + 1
    prompts, sessions = list[int](), list[int]()
    for new, answer, stated in zip(prompt.tolist(), output.tolist(), session.tolist(), strict=True):
        before = said.get(stated, 0)
        if before and most is not None and before + new + answer > most:
            before, names[stated], unused = 0, unused, unused + 1
        prompts.append(before + new)
        sessions.append(names.get(stated, stated))
        said[stated] = before + new + answer
    return np.array(prompts, np.int64), np.array(sessions, np.int64)


class Turns(Struct):
    """The sessions of which a request is being answered, and the requests that wait for that.

    >>> turns = Turns()
    >>> turns.begins(7, 0), turns.begins(7, 1), turns.begins(8, 2), turns.end(7), turns.end(7), turns.waited
    (True, False, True, 1, None, 1)
    """

    waited: int = 0
    """Number of requests that waited for an answer."""
    _waiting: dict[int, deque[int]] = field(default_factory=lambda: defaultdict(deque))
    _busy: set[int] = field(default_factory=set)

    def begins(self, session: int, number: int) -> bool:
        """Return whether a request can be sent now; else it waits."""
        if session == NEVER:
            return True
        if session in self._busy:
            self._waiting[session].append(number)
            self.waited += 1
            return False
        self._busy.add(session)
        return True

    def end(self, session: int) -> int | None:
        """Record that a session may go on; return the request to send next, if one waits."""
        if self._waiting.get(session):
            return self._waiting[session].popleft()
        self._busy.discard(session)
        return None


def earlier_alike(kinds: Int64s, count: int) -> Int64s:
    """Return the number of earlier requests of the same class.

    >>> earlier_alike(np.array([0, 1, 0, 0, 1]), 2).tolist()
    [0, 0, 1, 2, 1]
    """
    turns = np.zeros(len(kinds), np.int64)
    for kind in range(count):
        mine = kinds == kind
        turns[mine] = np.arange(mine.sum())
    return turns
