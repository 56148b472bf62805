"""Requests that have arrived at a replica and that its policy has not seen yet."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from msgspec import Struct, field

from rapid_des.serving.policies import Selection
from rapid_des.serving.requests import Request


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
