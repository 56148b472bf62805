"""Collectives: closed forms on idle fabrics, and who waits for whom where members do not come."""

import pytest

from rapid_des.chakra.trace import CollectiveType
from rapid_des.errors import DeadlockError
from tests.program.machines import STORE, dimension, machine, ring, switch
from tests.program.tracing import ALL_GATHER, ALL_REDUCE, BARRIER, Nodes, same_everywhere, trace_set
from tests.semantics.messages import LATENCY, hop


def alone(kind, size, ranks):
    """All ranks enter one collective at time 0."""
    nodes = Nodes()
    nodes.collective(kind, size)
    return same_everywhere(nodes, ranks)


@pytest.mark.parametrize("ranks", [2, 4, 5, 8])
def test_ring_all_reduce_on_a_ring(replayed, ranks):
    done = replayed(alone(ALL_REDUCE, 40 * ranks, ranks), machine(ring(ranks)))
    # a reduce-scatter and an all-gather of n - 1 steps, each a piece of 40 B to the next rank
    assert {end for finish in done.finish for end in finish} == {2 * (ranks - 1) * hop(40)}


@pytest.mark.parametrize("segments", [1, 2, 40])
def test_a_step_in_segments_waits_for_all_of_the_step_before(replayed, segments):
    where = machine(ring(4), switching=STORE | {"segment": "10 B"})
    done = replayed(alone(ALL_REDUCE, 40 * segments, 4), where)
    # six steps: each sends a quarter, then its last segment travels
    assert {finish for (finish,) in done.finish} == {6 * (10_000 * segments + LATENCY)}
    (template,) = done.program.templates
    # each segment leads to the join behind its message, and waits for that of the message before
    assert len(template.edge_target) <= 3 * len(template)
    assert done.records.hops == 4 * 6 * segments


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
    where = machine(dimension("fully_connected", 6), collectives={"barrier": "dissemination"})
    done = replayed(alone(BARRIER, 0, 6), where)
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
