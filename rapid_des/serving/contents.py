"""The content of requests by which they find each other's pages: blocks of a trace, prefixes, sessions."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from rapid_des.arrays import Int64s
from rapid_des.serving.requests import NEVER, ContentSpan, Request

_PREFIX = -1
"""The key of the prefix that prompts have in common; keys of blocks are 0 or more."""


class HashedBlocks(Struct, frozen=True):
    """The keys of the blocks of each request's prompt, as traces state them (`hash_ids`).

    Equal keys mean that the blocks and all content before them are equal.
    """

    size: int
    """Number of tokens of a block; the last one of a prompt may have fewer."""
    starts: Int64s
    """The index of each request's first key, and behind them the number of all keys."""
    keys: Int64s


class Contents:
    """The content of the requests of one run, in the order in which they are sent.

    >>> contents = Contents()
    >>> one, two = Request(0, 0, 10, 5, session=7), Request(1, 0, 25, 5, session=7)
    >>> [tuple(span) for span in contents.path(one)], [tuple(span) for span in contents.path(two)]
    ([(-2, 15)], [(-2, 15), (-3, 30)])
    """

    def __init__(self, blocks: HashedBlocks | None = None) -> None:
        self._blocks = blocks
        self._said: dict[int, tuple[ContentSpan, ...]] = {}
        """The content of each session so far."""

    def path(self, request: Request) -> tuple[ContentSpan, ...]:
        """Return the content of a request: what others may have too, then its own with its answer."""
        own = ContentSpan(_PREFIX - 1 - request.number, request.prompt + request.output)
        path = (*self._known(request), own)
        if request.session != NEVER:
            self._said[request.session] = path
        return path

    def _known(self, request: Request) -> Iterator[ContentSpan]:
        """Yield that content of the prompt which other requests may have too."""
        if self._blocks is not None:
            size, starts = self._blocks.size, self._blocks.starts
            keys = self._blocks.keys[starts[request.number] : starts[request.number + 1]]
            for number, key in enumerate(keys.tolist(), 1):
                yield ContentSpan(key, min(number * size, request.prompt))
        elif request.session in self._said:
            for span in self._said[request.session]:
                yield ContentSpan(span.key, min(span.end, request.prompt))
                if span.end >= request.prompt:
                    return
        elif request.prefix:
            yield ContentSpan(_PREFIX, min(request.prefix, request.prompt))
