"""Where costs of iterations are worked out, and what lies between: corners of token counts and KV lengths."""

from __future__ import annotations

from collections.abc import Callable

from rapid_des.units import ceil_divide

_KEYS, _FINE = 64, 32
"""Decode kernels take keys in blocks of so many; corners of long KV lengths in each doubling."""
_EXACT_TOKENS, _MANY_TOKENS = 256, 2048
"""Tokens up to which every count is a corner, and from which on corners are farther apart."""
_FEW_ROWS, _MANY_ROWS = 32, 64
"""Tiles of matrix products end at such multiples of rows: first and last row of each are corners."""
_TOLERANCE = 0.002
"""Of a pass: how far the rest may be from the line between two corners, in their middle."""

_CLOSE = 1 / 16
"""Of a number: corners of what jumps between them are no closer."""


class Refined:
    """A function of a whole number, linear between corners that are added where it is not.

    `exact` returns its value and a total of which an error counts; corners are powers of two, and halves of
    what lies between while the middle is farther than `_TOLERANCE` of the total from the line, unless they
    are as close as `_CLOSE` of the number: there it jumps.
    """

    def __init__(self, exact: Callable[[int], tuple[int, int]]) -> None:
        self._exact = exact
        self._known: dict[int, tuple[int, int]] = {}
        self._spans: dict[tuple[int, int], bool] = {}
        self._values: dict[int, int] = {}

    def __call__(self, number: int) -> int:
        """Return the value."""
        if number not in self._values:
            self._values[number] = self._between(number)
        return self._values[number]

    def _between(self, number: int) -> int:
        below = 1 << (number.bit_length() - 1)
        upper = 2 * below
        while below < number:
            if self._is_straight(below, upper):
                low, high = self._at(below)[0], self._at(upper)[0]
                return low + (high - low) * (number - below) // (upper - below)
            middle = (below + upper) // 2
            below, upper = (middle, upper) if middle <= number else (below, middle)
        return self._at(below)[0]

    def _is_straight(self, below: int, upper: int) -> bool:
        span = below, upper
        if upper - below <= _CLOSE * upper:
            return True
        if span not in self._spans:
            middle = (below + upper) // 2
            value, total = self._at(middle)
            line = (self._at(below)[0] + self._at(upper)[0]) / 2
            self._spans[span] = abs(value - line) <= _TOLERANCE * total
        return self._spans[span]

    def _at(self, number: int) -> tuple[int, int]:
        if number not in self._known:
            self._known[number] = self._exact(number)
        return self._known[number]


def token_corners(tokens: int) -> tuple[int, int]:
    """Return the corners of the token count below and above, the same at a corner.

    >>> token_corners(100), token_corners(300), token_corners(321), token_corners(3000)
    ((100, 100), (289, 320), (321, 321), (2945, 3008))
    """
    if tokens <= _EXACT_TOKENS:
        return tokens, tokens
    return _corner_or_both(tokens, stretch(tokens, _FEW_ROWS if tokens <= _MANY_TOKENS else _MANY_ROWS))


def around(length: int) -> tuple[int, int]:
    """Return the corners of the KV length below and above, the same at a corner.

    >>> around(1), around(1000), around(1024), around(10_000)
    ((1, 1), (961, 1024), (1024, 1024), (9985, 10240))
    """
    return _corner_or_both(length, stretch(length, fineness(length)))


def fineness(length: int) -> int:
    """Return how many KV lengths around this one are between two corners."""
    return max(_KEYS, (1 << (length - 1).bit_length() >> 1) // _FINE)


def stretch(number: int, step: int) -> tuple[int, int]:
    """Return the first and the last number of the stretch of so many that a number lies in."""
    upper = ceil_divide(number, step) * step
    return upper - step + 1, upper


def _corner_or_both(number: int, ends: tuple[int, int]) -> tuple[int, int]:
    """Return both ends of a stretch, or an end twice that the number is: what it costs may jump there."""
    return (number, number) if number in ends else ends
