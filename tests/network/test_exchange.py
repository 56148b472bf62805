"""Fabrics as networkx graphs, to and from."""

import json

import networkx
import pytest

import rapid_des as rd
from rapid_des.config import to_tree
from tests.cli.shell import call

SHAPES = ("torus_3d_a100", "dgx_h100_x8", "dragonfly_a100_256", "king_mesh_a100", "slim_fly_a100_200")


@pytest.mark.parametrize("name", SHAPES)
def test_routes_and_counts_are_those_that_networkx_finds(name):
    machine = rd.load_machine(name)
    graph = machine.graph()
    assert (len(graph), graph.number_of_edges()) == (machine.fabric.nodes, len(machine.fabric))
    hops = networkx.single_source_shortest_path_length(graph, "gpu1")
    for gpu in range(0, machine.fabric.gpus, 7):
        route = machine.route(1, gpu)
        assert len(route) >= hops[f"gpu{gpu}"]
        assert all(graph.has_edge(*link.split(">")) for link in route)


def test_a_fabric_comes_back_from_its_graph_with_all_rates(tmp_path):
    machine = rd.load_machine("dgx_a100_x2")
    graph = machine.graph()
    device = "a100_sxm_80gb"
    again = rd.Machine.from_graph(graph, device=device, gpus_per_node=8)
    rates = networkx.get_edge_attributes(graph, "bytes_per_s")
    assert networkx.get_edge_attributes(again.graph(), "bytes_per_s") == rates
    assert rd.load_machine(json.loads(json.dumps(to_tree(again.spec, "machine")))) == again
    # a file of the graph, as networkx writes it, is read too
    (tmp_path / "graph.json").write_text(json.dumps(networkx.node_link_data(graph, edges="links")))
    fabric = {
        "name": "f",
        "shape": "graph",
        "size": 16,
        "file": "graph.json",
        "bandwidth": "1 GB/s",
        "latency": "1 us",
    }
    (tmp_path / "machine.yaml").write_text(json.dumps({"name": "m", "device": device, "fabric": [fabric]}))
    read = rd.load_machine(tmp_path / "machine.yaml")
    assert networkx.get_edge_attributes(read.graph(), "bytes_per_s") == rates


def test_links_that_are_down_are_left_out():
    torus = rd.load_machine("torus_2d_a100")
    cut = torus.with_faults([rd.parse_fault("link=0-1 down=true")])
    assert not cut.graph().has_edge("gpu0", "gpu1")
    assert torus.graph().number_of_edges() - cut.graph().number_of_edges() == 2


def _ring(**attributes):
    graph = networkx.relabel_nodes(networkx.cycle_graph(4), "gpu{}".format)
    for key, value in attributes.items():
        networkx.set_edge_attributes(graph, value, key)
    return graph


def test_numbers_are_bytes_a_second_and_seconds():
    machine = rd.Machine.from_graph(_ring(bandwidth=50e9, latency=1e-6), device="a100_sxm_80gb")
    assert machine.graph().edges["gpu0", "gpu3"]["bandwidth"] == "50 GB/s"
    assert machine.graph().edges["gpu3", "gpu0"]["latency"] == "1 us"


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        (_ring(latency=1e-6), "edge gpu0-gpu1: has no 'bandwidth'; its attributes are latency"),
        (_ring(bandwidth=float("nan"), latency=1e-6), "edge gpu0-gpu1: bandwidth nan; allowed: a number"),
        (_ring(bandwidth="fast", latency=1e-6), "'fast'"),
        (networkx.MultiGraph(_ring(bandwidth=1, latency=1)), "one wider link"),
        (networkx.relabel_nodes(_ring(bandwidth="1 GB/s", latency="1 us"), {"gpu0": "gpu9"}), "0 to 3 once"),
        (networkx.Graph(), "size"),
    ],
)
def test_graphs_that_are_no_fabric_are_refused(graph, said):
    with pytest.raises(rd.RapidDesError, match=said):
        rd.Machine.from_graph(graph, device="a100_sxm_80gb")


def test_a_graph_has_a_file_or_edges(tmp_path):
    fabric = {"name": "f", "shape": "graph", "size": 2, "bandwidth": "1 GB/s", "latency": "1 us"}
    (tmp_path / "m.yaml").write_text(json.dumps({"name": "m", "device": "a100_sxm_80gb", "fabric": [fabric]}))
    assert "a graph needs a `file` or `edges`" in call("topology", "show", tmp_path / "m.yaml").err
