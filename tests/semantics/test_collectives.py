"""Collectives: closed forms on idle fabrics, instances and their numbers (R5), and who waits for whom."""

import pytest

from rapid_des.chakra.trace import CollectiveType
from rapid_des.errors import DeadlockError, TraceError
from tests.program.machines import dimension, machine, ring, switch
from tests.program.tracing import ALL_GATHER, ALL_REDUCE, BARRIER, Nodes, same_everywhere, trace_set
from tests.semantics.sketch import Sketch

LATENCY = 100_000


def alone(kind, size, ranks):
    """All ranks enter one collective at time 0."""
    nodes = Nodes()
    nodes.collective(kind, size)
    return same_everywhere(nodes, ranks)


def hop(size):
    """1 GB/s and 100 ns."""
    return size * 1000 + LATENCY


@pytest.mark.parametrize("ranks", [2, 4, 5, 8])
def test_ring_all_reduce_on_a_ring(replayed, ranks):
    done = replayed(alone(ALL_REDUCE, 40 * ranks, ranks), machine(ring(ranks)))
    # a reduce-scatter and an all-gather of n - 1 steps, each a piece of 40 B to the next rank
    assert {end for finish in done.finish for end in finish} == {2 * (ranks - 1) * hop(40)}


def test_ring_all_reduce_through_a_switch_takes_two_hops_a_step(replayed):
    done = replayed(alone(ALL_REDUCE, 160, 4), machine(switch(4)))
    assert done.finish == [[2 * 3 * 2 * hop(40)]] * 4


def test_ring_all_gather_takes_the_shard_of_each_member(replayed):
    done = replayed(alone(ALL_GATHER, 40, 5), machine(ring(5)))
    assert done.finish == [[4 * hop(40)]] * 5


def test_ring_reduce_scatter_takes_the_whole_buffer(replayed):
    done = replayed(alone(CollectiveType.REDUCE_SCATTER, 200, 5), machine(ring(5)))
    assert done.finish == [[4 * hop(40)]] * 5


def test_halving_doubling_on_a_hypercube(replayed):
    where = machine(dimension("hypercube", 8), collectives={"default": "halving_doubling"})
    done = replayed(alone(ALL_REDUCE, 800, 8), where)
    # halves of 400, 200 and 100 B to neighbours, and back
    assert done.finish == [[2 * (hop(400) + hop(200) + hop(100))]] * 8


def test_direct_all_to_all_between_all_at_once(replayed):
    where = machine(dimension("fully_connected", 4), collectives={"default": "direct"})
    done = replayed(alone(CollectiveType.ALL_TO_ALL, 400, 4), where)
    assert done.finish == [[hop(100)]] * 4


def test_a_barrier_takes_log_n_rounds_of_a_byte(replayed):
    done = replayed(alone(BARRIER, 0, 6), machine(dimension("fully_connected", 6)))
    # ceil(log2 6) = 3 rounds
    assert done.finish == [[3 * hop(1)]] * 6


def test_a_broadcast_down_a_chain_ends_at_each_member_in_turn(replayed):
    done = replayed(alone(CollectiveType.BROADCAST, 40, 4), machine(ring(4)))
    # the chain goes 0, 1, 2, 3; a member is done when it has passed the message on
    assert [finish[0] for finish in done.finish] == [hop(40), 2 * hop(40), 3 * hop(40), 3 * hop(40)]


def test_an_all_reduce_along_each_dimension_of_a_machine(replayed):
    where = machine(ring(2), ring(3), collectives={"default": ["ring", "ring"]})
    done = replayed(alone(ALL_REDUCE, 120, 6), where)
    # reduce-scatter 120 B among 2, all-reduce 60 B among 3, all-gather shards of 60 B among 2
    assert done.finish == [[hop(60) + 4 * hop(20) + hop(60)]] * 6


def test_a_group_of_one_does_nothing(replayed):
    nodes = Nodes()
    nodes.compute(10)
    nodes.compute(5, after=nodes.collective(ALL_REDUCE, 100, "me"))
    done = replayed(trace_set([nodes], {"me": (0,)}), machine(ring(2)))
    assert done.finish == [[10, 0, 15]]


def test_a_collective_holds_its_stream_from_arrival_until_its_member_is_done(replayed):
    early, late = Nodes(), Nodes()
    for nodes, work in ((early, 0), (late, 1_000_000)):
        gate = nodes.compute(work) if work else ()
        nodes.collective(ALL_REDUCE, 80, after=gate)
        nodes.compute(10, stream="dp")
    done = replayed(trace_set([early, late]), machine(ring(2)))
    end = 1_000_000 + 2 * hop(40)
    assert done.start[0] == [0, end]
    assert done.finish[0] == [end, end + 10]
    assert done.records.met.max() == 1_000_000


def test_the_kth_call_of_each_member_meets_whatever_stream_it_is_on(replayed):
    one, other = Nodes(), Nodes()
    one.collective(ALL_REDUCE, 80, stream="a")
    one.collective(ALL_GATHER, 40, stream="b")
    other.collective(ALL_REDUCE, 80, stream="c")
    other.collective(ALL_GATHER, 40, stream="c")
    done = replayed(trace_set([one, other]), machine(ring(2)))
    # rank 1's stream c runs one after the other
    assert done.finish[1] == [2 * hop(40), 3 * hop(40)]
    assert done.finish[0][0] == 2 * hop(40)


def test_collectives_of_two_groups_do_not_meet(replayed):
    nodes = [Nodes() for _ in range(4)]
    groups = {"low": (0, 1), "high": (2, 3)}
    for rank, mine in enumerate(nodes):
        mine.collective(ALL_REDUCE, 80, "low" if rank < 2 else "high")
    done = replayed(trace_set(nodes, groups), machine(dimension("mesh", [4])))
    assert done.finish == [[2 * hop(40)]] * 4


def test_members_that_disagree_are_named_with_group_number_and_values(replayed):
    one, other = Nodes(), Nodes()
    for nodes, size in ((one, 80), (other, 120)):
        nodes.collective(ALL_REDUCE, 40)
        nodes.collective(ALL_REDUCE, size)
    with pytest.raises(TraceError) as refusal:
        replayed(trace_set([one, other]), machine(ring(2)))
    text = str(refusal.value)
    assert "group world" in text
    assert "collective number 1" in text
    assert "all_reduce of 80 B" in text
    assert "all_reduce of 120 B" in text


def test_a_send_and_a_receive_of_different_sizes_disagree(replayed):
    sender, receiver = Nodes(), Nodes()
    sender.send(1, 100, tag=7)
    receiver.recv(0, 99, tag=7)
    with pytest.raises(TraceError, match=r"0>1 tag 7.*number 0.*a message of (100|99) B"):
        replayed(trace_set([sender, receiver]), machine(ring(2)))


def test_on_an_unordered_stream_the_number_is_bound_when_a_visit_starts(replayed):
    one, other = Nodes(), Nodes()
    # rank 0 lists the two in the other order, but its second is ready first
    one.collective(ALL_GATHER, 40, stream="any", after=one.compute(50))
    one.collective(ALL_REDUCE, 80, stream="any")
    other.collective(ALL_REDUCE, 80, stream="any")
    other.collective(ALL_GATHER, 40, stream="any", after=other.compute(50))
    done = replayed(trace_set([one, other], unordered={"any"}), machine(ring(2)))
    assert done.finish[0] == [50, 3 * hop(40), 2 * hop(40)]
    assert done.finish[1] == [2 * hop(40), 50, 3 * hop(40)]


def test_a_group_on_streams_with_and_without_order_counts_all_its_calls_together(replayed):
    nodes = Nodes()
    nodes.collective(ALL_REDUCE, 80, stream="dp")
    nodes.collective(ALL_REDUCE, 80, stream="any", after=nodes.compute(50))
    done = replayed(same_everywhere(nodes, 2, unordered={"any"}), machine(ring(2)))
    # the second is issued at 50 ps and shares the links: both steps of both are sent behind one another
    assert done.finish == [[2 * hop(40), 50, 2 * hop(40) + 40_000]] * 2


def numbered(run, order, **columns):
    """Two ranks meet twice in a linkless barrier; rank 1 starts its visits in `order`."""
    sketch = Sketch()
    first, second = sketch.rank(capacities=(9,)), sketch.rank(capacities=(9,))
    task = {"source": 0, "gates": [(0, 0), (1, 0)]}
    barrier = sketch.template(2, [task], {0: [(0, 5)], 1: [(0, 5)]})
    one, other = sketch.meet((first, second), {barrier: {}})
    for moment, k in ((100, 0), (200, 1)):
        first.member(one, barrier, after=[first.join(moment)], **{name: k for name in columns})
    for moment, k in zip(order, (0, 1), strict=True):
        second.member(other, barrier, after=[second.join(moment)], **{name: k for name in columns})
    return run(sketch.program()).finish[[1, 3, 5, 7]].tolist()


def test_a_dynamic_number_counts_starts(run):
    # rank 1's second visit starts first and meets rank 0's first at 100
    assert numbered(run, (30, 20)) == [105, 205, 205, 105]


def test_a_static_number_is_kept_whatever_starts_first(run):
    assert numbered(run, (30, 20), occurrence=True) == [105, 205, 105, 205]


def test_the_ordered_stream_prevents_opposite_orders(replayed):
    groups = {"a": (0, 1), "b": (0, 1)}
    one, other = Nodes(), Nodes()
    # the second rank's first collective is ready late; the second must wait for it all the same
    one.collective(ALL_REDUCE, 80, "a")
    one.collective(ALL_REDUCE, 80, "b")
    other.collective(ALL_REDUCE, 80, "a", after=other.compute(500_000))
    other.collective(ALL_REDUCE, 80, "b")
    done = replayed(trace_set([one, other], groups), machine(ring(2)))
    assert done.finish[0] == [500_000 + 2 * hop(40), 500_000 + 4 * hop(40)]


def test_a_deadlock_names_who_waits_for_whom(replayed):
    one, other = Nodes(), Nodes()
    for nodes, peer in ((one, 1), (other, 0)):
        nodes.recv(peer, 100, stream="p2p")
        nodes.send(peer, 100, stream="p2p")
    with pytest.raises(DeadlockError) as stuck:
        replayed(trace_set([one, other]), machine(ring(2)))
    text = str(stuck.value)
    assert stuck.value.exit_code == 3
    assert "4 of 4 steps never end" in text
    assert "rank 0 node 0 (node0) waits in group 1>0 tag 0; not there: rank 1" in text
    assert "rank 1 node 1 (node1) waits for rank 1 node 0 (node0)" in text


def test_a_member_that_never_comes_is_named(replayed):
    came, never = Nodes(), Nodes()
    came.collective(ALL_REDUCE, 100)
    never.compute(10)
    with pytest.raises(
        DeadlockError, match=r"rank 0 node 0 \(node0\) waits in group world; not there: rank 1"
    ):
        replayed(trace_set([came, never]), machine(ring(2)))


def test_tasks_with_lags_injection_anchors_and_counting(run):
    sketch = Sketch()
    source, sink = sketch.rank(), sketch.rank()
    first, second = sketch.link(lag=11), sketch.link()
    tasks = [
        {"source": 0, "destination": 1, "size": 10, "gates": [(0, 3)]},
        # 40 ps after the first was injected, not after it arrived
        {"source": 0, "destination": 1, "size": 20, "after": [(0, 40, "injection")]},
        # one of two must have arrived
        {"source": 0, "after": [(0, 2, "arrival"), (1, 2, "arrival")], "need": 1},
    ]
    template = sketch.template(2, tasks, {0: [(2, 0)], 1: [(1, 5)]})
    send, receive = sketch.meet((source, sink), {template: {(0, 1): [first, second]}})
    source.member(send, template)
    sink.member(receive, template)
    records = run(sketch.program())
    # task 0: injected 3, first link until 10_003, stands at the second at 10_014, arrives 20_014
    # task 1: injected 43, waits for the first link until 10_003, 20_000 on it, 11 more, 20_000: 50_014
    assert records.finish.tolist() == [20_014 + 2, 50_014 + 5]
    assert records.hops == 4
    assert records.link_wait.sum() == 10_003 - 43


def test_messages_of_a_collective_in_chunks_stay_whole(replayed):
    def tree(chunks, parts):
        where = machine(
            switch(8),
            switching={"mode": "cut_through", "segment": "64 B", "parts": parts},
            collectives={"default": {"algorithm": "double_binary_tree", "chunks": chunks}},
        )
        done = replayed(alone(ALL_REDUCE, 8 * 64 * 4, 8), where)
        return done.finish, done.records.hops

    # one by one, chunks pipeline down the trees; in turns all would come last
    assert tree(2, parts=4) == tree(2, parts=1)
    # where there is one chunk only, its messages of 16 packets go in four parts
    assert tree(1, parts=4)[1] == 4 * tree(1, parts=1)[1]
