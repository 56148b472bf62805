"""Tasks of agents: turns of one conversation, between which sub-agents work and tools run.

A task comes as a request does. Each of its turns but the last may start branches: requests of sub-agents with
contexts of their own, sent at once when the turn is answered. The next turn waits for all of them and for the
tools. Its prompt is all that was said before in the task, what the branches answered, and tokens of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
from msgspec import Struct, field
from numpy.random import Generator, default_rng

from rapid_des.arrays import Int64s
from rapid_des.serving.requests import NEVER
from rapid_des.serving.sampling import spread

_STREAM, _DOCUMENTS = 8, 4
"""The first of the generators of this module, those before it draw other columns; that of documents."""


class Precedence(Struct, frozen=True):
    """The requests that must be answered before another is sent; their numbers are smaller."""

    starts: Int64s
    """The index of each request's first predecessor, and behind them the number of all."""
    earlier: Int64s


class Awaited:
    """The requests that wait for answers.

    >>> awaited = Awaited(Precedence(np.array([0, 0, 1, 3]), np.array([0, 0, 1])))
    >>> awaited.begins(0), awaited.begins(2), list(awaited.end(0)), list(awaited.end(1))
    (True, False, [1], [2])
    """

    def __init__(self, precedence: Precedence) -> None:
        starts = precedence.starts
        self._missing: list[int] = np.diff(starts).tolist()
        """Number of answers that each request waits for."""
        self._later = [list[int]() for _ in self._missing]
        """The requests that wait for each request."""
        for number, (begin, end) in enumerate(zip(starts[:-1], starts[1:], strict=True)):
            for before in precedence.earlier[begin:end].tolist():
                self._later[before].append(number)

    def begins(self, number: int) -> bool:
        """Return whether a request can be sent as it comes; else it waits."""
        return not self._missing[number]

    def end(self, number: int) -> Iterator[int]:
        """Record an answer; yield the requests that can be sent after it."""
        for later in self._later[number]:
            self._missing[later] -= 1
            if not self._missing[later]:
                yield later


class DrawnCounts(Protocol):
    """Counts that are drawn, as lengths of `rapid_des.serving.workload` are."""

    def lengths(self, count: int, random: Generator) -> Int64s:
        """Return this many counts."""
        ...


class Agents(Struct, frozen=True):
    """How tasks are drawn."""

    turns: DrawnCounts
    branches: DrawnCounts | None = None
    """Number of branches of a turn; None: turns have none."""
    prompt: DrawnCounts | None = None
    """Tokens of a branch's prompt; None: as those of turns."""
    output: DrawnCounts | None = None
    """Tokens of its answer; None: as those of turns."""

    def drawn(self, own: tuple[Int64s, Int64s], most: int | None, seed: int) -> AgentTasks:
        """Return as many requests as there are lengths of turns: `own` has new tokens in, and tokens out.

        A task ends before the turn that would have more than `most` tokens.
        """
        count = len(own[0])
        stated = (self.turns, self.branches, self.prompt, self.output)
        turns, branches, prompts, outputs = (
            None if each is None else deque(each.lengths(count, _generator(seed, place)).tolist())
            for place, each in enumerate(stated)
        )
        tasks = AgentTasks(deque(zip(*(column.tolist() for column in own), strict=True)), count)
        assert turns is not None
        while not tasks.full:
            tasks.begin()
            for turn in range(number := turns.popleft()):
                if not tasks.turn(most):
                    break
                for _ in range(branches.popleft() if branches and turn + 1 < number else 0):
                    lengths = tasks.lengths.popleft() if tasks.lengths else (1, 1)
                    tasks.branch(
                        prompts.popleft() if prompts else lengths[0],
                        outputs.popleft() if outputs else lengths[1],
                    )
        return tasks


def tasks_of(documents: DrawnCounts, count: int, seed: int) -> Int64s:
    """Return the task of each request, where a task has as many as it has documents."""
    numbers = documents.lengths(count, _generator(seed, _DOCUMENTS))
    return np.repeat(np.arange(count), numbers)[:count]


def _generator(seed: int, place: int) -> Generator:
    return default_rng([seed, _STREAM + place])


class AgentTasks(Struct):
    """Requests of tasks, a list a column; no more than `most` are kept."""

    lengths: deque[tuple[int, int]]
    """The tokens in and out of requests to come."""
    most: int
    prompt: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    task: list[int] = field(default_factory=list)
    session: list[int] = field(default_factory=list)
    """The task, of turns; `NEVER` of branches, which share nothing that was said."""
    after: list[list[int]] = field(default_factory=list)
    _number: int = 0
    _context: int = 0
    _last: list[int] = field(default_factory=list)
    """The turn, and its branches, that the next turn waits for."""

    @property
    def full(self) -> bool:
        """Whether there are as many requests as are wanted."""
        return len(self.prompt) >= self.most

    def begin(self) -> None:
        """Begin another task."""
        self._context, self._last = 0, []
        self._number = 1 + self.task[-1] if self.task else 0

    def turn(self, most: int | None) -> bool:
        """Add a turn; return False if there is none, for want of positions or of requests."""
        if self.full:
            return False
        new, output = self.lengths[0]
        joined = sum(self.output[branch] for branch in self._last[1:])
        prompt = self._context + joined + new
        if self._last and most is not None and prompt + output > most:
            return False
        self.lengths.popleft()
        self._add(prompt, output, list(self._last), session=self._number)
        self._context, self._last = prompt + output, [len(self.prompt) - 1]
        return True

    def branch(self, prompt: int, output: int) -> None:
        """Add a branch of the turn before."""
        if not self.full:
            self._add(prompt, output, [self._last[0]], session=NEVER)
            self._last.append(len(self.prompt) - 1)

    def _add(self, prompt: int, output: int, after: list[int], *, session: int) -> None:
        self.prompt.append(prompt)
        self.output.append(output)
        self.task.append(self._number)
        self.session.append(session)
        self.after.append(after)

    @property
    def columns(self) -> dict[str, Int64s]:
        """The marks of requests."""
        return {name: np.array(getattr(self, name), np.int64) for name in ("task", "session")}

    @property
    def precedence(self) -> Precedence:
        """The requests for which each request waits."""
        starts = np.cumsum([0, *map(len, self.after)])
        return Precedence(starts, np.array([number for each in self.after for number in each], np.int64))


def task_times(requests: Mapping[str, Int64s]) -> dict[str, Any] | None:
    """Return the number and the times of tasks, in seconds; None if requests are of none.

    The last task, of which requests may be missing, does not count.
    """
    task = requests["task"]
    if not len(task) or task[0] == NEVER:
        return None
    last = int(task.max())
    begins, ends = np.full(last + 1, np.iinfo(np.int64).max), np.zeros(last + 1, np.int64)
    np.minimum.at(begins, task, requests["arrival"])
    np.maximum.at(ends, task, requests["finished"])
    each = np.bincount(task, minlength=last + 1)
    whole = np.flatnonzero(each[:-1])
    times = ends[whole] - begins[whole]
    return {"tasks": len(whole), "requests_a_task": float(each[whole].mean()), "time_s": spread(times)}
