"""A request on its way through a server, and those that decode together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np

from rapid_des.arrays import Int64s
from rapid_des.units import ceil_divide

NEVER = -1


@dataclass(slots=True, eq=False)
class Request:
    """One request; times are picoseconds, `NEVER` where it has not happened."""

    number: int
    """Its place in the workload."""
    arrival: int
    prompt: int
    """Tokens of its prompt."""
    output: int
    """Tokens that it asks for."""
    computed: int = 0
    """Tokens of its prompt (and, after a preemption, of what it had generated) in the KV cache."""
    generated: int = 0
    """Tokens out; while it decodes those before it joined."""
    pages: int = 0
    """Pages held; while it decodes those when it joined."""
    joined: int = 0
    """The step of its group at which it began to decode."""
    session: int = NEVER
    """Each request of a session begins with what the one before held; `NEVER`: of none."""
    user: int = 0
    adapter: int = NEVER
    """Which low-rank adapter it names; `NEVER`: none."""
    priority: int = 0
    """The higher, the sooner."""
    prefix: int = 0
    """Tokens of its prompt that are in the KV cache when it comes."""
    carried: bool = False
    """Whether `computed` tokens of keys and values come with it: from the host, or from another replica."""
    replica: int = NEVER
    received: int = 0
    """When it had come from its client, and was first sent to a replica."""
    started: int = NEVER
    """When an iteration first computed something of it."""
    first_token: int = NEVER
    transfer: int = 0
    """From then on, until its keys and values were at the replica that decodes, if that is another."""
    finished: int = NEVER
    preemptions: int = 0
    retries: int = 0
    """How often its replica stopped, and it was sent to another."""

    def again(self) -> None:
        """Forget what a replica did that has stopped."""
        self.computed = self.generated = self.pages = self.joined = 0
        self.carried = False
        self.replica = self.started = self.first_token = NEVER
        self.transfer = 0
        self.retries += 1

    @property
    def target(self) -> int:
        """Tokens that must be in the KV cache before the next one comes out."""
        return self.prompt + self.generated

    def pages_at_end(self, size: int) -> int:
        """Return how many pages of so many tokens it holds when its answer ends."""
        return ceil_divide(self.prompt + self.output, size)

    @property
    def to_do(self) -> int:
        """Tokens to compute and to make, while it waits."""
        return self.missing + self.output - self.generated

    @property
    def missing(self) -> int:
        """Tokens that are to be computed before it decodes."""
        return self.target - self.computed


@dataclass
class Decoding:
    """Requests that get a token each iteration: what changes with every token is kept of all together."""

    page_size: int
    step: int = 0
    """Iterations so far."""
    stored: int = 0
    """Their tokens in the KV cache."""
    to_come: int = 0
    """Tokens that they have still to make."""
    _members: dict[int, Request] = field(default_factory=dict)
    _ends: list[tuple[int, int]] = field(default_factory=list)
    _phases: list[int] = field(default_factory=list)
    """By stored tokens less steps, modulo a page: how many."""

    def __post_init__(self) -> None:
        self._phases = [0] * self.page_size

    @property
    def checked(self) -> int:
        """Tokens of each that pass in a step."""
        return 1

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._members.values())

    def __reversed__(self) -> Iterator[Request]:
        return reversed(self._members.values())

    @property
    def keys(self) -> int:
        """Positions that their next tokens attend to, those tokens themselves among them."""
        return self.stored + self.checked * len(self._members)

    def keys_in(self, steps: int) -> Int64s:
        """Return how many positions the tokens of each of the next steps attend to."""
        return self.keys + len(self._members) * np.arange(steps)

    def to_come_after(self, steps: int) -> int:
        """Return how many tokens they have still to make when so many steps have passed."""
        return self.to_come - steps * len(self._members)

    def join(self, request: Request) -> None:
        """Take a request all of whose tokens but the newest are stored."""
        request.joined = self.step
        self._members[request.number] = request
        self.stored += request.computed
        self.to_come += request.output - request.generated
        self._phases[(request.computed - self.step) % self.page_size] += 1
        heappush(self._ends, (self.step + request.output - request.generated, request.number))

    def leave(self, request: Request) -> None:
        """Let a request go, with what it has by now."""
        del self._members[request.number]
        self._phases[(request.computed - request.joined) % self.page_size] -= 1
        passed = self.step - request.joined
        request.computed += passed
        request.generated += passed
        request.pages = max(request.pages, ceil_divide(request.computed, self.page_size))
        self.stored -= request.computed
        self.to_come -= request.output - request.generated

    def new_pages(self, ahead: int = 0) -> int:
        """Return how many pages the next step takes, or that so many steps after it."""
        return self._phases[-(self.step + ahead) % self.page_size]

    def pages_within(self, steps: int) -> int:
        """Return how many pages the next so many steps take."""
        rounds, rest = divmod(steps, self.page_size)
        return rounds * len(self._members) + sum(map(self.new_pages, range(rest)))

    def steps_within(self, free: int, most: int) -> int:
        """Return how many steps, `most` at most, so many free pages suffice for."""
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
        """Return after how many steps the first of them has all its tokens."""
        while self._ends and not self._is_there(*self._ends[0]):
            heappop(self._ends)
        return self._ends[0][0] - self.step

    def advance(self, steps: int) -> list[Request]:
        """Let so many steps pass; return those that then have all their tokens, which have left."""
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
        """Tell whether an entry is about a request that has not been preempted since."""
        request = self._members.get(number)
        return request is not None and request.joined + request.output - request.generated == end
