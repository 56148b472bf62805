"""Fault-aware routes: there whenever the graph connects the two, shortest, nearest to the plan, loop-free."""

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from rapid_des.errors import FabricCutError
from rapid_des.network.build import build
from rapid_des.network.routing import DimensionOrderRouter, FaultAwareRouter
from rapid_des.network.specs import NonMinimal, Routing
from tests.network.fabrics import INNER, dimension, graph_of

RATE = {"bandwidth": "1 GB/s", "latency": "1 us"}
LOW_DIAMETER = [
    {"shape": "hyperx", "size": 8, "hosts": 1, "routers": [3, 3], "router_link": RATE},
    {"shape": "slim_fly", "size": 12, "hosts": 1, "q": 3, "router_link": RATE},
    {"shape": "dragonfly_plus", "size": 10, "hosts": 1, "leaves": 2, "spines": 2, "global_links": 2,
     "local_link": RATE, "global_link": RATE},
]  # fmt: skip
DIMENSIONS = st.one_of(
    st.builds(lambda size: {"shape": "ring", "size": size}, st.integers(2, 6)),
    st.builds(
        lambda size: {"shape": "torus", "size": size}, st.lists(st.integers(2, 4), min_size=2, max_size=2)
    ),
    st.builds(
        lambda size: {"shape": "mesh", "size": size}, st.lists(st.integers(1, 4), min_size=1, max_size=2)
    ),
    st.builds(
        lambda size: {"shape": "king_mesh", "size": size}, st.lists(st.integers(2, 4), min_size=2, max_size=2)
    ),
    st.builds(lambda size: {"shape": "hypercube", "size": size}, st.integers(2, 9)),
    st.builds(lambda size: {"shape": "fully_connected", "size": size}, st.integers(2, 5)),
    st.builds(lambda size: {"shape": "switch", "size": size}, st.integers(2, 5)),
    st.builds(
        lambda size: {
            "shape": "switch",
            "size": size,
            "nic": {"bandwidth": "1 GB/s", "latency": "1 us", "gpus": 1},
        },
        st.integers(2, 4),
    ),
    st.sampled_from(
        [
            {"shape": "twisted_torus", "size": [4, 2], "twists": [{"wrap": 1, "along": 0, "by": 2}]},
            {"shape": "twisted_torus", "size": [2, 2, 4], "twists": [{"wrap": 0, "along": 2, "by": 1}]},
            {"shape": "switch", "size": 3, "planes": 2, "spread": "hash"},
            {
                "shape": "clos",
                "size": 4,
                "leaf_size": 2,
                "spines": 2,
                "uplink": RATE,
                "planes": 2,
                "spread": "hash",
                "nic": {**RATE, "gpus": 1, "count": 4},
            },
            *LOW_DIAMETER,
        ]
    ),
)
ROUTINGS = st.builds(
    Routing,
    order=st.sampled_from(["innermost_first", "outermost_first"]),
    tie=st.sampled_from(["positive", "lowest_id", "hash", "balanced"]),
)


@st.composite
def broken_fabrics(draw):
    keys, routing = draw(st.lists(DIMENSIONS, min_size=1, max_size=2)), draw(ROUTINGS)
    if any(each in LOW_DIAMETER for each in keys) and draw(st.booleans()):
        detour = NonMinimal(
            through="router", share=draw(st.sampled_from([0.5, 1.0])), seed=draw(st.integers(0, 9))
        )
        routing = structs.replace(routing, non_minimal=detour)
    if any(each["shape"] == "twisted_torus" for each in keys):
        routing = structs.replace(routing, tie=draw(st.sampled_from(["positive", "hash"])))
    plan = build("x", [dimension(str(i), **each) for i, each in enumerate(keys)], routing)
    links = len(plan.fabric)
    dead = draw(st.sets(st.integers(0, links - 1), max_size=int(0.3 * links))) if links else set()
    return plan, frozenset(dead)


def oracle(plan, graph, source, destination):
    """Among all shortest surviving paths: longest common start with the plan, then lowest ids."""
    route = DimensionOrderRouter(plan).route(source, destination)
    planned = [source, *plan.fabric.destination[list(route)].tolist()]
    if all(graph.has_edge(*hop) for hop in zip(planned, planned[1:], strict=False)):
        return planned

    def key(path):
        common = 0
        while common < min(len(path), len(planned)) and path[common] == planned[common]:
            common += 1
        return -common, path

    return min(networkx.all_shortest_paths(graph, source, destination), key=key)


@settings(max_examples=40, deadline=None)
@given(broken_fabrics(), st.data())
def test_a_route_exists_exactly_if_the_survivors_connect_and_is_the_one_the_rule_names(broken, data):
    plan, dead = broken
    graph, router = (
        graph_of(plan.fabric, dead),
        FaultAwareRouter(plan.fabric, DimensionOrderRouter(plan), dead),
    )
    gpus = st.integers(0, plan.fabric.gpus - 1)
    for source, destination in data.draw(st.lists(st.tuples(gpus, gpus), min_size=1, max_size=8)):
        if not networkx.has_path(graph, source, destination):
            with pytest.raises(FabricCutError):
                router.route(source, destination)
            continue
        route = list(router.route(source, destination))
        assert dead.isdisjoint(route)
        path = [source, *plan.fabric.destination[route].tolist()]
        assert plan.fabric.source[route].tolist() == path[:-1]
        assert path[-1] == destination
        assert len(set(path)) == len(path)
        assert path == oracle(plan, graph, source, destination)
        assert router.routes([(source, destination)]).of(0) == tuple(route)


def test_the_detour_leaves_the_plan_as_late_as_it_can():
    # 5x2 mesh, id = x + 5·y; from (0, 0) to (3, 1) the plan is 1 2 3 8. Without 2-3 it is followed
    # to 2, then 7 and 8: still four hops. Going up first (5 6 7 8) would be as short, but leave early.
    plan = build("x", [dimension(shape="mesh", size=[5, 2])], INNER)
    router = FaultAwareRouter(plan.fabric, DimensionOrderRouter(plan), frozenset([plan.fabric.link(2, 3)]))
    assert plan.fabric.destination[list(router.route(0, 8))].tolist() == [1, 2, 7, 8]
    assert plan.fabric.destination[list(router.route(3, 5))].tolist() == [
        2,
        1,
        0,
        5,
    ]  # only one direction is dead


def test_a_cut_names_both_sides_and_the_links():
    # A line of four, cut in the middle in one direction.
    plan = build("line", [dimension(shape="mesh", size=4)], INNER)
    router = FaultAwareRouter(plan.fabric, DimensionOrderRouter(plan), frozenset([plan.fabric.link(1, 2)]))
    assert len(router.route(3, 0)) == 3
    with pytest.raises(FabricCutError) as caught:
        router.route(0, 3)
    cut = "dead links cut 2 GPUs (gpu0, gpu1) from 2 GPUs (gpu2, gpu3): gpu1>gpu2"
    assert str(caught.value) == f"line: gpu0 cannot reach gpu3: {cut}"
