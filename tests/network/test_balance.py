"""All-to-alls load the links of a regular fabric alike: the fullest link against the bisection."""

from math import ceil, prod

import numpy as np
import pytest

from rapid_des.machine import load_machine
from rapid_des.network.build import build
from rapid_des.network.routing import DimensionOrderRouter
from rapid_des.network.specs import Routing
from rapid_des.program.routes import all_pairs
from tests.network.fabrics import dimension

RATE = {"bandwidth": "1 GB/s", "latency": "1 us"}


def router_of(shape, size, *, tie="positive", ecmp="hash", order="innermost_first", **keys):
    routing = Routing(order=order, tie=tie, ecmp=ecmp)
    return DimensionOrderRouter(build("x", [dimension("x", shape=shape, size=size, **keys)], routing))


def fullest(router, pairs=None):
    """Return how many messages cross the fullest link, of an all-to-all unless pairs are given."""
    everybody = all_pairs([tuple(range(router.fabric.gpus))])
    links = router.routes(everybody if pairs is None else pairs).links
    return int(np.bincount(links).max())


@pytest.mark.parametrize("order", ["innermost_first", "outermost_first"])
@pytest.mark.parametrize(
    "size", [[2], [4], [6], [8], [10], [2, 4], [4, 4], [6, 4], [6, 6], [8, 6], [4, 4, 6]]
)
def test_balanced_ties_bring_an_all_to_all_on_an_even_torus_to_its_bisection(size, order):
    # An axis of n has n/4 of n·n/2 hops of opposite pairs on each of 2n links, and (n/2 - 1)·n/4 of others
    # each way: n²/8 a link and line; n·n/4 messages cross each of its two cuts, 2 links one way.
    balanced = router_of("torus", size, tie="balanced", order=order)
    bound = max(prod(size) * extent / (8 if extent > 2 else 4) for extent in size)
    assert fullest(balanced) == ceil(bound)


def test_ties_that_all_go_up_take_half_as_long_again():
    # on a ring of 4: 4·2/4 = 2 messages a link, and 3 where opposite pairs all go up
    assert fullest(router_of("ring", 4, tie="balanced")) == 2
    assert fullest(router_of("ring", 4, tie="positive")) == 3


def test_an_exchange_with_the_opposite_position_uses_both_directions():
    # 8 messages of 4 hops on 16 links
    pairs = np.array([(gpu, (gpu + 4) % 8) for gpu in range(8)])
    assert fullest(router_of("ring", 8, tie="balanced"), pairs) == 2
    assert fullest(router_of("ring", 8, tie="positive"), pairs) == 4


@pytest.mark.parametrize("size", [[3, 3], [4, 4], [6, 6], [8, 8], [2, 4], [4, 6]])
def test_kings_that_go_straight_to_the_goal_fill_the_middle_less(size):
    # n/2 · n/2 · w² messages cross the middle over w straight and 2·(w - 1) diagonal links
    lines = zip(size, reversed(size), strict=True)
    bound = max((axis // 2) * (axis - axis // 2) * width**2 / (3 * width - 2) for axis, width in lines)
    line, first = (fullest(router_of("king_mesh", size, tie=tie)) for tie in ("balanced", "positive"))
    assert bound <= line <= first
    assert line <= 1.7 * bound


def test_a_balanced_king_takes_a_shortest_route():
    router = router_of("king_mesh", [5, 4, 3], tie="balanced")
    pairs = all_pairs([tuple(range(60))])
    place = np.stack(np.unravel_index(pairs, (5, 4, 3), order="F"))
    apart = np.abs(place[:, :, 0] - place[:, :, 1]).max(axis=0)
    assert (np.diff(router.routes(pairs).starts) == apart).all()


CLOS = {"leaf_size": 8, "spines": 8, "uplink": RATE}
TREE = {"levels": 3, "radix": 8, "oversubscription": 1, "uplink": RATE, "core_link": RATE}


@pytest.mark.parametrize(("shape", "keys"), [("clos", CLOS), ("fat_tree", TREE)])
def test_by_destination_a_full_fat_tree_carries_an_all_to_all_and_every_shift_at_the_rate_of_its_hosts(
    shape, keys
):
    by_destination, hashed, lowest = (
        router_of(shape, 64, ecmp=ecmp, **keys) for ecmp in ("destination", "hash", "lowest_id")
    )
    assert fullest(by_destination) == 63  # as each host sends
    assert fullest(hashed) > 63
    assert fullest(lowest) >= 7 * 63 - 49  # all of a leaf's to others on one link
    for shift in range(1, 64):
        pairs = np.array([(gpu, (gpu + shift) % 64) for gpu in range(64)])
        assert fullest(by_destination, pairs) == 1


@pytest.mark.parametrize("name", ["torus_2d_a100", "torus_3d_a100", "torus2d_ring_a100_64"])
def test_shipped_tori_carry_an_all_to_all_at_their_bisection(name):
    where = load_machine(name)
    links = where.router.routes(all_pairs([tuple(range(64))])).links
    messages, dimensions = np.bincount(links, minlength=len(where.fabric)), where.fabric.dimension
    for number in range(len(where.fabric.dimensions)):
        carried = messages[dimensions == number]
        assert (carried == carried[0]).all()


@pytest.mark.parametrize(
    "name", ["hgx_a100_clos_16", "dgx_h100_superpod_32", "dgx_h100_superpod_128", "vista_128"]
)
def test_shipped_fat_trees_carry_an_all_to_all_at_the_rate_of_their_nics(name):
    where = load_machine(name)
    fabric = where.fabric
    links = where.router.routes(all_pairs([tuple(range(fabric.gpus))])).links
    taken = np.bincount(links, minlength=len(fabric)) / fabric.bandwidth
    first = fabric.gpus + fabric.nics
    between = (fabric.source >= first) & (fabric.destination >= first)
    assert taken[between].max() <= taken[~between].max()
