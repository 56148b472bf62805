"""The sizes of matrix products, from what a profiler wrote of their inputs."""

from __future__ import annotations

import json
from math import prod

Sizes = tuple[int, int, int, int]
"""Batch, and m, n and k of each product: (m, k) by (k, n)."""


def product_sizes(shapes: str) -> Sizes | None:
    """Return the sizes of a product of two matrices, or of two batches of them; None of other inputs.

    An addend stands before the matrices: `addmm` has three inputs.

    >>> product_sizes("[[1024], [4096, 512], [512, 1024]] ['c10::Half', 'c10::Half', 'c10::Half']")
    (1, 4096, 1024, 512)
    >>> product_sizes("[[16, 128, 64], [16, 64, 128]] ['c10::BFloat16', 'c10::BFloat16']")
    (16, 128, 128, 64)
    >>> product_sizes("[[4096, 512], [1024, 512]] ['float', 'float']")
    """
    dims, _, _ = shapes.partition("]] ")
    try:
        given = [tuple(each) for each in json.loads(f"{dims}]]") if isinstance(each, list)]
    except ValueError:
        return None
    matrices = [each for each in given if len(each) in (2, 3) and all(map(_is_size, each))]
    if len(matrices) < 2:
        return None
    (*outer, m, k), (*same, rows, n) = matrices[-2:]
    return (prod(outer), m, n, k) if outer == same and rows == k else None


def _is_size(size: object) -> bool:
    return isinstance(size, int) and 0 < size <= 2**31
