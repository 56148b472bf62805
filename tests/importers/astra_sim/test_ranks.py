"""Who runs what for how long on one rank."""

from __future__ import annotations

import numpy as np
import pytest

from rapid_des.chakra.trace import CollectiveType, NodeKind
from rapid_des.errors import DeadlockError, TraceError
from rapid_des.importers.astra_sim import lower, replay_traces
from rapid_des.modes.execution import EngineChoice

MESSAGE = 5_368_710  # 100,000 ns at 50 GiB/s: 53.687 B/ns; a hop takes 500 ns more


def alone(bench, nodes):
    bench.network["npus_count"] = [1]
    return bench.replay([(nodes,)])[0]


def test_operators_take_their_time_and_at_least_a_nanosecond(bench):
    # 1500 ps is one whole nanosecond; nothing stated is one too
    nodes = [{"duration": 1500}, {"after": [0]}, bench.compute(7, after=[1])]
    assert alone(bench, nodes) == (9, 0)


def test_gpu_operators_run_one_at_a_time_in_order_of_their_ids_beside_the_cpu(bench):
    # ids 5 and 3 wait for the GPU: 3 goes first and its follower starts at 10; the CPU runs on its own
    nodes = [
        bench.compute(20, ids=5),
        bench.compute(10, ids=3),
        bench.compute(100, ids=7, after=[1], on_cpu=True),
    ]
    assert alone(bench, nodes) == (110, 80)


def test_a_receive_holds_nothing_but_a_send_holds_the_communication(bench):
    # rank 0: send of 100,500 ns, then a broadcast (recorded, 1000 ns) behind it on the same slot
    broadcast = bench.collective(1, CollectiveType.BROADCAST, duration=1_000_000)
    ranks = [
        ([bench.send(MESSAGE), broadcast], (), (1,)),
        ([bench.recv(MESSAGE), broadcast], (), (0,)),
    ] + [([bench.compute(1)],)] * 2
    finish = [end for end, _ in bench.replay(ranks)]
    assert finish == [101_500, 100_500, 1, 1]


def test_messages_meet_by_tag_and_size_and_in_order(bench):
    # tag 500,000,001 is tag 1; the second receive of tag 1 waits for the second send
    sends = [bench.send(MESSAGE, tag=500_000_001), bench.send(MESSAGE, tag=1)]
    receives = [bench.recv(MESSAGE, tag=1), bench.recv(MESSAGE, tag=1)]
    ranks = [(sends, (), (1,)), (receives, (), (0,))] + [([bench.compute(1)],)] * 2
    assert [end for end, _ in bench.replay(ranks)][:2] == [201_000, 201_000]


def test_roofline_times_operators_by_memory_or_arithmetic(bench):
    bench.system |= {"roofline-enabled": 1, "peak-perf": 300, "local-mem-bw": 2000}
    # 6e9 FLOP at 300 TFLOP/s: 20,000 ns; 1 FLOP a byte: 2e6 B at 2e12 B/s: 1000 ns; no tensor: skipped
    nodes = [
        {"flops": 6 * 10**9, "tensor_bytes": 1000, "duration": 5},
        {"flops": 2 * 10**6, "tensor_bytes": 2 * 10**6, "after": [0]},
        {"flops": 9, "tensor_bytes": 0, "after": [1]},
    ]
    assert alone(bench, nodes) == (21_000, 0)


def test_an_operator_of_more_than_thirty_days_is_refused(bench):
    bench.system |= {"roofline-enabled": 1, "peak-perf": 1e-300, "local-mem-bw": 2000}
    with pytest.raises(TraceError, match=r"node 0 .* takes longer than 2592000 s \(30 days\) by peak-perf"):
        alone(bench, [{"flops": 6 * 10**9, "tensor_bytes": 1000}])


def test_replay_only_takes_recorded_times_for_communication_too(bench):
    bench.system["replay-only"] = 1
    assert alone(bench, [bench.collective(4096, duration=7_000_000)])[0] == 7000


def test_a_collective_among_one_rank_takes_no_time(bench):
    assert alone(bench, [bench.collective(4096)]) == (0, 0)


def test_exposed_communication_is_what_no_gpu_operator_covers(bench):
    ranks = [
        ([bench.compute(60_000), bench.send(MESSAGE)], (), (1,)),
        ([bench.recv(MESSAGE)], (), (0,)),
    ] + [([bench.compute(1)],)] * 2
    assert bench.replay(ranks)[:2] == [(100_500, 40_500), (100_500, 100_500)]


def test_statistics_count_what_is_under_way_and_what_overlaps(bench):
    # 60 us of computing, and beside it a message of 100.5 us, which both ranks have under way
    ranks = [
        ([bench.compute(60_000), bench.send(MESSAGE)], (), (1,)),
        ([bench.recv(MESSAGE)], (), (0,)),
    ] + [([bench.compute(1)],)] * 2
    sender, receiver, *_ = replay_traces(bench.traces(ranks), bench.setup()).statistics
    assert (sender.gpu_time_ns, receiver.gpu_time_ns) == (60_000, 0)
    assert (sender.overlap_ns, receiver.overlap_ns) == (60_000, 0)
    assert (sender.comm_time_ns, receiver.comm_time_ns) == (100_500, 100_500)


@pytest.mark.parametrize(
    ("node", "said"),
    [
        (
            {"kind": NodeKind.COLLECTIVE, "collective": CollectiveType.BARRIER},
            "is a collective that ASTRA-sim",
        ),
        ({"kind": NodeKind.SEND, "size": 0, "peer": 0}, "is an empty message"),
        ({"kind": NodeKind.RECV, "size": 9}, "names no rank to talk to"),
        ({"kind": NodeKind.SEND, "size": 9, "peer": 0, "on_cpu": True}, "communicates on the CPU"),
        ({"kind": NodeKind.SEND, "size": 9, "peer": 1}, "a message to or from rank 0"),
        ({"kind": NodeKind.SEND, "size": 9, "peer": 2}, "a message to or from rank 77"),
        ({"kind": NodeKind.MEM_LOAD, "size": 9}, "uses remote memory; state one with --astra-memory"),
    ],
)
def test_nodes_that_can_not_run_are_named(bench, node, said):
    ranks = [([node], (), (1, 0, 77))] + [([bench.compute(1)],)] * 3
    with pytest.raises(TraceError) as failure:
        bench.replay(ranks)
    assert said in str(failure.value)
    assert "rank 0" in str(failure.value)


@pytest.mark.parametrize(("kind", "ends"), [("PER_NPU", [300] * 4), ("PER_NODE", [300, 600, 300, 600])])
def test_remote_memory_serves_one_at_a_time_where_it_is_shared(bench, kind, ends):
    # 100 ns + 2000 B / 10 B/ns; two NPUs share a node
    bench.memory = {
        "memory-type": f"{kind}_MEMORY_EXPANSION",
        "remote-mem-latency": 100,
        "remote-mem-bw": 10,
        "num-nodes": 2,
        "num-npus-per-node": 2,
    }
    ranks = [([{"kind": NodeKind.MEM_LOAD, "size": 2000}],)] * 4
    assert [end for end, _ in bench.replay(ranks)] == ends


def test_a_pool_serves_all_ranks_one_after_the_other(bench):
    bench.memory = {"memory-type": "MEMORY_POOL", "remote-mem-latency": 0, "remote-mem-bw": 1}
    ranks = [([{"kind": NodeKind.MEM_STORE, "size": 50}],)] * 4
    assert [end for end, _ in bench.replay(ranks)] == [50, 100, 150, 200]


def test_ranks_that_run_the_same_nodes_share_one_program(bench):
    bench.groups = {"1": [0, 1], "2": [2, 3]}
    # ids differ, their order does not
    ranks = [([bench.collective(4096, group=0, ids=9 * rank)], (str(1 + rank // 2),)) for rank in range(4)]
    program = lower(bench.traces(ranks), bench.setup()).program
    assert len(program.programs) == 1
    assert [binding.groups.tolist() for binding in program.bindings] == [[0], [0], [1], [1]]


def test_file_order_of_nodes_changes_nothing(bench):
    nodes = [
        bench.compute(50, ids=0),
        bench.collective(40_000, ids=1),
        bench.compute(30, ids=2, on_cpu=True),
        bench.collective(90_000, ids=3),
    ]
    forwards = bench.replay([(nodes,)] * 4)
    assert bench.replay([(nodes[::-1],)] * 4) == forwards


def test_an_unmatched_receive_is_a_deadlock_that_names_the_node(bench):
    ranks = [([bench.compute(1)],)] * 3 + [([bench.recv(9, ids=42)], (), (0,))]
    with pytest.raises(DeadlockError, match="rank 3 node 42"):
        replay_traces(bench.traces(ranks), bench.setup(), EngineChoice("simpy"))


def test_every_npu_needs_a_trace(bench):
    with pytest.raises(TraceError, match="4 NPUs, but no trace for rank 3"):
        bench.replay([([bench.compute(1)],)] * 3)


def test_undefined_groups_are_named(bench):
    ranks = [([bench.collective(4096, group=0)], ("7",))] * 4
    with pytest.raises(TraceError, match="process group '7' is not defined"):
        bench.replay(ranks)


def test_issue_follows_dependencies_where_ids_do_not(bench):
    from rapid_des.importers.astra_sim.ranks import issue_order

    # node 0 (id 1) waits for node 1 (id 5); node 2 (id 3) is free: issue 3, 5, 1
    nodes = bench.traces([([{"ids": 1, "after": [1]}, {"ids": 5}, {"ids": 3}],)]).ranks[0].nodes
    order = issue_order(nodes)
    assert order.nodes.tolist() == [2, 1, 0]
    assert order.position.tolist() == [0, 2, 1]
    assert order.position.dtype == np.int64
