"""The algorithm `auto`: what it chooses, by which estimates, and that all members choose alike."""

import time

import numpy as np
import pytest

from rapid_des.chakra.trace import CollectiveType
from rapid_des.errors import ConfigError
from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.modes.blocks import outer
from rapid_des.network.collectives import PER_DIMENSION, ShapedCollective, build_schedule
from rapid_des.network.faults import parse_fault
from rapid_des.network.specs import Choice
from rapid_des.program.collectives.candidates import GroupCollective, GroupLinks, candidates, first_of_best
from rapid_des.program.collectives.estimates import MOST_PAIRS, GroupLines
from rapid_des.program.collectives.lower import planner_of
from rapid_des.program.collectives.plans import CollectiveCall, alone
from rapid_des.program.collectives.select import Planner
from rapid_des.program.routes import geometry
from rapid_des.simulation import replay, simulate
from rapid_des.studies.collective_bench import Question, bench, each_compared
from tests.program.machines import dimension, machine, ring, switch
from tests.program.tracing import Nodes, same_everywhere

C = CollectiveType
CUT = {"mode": "cut_through", "segment": "1 KiB"}
AUTO = {"default": "auto"}


def times(where, kind, size, ranks):
    call = CollectiveCall(kind, size, *geometry(where, ranks))
    return Planner(where).times(call, ranks)


@pytest.mark.parametrize("preset", ["torus_2d_a100", "mesh_2d_a100", "hypercube_a100", "dgx_a100_x2"])
@pytest.mark.parametrize(
    "kind", [C.ALL_REDUCE, C.ALL_GATHER, C.ALL_TO_ALL, C.BROADCAST, C.SCATTER, C.BARRIER]
)
def test_an_estimate_is_the_longest_chain_or_the_busiest_link_of_all_transfers(preset, kind):
    where = load_machine(preset)
    ranks = tuple(range(where.fabric.gpus))
    extents, _ = geometry(where, ranks)
    for choice in candidates(kind, extents):
        if not isinstance(choice.algorithm, str) or choice.algorithm in PER_DIMENSION or choice.chunks > 1:
            continue
        for size in (16**4, 16**6):
            shaped = ShapedCollective(kind, extents, size)
            exact = alone(build_schedule(choice.algorithm, shaped), where, ranks)
            estimate = (
                GroupLinks(where, [ranks], extents)
                .estimate(choice, GroupCollective(kind, extents, size))
                .time
            )
            # messages that are relayed differ in size, of which the estimate takes the mean
            near = 0.06 if kind is C.ALL_TO_ALL else 0.01
            assert estimate == pytest.approx(exact, rel=near), (choice.algorithm, size)


def test_a_sample_of_distances_loads_links_as_all_of_them_do(monkeypatch):
    where = machine(dimension("torus", [16, 16]), switching=CUT)
    group = np.arange(256)[None, :]
    whole = GroupLines(where, group).traffic(C.ALL_TO_ALL, "direct", 2**24)
    monkeypatch.setattr("rapid_des.program.collectives.estimates.MOST_PAIRS", MOST_PAIRS // 8)
    sample = GroupLines(where, group).traffic(C.ALL_TO_ALL, "direct", 2**24)
    assert sample.load.busiest == pytest.approx(whole.load.busiest, rel=0.1)


def test_equal_estimates_go_to_the_first():
    assert first_of_best({"ring": 100.9, "direct": 100, "bruck": 99.95}) == "ring"
    assert first_of_best({"ring": 102, "direct": 100.2, "bruck": 100}) == "direct"


@pytest.mark.parametrize(
    ("preset", "links", "algorithm"),
    [("torus_2d_a100", 4, "torus"), ("torus_3d_a100", 6, "torus"), ("hypercube_a100", 4, "hypercube")],
)
def test_shapes_get_the_algorithm_that_fits_them(preset, links, algorithm):
    where = load_machine(preset)
    (row,) = bench(where, "all_reduce", [2**28])
    gpus, bandwidth = where.fabric.gpus, int(where.fabric.bandwidth[0])
    # every byte but a share crosses a GPU's links twice, packets of 256 B with 16 B headers
    least = 2 * (gpus - 1) / gpus * 2**28 * 272 / 256 / (links * bandwidth)
    assert row.algorithm == algorithm
    assert least <= row.duration * 1e-12 <= 1.02 * least


@pytest.mark.parametrize(
    ("preset", "size", "operation"),
    [
        ("torus_2d_a100", [4, 4], "all_reduce"),
        ("mesh_2d_a100", [3, 4], "all_reduce"),
        ("mesh_2d_a100", [4, 4], "all_to_all"),
        ("hgx_a100_x4", 4, "all_reduce"),
        ("hgx_a100_clos_16", 16, "all_to_all"),
    ],
)
def test_what_is_chosen_is_among_the_fastest(preset, size, operation):
    where = load_machine(preset, settings=[("collectives", "{default: auto}"), ("fabric.0.size", str(size))])
    for sent in (2**13, 2**24):
        rows = list(each_compared(where, Question(operation, [sent]), engine="compiled"))
        taken = next(row for row in rows if row.is_auto)
        assert taken.duration <= 1.25 * min(row.duration for row in rows), taken


def test_what_is_left_open_is_auto():
    ways = AUTO, {"barrier": "direct"}
    stated, opened = (machine(switch(4), switching=CUT, collectives=how) for how in ways)
    for size in (100, 10**6):
        nodes = Nodes()
        nodes.collective(C.ALL_TO_ALL, size)
        one, other = (replay(same_everywhere(nodes, 4), where) for where in (stated, opened))
        assert one.step_time == other.step_time
        assert [served.algorithm for served in other.basis.served] == ["direct"]


def test_groups_of_one_shape_with_other_routes_choose_each_for_itself():
    # along a line of eight the first four are neighbours, GPUs 0, 2, 4 and 6 are not
    where = machine(dimension("mesh", [8]), switching=CUT, collectives=AUTO)
    groups = {"near": (0, 1, 2, 3), "far": (4, 5, 6, 7), "all": tuple(range(8))}
    nodes = Nodes()
    nodes.collective(C.ALL_REDUCE, 10**6, "near")
    nodes.collective(C.ALL_REDUCE, 10**6, "all")
    traces = same_everywhere(
        nodes, 8, groups_of=lambda rank: ["near" if rank < 4 else "far", "all"], groups=groups
    )
    results = [replay(traces, where, engine=engine).step_time for engine in ("simpy", "compiled")]
    assert results[0] == results[1] > 0


def test_sixteen_gpus_on_two_nodes_take_as_long_in_a_machine_of_four():
    lists = {"default": {"algorithm": ["ring", "ring"], "chunks": 4}}
    for how in (lists, AUTO):
        two, four = (
            machine(switch(8), switch(nodes, bandwidth="100 MB/s"), switching=CUT, collectives=how)
            for nodes in (2, 4)
        )
        (part,) = bench(four, "all_reduce", [2**24], gpus=16, engine="compiled")
        (whole,) = bench(two, "all_reduce", [2**24], engine="compiled")
        assert part.duration == whole.duration
        assert geometry(four, range(16)) == geometry(two, range(16)) == ((8, 2), (0, 1))


@pytest.mark.parametrize(
    ("group", "grid"),
    [
        ((0, 1, 4, 5), ((2, 2), (0, 1))),  # two of each of two nodes
        ((1, 3, 5, 7, 9, 11), ((2, 3), (0, 1))),  # every other one of three
        ((2, 6, 10, 14), ((4,), (1,))),  # one of each
        ((1, 2, 3), ((3,), (0,))),  # a part of a node
        ((0, 1, 2, 4), ((4,), ())),  # not as many of each
        ((4, 0), ((2,), ())),  # in another order
    ],
)
def test_a_group_is_the_grid_of_its_members_by_position(group, grid):
    assert geometry(machine(switch(4), switch(4)), group) == grid


def test_a_graph_has_nodes():
    where = load_machine("hgx_a100_clos_16")
    assert geometry(where, range(16)) == ((4, 4), (0, 0))
    assert geometry(where, range(8, 16)) == ((4, 2), (0, 0))


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        (
            {"default": ["ring", "ring", "direct"]},
            "default: 3 algorithms; allowed: 2, one for each",
        ),
        ({"all_reduce": ["ring"]}, "all_reduce: 1 algorithms; allowed: 2, one for each dimension"),
        ({"default": {"algorithm": "auto", "chunks": 4}}, "chunks: 4; allowed: 1, as auto chooses chunks"),
        ({"default": ["auto", "ring"]}, "'auto' is not a collective algorithm"),
    ],
)
def test_lists_are_as_long_as_the_dimensions_and_auto_stands_alone(how, problem):
    with pytest.raises(ConfigError, match=problem):
        machine(switch(2), switch(3), collectives=how)


def test_detours_do_not_change_what_is_chosen_and_replanning_does():
    whole = machine(ring(4), switching=CUT, collectives=AUTO)
    call, ranks = CollectiveCall(C.ALL_REDUCE, 10**6, (4,), (0,)), (0, 1, 2, 3)
    cut, mended = (
        planner_of(whole.with_faults([parse_fault(f"link=3-0 down=true{policy}")]))
        for policy in ("", " policy=replan")
    )
    assert Planner(whole).choice(call, ranks) == Choice(algorithm="bidirectional_ring")
    assert cut.choice(call, ranks) == Choice(algorithm="bidirectional_ring")
    # on a line both directions of a ring share the way back: two are not better than one
    assert mended.choice(call, ranks) == Choice(algorithm="ring")


def test_large_hierarchical_runs_keep_to_what_one_replica_stands_for(monkeypatch):
    monkeypatch.setattr(outer, "_MOST_WHOLE", 32)
    smaller = {"model.layers": "6", "training.global_batch": "64", "parallelism.pp": 4, "parallelism.dp": 16}
    job = load_job("llama3_1_405b_train_16384", settings=smaller)
    settings = {"fabric.1.size": "64", "collectives": "{default: auto}"}
    where = load_machine("dgx_h100_x8", settings=settings, device_settings=[("operators", "roofline")])
    large = simulate(job, where, mode="hierarchical")
    assert large.folded == 16  # by data parallelism
    assert any("auto chooses between rings" in note for note in large.notes)


@pytest.mark.benchmark
@pytest.mark.parametrize(("side", "seconds"), [(8, 0.05), (32, 1.0)])
def test_a_choice_takes_little_time(side, seconds):
    where = machine(dimension("torus", [side, side]), switching=CUT, collectives=AUTO)
    ranks = tuple(range(side * side))
    where.router.route(0, 1)
    began = time.process_time()
    times(where, C.ALL_REDUCE, 2**28, ranks)
    assert time.process_time() - began < seconds
