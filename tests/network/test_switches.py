"""Trees of switches over groups: where members' ways meet, on whole and on broken fabrics."""

from __future__ import annotations

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapid_des.network.build import build
from rapid_des.network.routing import AnyNodeRouter, DimensionOrderRouter
from rapid_des.network.specs import Routing
from rapid_des.network.switches import SwitchTrees
from tests.network.fabrics import INNER, dimension, graph_of

LINK = {"bandwidth": "50 GB/s", "latency": "500 ns"}
LOWEST = Routing(order="innermost_first", tie="positive", ecmp="lowest_id")


def plan_of(*dimensions, routing=LOWEST):
    return build("x", [dimension(str(place), **keys) for place, keys in enumerate(dimensions)], routing)


def tree(plan, gpus, dead=()):
    """The switches by name, and the parents."""
    dead = frozenset(link for ends in dead for link in _both(plan.fabric, *ends))
    found = SwitchTrees(plan.fabric, dead, plan.routing).over(gpus)
    return found and ([plan.fabric.node_name(node) for node in found.switches], list(found.parents))


def _both(fabric, one, other):
    return fabric.link(one, other), fabric.link(other, one)


CLOS = {"shape": "clos", "size": 8, "leaf_size": 2, "spines": 2, "uplink": LINK}
# nodes: GPUs 0-7, leaves 8-11 (switch0-3), spines 12 and 13 (switch4, switch5)


def test_one_switch_is_its_own_root():
    assert tree(plan_of({"shape": "switch", "size": 4}), (0, 1, 2, 3)) == (["switch0"], [4, 4, 4, 4, -1])


def test_members_of_one_leaf_stay_below_it():
    assert tree(plan_of(CLOS), (2, 3)) == (["switch1"], [2, 2, -1])


def test_leaves_meet_at_a_spine():
    # members 0-3 at leaves 4 and 5 of the tree, below spine 6; switches are listed as the members come by
    assert tree(plan_of(CLOS), (0, 1, 4, 5)) == (
        ["switch0", "switch4", "switch2"],
        [4, 4, 6, 6, 5, -1, 5],
    )


def test_a_leaf_with_one_member_passes_its_data_on():
    assert tree(plan_of(CLOS), (0, 2, 4)) == (["switch4"], [3, 3, 3, -1])


def test_a_switch_is_reached_through_nics_but_not_through_gpus():
    nic = {"gpus": 1, "bandwidth": "60 GB/s", "latency": "600 ns"}
    node, rail = {"shape": "switch", "size": 2}, {"shape": "switch", "size": 2, "nic": nic}
    plan = plan_of(node, rail)
    # rails are switch2 and switch3; GPUs 0 and 3 share neither a node nor a rail
    assert tree(plan, (0, 2)) == (["switch2"], [2, 2, -1])
    assert tree(plan, (0, 3)) is None
    assert tree(plan, (0, 1)) == (["switch0"], [2, 2, -1])


def test_without_switches_there_is_no_tree():
    assert tree(plan_of({"shape": "ring", "size": 4}), (0, 1)) is None


def test_groups_are_spread_over_equal_spines_by_their_hash():
    keys = {"shape": "clos", "size": 32, "leaf_size": 2, "spines": 4, "uplink": LINK}
    spread = plan_of(keys, routing=INNER)
    roots = {tree(spread, (gpu, gpu + 2))[0][0] for gpu in range(30)}
    assert roots == {f"switch{16 + spine}" for spine in range(4)}
    assert {tree(plan_of(keys), (gpu, gpu + 2))[0][0] for gpu in range(30)} == {"switch16"}


def test_dead_links_move_the_root_to_another_spine():
    plan = plan_of(CLOS)
    assert tree(plan, (0, 4), dead=[(8, 12)]) == (["switch5"], [2, 2, -1])
    # one direction is enough
    one_way = frozenset({plan.fabric.link(12, 8)})
    assert SwitchTrees(plan.fabric, one_way, LOWEST).over((0, 4)).switches == (13,)


def test_a_member_without_a_living_link_leaves_no_tree():
    assert tree(plan_of(CLOS), (0, 4), dead=[(0, 8)]) is None


FABRICS = [
    [CLOS],
    [{"shape": "switch", "size": 3}, {"shape": "switch", "size": 3}],
    [{"shape": "switch", "size": 2}, CLOS | {"size": 4, "rails": 2, "spans_inner": True}],
    [
        {"shape": "dragonfly", "size": 12, "hosts": 2, "routers": 2, "global_links": 1}
        | {"local_link": LINK, "global_link": LINK}
    ],
    [CLOS | {"size": 16, "pod_leaves": 4, "cores": 2, "core_link": LINK}],
]


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from(FABRICS),
    st.sampled_from([INNER, LOWEST]),
    st.randoms(use_true_random=False),
    st.sampled_from([0, 0.1, 0.3]),
)
def test_a_tree_reaches_every_member_from_the_nearest_root(dimensions, routing, rng, broken):
    plan = plan_of(*dimensions, routing=routing)
    fabric = plan.fabric
    dead = frozenset(link for link in range(len(fabric)) if rng.random() < broken)
    group = tuple(rng.sample(range(fabric.gpus), rng.randint(2, min(6, fabric.gpus))))
    found = SwitchTrees(fabric, dead, routing).over(group)
    least = {}
    for switch in range(fabric.gpus + fabric.nics, fabric.nodes):
        ways = [_distances(fabric, dead, switch, gpu) for gpu in group]
        if None not in ways:
            least[switch] = max(max(pair) for pair in ways), sum(sum(pair) for pair in ways)
    if not least:
        assert found is None
        return
    root = found.switches[found.parents.index(-1) - len(group)]
    assert least[root] == min(least.values())
    counts = [found.parents.count(place) for place in range(len(found.parents))]
    assert counts[: len(group)] == [0] * len(group)  # members pass nothing on
    # Paths meet at all switches but the root: where links are dead in one direction, they may meet before it.
    met = [
        count for switch, count in zip(found.switches, counts[len(group) :], strict=True) if switch != root
    ]
    assert all(count > 1 for count in met)
    # parents lead to the root, over switches that are ever nearer to it
    nodes = (*group, *found.switches)
    for place, parent in enumerate(found.parents):
        if parent >= 0:
            far, near = (_hops_to(fabric, dead, nodes[end], root) for end in (place, parent))
            assert near < far


def _inner(fabric, dead, *ends):
    """The living graph without GPUs but for these."""
    others = [gpu for gpu in range(fabric.gpus) if gpu not in ends]
    graph = graph_of(fabric, dead)
    graph.remove_nodes_from(others)
    return graph


def _hops_to(fabric, dead, node, root):
    return networkx.shortest_path_length(_inner(fabric, dead, node), node, root)


def _distances(fabric, dead, switch, gpu):
    graph = _inner(fabric, dead, gpu)
    if not (networkx.has_path(graph, gpu, switch) and networkx.has_path(graph, switch, gpu)):
        return None
    return tuple(networkx.shortest_path_length(graph, *ends) for ends in ((gpu, switch), (switch, gpu)))


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(FABRICS), st.randoms(use_true_random=False))
def test_ways_to_switches_are_shortest_and_lead_through_no_gpu(dimensions, rng):
    plan = plan_of(*dimensions)
    fabric, between = plan.fabric, DimensionOrderRouter(plan)
    router = AnyNodeRouter(fabric, between)
    gpus = [(rng.randrange(fabric.gpus), rng.randrange(fabric.gpus)) for _ in range(3)]
    switch = rng.randrange(fabric.gpus + fabric.nics, fabric.nodes)
    graph = _inner(fabric, (), gpus[0][0])
    if not networkx.has_path(graph, gpus[0][0], switch):
        return
    mixed = [gpus[0], (gpus[0][0], switch), gpus[1], (switch, gpus[0][0]), gpus[2]]
    routes = router.routes(mixed)
    for flow in (0, 2, 4):
        assert routes.of(flow) == between.route(*mixed[flow])
    up, down = routes.of(1), routes.of(3)
    assert len(up) == networkx.shortest_path_length(graph, gpus[0][0], switch)
    nodes = [gpus[0][0], *(int(fabric.destination[link]) for link in up)]
    assert nodes[-1] == switch
    assert all(node >= fabric.gpus for node in nodes[1:])
    # and back over the same nodes
    assert [switch, *(int(fabric.destination[link]) for link in down)] == nodes[::-1]


MISSING = {
    "switch0,gpu0": (["gpu0>switch0"], ["switch0>switch1", "switch1>gpu0"]),
    "gpu0,switch0": (["gpu0>switch1", "switch1>switch0"], ["switch0>switch1", "switch1>gpu0"]),
}


@pytest.mark.parametrize("missing", MISSING)
def test_a_link_in_one_direction_only_needs_another_way_back(missing, tmp_path):
    edges = ["gpu0,switch0", "gpu1,switch0", "gpu0,switch1", "switch0,switch1"]
    edges += [",".join(reversed(edge.split(","))) for edge in edges]
    edges.remove(missing)
    path = tmp_path / "edges.csv"
    path.write_text("\n".join(["source,destination,direction", *(f"{edge},one" for edge in edges)]) + "\n")
    plan = plan_of({"shape": "graph", "size": 2, "file": str(path)})
    router = AnyNodeRouter(plan.fabric, DimensionOrderRouter(plan))
    ways = tuple([plan.fabric.link_name(link) for link in router.route(*ends)] for ends in ((0, 2), (2, 0)))
    assert ways == MISSING[missing]
