"""Grid shapes: ring, mesh, torus and king mesh of any number of axes."""

from __future__ import annotations

import itertools
import math

import numpy as np
from numpy.typing import NDArray

from rapid_des.network.blocks import Block, Step, block, both_ways, check_links
from rapid_des.network.fabric import Ints
from rapid_des.network.specs import KingMesh, Mesh, Ring, Routing, Torus


def grid(dimension: Ring | Mesh | Torus | KingMesh, routing: Routing) -> Block:
    """Return a grid; axis 0 is innermost: position = c0 + k0·(c1 + k1·(…))."""
    sizes = (dimension.size,) if isinstance(dimension.size, int) else tuple(dimension.size)
    wraps = isinstance(dimension, Ring | Torus)
    positions = math.prod(sizes)
    offsets = _king_offsets(len(sizes)) if isinstance(dimension, KingMesh) else _axis_offsets(len(sizes))
    check_links(2 * len(offsets) * positions, dimension.name)
    laid = []
    for offset in offsets:
        source, destination = _neighbours(sizes, offset, wraps=wraps)
        laid += both_ways(source, destination, dimension, dimension.reverse)
    step = _king_step(sizes) if isinstance(dimension, KingMesh) else _axis_step(sizes, routing, wraps=wraps)
    return block(positions, positions, laid, step)


def _axis_offsets(axes: int) -> list[tuple[int, ...]]:
    return [tuple(int(axis == other) for other in range(axes)) for axis in range(axes)]


def _king_offsets(axes: int) -> list[tuple[int, ...]]:
    """Half of a king's moves, those that lead to higher positions; the others are their opposites."""
    moves = itertools.product((-1, 0, 1), repeat=axes)
    return [move for move in moves if move[::-1] > (0,) * axes]


def _digit(position: Ints, sizes: tuple[int, ...], axis: int) -> Ints:
    return position // math.prod(sizes[:axis]) % sizes[axis]


def _neighbours(sizes: tuple[int, ...], offset: tuple[int, ...], *, wraps: bool) -> tuple[Ints, Ints]:
    source = np.arange(math.prod(sizes))
    exists = np.ones(len(source), bool)
    destination = np.zeros(len(source), np.int64)
    for axis, (size, move) in enumerate(zip(sizes, offset, strict=True)):
        place = _digit(source, sizes, axis) + move
        if not wraps or size <= 2:
            exists &= (place >= 0) & (place < size)
        destination += place % size * math.prod(sizes[:axis])
    return source[exists], destination[exists]


def _axis_step(sizes: tuple[int, ...], routing: Routing, *, wraps: bool) -> Step:
    axes = list(range(len(sizes)))
    if routing.order == "outermost_first":
        axes.reverse()

    def step(source: Ints, destination: Ints, current: Ints) -> Ints:  # noqa: ARG001 - no choice by flow
        following = current.copy()
        for axis in axes:
            here, there = _digit(current, sizes, axis), _digit(destination, sizes, axis)
            moving = (following == current) & (here != there)
            ahead = _goes_up(here, there, sizes[axis], routing) if wraps else there > here
            place = (here + np.where(ahead, 1, -1)) % sizes[axis]
            following += np.where(moving, (place - here) * math.prod(sizes[:axis]), 0)
        return following

    return step


def _goes_up(here: Ints, there: Ints, size: int, routing: Routing) -> NDArray[np.bool_]:
    distance = (there - here) % size
    up_on_tie = np.ones(len(here), bool)
    if routing.tie == "lowest_id":
        up_on_tie = (here + 1) % size < (here - 1) % size
    ahead: NDArray[np.bool_] = (2 * distance < size) | ((2 * distance == size) & up_on_tie)
    return ahead


def _king_step(sizes: tuple[int, ...]) -> Step:
    def step(source: Ints, destination: Ints, current: Ints) -> Ints:  # noqa: ARG001 - no choice by flow
        following = current.copy()
        for axis in range(len(sizes)):
            ahead = np.sign(_digit(destination, sizes, axis) - _digit(current, sizes, axis))
            following += ahead * math.prod(sizes[:axis])
        return following

    return step
