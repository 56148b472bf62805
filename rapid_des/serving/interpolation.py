"""Interpolation of iteration costs: the token counts and KV lengths between which costs are linear."""

from __future__ import annotations

from collections.abc import Callable

from rapid_des.units import ceil_divide

_KEYS, _FINE = 64, 32
"""Block of keys of decode kernels; number of corners in each doubling of long KV lengths."""
_EXACT_TOKENS, _MANY_TOKENS = 256, 2048
"""Below the first every token count is a corner; above the second corners are farther apart."""
_FEW_ROWS, _MANY_ROWS = 32, 64
"""Row counts of matrix product tiles: first and last row of each tile are corners."""
_TOLERANCE = 0.002
"""Largest deviation from a line, at the middle between two corners, as a share of the pass."""

_CLOSE = 1 / 16
"""Smallest relative distance of two corners, reached where the function jumps."""


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
        """Return the interpolated value."""
        if number not in self._values:
            self._values[number] = self._between(number)
        return self._values[number]

    def _between(self, number: int) -> int:
        # Bisect from the powers of two around the number until the line fits, or the number is a corner.
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
    """Return the distance of neighbouring corners around a KV length."""
    return max(_KEYS, (1 << (length - 1).bit_length() >> 1) // _FINE)


def stretch(number: int, step: int) -> tuple[int, int]:
    """Return the first and the last number of the interval of length `step` that contains a number."""
    upper = ceil_divide(number, step) * step
    return upper - step + 1, upper


def _corner_or_both(number: int, ends: tuple[int, int]) -> tuple[int, int]:
    """Return both ends of an interval, or the number twice if it is an end: costs may jump there."""
    return (number, number) if number in ends else ends
