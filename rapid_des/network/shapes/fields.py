"""Finite fields of a few elements, as tables; an element is a number whose base-p digits are coefficients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rapid_des.arrays import Int64s


@dataclass(frozen=True, eq=False)
class Field:
    """The field of `size` elements 0..size-1."""

    size: int
    sums: Int64s
    """[a, b] their sum."""
    products: Int64s
    """[a, b] their product."""
    powers: Int64s
    """[e] the e-th power of a primitive element, e from 0 to size - 1: all elements but 0, then 1 again."""


def finite_field(size: int) -> Field | None:
    """Return the field of `size` elements, or None where there is none: `size` is no prime power.

    >>> finite_field(4).products.tolist()
    [[0, 0, 0, 0], [0, 1, 2, 3], [0, 2, 3, 1], [0, 3, 1, 2]]
    """
    prime = next(divisor for divisor in range(2, size + 1) if size % divisor == 0)
    degree = round(np.log(size) / np.log(prime))
    if prime**degree != size:
        return None
    places = prime ** np.arange(degree)
    digits = np.arange(size)[:, None] // places % prime
    sums = (digits[:, None] + digits) % prime @ places
    tails = (_powers(tail, prime, degree) for tail in range(1, size))
    powers = next(found for found in tails if len(found) == size and found[-1] == 1)
    logs = np.zeros(size, np.int64)
    logs[powers[:-1]] = np.arange(size - 1)
    products = np.append(powers[:-1], powers[:-1])[logs[:, None] + logs]
    products[0] = products[:, 0] = 0
    return Field(size, sums, products, powers)


def _powers(tail: int, prime: int, degree: int) -> Int64s:
    """Return powers of x up to the first that is 0 or 1, at most p**degree, where x**degree is `tail`.

    The last of that many is 1 exactly if x is primitive; every field has a `tail` for which it is.
    """
    places = prime ** np.arange(degree)
    reduced = tail // places % prime
    element, found = np.eye(1, degree, dtype=np.int64)[0], [1]
    while len(found) < prime**degree:
        carry = element[-1]
        shifted = np.append(0, element[:-1])
        element = (shifted + carry * reduced) % prime
        found.append(int(element @ places))
        if found[-1] <= 1:
            break
    return np.array(found)
