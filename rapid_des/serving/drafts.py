"""Speculative decoding in a server: the tokens that a step makes of each request, and the cost of drafts.

A step passes the newest token of a request and k drafted ones through the model and makes as many tokens as
are kept, and one more (`rapid_des.frontend.speculation`). Whether the i-th is kept where all before it are is
drawn with the acceptance that the job states, independently of all else. A request's draws follow from the
seed, its number and how often it was interrupted, never from who else is served.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import islice

import numpy as np
from msgspec import Struct
from numpy.random import default_rng

from rapid_des.arrays import Int64s
from rapid_des.frontend.inference import shard_of_groups
from rapid_des.frontend.job import Job
from rapid_des.frontend.operations import Operation, RequestGroup
from rapid_des.frontend.speculation import draft_run, draft_runs
from rapid_des.serving.interpolation import token_corners
from rapid_des.serving.kernels import Kernels
from rapid_des.serving.requests import Decoding, Request

_STREAM, _AHEAD = 7, 1024
"""Number of the random stream (a workload has others); first length of tables of future steps."""


class Drafts(Struct, frozen=True):
    """Draws how many drafted tokens are kept."""

    acceptance: tuple[float, ...]
    """The probability of each drafted token that it is kept if all before it are."""
    seed: int = 0

    @property
    def checked(self) -> int:
        """Tokens of a request that pass the model in a step."""
        return 1 + len(self.acceptance)

    @property
    def tokens_a_step(self) -> float:
        """Tokens that a step makes of a request, on average."""
        return 1.0 + float(np.cumprod(self.acceptance).sum())

    def made(self, request: Request) -> Int64s:
        """Return how many tokens a request has made after each of the steps to its last token.

        >>> Drafts((1.0, 0.0)).made(Request(0, 0, prompt=9, output=6, generated=1)).tolist()
        [2, 4, 5]
        """
        left = request.output - request.generated
        interrupted = request.preemptions + request.retries
        random = default_rng([self.seed, _STREAM, request.number, interrupted])
        kept = np.searchsorted(-np.cumprod(self.acceptance), -random.random(left))
        total = np.cumsum(1 + kept)
        return np.minimum(total[: 1 + int(np.searchsorted(total, left))], left)


class SpeculativeDecoding(Decoding):
    """Decoding requests that get several tokens a step; future tokens and pages are tabulated."""

    def __init__(self, page_size: int, drafts: Drafts) -> None:
        super().__init__(page_size)
        self._drafts, self._held, self._target = drafts, 0, 0
        self._made: dict[int, Int64s] = {}
        self._courses, self._origin = np.zeros((2, _AHEAD), np.int64), 0
        """[2, step]: stored tokens and pages in each step, from step `_origin` on."""

    @property
    def checked(self) -> int:
        """Tokens of each request that pass the model in a step."""
        return self._drafts.checked

    def join(self, request: Request) -> None:
        """Add a request whose tokens are all stored except the newest."""
        made = self._drafts.made(request)
        request.joined = self.step
        self._members[request.number], self._made[request.number] = request, made
        self._lay(self._course(request, made), self.step)
        self._held += request.pages
        self._target += request.computed + request.output - request.generated
        heappush(self._ends, (self.step + len(made), request.number))
        self._settle()

    def leave(self, request: Request) -> None:
        """Remove a request, with the tokens and pages that it has by now."""
        del self._members[request.number]
        made, passed = self._made.pop(request.number), self.step - request.joined
        course = self._course(request, made)
        # Take the future steps of the request out of the sums again.
        self._lay(-course[:, passed:], self.step)
        self._held -= int(course[1, passed - 1]) if passed else request.pages
        self._target -= request.computed + request.output - request.generated
        if passed:
            request.pages = int(course[1, passed - 1])
            request.computed += int(made[passed - 1])
            request.generated += int(made[passed - 1])
        self._settle()

    def _course(self, request: Request, made: Int64s) -> Int64s:
        """Return [2, step]: a request's stored tokens before each of its steps, and its pages in it."""
        # Before its k-th step a request has stored what the steps before have made.
        stored = np.concatenate(([0], made[:-1])) + request.computed
        pages = -(-(stored + self.checked) // self.page_size) - request.shared
        return np.stack((stored, np.maximum(pages, request.pages)))

    def _lay(self, course: Int64s, step: int) -> None:
        """Add a request's tokens and pages to the table, from this step on."""
        begin, steps = step - self._origin, course.shape[1]
        if begin + steps > self._courses.shape[1]:
            # The table is full: drop past steps, and double what is left.
            now = self._courses[:, self.step - self._origin :]
            begin, self._origin = step - self.step, self.step
            self._courses = np.zeros((2, 2 * (now.shape[1] + steps) + _AHEAD), np.int64)
            self._courses[:, : now.shape[1]] = now
        self._courses[:, begin : begin + steps] += course

    def _settle(self) -> None:
        place = self.step - self._origin
        self.stored = int(self._courses[0, place]) if self._members else 0
        self.to_come = self._target - self.stored

    def _coming(self, row: int, steps: int) -> Int64s:
        begin = self.step - self._origin
        return self._courses[row, begin : begin + steps]

    def keys_in(self, steps: int) -> Int64s:
        """Return the number of positions that tokens attend to, for each of the next decode steps."""
        return self._coming(0, steps) + self.checked * len(self)

    def to_come_after(self, steps: int) -> int:
        """Return the number of tokens still to be made after this many steps."""
        return self._target - int(self._coming(0, steps + 1)[-1]) if self._members else 0

    def pages_within(self, steps: int) -> int:
        """Return the number of new pages in the next this many steps."""
        return int(self._coming(1, steps)[-1]) - self._held if steps and self._members else 0

    def pages_in(self, steps: int) -> Int64s:
        """Return the number of new pages by the beginning of each of the next decode steps."""
        return np.concatenate(([0], self._coming(1, steps - 1) - self._held))

    def new_pages(self, ahead: int = 0) -> int:
        """Return the number of new pages in the next step, or in a later one."""
        return self.pages_within(ahead + 1) - self.pages_within(ahead)

    def steps_within(self, free: int, most: int) -> int:
        """Return for how many steps, at most `most`, this many free pages suffice."""
        return int(np.searchsorted(self._coming(1, most) - self._held, free, side="right"))

    def advance(self, steps: int) -> list[Request]:
        """Advance by this many steps; return the requests that have all their tokens and left."""
        self._held += self.pages_within(steps)
        self.step += steps
        ended = []
        while self._ends and self._ends[0][0] <= self.step:
            end, number = heappop(self._ends)
            if self._is_there(end, number):
                ended.append(self._members[number])
                self.leave(ended[-1])
        self._settle()
        return ended

    def _is_there(self, end: int, number: int) -> bool:
        request = self._members.get(number)
        return request is not None and request.joined + len(self._made[number]) == end


Price = Callable[[Iterable[Operation], bool, bool], Kernels]
"""Prices operations of a pass: (operations, whether all requests decode, whether they see the KV cache)."""


class DraftCosts:
    """Kernels that draft the next tokens after a pass, as `frontend.speculation` lists them."""

    def __init__(self, job: Job, price: Price) -> None:
        assert job.spec.speculative is not None
        self._job, self._spec, self._price = job, job.spec.speculative, price
        self._known: dict[tuple[RequestGroup, bool], Kernels] = {}

    def base(self, tokens: int, requests: int, *, decoding: bool) -> Kernels:
        """Return the drafting kernels that do not depend on KV lengths, after a pass of this many tokens."""
        newest = decoding and self._spec.method == "draft"
        read, unread = (RequestGroup(requests, 1, int(decoding), samples) for samples in (1, 0))
        head = self._run(read, decoding).less(self._run(unread, decoding))
        first, later = self._body(requests if newest else tokens, decoding), self._body(requests, decoding)
        runs = [first, *(later for _ in range(1, self._spec.tokens))]
        return Kernels(sum(run.time + head.time for run in runs), _after_issuing(runs, head))

    def attention(self, groups: tuple[RequestGroup, ...], *, decoding: bool, beside: bool) -> Kernels:
        """Return what sees the KV cache after a pass of these requests.

        `beside`: they are prompts beside others that decode, in whose kernels their further tokens are.
        """
        total = Kernels(0, 0)
        for run in islice(draft_runs(groups, self._spec), 1 if beside else None):
            total = total.then(self._price(draft_run(self._job, run, shard_of_groups), decoding, True))
        return total

    def _body(self, tokens: int, decoding: bool) -> Kernels:
        """Return a draft run over this many tokens without its head, linear between corners."""
        below, above = token_corners(tokens)
        unread = (RequestGroup(corner, 1, int(decoding), samples=0) for corner in (below, above))
        low, high = (self._run(group, decoding) for group in unread)
        return low.between(high, tokens - below, max(1, above - below))

    def _run(self, group: RequestGroup, decoding: bool) -> Kernels:
        key = group, decoding
        if key not in self._known:
            operations = draft_run(self._job, (group,), shard_of_groups)
            self._known[key] = self._price(operations, decoding, False)
        return self._known[key]


def _after_issuing(runs: Iterable[Kernels], head: Kernels) -> int:
    """Return how long drafts last on a GPU that a host was late for, until it has chosen the last one.

    While the GPU is at a long head, the model's before the first run, its host issues the next short run.
    """
    issued, ended = 0, head.time
    for run in runs:
        issued += run.issue
        ended = max(ended + run.time, issued)
        issued += head.issue
        ended = max(ended, issued) + head.time
    return ended - head.time
