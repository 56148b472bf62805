"""Keys and values of idle sessions that stay in the KV cache until their pages are wanted, oldest first."""

from __future__ import annotations

from dataclasses import dataclass, field

from rapid_des.units import ceil_divide


@dataclass
class Prefixes:
    """What a replica keeps of sessions between two requests of theirs.

    >>> kept = Prefixes(page_size=16)
    >>> kept.keep(7, 40)
    >>> kept.pages, kept.hit(7, 1000), kept.hit(7, 20), kept.shrink(2), kept.hit(7, 1000)
    (3, 32, 16, [7], 0)
    """

    page_size: int
    pages: int = 0
    _tokens: dict[int, int] = field(default_factory=dict)
    """By session, the one that was used longest ago first."""

    def hit(self, session: int, most: int) -> int:
        """Return how many tokens of a session's next prompt are here: whole pages, at most `most` tokens."""
        return min(self._tokens.get(session, 0), most) // self.page_size * self.page_size

    def keep(self, session: int, tokens: int) -> None:
        """Keep the tokens of a session that has become idle."""
        self.take(session)
        self._tokens[session] = tokens
        self.pages += ceil_divide(tokens, self.page_size)

    def take(self, session: int) -> None:
        """Hand a session's pages to the request that goes on with it."""
        self.pages -= ceil_divide(self._tokens.pop(session, 0), self.page_size)

    def shrink(self, room: int) -> list[int]:
        """Drop sessions until the rest fits into so many pages; return which."""
        dropped = []
        while self.pages > room:
            dropped.append(next(iter(self._tokens)))
            self.take(dropped[-1])
        return dropped
