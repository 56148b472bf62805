"""Fat trees, rails, ECMP, dragonflies and graphs from files."""

import itertools

import networkx
import numpy as np
import pytest

from rapid_des.errors import ConfigError, FabricCutError, TopologyError
from rapid_des.network.build import build
from rapid_des.network.routing import DimensionOrderRouter
from rapid_des.network.specs import Routing
from tests.network.fabrics import INNER, dimension, graph_of

LINK = {"bandwidth": "50 GB/s", "latency": "500 ns"}
GLOBAL = {"bandwidth": "25 GB/s", "latency": "1 us"}


def names(plan, source, destination):
    return [plan.fabric.link_name(link) for link in DimensionOrderRouter(plan).route(source, destination)]


def test_a_rail_optimised_leaf_serves_one_rail_of_its_servers():
    # 4 servers of 2 GPUs; leaves of 2 servers a rail: leaf0 is rail 0 of servers 0-1, leaf1 rail 1 of them.
    clos = dimension(
        "ib", shape="clos", size=4, leaf_size=2, spines=1, rails=2, uplink=LINK, spans_inner=True
    )
    plan = build("x", [dimension("nv", shape="switch", size=2), clos], INNER)
    # switches: 4 NVSwitches, then 4 leaves (4-7), then the spine (8)
    assert names(plan, 0, 2) == ["gpu0>switch4", "switch4>gpu2"]  # same rail and leaf
    assert names(plan, 0, 6) == ["gpu0>switch4", "switch4>switch8", "switch8>switch6", "switch6>gpu6"]
    assert names(plan, 0, 3) == [
        "gpu0>switch0",
        "switch0>gpu1",
        "gpu1>switch5",
        "switch5>gpu3",
    ]  # NVLink, then rail 1


def test_ecmp_spreads_flows_and_keeps_each_on_one_way():
    keys = {"shape": "clos", "size": 64, "leaf_size": 8, "spines": 8, "uplink": LINK}
    plan = build("x", [dimension(**keys)], INNER)
    flows = [(a, b) for a in range(8) for b in range(8, 64)]
    routes = DimensionOrderRouter(plan).routes(flows)
    spines = plan.fabric.destination[routes.links[routes.starts[:-1] + 1]]
    share = np.bincount(spines, minlength=80)[72:]
    # 448 flows over 8 spines: 56 each on average, binomial deviation 7; none is starved or doubled.
    assert share.min() > 28
    assert share.max() < 84
    assert DimensionOrderRouter(plan).routes(flows).links.tolist() == routes.links.tolist()
    lowest = build(
        "x", [dimension(**keys)], Routing(order="innermost_first", tie="positive", ecmp="lowest_id")
    )
    assert names(lowest, 0, 63)[1] == "switch0>switch8"


def test_oversubscription_leaves_fewer_ways_up():
    # radix 12 with 3:1: 9 down, 3 up.
    keys = {"shape": "fat_tree", "size": 18, "levels": 2, "radix": 12, "oversubscription": 3, "uplink": LINK}
    fabric = build("x", [dimension(**keys)], INNER).fabric
    assert fabric.nodes == 18 + 2 + 3
    assert np.count_nonzero(fabric.source == 18) == 9 + 3


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"shape": "fat_tree", "size": 9, "levels": 2, "radix": 4, "oversubscription": 1}, "up to 4 leaves"),
        (
            {"shape": "fat_tree", "size": 8, "levels": 2, "radix": 4, "oversubscription": 2},
            "even multiple of 3",
        ),
        (
            {"shape": "fat_tree", "size": 8, "levels": 3, "radix": 4, "oversubscription": 1},
            "core_link: needed",
        ),
        ({"shape": "clos", "size": 8, "leaf_size": 2, "spines": 2, "cores": 2}, "all three"),
    ],
)
def test_trees_that_do_not_fit_say_what_would(keys, says):
    with pytest.raises(TopologyError, match=says):
        build("x", [dimension(**keys, uplink=LINK)], INNER)


def test_a_dragonfly_needs_a_global_link_for_every_other_group():
    keys = {
        "shape": "dragonfly",
        "hosts": 1,
        "routers": 2,
        "global_links": 1,
        "local_link": LINK,
        "global_link": LINK,
    }
    build("x", [dimension(size=6, **keys)], INNER)
    with pytest.raises(TopologyError, match="size: 8; allowed: up to 6"):
        build("x", [dimension(size=8, **keys)], INNER)
    with pytest.raises(TopologyError, match="global_links: 5; allowed: up to 4"):
        build("x", [dimension(size=6, **keys | {"global_links": 5})], INNER)
    # One group has no global links, and its routers are one hop apart.
    alone = build("x", [dimension(size=2, **keys)], INNER)
    assert names(alone, 0, 1) == ["gpu0>switch0", "switch0>switch1", "switch1>gpu1"]


def small_dragonfly(size, hosts, routers, global_links):
    keys = {"hosts": hosts, "routers": routers, "global_links": global_links}
    stated = dimension(shape="dragonfly", size=size, **keys, local_link=LINK, global_link=GLOBAL)
    return build("x", [stated], INNER)


def test_cables_between_the_same_routers_of_a_dragonfly_add_up():
    # 4 groups of 4 routers with 6 cables each: 24 of a group, 8 to each of three others, two a router.
    fabric = small_dragonfly(64, 4, 4, 6).fabric
    between = (fabric.source >= 64) & (fabric.destination >= 64)
    group = np.array([(node - 64) // 4 for node in range(fabric.nodes)])
    for one, other in itertools.permutations(range(4), 2):
        links = between & (group[fabric.source] == one) & (group[fabric.destination] == other)
        assert fabric.bandwidth[links].sum() == 8 * 25 * 10**9
        assert set(fabric.bandwidth[links].tolist()) == {2 * 25 * 10**9}


@pytest.mark.parametrize(("groups", "routers", "cables"), [(4, 2, 2), (5, 2, 3), (7, 3, 2), (3, 4, 4)])
def test_routes_of_a_dragonfly_are_the_shortest_over_one_global_link(groups, routers, cables):
    built = small_dragonfly(groups * routers, 1, routers, cables)
    fabric = built.fabric
    router = DimensionOrderRouter(built)
    group = [node % (groups * routers) // routers for node in range(fabric.nodes)]
    for source, goal in itertools.permutations(range(fabric.gpus), 2):
        inside = [node for node in range(fabric.nodes) if group[node] in (group[source], group[goal])]
        ways = networkx.all_simple_paths(graph_of(fabric).subgraph(inside), source, goal, cutoff=5)
        crossings = [
            (len(way) - 1, sum(group[a] != group[b] for a, b in itertools.pairwise(way))) for way in ways
        ]
        assert len(router.route(source, goal)) == min(hops for hops, crossed in crossings if crossed <= 1)


def graph(tmp_path, text, size=3, name="g.csv"):
    (tmp_path / name).write_text(text)
    return build("x", [dimension(shape="graph", size=size, file=str(tmp_path / name))], INNER)


CSV = """source,destination,bandwidth,latency,direction
0,leaf,25 GB/s,1 us,
1,leaf,,,
2,leaf,,,
0,2,10 GB/s,,one
"""


def test_an_edge_list_states_rates_directions_and_any_node(tmp_path):
    plan = graph(tmp_path, CSV)
    fabric = plan.fabric
    assert (fabric.gpus, fabric.nodes, len(fabric)) == (3, 4, 7)
    assert fabric.bandwidth[fabric.link(0, 3)] == fabric.bandwidth[fabric.link(3, 0)] == 25_000_000_000
    assert fabric.bandwidth[fabric.link(1, 3)] == 100_000_000_000  # the dimension's own
    assert names(plan, 0, 2) == ["gpu0>gpu2"]
    assert names(plan, 2, 0) == ["gpu2>switch0", "switch0>gpu0"]


def test_node_link_json_reads_as_networkx_writes_it(tmp_path):
    text = (
        '{"directed": false, "nodes": [], "links": [{"source": "gpu0", "target": "gpu1", "latency": "3 us"}]}'
    )
    fabric = graph(tmp_path, text, size=2, name="g.json").fabric
    assert fabric.latency.tolist() == [3_000_000, 3_000_000]


def test_a_directed_json_graph_is_taken_as_directed_and_bad_json_is_named(tmp_path):
    text = '{"directed": true, "edges": [{"source": 0, "target": 1}, {"source": 1, "target": 0}]}'
    assert len(graph(tmp_path, text, size=2, name="g.json").fabric) == 2
    for wrong, says in (
        ("{", "not valid JSON"),
        ("[]", "no node-link graph"),
        ('{"links": [{"source": 0}]}', "missing"),
    ):
        with pytest.raises(ConfigError, match=says):
            graph(tmp_path, wrong, size=2, name="g.json")
    with pytest.raises(ConfigError, match="cannot be read"):
        build("x", [dimension(shape="graph", size=2, file=str(tmp_path / "none.csv"))], INNER)


def test_a_graph_in_two_parts_says_so_when_asked_for_a_way(tmp_path):
    plan = graph(tmp_path, "source,destination\n0,1\n2,x\n")
    with pytest.raises(FabricCutError, match="gpu0 cannot reach gpu2|0 cannot reach 2"):
        names(plan, 0, 2)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b\n0,1\n", "the header is a,b; allowed: source,destination"),
        ("source,destination\n0,1\n0,1\n", "stands twice"),
        ("source,destination\n0,0\n", "a link to itself"),
        ("source,destination\n0,1\n", "has 2 GPUs; the dimension's size needs each of 0 to 2 once"),
        ("source,destination,bandwidth\n0,1,fast\n", "row 1: 'fast' is not a quantity"),
        ("source,destination,bandwidth\n0,1,0 GB/s\n", "must be above 0"),
        ("source,destination,direction\n0,1,up\n", "'up' is not one of both, one"),
        ("source,destination\n0\n", "row 1 has not 2 cells"),
        ("", "the header is"),
    ],
)
def test_a_malformed_edge_list_is_one_line_with_its_place(tmp_path, text, says):
    with pytest.raises(ConfigError) as caught:
        graph(tmp_path, text)
    assert says in str(caught.value)
    assert "g.csv" in str(caught.value)
