"""What an iteration computes: one small function an engine, after its documented behaviour.

A policy sees what waits, which prompts are partly computed and how much is decoding, and returns how many
tokens of which prompts the next iteration computes, and whether decoding requests get a token each.

- `vllm_v1`: vLLM's V1 scheduler (docs.vllm.ai, "Optimization and Tuning"). Decodes first, then prompts, first
  come first served, in chunks within the token budget; whoever came last is preempted when pages run out.
- `vllm_v0`: vLLM before V1, without chunked prefill (same page). Prompts first, whole, by themselves; else
  decodes. A hundredth of the pages stays free at admission (`watermark`).
- `sglang`: SGLang's scheduler (docs.sglang.ai, "Hyperparameter Tuning"). Prompts first, in chunks, by
  themselves; a prompt is taken in while the tokens that running requests are expected to make
  (`schedule_conservativeness`: a share that decays from 0.7 to 0.098 in 600 steps without a retraction) leave
  room for all of it and of its answer. Retracted is who has the fewest tokens out, then the longest prompt.
- `trtllm_guaranteed_no_evict`: TensorRT-LLM's default (NVIDIA's docs, "Scheduler"): prompts and decodes
  together, a request is taken in when pages for its longest answer are left by all others': nobody pauses.
- `trtllm_max_utilization`: the same, but as many as fit now; whoever came last pauses.
- `static`: a batch runs until its last answer before the next is taken in.

Requests wait in the order of arrival, of importance, or of what their users got so far. In the order of
importance the least important running request is preempted, of several the one that came last (vLLM's
`--scheduling-policy priority`; its lowest number is the most important, here the highest is).

`fair` is the virtual token counter of Sheng et al. (OSDI 2024, "Fairness in Serving Large Language Models"):
a user's counter grows by one a token of its prompts that are taken up and by two a token that its requests
make; next is the request whose user has the least, and who was idle begins with the least of those that are
not. Counters are read once an iteration.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Protocol

from msgspec import Struct, field

from rapid_des.extensions import POLICIES as GROUP
from rapid_des.extensions import find
from rapid_des.serving.requests import Request

_WATERMARK = 0.01
_EXPECTED, _EXPECTED_LEAST, _DECAY_STEPS, _LONGEST_GUESS = 0.7, 0.098, 600, 4096


class View(Protocol):
    """What a policy reads of a replica."""

    @property
    def waiting(self) -> Sequence[Request]:
        """Requests that hold nothing yet, in the order of their turns."""
        ...

    @property
    def candidates(self) -> Iterable[Request]:
        """Waiting requests, in order, that may run beside the running ones (adapters)."""
        ...

    @property
    def prefilling(self) -> Sequence[Request]:
        """Requests whose prompt is partly computed, in order of admission."""
        ...

    @property
    def decoding(self) -> int:
        """Number of decoding requests."""
        ...

    @property
    def decoding_tokens(self) -> int:
        """Number of their tokens in an iteration: larger than `decoding` where drafts are checked."""
        ...

    @property
    def to_come(self) -> int:
        """Number of tokens that they still have to make."""
        ...

    @property
    def calm(self) -> int:
        """Iterations since the last preemption."""
        ...

    @property
    def pages(self) -> int:
        """Number of all pages."""
        ...

    @property
    def free_pages(self) -> int:
        """Number of free pages after the decoding requests get theirs."""
        ...

    @property
    def promised_pages(self) -> int:
        """Number of own pages that the running requests will hold at their ends."""
        ...

    @property
    def shared_pages(self) -> int:
        """Number of pages that running requests share."""
        ...

    @property
    def page_size(self) -> int:
        """Tokens per page."""
        ...

    @property
    def max_batched_tokens(self) -> int:
        """Most tokens of an iteration."""
        ...

    @property
    def max_sequences(self) -> int:
        """Most requests of an iteration."""
        ...

    def pages_for(self, request: Request, tokens: int) -> int:
        """Return how many own pages a request needs in addition for this many further tokens."""
        ...


class Selection(Struct, frozen=True):
    """The content of the next iteration."""

    chunks: tuple[tuple[Request, int], ...] = ()
    """Prompts, and the number of tokens of each."""
    decodes: bool = True
    """Whether decoding requests get a token."""


Select = Callable[[View], Selection]
Admits = Callable[[Request], bool]


class Policy(Struct, frozen=True):
    """How an engine schedules.

    Other distributions add policies by entry points of the group `rapid_des.policies`.
    """

    select: Select
    victim: Callable[[Iterable[Request]], Request]
    """Chooses the request to preempt among running ones, which stand in order of admission."""
    steady: bool = True
    """Whether waiting requests stay waiting until a request ends or arrives."""


def vllm_v1(view: View) -> Selection:
    """Take decodes first, then prompts in chunks, first come first served."""
    return Selection(tuple(chunks(view, view.max_batched_tokens - view.decoding_tokens)))


def vllm_v0(view: View) -> Selection:
    """Take whole prompts by themselves, else decodes."""
    reserved = int(_WATERMARK * view.pages)
    prompts = tuple(chunks(view, view.max_batched_tokens, whole=True, reserved=reserved))
    return Selection(prompts, decodes=not prompts)


def sglang(view: View) -> Selection:
    """Take prompts in chunks by themselves, as far as the answers to come leave room; else decodes."""
    share = max(_EXPECTED_LEAST, _EXPECTED - (_EXPECTED - _EXPECTED_LEAST) * view.calm / _DECAY_STEPS)
    room = view.free_pages * view.page_size - share * view.to_come

    def admits(request: Request) -> bool:
        nonlocal room
        room -= request.missing + min(request.output - request.generated, _LONGEST_GUESS)
        return room >= 0 or not (view.decoding or view.prefilling)

    prompts = tuple(chunks(view, view.max_batched_tokens, admits))
    return Selection(prompts, decodes=not prompts)


def trtllm_guaranteed_no_evict(view: View) -> Selection:
    """Take decodes and prompts whose longest answer has room beside all others'."""
    promised, shared = view.promised_pages, view.shared_pages

    def admits(request: Request) -> bool:
        nonlocal promised, shared
        promised += request.pages_at_end(view.page_size)
        shared = max(shared, request.shared)
        return promised + shared <= view.pages

    return Selection(tuple(chunks(view, view.max_batched_tokens - view.decoding_tokens, admits, whole=True)))


def trtllm_max_utilization(view: View) -> Selection:
    """Take decodes and whole prompts that fit now."""
    return Selection(tuple(chunks(view, view.max_batched_tokens - view.decoding_tokens, whole=True)))


def static(view: View) -> Selection:
    """Take a batch when the one before is answered, its prompts before its decodes."""
    closed = view.decoding > 0 and not view.prefilling
    prompts = () if closed else tuple(chunks(view, view.max_batched_tokens))
    return Selection(prompts, decodes=not prompts)


def chunks(
    view: View, budget: int, admits: Admits = lambda _: True, *, whole: bool = False, reserved: int = 0
) -> Iterator[tuple[Request, int]]:
    """Yield prompts in their order and how much of each fits into the budget, the sequences and the pages.

    `whole`: a prompt is not cut, unless it is longer than what decodes leave of an iteration; `reserved`
    pages stay free of new ones.
    """
    free, places = view.free_pages, view.max_sequences - view.decoding
    begun, all_budget, shared = len(view.prefilling), budget, view.shared_pages
    for number, request in enumerate(chain(view.prefilling, islice(view.candidates, max(0, places)))):
        tokens = min(request.missing, budget)
        pages = view.pages_for(request, tokens) + max(0, request.shared - shared)
        cut = whole and tokens < min(request.missing, all_budget) and number >= begun
        short = pages > free - (reserved if number >= begun else 0)
        if tokens < 1 or places < 1 or cut or short or (number >= begun and not admits(request)):
            return
        yield request, tokens
        budget, free, places = budget - tokens, free - pages, places - 1
        shared = max(shared, request.shared)


def latest(running: Iterable[Request]) -> Request:
    """Return the request that was admitted last."""
    *_, last = running
    return last


def least_done(running: Iterable[Request]) -> Request:
    """Return the request with the fewest generated tokens; of several the longest prompt."""
    return min(running, key=lambda request: (request.generated, -request.prompt, -request.number))


def least_important(running: Iterable[Request]) -> Request:
    """Return the request with the lowest priority; of several the one that came last."""
    return min(running, key=lambda request: (request.priority, -request.number))


POLICIES: Mapping[str, Policy] = {
    "vllm_v1": Policy(vllm_v1, latest),
    "vllm_v0": Policy(vllm_v0, latest),
    "sglang": Policy(sglang, least_done, steady=False),
    "trtllm_guaranteed_no_evict": Policy(trtllm_guaranteed_no_evict, latest),
    "trtllm_max_utilization": Policy(trtllm_max_utilization, latest),
    "static": Policy(static, latest),
}


WHOLE_PROMPTS = POLICIES["trtllm_max_utilization"]
"""The policy of models that attend to both sides, whose prompts are not cut."""


def policy_of(name: str) -> Policy:
    """Return a policy by the name that a job file states, also one of another distribution."""
    return POLICIES.get(name) or find(GROUP, name, Policy)


_PROMPT, _OUTPUT = 1, 2
"""The weight of a prompt token, and of an output token."""


class Fairness(Struct):
    """Virtual token counters of users; those of decoding requests grow with each step."""

    tokens_a_step: float = 1.0
    """Mean number of tokens that a step makes of a request."""
    _settled: Counter[int] = field(default_factory=Counter)
    _decoding: Counter[int] = field(default_factory=Counter)
    _joined: Counter[int] = field(default_factory=Counter)
    """The sum, for each user, of the steps at which its decoding requests joined."""
    _active: Counter[int] = field(default_factory=Counter)

    @property
    def _of_step(self) -> int:
        return round(_OUTPUT * self.tokens_a_step)

    def value(self, user: int, step: int) -> int:
        """Return a user's counter at a step of the decoding group."""
        return self._settled[user] + self._of_step * (self._decoding[user] * step - self._joined[user])

    def arrive(self, user: int, step: int) -> None:
        """Record a request; the counter of an idle user is lifted to the least of the others."""
        if not self._active[user]:
            others = [self.value(each, step) for each, count in self._active.items() if count]
            self._settled[user] += max(0, min(others, default=0) - self.value(user, step))
        self._active[user] += 1

    def take_up(self, user: int, tokens: int) -> None:
        """Charge the tokens of a prompt."""
        self._settled[user] += _PROMPT * tokens

    def make(self, user: int) -> None:
        """Charge a token that a request has made."""
        self._settled[user] += _OUTPUT

    def join(self, user: int, step: int) -> None:
        """Record that a request decodes from this step on."""
        self._decoding[user] += 1
        self._joined[user] += step

    def leave(self, user: int, joined: int, step: int) -> None:
        """Record that it decodes no more."""
        self._settled[user] += self._of_step * (step - joined)
        self._decoding[user] -= 1
        self._joined[user] -= joined

    def answer(self, user: int) -> None:
        """Record that a request is answered."""
        self._active[user] -= 1


def in_turn(waiting: deque[Request], order: str, fairness: Fairness, step: int) -> None:
    """Sort the waiting requests by their order: `fcfs`, `priority` or `fair`."""
    if order == "priority":
        by_priority(waiting)
    elif order == "fair":
        by_fairness(waiting, fairness, step)


def by_priority(waiting: deque[Request]) -> None:
    """Sort requests by priority, the highest first; equal ones in order of arrival."""
    _sort(waiting, [(-request.priority, request.number) for request in waiting])


def by_fairness(waiting: deque[Request], fairness: Fairness, step: int) -> None:
    """Sort requests by their users' counters; of one user in order of arrival."""
    _sort(waiting, [(fairness.value(request.user, step), request.number) for request in waiting])


def _sort(waiting: deque[Request], keys: list[tuple[int, int]]) -> None:
    ordered = sorted(zip(keys, waiting, strict=True), key=lambda pair: pair[0])
    waiting.clear()
    waiting.extend(request for _, request in ordered)


class Habits(Struct, frozen=True):
    """When an engine's loop polls for requests, and when it delays prompts."""

    ahead: bool = False
    """Whether the next iteration is planned while one runs: a request then waits for the one after it."""
    receive_interval: int = 1
    """Number of decode steps between two polls for new requests."""
    wait_iterations: int = 0
    """Most iterations that prompts wait for others while requests decode."""
    wait_tokens: float = 0.0
    """Number of tokens of an iteration from which prompts do not wait."""

    @property
    def looks_seldom(self) -> bool:
        """Whether some decode steps pass without a poll."""
        return self.receive_interval > 1


class Intake(Struct):
    """Requests of one replica before its policy sees them."""

    habits: Habits
    waited: int = 0
    """Iterations that prompts have waited for others so far."""
    _unseen: list[Request] = field(default_factory=list)
    _noticed: list[Request] = field(default_factory=list)
    _unlooked: int = 0

    def __len__(self) -> int:
        return len(self._unseen) + len(self._noticed)

    def __iter__(self) -> Iterator[Request]:
        yield from self._noticed
        yield from self._unseen

    def add(self, request: Request) -> None:
        """Add a request that has arrived."""
        self._unseen.append(request)

    def clear(self) -> list[Request]:
        """Remove and return all requests."""
        had = list(self)
        self._unseen, self._noticed, self._unlooked, self.waited = [], [], 0, 0
        return had

    def take(self, *, decodes: bool, idle: bool) -> list[Request]:
        """Return the requests that the policy sees from now on; `idle`: no prompt is partly computed."""
        seen, self._noticed = self._noticed, []
        if self._unlooked >= self.habits.receive_interval or not decodes:
            come, self._unseen, self._unlooked = self._unseen, [], 0
            if self.habits.ahead and (decodes or not idle):
                self._noticed = come
            else:
                seen += come
        return seen

    def passed(self, steps: int, *, prompts: bool = False) -> None:
        """Record iterations: after one with prompts, an engine polls at once."""
        self._unlooked += self.habits.receive_interval if prompts else steps

    @property
    def steps(self) -> int:
        """Number of decode steps before the next request may be seen."""
        if self._noticed:
            return 1
        return self.habits.receive_interval - self._unlooked if self.habits.looks_seldom else sys.maxsize

    def gathered(self, selection: Selection, decoding: int, begun: Sequence[Request]) -> Selection:
        """Return the selection, without its prompts if these still wait for others."""
        tokens = decoding + sum(tokens for _, tokens in selection.chunks)
        few = bool(selection.chunks) and decoding > 0 and tokens < self.habits.wait_tokens
        if few and not begun and self.waited < self.habits.wait_iterations:
            self.waited += 1
            return Selection()
        self.waited = 0
        return selection
