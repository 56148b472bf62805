"""Sessions: conversations whose turns wait for answers, and whose prompts begin with what was said.

A turn is sent when the answer before it is there, and not before the time at which it was to come. Its prompt
is all that was said before, and the tokens of its own.
"""

from __future__ import annotations

from collections import defaultdict, deque

import numpy as np
from msgspec import Struct, field

from rapid_des.arrays import Int64s
from rapid_des.serving.requests import NEVER


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
