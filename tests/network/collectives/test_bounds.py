"""Lower bounds, worked out by hand on small fabrics."""

from __future__ import annotations

import numpy as np
import pytest

from rapid_des.chakra.trace import CollectiveType
from rapid_des.network.collectives.bounds import bounds, traffic
from rapid_des.network.fabric import Fabric

GB = 10**9


def ring(members, *, bandwidth=GB, latency=1000):
    up = [(node, (node + 1) % members) for node in range(members)]
    pairs = np.array([*up, *((b, a) for a, b in up)])
    count = len(pairs)
    return Fabric(
        name="ring",
        extents=((members,),),
        gpus=members,
        nodes=members,
        source=pairs[:, 0].astype(np.int32),
        destination=pairs[:, 1].astype(np.int32),
        bandwidth=np.full(count, bandwidth),
        latency=np.full(count, latency),
        dimension=np.zeros(count, dtype=np.int16),
    )


def test_an_all_reduce_on_a_ring_is_bound_by_its_links():
    # each of 4 members has two links of 1 GB/s: 2·3·S bytes in all over 8 GB/s; S = 8 MB: 6 ms
    found = bounds(ring(4), range(4), CollectiveType.ALL_REDUCE, 8 * 10**6)
    assert found.bandwidth == 6 * 10**9
    # the farthest pair is two hops apart
    assert found.latency == 2000
    assert found.kind == "bandwidth"


def test_an_all_to_all_on_a_ring_is_bound_by_its_bisection():
    # 8 members, S = 8 MB: 4·4 pairs of 1 MB cross the cut of 2 links, one way: 8 ms, links alone 3.5 ms
    found = bounds(ring(8), range(8), CollectiveType.ALL_TO_ALL, 8 * 10**6, halving=2 * GB)
    assert (found.bisection, found.bandwidth) == (8 * 10**9, 3_500_000_000)
    assert found.kind == "bisection"


def test_a_barrier_is_bound_by_latency_alone():
    found = bounds(ring(8, latency=700), range(8), CollectiveType.BARRIER, 0)
    assert (found.time, found.kind) == (2800, "latency")


def test_switches_that_add_up_spare_members_what_they_send_for_others():
    # 4 members with two links of 1 GB/s each send S = 8 MB once, not 2·3/4 times
    found = bounds(ring(4), range(4), CollectiveType.ALL_REDUCE, 8 * 10**6, in_switch=True)
    assert found.bandwidth == 4 * 10**9
    # but nobody is spared the 3 shards of the others
    gathered = bounds(ring(4), range(4), CollectiveType.ALL_GATHER, 10**6, in_switch=True)
    assert gathered.bandwidth == 1_500_000_000


def test_one_member_needs_no_time():
    assert bounds(ring(4), [2], CollectiveType.ALL_REDUCE, 100).time == 0


@pytest.mark.parametrize("kind", list(CollectiveType), ids=lambda kind: kind.name)
def test_nobody_moves_more_than_all_together(kind):
    need = traffic(kind, 8, 800)
    assert need.send <= need.total
    assert need.receive <= need.total
    assert need.crossing <= need.total
