"""In which order requests wait: who came first, who is more important, or whose user got least.

`fair` is the virtual token counter of Sheng et al. (OSDI 2024, "Fairness in Serving Large Language Models"):
a user's counter grows by one a token of its prompts that are taken up and by two a token that its requests
make; next is the request whose user has the least, and who was idle begins with the least of those that are
not. Counters are read once an iteration.
"""

from __future__ import annotations

from collections import Counter, deque

from msgspec import Struct, field

from rapid_des.serving.requests import Request

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
