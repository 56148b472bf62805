"""Collectives against closed forms and against the rules of chunks, queues and phases."""

from __future__ import annotations

from math import trunc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rapid_des.chakra.trace import CollectiveType
from rapid_des.errors import ConfigError
from rapid_des.importers.astra_sim.collectives import FIRST_ROUND, CollectivePlanner, RoundRobin, Scope

AR, AG, RS, A2A = (
    CollectiveType.ALL_REDUCE,
    CollectiveType.ALL_GATHER,
    CollectiveType.REDUCE_SCATTER,
    CollectiveType.ALL_TO_ALL,
)
GIB_PER_NS = 2**30 / 1e9


def everyone(bench, nodes, ranks=4):
    return bench.replay([(nodes,)] * ranks)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(
    ranks=st.integers(3, 9),
    size=st.integers(1_000, 10_000_000),
    collective=st.sampled_from([AR, AG, RS, A2A]),
    delay=st.integers(0, 40),
    bandwidth=st.floats(1, 500),
    latency=st.floats(0, 2000),
)
def test_ring_on_an_idle_ring_is_the_closed_form(bench, ranks, size, collective, delay, bandwidth, latency):
    """T = S · trunc(latency + msg / B) + (S + 1) · delay + (n - 1) · 3 · trunc(msg / memory)."""
    bench.network |= {"npus_count": [ranks], "bandwidth": [bandwidth], "latency": [latency]}
    bench.system["endpoint-delay"] = delay
    steps = {AR: 2 * (ranks - 1), A2A: ranks * (ranks - 1) // 2}.get(collective, ranks - 1)
    message = size if collective is AG else size // ranks
    hop = trunc(latency + message / (bandwidth * GIB_PER_NS))
    reduction = 3 * trunc(message / 1600e9 * 1e9) if collective in (AR, RS) else 0
    expected = steps * hop + (steps + 1) * delay + (ranks - 1) * reduction
    finish, exposed = zip(*everyone(bench, [bench.collective(size, collective)], ranks), strict=True)
    assert set(finish) == {expected}
    assert exposed == finish


def test_a_remainder_costs_a_whole_chunk(bench):
    bench.system["preferred-dataset-splits"] = 3
    # 10,000,019 B in 3 splits: floor is 3,333,339 B, three of them leave 2 B over, which are a fourth
    assert CollectivePlanner(bench.setup()).chunks(AR, 10_000_019) == (4, 3_333_339)


def test_small_collectives_grow_to_a_byte_a_rank_but_all_gathers_do_not(bench):
    planner = CollectivePlanner(bench.setup())
    assert planner.chunks(AR, 1) == (1, 4)  # 4 ranks
    assert planner.chunks(AG, 1) == (1, 1)


def test_an_empty_chunk_is_refused(bench):
    bench.system["preferred-dataset-splits"] = 4
    with pytest.raises(ConfigError, match="a chunk would be empty"):
        everyone(bench, [bench.collective(2, AG)])


@pytest.mark.parametrize(
    "key",
    ["preferred-dataset-splits", "collective-optimization", "all-reduce-implementation", "scheduling-policy"],
)
def test_what_a_collective_needs_must_be_stated(bench, key):
    del bench.system[key]
    with pytest.raises(ConfigError, match=f"missing key '{key}'"):
        everyone(bench, [bench.collective(4096)])


def test_local_bandwidth_aware_all_reduce_scatters_inwards_and_gathers_outwards(bench):
    bench.network = {
        "topology": ["Ring", "Ring", "Switch"],
        "npus_count": [4, 1, 8],
        "bandwidth": [1, 1, 1],
        "latency": [1, 1, 1],
    }
    bench.system["all-reduce-implementation"] = ["ring", "ring", "halvingDoubling"]
    steps = CollectivePlanner(bench.setup(queues=4)).chunk(AR, 3200, Scope(), RoundRobin(4))
    # the dimension of one is skipped; 3200 B over 4 are 800 B a rank; gathers run downwards on upper queues
    assert [
        (s.phase.collective, s.axis.dimension, s.phase.size, s.queue, s.phase.ascending) for s in steps
    ] == [
        (RS, 0, 3200, 0, True),
        (AR, 2, 800, 0, True),
        (AG, 0, 800, 2, False),
    ]
    assert [s.phase.algorithm for s in steps] == ["ring", "halvingDoubling", "ring"]


def test_baseline_runs_the_same_collective_in_every_dimension_gathers_outermost_first(bench):
    bench.network = {"topology": ["Ring"] * 2, "npus_count": [4, 3], "bandwidth": [1, 1], "latency": [1, 1]}
    bench.system["collective-optimization"] = "baseline"
    bench.system |= {f"all-{name}-implementation": ["ring", "ring"] for name in ("reduce", "gather")}
    planner = CollectivePlanner(bench.setup())
    order = {
        kind: [(s.axis.dimension, s.phase.size) for s in planner.chunk(kind, 120, Scope(), RoundRobin(1))]
        for kind in (AR, AG)
    }
    assert order == {AR: [(0, 120), (1, 120)], AG: [(1, 120), (0, 360)]}


def test_queues_are_taken_in_turns_that_run_on_from_collective_to_collective(bench):
    turns = RoundRobin(4)
    assert [turns.next_queue(0) for _ in range(5)] == [
        (0, True),
        (1, True),
        (2, False),
        (3, False),
        (0, True),
    ]
    assert [turns.next_lower(0) for _ in range(3)] == [0, 1, 0]
    assert [turns.next_upper(0) for _ in range(3)] == [2, 3, 2]
    assert RoundRobin.after(4, turns.state()).next_queue(0) == (1, True)
    assert RoundRobin(4).state() == FIRST_ROUND


def test_involved_dimensions_leave_the_others_out(bench):
    bench.network = {"topology": ["Ring"] * 2, "npus_count": [4, 3], "bandwidth": [1, 1], "latency": [1, 1]}
    bench.system["all-reduce-implementation"] = ["ring", "ring"]
    axes = CollectivePlanner(bench.setup()).axes(AR, Scope(dimensions=(False, True)))
    assert [(axis.size, axis.stride, axis.dimension) for axis in axes] == [(3, 1, 1)]


def test_a_group_of_its_own_is_one_ring_with_a_fixed_delay(bench):
    bench.network = {"topology": ["Ring"] * 2, "npus_count": [4, 3], "bandwidth": [1, 1], "latency": [1, 1]}
    bench.system |= {"all-reduce-implementation": ["direct", "ring"], "endpoint-delay": 99}
    stock, extended = (
        CollectivePlanner(bench.setup(dialect=dialect))
        .chunk(AR, 120, Scope(members=6), RoundRobin(1))[0]
        .phase
        for dialect in ("stock", "extended")
    )
    assert (stock.algorithm, stock.members, stock.endpoint.delay) == ("ring", 6, 10_000)
    assert extended.algorithm == "direct"


@pytest.mark.parametrize(
    ("name", "collective", "said"),
    [
        ("tree", AR, "'tree' is not one of ring, direct"),
        ("torus2d", AR, "'torus2d' is not one of ring, direct"),
        ("halvingDoubling", A2A, "halvingDoubling serves ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER only"),
        ("doubleBinaryTree", RS, "doubleBinaryTree serves ALL_REDUCE only"),
    ],
)
def test_algorithms_that_can_not_serve_are_refused_by_name(bench, name, collective, said):
    bench.system |= {key: [name] for key in bench.system if key.endswith("-implementation")}
    with pytest.raises(ConfigError) as failure:
        everyone(bench, [bench.collective(4096, collective)])
    assert said in str(failure.value)
    assert "rank 0, node 0" in str(failure.value)


def test_halving_doubling_needs_a_power_of_two(bench):
    bench.network["npus_count"] = [6]
    bench.system["all-reduce-implementation"] = ["halvingDoubling"]
    with pytest.raises(ConfigError, match="needs a power of two of members"):
        everyone(bench, [bench.collective(4096)], 6)


def test_extended_sizes_halve_all_reduces_and_keep_all_to_alls_whole(bench):
    # 4 ranks, 4096 B: all-reduce messages are 4096 / 4 / 2, all-to-all messages 4096 B; 1 B/ns and no latency
    bench.network |= {"bandwidth": [1e9 / 2**30], "latency": [0]}
    bench.system |= {"endpoint-delay": 0, "local-mem-bw": 0}
    for kind, steps, message in ((AR, 6, 512), (A2A, 6, 4096)):
        finish = bench.replay([([bench.collective(4096, kind)],)] * 4, dialect="extended")
        assert {end for end, _ in finish} == {steps * message}
