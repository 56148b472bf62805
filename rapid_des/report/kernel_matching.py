"""Kernels of a profiled step matched with the operators of its prediction, by size and by order.

    measured    norm  q  k  v  rope  attention  out  add …
                 │    └──┼──┘   │       │        │    │
    predicted   norm    qkv   rope   attention  out  residual …

Matrix products of known size and attention kernels are anchors. As many of them as can be are matched in
order, up to four measured products with one whose size is their sum. What lies between two anchors is matched
by class, in order. So each kernel stands in one pair, and the pairs of both sides add up to all kernels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rapid_des.arrays import Bools, Floats, Int8s

ATTENTION, PRODUCT = "attention", "gemm"
_MOST_JOINED = 4
"""Measured products that one predicted product may be: queries, keys, values, and gate and up."""
_SAME_SIZE = 1e-3
"""Sizes that differ by at most this share are the same: some models count the additions of a bias."""
_MOST_CELLS = 200_000_000
"""Pairs of anchors, at most: their table takes a byte each."""


class Kernel(NamedTuple):
    """A kernel of a measured step, or an operator of a predicted one."""

    name: str
    kind: str
    """Its class, as profiles name classes."""
    length: float
    """Its time in seconds."""
    flops: int = 0
    """The FLOPs of a product; 0 if they are not known."""


class Pair(NamedTuple):
    """Kernels of both sides that do the same; one side is empty where the other stands alone."""

    measured: Sequence[Kernel]
    predicted: Sequence[Kernel]


class _Anchor(NamedTuple):
    """A product, or kernels of one attention, by the places of its kernels."""

    first: int
    last: int
    """The place behind its last kernel."""
    flops: float
    """The size of a product; 0 for attention."""


def matched(measured: Sequence[Kernel], predicted: Sequence[Kernel]) -> Iterator[Pair]:
    """Yield all kernels of both sides in pairs, both in the order of time."""
    mine, theirs = _anchors(measured), _anchors(predicted)
    reached, within = (0, 0), list[Kernel]()
    for ours, other in _in_order(mine, theirs):
        before = measured[reached[0] : ours.first]
        yield from _between([*within, *before], predicted[reached[1] : other.first])
        inside, wanted = measured[ours.first : ours.last], ATTENTION if other.flops == 0 else PRODUCT
        yield Pair([each for each in inside if each.kind == wanted], predicted[other.first : other.last])
        # what ran among products that are one predicted product, as an activation between gate and up
        within = [each for each in inside if each.kind != wanted]
        reached = ours.last, other.last
    yield from _between([*within, *measured[reached[0] :]], predicted[reached[1] :])


def _anchors(kernels: Sequence[Kernel]) -> list[_Anchor]:
    """Return the products of known size, and attentions: neighbouring kernels of attention are one."""
    found = list[_Anchor]()
    for place, kernel in enumerate(kernels):
        if kernel.kind == ATTENTION and found and found[-1].flops == 0 and found[-1].last == place:
            found[-1] = found[-1]._replace(last=place + 1)
        elif kernel.kind == ATTENTION or (kernel.kind == PRODUCT and kernel.flops):
            found.append(_Anchor(place, place + 1, float(kernel.flops) if kernel.kind == PRODUCT else 0.0))
    return found


def _in_order(measured: Sequence[_Anchor], predicted: Sequence[_Anchor]) -> list[tuple[_Anchor, _Anchor]]:
    """Return the longest list of anchors that are alike, in the order of both sides.

    It is the longest common subsequence, row by row: `longest[j]` is the most that can be matched of the
    predicted anchors up to a row and of the first j measured ones. A measured anchor may be the sum of
    several products. `choices` says how each cell was reached: 0 leaves the predicted anchor out, n > 0
    matches it with the last n measured ones, -1 leaves the measured one out.
    """
    many = len(measured)
    if not many or not predicted or many * len(predicted) > _MOST_CELLS:
        return []
    sums = _sums(np.array([each.flops for each in measured]))
    choices = np.zeros((len(predicted), many + 1), np.int8)
    rows = [np.zeros(many + 1, np.int32)]
    for number, anchor in enumerate(predicted):
        longest, choice = rows[-1].copy(), choices[number]
        for joined, totals in enumerate(sums, start=1):
            alike = np.flatnonzero(_alike(totals, anchor.flops)) + 1
            better = alike[rows[-1][alike - joined] + 1 > longest[alike]]
            longest[better], choice[better] = rows[-1][better - joined] + 1, joined
        reached = np.maximum.accumulate(longest)
        choice[reached > longest] = -1
        rows = [reached]
    return _walked(choices, measured, predicted)


def _sums(sizes: Floats) -> list[Floats]:
    """Return for n from 1 on the sums of the n sizes up to each; NaN where not all are products."""
    known = np.where(sizes > 0, sizes, np.nan)
    found, total = [sizes], known
    for joined in range(1, _MOST_JOINED):
        before = np.concatenate((np.full(min(joined, len(sizes)), np.nan), known[:-joined]))
        total = total + before
        found.append(total)
    return found


def _alike(sizes: Floats, wanted: float) -> Bools:
    same: Bools = np.abs(sizes - wanted) <= _SAME_SIZE * wanted
    return same


def _walked(
    choices: Int8s, measured: Sequence[_Anchor], predicted: Sequence[_Anchor]
) -> list[tuple[_Anchor, _Anchor]]:
    """Return the anchors that the choices match, from the last cell back."""
    found, place, number = list[tuple[_Anchor, _Anchor]](), len(measured), len(predicted) - 1
    while place > 0 and number >= 0:
        choice = int(choices[number, place])
        if choice > 0:
            joined = _Anchor(measured[place - choice].first, measured[place - 1].last, 0.0)
            found.append((joined, predicted[number]))
        place -= 1 if choice < 0 else choice
        number -= choice >= 0
    return found[::-1]


def _between(measured: Sequence[Kernel], predicted: Sequence[Kernel]) -> Iterator[Pair]:
    """Yield what lies between two anchors in pairs of a class.

    A class that the prediction has and the run has not was done by kernels of other classes, as norms are
    that are written out in elementwise steps. Then all between the anchors is one pair.
    """
    mine, theirs = _by_class(measured), _by_class(predicted)
    if measured and theirs.keys() - mine.keys():
        yield Pair(measured, predicted)
        return
    for kind in {**theirs, **mine}:
        ours, others = mine.get(kind, ()), theirs.get(kind, ())
        if len(ours) == len(others):
            yield from (Pair((one,), (other,)) for one, other in zip(ours, others, strict=True))
        else:
            yield Pair(ours, others)


def _by_class(kernels: Sequence[Kernel]) -> Mapping[str, Sequence[Kernel]]:
    found = defaultdict[str, list[Kernel]](list)
    for kernel in kernels:
        found[kernel.kind].append(kernel)
    return found
