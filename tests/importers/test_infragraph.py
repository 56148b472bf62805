"""InfraGraph files: what they expand to, what they are as fabrics, and what is wrong with bad ones."""

import json
import re

import msgspec
import numpy as np
import pytest
import yaml

from rapid_des.errors import ConfigError
from rapid_des.importers.infragraph import idle_keys
from rapid_des.importers.infragraph.expansion import Expansion, indices, read
from rapid_des.importers.keys import Ignored
from rapid_des.machine import load_machine
from rapid_des.network.build import build
from rapid_des.network.dimensions import InfraGraph
from rapid_des.simulation import replay
from rapid_des.testing.importers import ReadFile, silent
from tests.network.fabrics import INNER
from tests.program.machines import machine, switch
from tests.program.tracing import ALL_REDUCE, Nodes, same_everywhere


def physical(gigabytes, nanoseconds):
    return {
        "bandwidth": {"choice": "gigabytes_per_second", "gigabytes_per_second": gigabytes},
        "latency": {"choice": "ns", "ns": nanoseconds},
    }


def edge(one, other, link, scheme="many2many"):
    """`hosts/gpu[0:2]` is an end between instances, `gpu[0]` one inside a device."""

    def end(text):
        instance, slash, component = text.rpartition("/")
        return {"instance": instance, "component": component} if slash else {"component": component}

    return {"ep1": end(one), "ep2": end(other), "link": link, "scheme": scheme}


def component(name, choice, count=1):
    return {"name": name, "choice": choice, "count": count}


def servers():
    """Two servers of two GPUs behind a switch each; a GPU's NIC is a device of its own; one switch joins."""
    return {
        "devices": [
            {
                "name": "server",
                "components": [
                    component("gpu", "xpu", 2),
                    component("nvsw", "switch"),
                    component("cx", "device", 2),
                ],
                "links": [{"name": "nvlink", "physical": physical(100, 300)}, {"name": "pcie"}],
                "edges": [
                    edge("gpu", "nvsw", "nvlink"),
                    {
                        "ep1": {"component": "gpu"},
                        "ep2": {"device": "cx", "component": "nic"},
                        "link": "pcie",
                        "scheme": "one2one",
                    },
                ],
            },
            {
                "name": "cx",
                "components": [component("nic", "nic"), component("port", "port")],
                "links": [{"name": "inside", "physical": physical(50, 10)}],
                "edges": [edge("nic", "port", "inside")],
            },
            {"name": "leaf", "components": [component("asic", "switch")]},
        ],
        "instances": [
            {"name": "host", "device": "server", "count": 2},
            {"name": "leaf", "device": "leaf", "count": 1},
        ],
        "links": [
            {
                "name": "eth",
                "physical": {
                    "bandwidth": {"choice": "gigabits_per_second", "gigabits_per_second": 200},
                    "latency": {"choice": "us", "us": 1.5},
                },
            }
        ],
        "edges": [edge("host/cx.port", "leaf/asic", "eth")],
    }


RATES = {"pcie": {"bandwidth": "32 GB/s", "latency": "600 ns"}}


def fabric(tmp_path, tree, *, name="g.yaml", size=4, **keys):
    path = tmp_path / name
    path.write_text(json.dumps(tree) if path.suffix == ".json" else yaml.safe_dump(tree, sort_keys=False))
    stated = {"name": "d", "size": size, "file": str(path), "rates": RATES} | keys
    return build("x", [msgspec.convert(stated, InfraGraph, dec_hook=parsed)], INNER).fabric


def parsed(target, text):
    return target.parse(text)


def test_an_expansion_lists_the_pieces_in_the_order_of_the_file(tmp_path):
    path = tmp_path / "g.yaml"
    path.write_text(yaml.safe_dump(servers()))
    found = Expansion(read(path), path)
    inside = ["gpu.0", "gpu.1", "nvsw.0", "cx.0.nic.0", "cx.0.port.0", "cx.1.nic.0", "cx.1.port.0"]
    expected = [f"host.{host}.{name}" for host in (0, 1) for name in inside]
    assert [node.path for node in found.nodes] == [*expected, "leaf.0.asic.0"]
    edges = {frozenset(edge.ends) for edge in found.edges}
    assert frozenset({"host.1.gpu.1", "host.1.cx.1.nic.0"}) in edges
    assert frozenset({"host.1.gpu.1", "host.1.cx.0.nic.0"}) not in edges
    # per host: 2 to the switch, 2 to NICs, 2 inside those, 2 to the leaf
    assert len(edges) == len(found.edges) == 2 * 8


@pytest.mark.parametrize("name", ["g.yaml", "g.yml", "g.json"])
def test_gpus_nics_and_switches_with_the_rates_that_the_file_states(tmp_path, name):
    found = fabric(tmp_path, servers(), name=name)
    # switches: two nvsw, four ports, the leaf
    assert (found.gpus, found.nics, found.nodes, len(found)) == (4, 4, 4 + 4 + 7, 2 * 16)
    gpu2, nic2 = 2, 4 + 2
    assert found.bandwidth[found.link(gpu2, nic2)] == 32_000_000_000
    assert found.latency[found.link(nic2, gpu2)] == 600_000
    leaf = found.nodes - 1
    into = np.flatnonzero(found.destination == leaf)
    assert set(found.bandwidth[into].tolist()) == {25_000_000_000}
    assert set(found.latency[into].tolist()) == {1_500_000}


def test_a_file_may_be_wrapped_as_the_service_writes_it(tmp_path):
    plain = fabric(tmp_path, servers())
    wrapped = fabric(tmp_path, {"infrastructure": servers(), "annotations": {}})
    np.testing.assert_array_equal(plain.source, wrapped.source)


def test_devices_as_one_node_hide_their_inside(tmp_path):
    tree = servers()
    tree["devices"][1]["links"] = [{"name": "inside"}]  # no rates: not needed any more
    found = fabric(tmp_path, tree, as_one={"cx": "nic", "leaf": "switch"})
    assert (found.gpus, found.nics, found.nodes, len(found)) == (4, 4, 4 + 4 + 3, 2 * 12)
    assert found.bandwidth[found.link(4, found.nodes - 1)] == 25_000_000_000


def test_parallel_cables_between_devices_are_one_wider_link(tmp_path):
    tree = servers()
    tree["devices"][2]["components"] = [component("port", "port", 4)]
    tree["instances"][1]["count"] = 2
    tree["edges"] = [
        edge("host/cx.port", "leaf[0]/port", "eth", "one2one"),
        edge("leaf[0]/port[0:3]", "leaf[1]/port[1:4]", "eth", "one2one"),
        edge("leaf[1]/port[1]", "leaf[0]/port[0]", "eth"),  # the first of those three once more
    ]
    found = fabric(tmp_path, tree, as_one={"cx": "nic", "leaf": "switch"})
    assert found.bandwidth[found.link(found.nodes - 2, found.nodes - 1)] == 3 * 25_000_000_000


def test_what_is_left_out_is_not_there(tmp_path):
    found = fabric(tmp_path, servers(), leave_out=["nvsw", "cx", "eth"], rates={})
    assert (found.gpus, found.nics, found.nodes, len(found)) == (4, 0, 4, 0)
    alone = fabric(tmp_path, servers(), leave_out=["server.pcie"], rates={})
    assert (alone.nics, len(alone)) == (4, 2 * 12)


@pytest.mark.parametrize(
    ("written", "chosen"),
    [("x", [0, 1, 2, 3]), ("x[]", [0, 1, 2, 3]), ("x[2]", [2]), ("x[-1]", [3]), ("x[-4]", [0]),
     ("x[1:3]", [1, 2]), ("x[2:]", [2, 3]), ("x[:-1]", [0, 1, 2]), ("x[::2]", [0, 2]),
     ("x[::-1]", [3, 2, 1, 0])],
)  # fmt: skip
def test_slices_are_pythons(written, chosen):
    assert list(indices(written, 4)) == chosen


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("x[4]", "'x[4]': out of range; there are 4 of x"),
        ("x[0:5]", "out of range"),
        ("x[-5]", "out of range"),
        ("x[3:1]", "means none of the 4"),
        ("x[a]", "'a' is no slice"),
        ("x[::0]", "out of range"),
        ("x[0", "is no name with a slice"),
    ],
)
def test_slices_that_mean_nothing_are_named(written, said):
    with pytest.raises(ConfigError) as caught:
        indices(written, 4)
    assert said in str(caught.value)


def changed(tree, value, *steps):
    """The tree with the value at a place; None takes the key away."""
    place = tree
    for step in steps[:-1]:
        place = place[step]
    if value is None:
        del place[steps[-1]]
    else:
        place[steps[-1]] = value
    return tree


BAD = [
    (("sever", "instances", 0, "device"),
     "instances[0].device: 'sever' is no device; allowed: server, cx, leaf"),
    (("cy", "devices", 0, "components", 2, "name"), "devices[0].components[2].name: 'cy' is no device"),
    (("npu", "devices", 0, "components", 0, "choice"),
     "devices[0].components[0].choice: 'npu' is not one of cpu, custom, device,"),
    ((0, "devices", 0, "components", 0, "count"), "devices[0].components[0].count"),
    (("gpu[2]", "devices", 0, "edges", 0, "ep1", "component"),
     "devices[0].edges[0].ep1: 'gpu[2]': out of range; there are 2 of gpu"),
    (("xpu", "devices", 0, "edges", 0, "ep1", "component"),
     "devices[0].edges[0].ep1: device server has no component 'xpu'; it has gpu, nvsw, cx"),
    (("cx", "devices", 0, "edges", 0, "ep1", "component"),
     "'cx': cx is a device: name a component inside it"),
    (("gpu.nic", "devices", 0, "edges", 0, "ep1", "component"), "'gpu.nic': gpu is no device"),
    (("wire", "devices", 0, "edges", 0, "link"),
     "devices[0].edges[0].link: 'wire' is no link of device server; allowed: nvlink, pcie"),
    (("nvlink", "edges", 0, "link"),
     "edges[0].link: 'nvlink' is no link of the infrastructure; allowed: eth"),
    (("ring", "edges", 0, "scheme"), "edges[0].scheme: 'ring' is not read"),
    (("all", "edges", 0, "scheme"), "edges[0].scheme: 'all' is not one of many2many, one2one, ring"),
    (("hosts", "edges", 0, "ep1", "instance"),
     "edges[0].ep1.instance: 'hosts' is no instance; allowed: host, leaf"),
    (("host[0:3]", "edges", 0, "ep1", "instance"), "edges[0].ep1.instance: 'host[0:3]': out of range"),
    (("host", "instances", 1, "name"), "instances[1].name: 'host' stands twice"),
    ((None, "links", 0, "physical"),
     "links[0]: link 'eth' states no bandwidth; state it, or rates: {eth: …}"),
    ((None, "links", 0, "physical", "latency"), "links[0]: link 'eth' states no latency"),
    ((None, "links", 0, "physical", "bandwidth", "gigabits_per_second"),
     "chooses gigabits_per_second and states none"),
    (({"choice": "gigatransfers_per_second", "gigatransfers_per_second": 16},
      "links", 0, "physical", "bandwidth"),
     "links[0]: link 'eth' states transfers a second, which are no bytes"),
    ((-1, "links", 0, "physical", "bandwidth", "gigabits_per_second"), "links[0].physical.bandwidth"),
    (("a.b", "instances", 0, "name"), "instances[0].name"),
    ((1, "instances", 0, "counts"), "unknown key 'counts'; did you mean 'count'?"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "said"), BAD, ids=[said[:40] for _, said in BAD])
def test_a_bad_file_is_one_line_with_its_place(tmp_path, change, said):
    with pytest.raises(ConfigError) as caught:
        fabric(tmp_path, changed(servers(), *change))
    assert said in str(caught.value)
    assert str(tmp_path / "g.yaml") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"size": 5}, "has 4 xpu; the dimension's size is 5"),
        (
            {"rates": RATES | {"ether": RATES["pcie"]}},
            "rates of dimension d: 'ether' is not there; allowed: cx.inside",
        ),
        ({"leave_out": ["cpu"]}, "leave_out of dimension d: 'cpu' is not there"),
        ({"as_one": {"server": "switch"}}, "as_one of dimension d: device server holds xpu"),
        (
            {"as_one": {"spine": "switch"}},
            "as_one of dimension d: 'spine' is not there; allowed: cx, leaf, server",
        ),
        ({"rates": {}}, "devices[0].links[1]: link 'pcie' states no bandwidth"),
        ({"rates": {"pcie": RATES["pcie"] | {"bandwidth": "0 GB/s"}}}, "bandwidth: must be above 0"),
    ],
)
def test_settings_that_do_not_fit_the_file_are_named(tmp_path, keys, said):
    with pytest.raises(ConfigError) as caught:
        fabric(tmp_path, servers(), **keys)
    assert said in str(caught.value)


def test_a_device_inside_itself_is_refused(tmp_path):
    tree = servers()
    tree["devices"][1]["components"].append(component("server", "device"))
    with pytest.raises(ConfigError, match="device server is inside itself"):
        fabric(tmp_path, tree)


def test_an_edge_that_stands_twice_with_two_rates_is_refused(tmp_path):
    tree = changed(servers(), edge("nvsw", "gpu[0]", "pcie"), "devices", 0, "edges", 1)
    with pytest.raises(ConfigError, match="stands twice, with two rates"):
        fabric(tmp_path, tree)


def as_infragraph(original):
    """Any fabric as a file: every node an instance of its own, every cable an edge with a link of its own."""
    kinds = {"gpu": "xpu", "nic": "nic", "switch": "switch"}
    names = [original.node_name(node) for node in range(original.nodes)]
    tree = {
        "devices": [
            {"name": kind, "components": [component("it", choice)]} for kind, choice in kinds.items()
        ],
        "instances": [{"name": name, "device": name.rstrip("0123456789"), "count": 1} for name in names],
        "links": [],
        "edges": [],
    }
    for link, ends in enumerate(zip(original.source.tolist(), original.destination.tolist(), strict=True)):
        if ends[0] < ends[1]:
            rate = original.bandwidth[link] / 1e9, original.latency[link] / 1e3
            tree["links"].append({"name": f"l{link}", "physical": physical(*map(float, rate))})
            tree["edges"].append(edge(f"{names[ends[0]]}/it", f"{names[ends[1]]}/it", f"l{link}"))
    return tree


@pytest.mark.parametrize("name", ["dgx_a100_x2", "torus_2d_a100", "dgx_h100_superpod_32", "hgx_a100_clos_16"])
def test_a_fabric_written_as_infragraph_reads_back_the_same(tmp_path, name):
    original = load_machine(name).fabric
    found = fabric(tmp_path, as_infragraph(original), size=original.gpus, name="g.json", rates={})
    assert (found.gpus, found.nics, found.nodes) == (original.gpus, original.nics, original.nodes)

    def table(of):
        rows = np.stack([of.source, of.destination, of.bandwidth, of.latency], 1)
        return rows[np.lexsort(rows.T[::-1])]

    np.testing.assert_array_equal(table(found), table(original))


def test_a_switch_from_a_file_replays_to_the_tick_as_the_shape(tmp_path):
    tree = {
        "devices": [
            {
                "name": "box",
                "components": [component("gpu", "xpu", 4), component("crossbar", "switch")],
                "links": [{"name": "wire", "physical": physical(1, 100)}],
                "edges": [edge("gpu", "crossbar", "wire")],
            }
        ],
        "instances": [{"name": "box", "device": "box", "count": 1}],
    }
    (tmp_path / "g.yaml").write_text(yaml.safe_dump(tree))
    file = {"shape": "infragraph", "size": 4, "file": str(tmp_path / "g.yaml")}
    nodes = Nodes()
    nodes.collective(ALL_REDUCE, 4000)
    subject = same_everywhere(nodes, 4)
    assert replay(subject, machine(file)).step_time == replay(subject, machine(switch(4))).step_time


def test_a_machine_file_names_the_graph_relative_to_itself():
    stated = load_machine("hgx_a100_clos_16")
    assert isinstance(stated.spec.fabric[0], InfraGraph)
    # 4 x 6 NVLinks, 16 NICs of two links, 2 x 2 cables of four ports between leaf and spine
    assert len(stated.fabric) == 2 * (4 * 6 + 16 * 2 + 2 * 2)
    uplinks = stated.fabric.source >= stated.fabric.gpus + stated.fabric.nics
    uplinks &= stated.fabric.destination >= stated.fabric.gpus + stated.fabric.nics
    assert set(stated.fabric.bandwidth[uplinks].tolist()) == {100_000_000_000}


def test_every_key_changes_the_graph_is_refused_or_stands_among_the_idle_ones(tmp_path):
    tree = servers() | {"name": "two", "description": "small", "annotations": {"a": 1}}
    tree["devices"][0]["components"][0]["xpu"] = {"vendor": "x"}
    tree["devices"][0]["links"][0]["physical"]["latency"]["us"] = 7

    def importing(changed):
        found = fabric(tmp_path, changed)
        idle = (
            Ignored(re.sub(r"\[(\d+)\]", r".\1", key), value, reason)
            for key, value, reason in idle_keys(tmp_path / "g.yaml")
        )
        columns = (found.source, found.destination, found.bandwidth, found.latency)
        return ReadFile((found.gpus, found.nodes, *(tuple(each.tolist()) for each in columns)), tuple(idle))

    assert not silent(tree, importing)


def test_nothing_stands_beside_the_infrastructure_unseen(tmp_path):
    with pytest.raises(ConfigError, match="unknown key 'mine' beside 'infrastructure'; allowed: annotations"):
        fabric(tmp_path, {"infrastructure": servers(), "mine": {}})
