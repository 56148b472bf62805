"""What travels to another process: every value of the network, before and after it was used."""

import pickle
import sys

import numpy as np
import pytest

from rapid_des.chakra.trace import CollectiveType
from rapid_des.config import decode, load_document
from rapid_des.config.specs import preset_folder
from rapid_des.frontend import load_job
from rapid_des.machine import MachineSpec, load_machine
from rapid_des.network.build import build
from rapid_des.network.collectives import ALGORITHMS, prove
from rapid_des.network.collectives.schedule import demand
from rapid_des.network.faults import parse_fault
from rapid_des.network.routing import AnyNodeRouter, DimensionOrderRouter, FaultAwareRouter
from rapid_des.network.specs import Routing
from rapid_des.network.switches import SwitchTrees
from rapid_des.simulation import simulate
from rapid_des.values import replace

from .fabrics import INNER, dimension

MACHINES = sorted(path.stem for path in preset_folder("machine").glob("*.yaml"))
HASHED = Routing(order="outermost_first", tie="hash")
RATE = {"bandwidth": "10 GB/s", "latency": "1 us"}
SHAPES = {
    "ring": {"shape": "ring", "size": 5},
    "mesh": {"shape": "mesh", "size": [2, 3]},
    "torus": {"shape": "torus", "size": [3, 4]},
    "king_mesh": {"shape": "king_mesh", "size": [3, 3]},
    "hypercube": {"shape": "hypercube", "size": 6},
    "fully_connected": {"shape": "fully_connected", "size": 4},
    "switch": {"shape": "switch", "size": 4, "nic": {**RATE, "gpus": 1}},
    "clos": {"shape": "clos", "size": 8, "leaf_size": 2, "spines": 2, "uplink": RATE},
    "fat_tree": {
        "shape": "fat_tree", "size": 8, "levels": 2, "radix": 4, "oversubscription": 1, "uplink": RATE,
    },
    "dragonfly": {
        "shape": "dragonfly", "size": 12, "hosts": 2, "routers": 2, "global_links": 1,
        "local_link": RATE, "global_link": RATE,
    },
    "twisted_torus": {
        "shape": "twisted_torus", "size": [2, 4], "twists": [{"wrap": 0, "along": 1, "by": 2}],
    },
    "hyperx": {"shape": "hyperx", "size": 12, "hosts": 2, "routers": [3, 2], "router_link": RATE},
    "slim_fly": {"shape": "slim_fly", "size": 18, "hosts": 1, "q": 3, "router_link": RATE},
    "dragonfly_plus": {
        "shape": "dragonfly_plus", "size": 12, "hosts": 2, "leaves": 2, "spines": 2, "global_links": 1,
        "local_link": RATE, "global_link": RATE,
    },
    "planes": {
        "shape": "switch", "size": 4, "planes": 2, "spread": "hash", "nic": {**RATE, "gpus": 1, "count": 4},
    },
}  # fmt: skip


def travelled(value):
    return pickle.loads(pickle.dumps(value))


def pairs(fabric):
    return [(one, other) for one in range(fabric.gpus) for other in range(fabric.gpus)]


@pytest.mark.parametrize("keys", SHAPES.values(), ids=SHAPES.keys())
def test_a_router_travels_before_and_after_it_routes(keys):
    layout = build("x", [dimension(**keys)], HASHED)
    fresh = DimensionOrderRouter(layout)
    early = travelled(fresh)
    routes = fresh.routes(pairs(layout.fabric))
    for router in (early, travelled(fresh)):
        assert router.routes(pairs(layout.fabric)).links.tolist() == routes.links.tolist()
        assert router.fabric == layout.fabric


def test_a_graph_travels_with_its_routes(tmp_path):
    (tmp_path / "g.csv").write_text("source,destination\n0,switch0\n1,switch0\n0,switch1\n1,switch1\n")
    keys = {"shape": "graph", "size": 2, "file": str(tmp_path / "g.csv")}
    router = DimensionOrderRouter(build("x", [dimension(**keys)], INNER))
    there = router.route(0, 1)
    (tmp_path / "g.csv").unlink()
    assert travelled(router).route(0, 1) == there


def test_routers_around_faults_and_to_switches_travel_without_what_they_remember():
    layout = build("x", [dimension(shape="clos", size=8, leaf_size=2, spines=2, uplink=RATE)], INNER)
    any_node = AnyNodeRouter(layout.fabric, DimensionOrderRouter(layout))
    dead = frozenset(any_node.route(0, 7)[1:2])
    around = FaultAwareRouter(layout.fabric, any_node, dead)
    trees = SwitchTrees(layout.fabric, dead, INNER)
    found = [any_node.route(0, 12), around.route(0, 7), trees.over(range(8))]
    copies = travelled(any_node), travelled(around), travelled(trees)
    assert len(around.descents) == len(trees.trees) == 1
    assert len(copies[1].descents) == len(copies[2].trees) == 0
    assert [copies[0].route(0, 12), copies[1].route(0, 7), copies[2].over(range(8))] == found


def test_fabrics_are_equal_by_what_they_hold():
    def ring(size, **rates):
        return build("x", [dimension(shape="ring", size=size, **rates)], INNER).fabric

    assert ring(4) == ring(4)
    assert hash(ring(4)) == hash(ring(4))
    assert ring(4) != ring(5)
    assert ring(4) != ring(4, bandwidth="99 GB/s")
    assert ring(4) != replace(ring(4), latency=ring(4).latency + 1)
    assert ring(4) != "ring"


def test_a_fabric_that_travelled_can_not_be_written_to():
    fabric = build(
        "x", [dimension(shape="torus", size=[2, 3]), dimension("b", shape="ring", size=2)], INNER
    ).fabric
    _ = fabric.outgoing
    copy = travelled(fabric)
    assert copy == fabric
    with pytest.raises(ValueError, match="read-only"):
        copy.bandwidth[0] = 1
    assert np.array_equal(copy.outgoing[1], fabric.outgoing[1])


@pytest.mark.parametrize("name", MACHINES)
def test_specs_compare_and_hash_by_content(name):
    path = preset_folder("machine") / f"{name}.yaml"
    spec = decode(load_document(path), MachineSpec)
    copies = travelled(spec), decode(load_document(path), MachineSpec)
    assert copies == (spec, spec)
    assert {hash(copy) for copy in copies} == {hash(spec)}


def test_faults_compare_and_hash_by_content():
    text = "random=links count=2 seed=3 down=true from=1ms until=2ms policy=reroute detection=1us"
    fault = parse_fault(text)
    assert travelled(fault) == parse_fault(text) == fault
    assert len({fault, travelled(fault)}) == 1
    assert fault != parse_fault(text.replace("seed=3", "seed=4"))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithms_and_their_schedules_travel(name):
    kind = next(iter(ALGORITHMS[name].does))
    task = demand(kind, 4, 64)
    prove(travelled(travelled(ALGORITHMS[name]).schedule(travelled(task))), task)
    assert isinstance(kind, CollectiveType)


def calls_under(folder, action):
    """Return the functions that stand in a folder of the package and that run during an action."""
    seen = set()

    def note(frame, event, argument):
        if event == "call" and folder in frame.f_code.co_filename:
            seen.add(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return seen


@pytest.mark.parametrize("mode", ["flattened", "hierarchical", "analytical"])
def test_nothing_of_faults_runs_where_there_are_none(mode):
    def run():
        job = load_job("llama2_7b_inference", settings={"model.layers": 2, "inference.output_length": 4})
        simulate(job, load_machine("dgx_a100"), mode=mode)

    assert calls_under("rapid_des/network/faults", run) == set()
    assert "parse_fault" in calls_under("rapid_des/network/faults", lambda: parse_fault("gpu=3 compute=0.8"))
