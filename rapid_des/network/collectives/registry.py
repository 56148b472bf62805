"""The collective algorithms by name, and what each of them does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from itertools import product
from typing import TypeAlias

from msgspec import Struct

from rapid_des.chakra.trace import CollectiveType
from rapid_des.errors import InputError
from rapid_des.extensions import COLLECTIVES, find, is_known, names
from rapid_des.network.collectives import doubling, ring, trees
from rapid_des.network.collectives.proof import prove
from rapid_des.network.collectives.schedule import Demand, Schedule, demand, together

Build: TypeAlias = Callable[[Demand], Schedule]
C = CollectiveType


class Algorithm(Struct, frozen=True):
    """A named family of schedules: one function for each collective that it does.

    Other distributions add algorithms by entry points of the group `rapid_des.collectives`.
    """

    name: str
    does: Mapping[CollectiveType, Build]

    def __call__(
        self, collective: CollectiveType, members: int, size: int, *, root: int = 0, chunks: int = 1
    ) -> Schedule:
        """Return the transfers for an input buffer of `size` bytes on each member.

        `size` is the shard for all-gather and gather, else the full tensor. With `chunks` > 1 that many
        parts of it go through the algorithm side by side, in order on every link.
        """
        if chunks < 1:
            raise InputError(f"a collective is split into 1 chunk or more, not {chunks}")
        parts = demand(collective, members, size, root=root).chunks(chunks)
        return together([self.schedule(part) for part in parts])

    def schedule(self, of: Demand) -> Schedule:
        """Return the transfers of a demand; `InputError` names what this algorithm does if not that."""
        if of.collective not in self.does:
            raise InputError(
                f"{self.name} does not do {of.collective.name.lower()}; it does "
                f"{', '.join(kind.name.lower() for kind in self.does)}, and {of.collective.name.lower()} is "
                f"done by {', '.join(algorithms_for(of.collective))}"
            )
        return self.does[of.collective](of)


def _algorithm(name: str, *groups: tuple[Build, tuple[CollectiveType, ...]]) -> Algorithm:
    return Algorithm(name, {kind: build for build, kinds in groups for kind in kinds})


_REDUCTIONS = (C.ALL_REDUCE, C.ALL_GATHER, C.REDUCE_SCATTER, C.REDUCE_SCATTER_BLOCK)

ALGORITHMS: dict[str, Algorithm] = {
    "ring": _algorithm(
        "ring",
        (ring.ring_reduction, _REDUCTIONS),
        (ring.ring_all_to_all, (C.ALL_TO_ALL,)),
        (ring.chain_broadcast, (C.BROADCAST,)),
        (ring.chain_reduce, (C.REDUCE,)),
        (ring.chain_scatter, (C.SCATTER,)),
        (ring.chain_gather, (C.GATHER,)),
    ),
    "bidirectional_ring": _algorithm(
        "bidirectional_ring",
        (ring.bidirectional_ring_reduction, _REDUCTIONS),
        (ring.bidirectional_ring_all_to_all, (C.ALL_TO_ALL,)),
        (ring.bidirectional_chain_broadcast, (C.BROADCAST,)),
        (ring.bidirectional_chain_reduce, (C.REDUCE,)),
        (ring.bidirectional_chain_scatter, (C.SCATTER,)),
        (ring.bidirectional_chain_gather, (C.GATHER,)),
    ),
    "direct": _algorithm(
        "direct",
        (doubling.direct_all_reduce, (C.ALL_REDUCE,)),
        (
            doubling.direct_exchange,
            (C.ALL_GATHER, C.REDUCE_SCATTER, C.REDUCE_SCATTER_BLOCK, C.ALL_TO_ALL, C.BARRIER),
        ),
        (doubling.linear, (C.BROADCAST, C.REDUCE, C.SCATTER, C.GATHER)),
    ),
    "one_shot": _algorithm("one_shot", (doubling.one_shot_all_reduce, (C.ALL_REDUCE,))),
    "halving_doubling": _algorithm(
        "halving_doubling",
        (doubling.reduction, _REDUCTIONS),
        (doubling.exchange_all_reduce, (C.BARRIER,)),
    ),
    "recursive_doubling": _algorithm(
        "recursive_doubling", (doubling.exchange_all_reduce, (C.ALL_REDUCE, C.BARRIER))
    ),
    "double_binary_tree": _algorithm(
        "double_binary_tree",
        (trees.double_binary_tree, (C.ALL_REDUCE,)),
        (trees.rooted_double_binary_tree, (C.BROADCAST, C.REDUCE)),
    ),
    "binomial_tree": _algorithm(
        "binomial_tree",
        (trees.binomial, (C.ALL_REDUCE, C.BROADCAST, C.REDUCE)),
        (trees.binomial_blocks, (C.SCATTER, C.GATHER)),
        (trees.binomial, (C.BARRIER,)),
    ),
    "dissemination": _algorithm("dissemination", (doubling.dissemination_barrier, (C.BARRIER,))),
    "bucket": _algorithm("bucket", (trees.bucket, _REDUCTIONS)),
    "bruck": _algorithm("bruck", (doubling.bruck_all_gather, (C.ALL_GATHER,))),
}


def algorithms_for(collective: CollectiveType) -> tuple[str, ...]:
    """Return the names of the algorithms that do `collective`, in the registry's order.

    >>> algorithms_for(CollectiveType.SCATTER)
    ('ring', 'bidirectional_ring', 'direct', 'binomial_tree')
    """
    return tuple(name for name, algorithm in ALGORITHMS.items() if collective in algorithm.does)


def algorithm(name: str) -> Algorithm:
    """Return an algorithm by name, also one of another distribution; `InputError` names them all if none."""
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    if is_known(COLLECTIVES, name):
        return _of_another_distribution(name)
    allowed = ", ".join((*ALGORITHMS, *names(COLLECTIVES)))
    raise InputError(f"{name!r} is not a collective algorithm; allowed: {allowed}")


@cache
def _of_another_distribution(name: str) -> Algorithm:
    """Return an algorithm that another distribution provides, proved on small groups."""
    found = find(COLLECTIVES, name, Algorithm)
    for collective, members in product(found.does, _PROVED_MEMBERS):
        schedule = found(collective, members, _PROVED_BYTES)
        try:
            prove(schedule, demand(collective, members, _PROVED_BYTES))
        except InputError as error:
            problem = f"does not do {collective.name.lower()} of {members} members: {error}"
            raise InputError(f"{COLLECTIVES}: {name!r} {problem}") from None
    return found


_PROVED_MEMBERS, _PROVED_BYTES = (2, 3, 4, 5), 61
"""The groups and the size on which an algorithm of another distribution is proved when it is loaded."""
