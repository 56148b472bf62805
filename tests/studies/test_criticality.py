"""Criticality on a 3x3x3 torus and a fat tree with NICs: the narrowed ranking against brute force."""

import pytest

from rapid_des.chakra.trace import RankTrace, TraceSet
from rapid_des.errors import InputError
from rapid_des.network.build import find_node
from rapid_des.network.faults import parse_fault
from rapid_des.studies.criticality import criticality
from rapid_des.studies.faults import How, scenario
from tests.program.machines import dimension, machine
from tests.program.tracing import ALL_GATHER, ALL_REDUCE, Nodes

CUBE = machine(
    dimension("torus", [3, 3, 3]), switching={"mode": "cut_through", "segment": "1 KB"}, gpus_per_node=3
)


def stacked_stages():
    """27 ranks: rings along x (large) and y (small); along z each plane hands on to the next, in a line."""
    tables = [_plane(z).table() for z in range(3)]
    groups, ranks = {"world": tuple(range(27))}, []
    for rank in range(27):
        x, y, z = rank % 3, rank // 3 % 3, rank // 9
        row, column = f"x{y}.{z}", f"y{x}.{z}"
        groups[row] = tuple(other + 3 * y + 9 * z for other in range(3))
        groups[column] = tuple(x + 3 * other + 9 * z for other in range(3))
        peers = tuple(other for other in (rank - 9, rank + 9) if 0 <= other < 27)
        ranks.append(RankTrace(rank, tables[z], (row, column), peers))
    return TraceSet(tuple(ranks), groups)


def _plane(z):
    nodes = Nodes()
    before = () if z == 0 else nodes.recv("below", 3000, stream="pp-recv")
    work = nodes.compute(2_000_000 * (1 + z), after=before)
    row = nodes.collective(ALL_REDUCE, 40_000, "row", stream="tp", after=work)
    column = nodes.collective(ALL_GATHER, 6000, "column", stream="dp", after=row)
    if z < 2:
        nodes.send("above", 3000, stream="pp-send", after=row)
    nodes.compute(500_000, after=column)
    return nodes


@pytest.fixture(scope="module")
def subject():
    return stacked_stages()


@pytest.fixture(scope="module")
def narrowed(subject):
    return criticality(subject, CUBE, derate=0.5, how=How())


@pytest.fixture(scope="module")
def brute_force(subject):
    return criticality(subject, CUBE, derate=0.5, how=How(symmetry=False))


def test_the_ranking_is_that_of_brute_force(narrowed, brute_force):
    costs = {row.part.name: row.cost for row in brute_force.rows}
    assert {row.part.name: row.cost for row in narrowed.rows} == costs
    assert [row.part for row in narrowed.rows] == [row.part for row in brute_force.rows]


def test_symmetry_and_idle_links_spare_most_simulations(narrowed, brute_force):
    # 81 cables, 27 GPUs, 27 endpoints, 9 nodes
    assert brute_force.simulations == len(brute_force.rows) == 81 + 27 + 27 + 9
    assert narrowed.simulations * 3 <= brute_force.simulations


def test_links_that_carry_nothing_cost_nothing(narrowed, brute_force):
    # nothing goes from the last plane back to the first: 9 cables along z
    idle = [row for row in narrowed.rows if row.source == "carries nothing"]
    assert {row.part.kind for row in idle} == {"link"}
    assert {row.part.name for row in idle} == {f"gpu{rank}-gpu{rank + 18}" for rank in range(9)}
    assert {row.cost for row in brute_force.rows if row.part in {one.part for one in idle}} == {0}


def test_an_interrupted_study_keeps_what_is_finished(subject):
    told = []

    def interrupt(text):
        told.append(text)
        if len(told) == 4:
            raise KeyboardInterrupt

    done = criticality(subject, CUBE, derate=0.5, kinds=["link"], how=How(report=interrupt))
    assert done.rows
    assert done.left == 81 - len(done.rows)


def test_the_costliest_links_are_the_darkest(narrowed):
    shown = narrowed.heat_map(CUBE)
    most = next(row for row in narrowed.rows if row.part.kind == "link")
    assert {shown.load[link] for link in most.part.links} == {1.0}
    assert max(shown.gpu_load.values()) == 1.0


TREE = machine(
    dimension(
        "clos",
        16,
        leaf_size=4,
        spines=2,
        uplink={"bandwidth": "2 GB/s", "latency": "200 ns"},
        nic={"bandwidth": "4 GB/s", "latency": "50 ns", "gpus": 1},
    ),
    switching={"mode": "cut_through", "segment": "1 KB"},
    gpus_per_node=2,
)


def leaves_in_turn():
    """16 ranks: an all-reduce inside each leaf of four, then one of the leaves' first ranks."""
    inside, groups, ranks = Nodes(), {}, []
    work = inside.compute(1_000_000)
    inside.collective(ALL_REDUCE, 30_000, "leaf", stream="tp", after=work)
    across = Nodes()
    reduced = across.collective(ALL_REDUCE, 30_000, "leaf", stream="tp", after=across.compute(1_000_000))
    across.collective(ALL_GATHER, 9000, "spine", stream="dp", after=reduced)
    tables = inside.table(), across.table()
    for rank in range(16):
        leaf = f"leaf{rank // 4}"
        groups[leaf] = tuple(range(rank // 4 * 4, rank // 4 * 4 + 4))
        first = rank % 4 == 0
        ranks.append(RankTrace(rank, tables[first], (leaf, "spine") if first else (leaf,), ()))
    return TraceSet(tuple(ranks), groups | {"spine": (0, 4, 8, 12)})


def test_switches_and_nics_are_ranked_as_by_brute_force():
    narrowed = criticality(leaves_in_turn(), TREE, derate=0.5, how=How())
    brute = criticality(leaves_in_turn(), TREE, derate=0.5, how=How(symmetry=False))
    assert {row.part: row.cost for row in narrowed.rows} == {row.part: row.cost for row in brute.rows}
    # cables: 16 to NICs, 16 to leaves, 4 x 2 to spines; 16 GPUs, NICs and endpoints; 4 + 2 switches; 8 nodes
    assert brute.simulations == len(brute.rows) == 16 + 16 + 8 + 3 * 16 + 6 + 8
    assert narrowed.simulations * 2 < brute.simulations


def test_a_switch_and_a_nic_cost_what_their_fault_costs():
    rows = criticality(leaves_in_turn(), TREE, derate=0.5, kinds=["nic", "switch", "endpoint"]).rows
    cost = {row.part.name: row.cost for row in rows}
    for name in ("nic4", "switch0", "switch5", "gpu0"):
        kind = name.rstrip("0123456789")
        found = scenario(leaves_in_turn(), TREE, [parse_fault(f"{kind}={name} bandwidth=0.5")], How())
        assert cost[name] == found.faulty.step_time - found.healthy.step_time > 0


def test_nics_and_switches_are_coloured_by_their_cost():
    ranked = criticality(leaves_in_turn(), TREE, derate=0.5, kinds=["nic", "switch"])
    shown, fabric = ranked.heat_map(TREE), TREE.fabric
    assert set(shown.node_load) == set(range(fabric.gpus, fabric.nodes))
    costliest = next(row.part.name for row in ranked.rows if row.part.kind == "switch")
    assert shown.node_load[find_node(fabric, costliest)] == 1.0


@pytest.mark.parametrize(
    ("derate", "kinds", "said"),
    [
        (1.0, ["link"], "derate 1.0"),
        (0.5, ["cable"], "'cable'"),
        (0.5, ["nic", "switch"], "has no nics or switches"),
    ],
)
def test_what_makes_no_sense_is_refused(subject, derate, kinds, said):
    with pytest.raises(InputError, match=said):
        criticality(subject, CUBE, derate=derate, kinds=kinds)


def test_a_scenario_names_the_link_and_who_waits(subject):
    found = scenario(subject, CUBE, [parse_fault("link=0>1 bandwidth=0.25")], How())
    assert found.slowdown > 1
    assert found.busy[0].name == "gpu0>gpu1"
    # a link at a quarter serves four times as long, up to a tick a message
    assert found.busy[0].faulty == pytest.approx(4 * found.busy[0].healthy, rel=1e-3)
    assert found.collectives[0].name.startswith("tp: all_reduce of 40000 B")
    assert found.ranks[0].added > 0
    assert found.slowdown == found.faulty.step_time / found.healthy.step_time
