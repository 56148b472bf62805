"""Groups that work at the same time: the tensor-parallel groups of a job, its replicas, and so on.

What such groups do at once is slower than what one does alone where their routes share links. `Families`
finds for a group those that do so with it, directly or by way of others.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from rapid_des.arrays import Int64s
from rapid_des.chakra.trace import TraceSet
from rapid_des.machine import Machine
from rapid_des.program.routes import COMPARED, all_pairs, telling_pairs

MOST_RANKS = 1024
"""Most ranks whose groups are examined together; of larger sets only those around the group in question."""
_MOST_PAIRS = 1 << 17
"""Most pairs of members whose routes are all examined; of larger sets a sample that tells groups apart."""

Rows = Int64s
"""[group, member]: the ranks of groups of one size without common ranks."""


def families_of(traces: TraceSet) -> tuple[Rows, ...]:
    """Return the families of a trace set: as stated, else its groups of one form.

    Groups have one form if their ranks are equally far from the first; such as have ranks in common do not
    work at the same time.
    """
    if traces.families:
        return traces.families
    forms: dict[tuple[int, ...], dict[tuple[int, ...], None]] = {}
    for ranks in traces.groups.values():
        if len(ranks) > 1:
            forms.setdefault(tuple(rank - ranks[0] for rank in ranks), {})[ranks] = None
    families = (np.array(sorted(groups), np.int64) for groups in forms.values())
    return tuple(rows for rows in families if len(set(rows.ravel().tolist())) == rows.size)


class Families:
    """The groups beside each group on a machine."""

    def __init__(self, machine: Machine, families: Sequence[Rows]) -> None:
        self._machine = machine
        self._families = tuple(rows for rows in families if len(rows) > 1)
        self.beside = cache(self._beside)
        self._sharing = cache(self._components)
        self._window = cache(self._groups)

    def _beside(self, ranks: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """Return the groups that share links with a group while it works, with itself, in order."""
        for number, rows in enumerate(self._families):
            if rows.shape[1] != len(ranks):
                continue
            (places,) = np.nonzero(rows[:, 0] == ranks[0])
            if len(places) and (rows[places[0]] == ranks).all():
                return self._around(number, int(places[0]))
        return (ranks,)

    def _around(self, family: int, place: int) -> tuple[tuple[int, ...], ...]:
        component = self._sharing(family)
        (together,) = np.nonzero(component == component[place])
        most = max(1, MOST_RANKS // self._families[family].shape[1])
        begin = int(np.searchsorted(together, place)) // most * most
        return self._window(family, tuple(together[begin : begin + most].tolist()))

    def _groups(self, family: int, places: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        return tuple(map(tuple, self._families[family][list(places)].tolist()))

    def _components(self, family: int) -> Int64s:
        """Return for each group of a family a number: one for all that share links, by way of others too."""
        rows = self._families[family]
        members = rows.shape[1]
        if members <= COMPARED and rows.size * (members - 1) <= _MOST_PAIRS:
            pairs = all_pairs(rows)
        else:
            pairs = np.concatenate([telling_pairs(group) for group in rows])
        routes = self._machine.router.routes(pairs)
        group = np.repeat(np.arange(len(rows)), len(pairs) // len(rows))
        # The distinct (link, group) pairs: which groups use which links.
        uses = np.unique(
            np.stack((np.asarray(routes.links, np.int64), np.repeat(group, np.diff(routes.starts)))), axis=1
        )
        link = np.unique(uses[0], return_inverse=True)[1].reshape(-1)
        return _joined(link, uses[1], len(rows))


def _joined(link: Int64s, group: Int64s, groups: int) -> Int64s:
    """Return the lowest group that each is joined to, given which groups use which links, by link."""
    lowest = np.arange(groups)
    while True:
        of_link = np.full(int(link.max(initial=-1)) + 1, groups)
        np.minimum.at(of_link, link, lowest[group])
        joined = lowest.copy()
        np.minimum.at(joined, group, of_link[link])
        joined = joined[joined]
        if (joined == lowest).all():
            return joined
        lowest = joined
