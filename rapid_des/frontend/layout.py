"""Where ranks stand: layouts of ranks along axes, and groups of those that differ only along some."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from rapid_des.arrays import Int64s


@dataclass(frozen=True)
class Layout:
    """Axes and their sizes, innermost first: rank = a0 + n0·(a1 + n1·(a2 + …)).

    >>> layout = Layout(("tp", "dp", "pp"), (2, 2, 2))
    >>> layout.groups(("tp",))[1], layout.groups(("dp",))[1], layout.groups(("tp", "pp"))[1]
    ((2, 3), (1, 3), (2, 3, 6, 7))
    """

    axes: tuple[str, ...]
    sizes: tuple[int, ...]
    numbering: tuple[int, ...] | None = None
    """The rank at each place of that count; None: the places are the ranks."""

    @cached_property
    def _ranks(self) -> Int64s:
        return np.arange(self.ranks) if self.numbering is None else np.array(self.numbering, np.int64)

    @property
    def ranks(self) -> int:
        """How many ranks the job has."""
        return prod(self.sizes)

    def size(self, axis: str) -> int:
        """Return the number of parts along one axis."""
        return self.sizes[self.axes.index(axis)]

    def coordinates(self, axis: str) -> Int64s:
        """Return each rank's coordinate along one axis, indexed by rank."""
        position = self.axes.index(axis)
        stride = prod(self.sizes[:position])
        coordinates = np.empty(self.ranks, np.int64)
        coordinates[self._ranks] = np.arange(self.ranks) // stride % self.sizes[position]
        return coordinates

    def groups(self, axes: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """Return the groups of ranks that differ only along `axes`; members ascend, groups too."""
        return tuple(map(tuple, self.rows(axes).tolist()))

    def group_numbers(self, axes: tuple[str, ...]) -> Int64s:
        """Return for each rank the number of its group in `groups(axes)`."""
        return numbers_of(self.rows(axes))

    def rows(self, axes: tuple[str, ...]) -> Int64s:
        """Return the groups as rows of one table."""
        inner = [axis for axis in reversed(self.axes) if axis in axes]
        outer = [axis for axis in reversed(self.axes) if axis not in axes]
        grid = self._ranks.reshape(self.sizes[::-1])
        order = [self.axes[::-1].index(axis) for axis in outer + inner]
        members = prod(self.size(axis) for axis in inner)
        return grid.transpose(order).reshape(-1, members)


def numbers_of(groups: Int64s) -> Int64s:
    """Return for each rank the number of its group, the groups being rows that hold every rank once."""
    numbers = np.empty(groups.size, np.int64)
    numbers[groups] = np.arange(len(groups))[:, None]
    return numbers
