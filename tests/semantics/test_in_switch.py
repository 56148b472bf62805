"""Collectives inside switches: closed forms, bytes on links, contention and faults, on every engine."""

import pytest

from rapid_des.chakra.trace import CollectiveType
from rapid_des.errors import ConfigError, FabricCutError
from rapid_des.network.faults import parse_fault
from tests.program.machines import dimension, machine, ring, switch
from tests.program.tracing import ALL_GATHER, ALL_REDUCE, NANOSECOND, Nodes, same_everywhere, trace_set

REDUCE_SCATTER = CollectiveType.REDUCE_SCATTER
UPLINK = {"bandwidth": "1 GB/s", "latency": "100 ns"}
CLOS = dimension("clos", 8, leaf_size=2, spines=2, uplink=UPLINK)


def alone(kind, size, ranks):
    """All ranks enter one collective at time 0."""
    nodes = Nodes()
    nodes.collective(kind, size)
    return same_everywhere(nodes, ranks)


def hop(size):
    """1 GB/s and 100 ns."""
    return (size + 100) * NANOSECOND


def ends(done):
    return {end for finish in done.finish for end in finish}


def crossed(done, where):
    """Bytes of links by name."""
    sums = done.records.link_bytes.sum(axis=1)
    return {where.fabric.link_name(link): int(sums[link]) for link in sums.nonzero()[0].tolist()}


def inside(*dimensions, algorithm, chunks=1, **keys):
    return machine(*dimensions, collectives={"default": {"algorithm": algorithm, "chunks": chunks}}, **keys)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_an_all_reduce_in_a_tree_of_one_switch_takes_the_buffer_up_and_down(replayed, ranks):
    where = inside(switch(ranks), algorithm="sharp")
    done = replayed(alone(ALL_REDUCE, 4000, ranks), where)
    assert done.finish == [[2 * hop(4000)]] * ranks
    assert crossed(done, where) == {
        name: 4000 for rank in range(ranks) for name in (f"gpu{rank}>switch0", f"switch0>gpu{rank}")
    }


@pytest.mark.parametrize("chunks", [1, 4, 10])
def test_chunks_follow_one_another_through_two_levels_of_switches(replayed, chunks):
    where = inside(CLOS, algorithm="sharp", chunks=chunks)
    done = replayed(alone(ALL_REDUCE, 4000, 8), where)
    # the buffer onto the first link, then the last chunk over three more: leaf to spine and down again
    assert ends(done) == {hop(4000) + 3 * hop(4000 // chunks)}


def test_a_tree_loads_each_of_its_links_once_and_no_other(replayed):
    where = inside(CLOS, algorithm="sharp", routing={"order": "innermost_first", "tie": "positive"})
    done = replayed(alone(ALL_REDUCE, 4000, 8), where)
    carried = crossed(done, where)
    (root,) = {name.split(">")[1] for name in carried if name.startswith("switch0>switch")}
    branches = [(f"gpu{gpu}", f"switch{gpu // 2}") for gpu in range(8)]
    branches += [(f"switch{leaf}", root) for leaf in range(4)]
    assert carried == {f"{a}>{b}": 4000 for pair in branches for a, b in (pair, pair[::-1])}
    assert done.records.sent == done.records.received == 24 * 4000


@pytest.mark.parametrize("ranks", [4, 5, 8])
def test_nvls_at_once_takes_all_pulls_and_then_all_copies(replayed, ranks):
    where = inside(switch(ranks), algorithm="nvls")
    done = replayed(alone(ALL_REDUCE, 1000 * ranks, ranks), where)
    # n blocks up, the first stored blocks up behind them, then n - 1 copies down
    assert ends(done) == {(1000 * ranks + 1000 + 100 + 1000 * (ranks - 1) + 100) * NANOSECOND}
    carried = crossed(done, where)
    assert carried["gpu0>switch0"] == 1000 * (ranks + 1)
    assert carried["switch0>gpu0"] == 1000 * ranks


def test_nvls_in_many_chunks_fills_its_links_both_ways(replayed):
    where = inside(switch(8, latency="1 ns"), algorithm="nvls", chunks=32)
    done = replayed(alone(ALL_REDUCE, 256_000, 8), where)
    # each GPU sends all of the buffer and its eighth a second time, 9/8 of it at 1 GB/s; before and after
    # that the pipeline fills and empties, in less than two chunks of 8,000 B
    assert 288_000 <= max(ends(done)) / NANOSECOND <= 288_000 + 2 * 8000


def test_nvls_reduce_scatter_and_all_gather(replayed):
    where = inside(switch(4), algorithm="nvls")
    scattered = replayed(alone(REDUCE_SCATTER, 4000, 4), where)
    # the last block is complete behind three others, then goes to its owner
    assert max(ends(scattered)) == hop(4000) + hop(1000)
    gathered = replayed(alone(ALL_GATHER, 1000, 4), where)
    assert ends(gathered) == {hop(1000) + hop(3000)}


def test_a_tree_keeps_a_members_own_block_off_its_links(replayed):
    where = inside(switch(4), algorithm="sharp")
    done = replayed(alone(REDUCE_SCATTER, 4000, 4), where)
    assert crossed(done, where)["gpu0>switch0"] == 3000
    assert crossed(done, where)["switch0>gpu0"] == 1000
    gathered = replayed(alone(ALL_GATHER, 1000, 4), where)
    assert crossed(gathered, where)["switch0>gpu0"] == 3000
    assert ends(gathered) == {hop(1000) + hop(3000)}


def test_blocks_turn_round_at_the_highest_switch_on_their_way(replayed):
    where = inside(CLOS, algorithm="sharp")
    done = replayed(alone(ALL_GATHER, 1000, 8), where)
    carried = crossed(done, where)
    spine = next(name.split(">")[1] for name in carried if name.startswith("switch0>switch"))
    # a leaf sends up its two shards, gets the six others, and passes seven to each GPU
    assert carried[f"switch0>{spine}"] == 2000
    assert carried[f"{spine}>switch0"] == 6000
    assert carried["switch0>gpu1"] == 7000


def test_dimensions_with_algorithms_of_their_own(replayed):
    where = inside(switch(2), switch(3), algorithm=["nvls", "sharp"])
    done = replayed(alone(ALL_REDUCE, 6000, 6), where)
    # reduce-scatter in the pair: 2 blocks of 3000 B up, one down; all-reduce of 3000 B among three;
    # all-gather in the pair, which ends where it waits for the block that was complete last
    assert max(ends(done)) == hop(6000) + hop(3000) + 2 * hop(3000) + 2 * hop(3000)


def test_part_of_a_dimension_has_its_switch_too(replayed):
    nodes = Nodes()
    nodes.collective(ALL_REDUCE, 3000, "part")
    traces = same_everywhere(nodes, 3, groups={"part": (0, 1, 2)})
    where = inside(switch(4), ring(2), algorithm=["sharp", "ring"])
    assert ends(replayed(traces, where)) == {2 * hop(3000)}


def test_a_message_on_the_same_link_holds_the_collective_up(replayed):
    ranks = [Nodes() for _ in range(4)]
    ranks[0].send(1, 500)
    ranks[1].recv(0, 500)
    for nodes in ranks:
        nodes.collective(ALL_REDUCE, 1000)
    done = replayed(trace_set(ranks), inside(switch(4), algorithm="sharp"))
    # rank 0 sends its message first: its part of the sum comes 500 B late
    assert [finish[-1] for finish in done.finish] == [2 * hop(1000) + 500 * NANOSECOND] * 4


def test_two_groups_share_the_links_of_their_trees(replayed):
    nodes = Nodes()
    nodes.collective(ALL_REDUCE, 1000, "all")
    nodes.collective(ALL_REDUCE, 1000, "again", stream="tp")
    both = {"all": (0, 1, 2, 3), "again": (0, 1, 2, 3)}
    traces = same_everywhere(nodes, 4, groups=both)
    done = replayed(traces, inside(switch(4), algorithm="sharp"))
    # the second goes 1000 B behind the first, up and down
    assert done.finish == [[2 * hop(1000), 2 * hop(1000) + 1000 * NANOSECOND]] * 4


def test_a_late_member_holds_up_the_sum_but_not_what_others_send(replayed):
    ranks = []
    for late in (0, 0, 0, 5000 * NANOSECOND):
        nodes = Nodes()
        first = nodes.compute(late)
        nodes.collective(ALL_REDUCE, 1000, after=first)
        ranks.append(nodes)
    done = replayed(trace_set(ranks), inside(switch(4), algorithm="sharp"))
    assert {finish[1] for finish in done.finish} == {5000 * NANOSECOND + 2 * hop(1000)}


def test_a_default_serves_the_groups_that_have_a_switch(replayed):
    where = inside(switch(2), ring(3), algorithm="nvls")
    done = replayed(alone(ALL_REDUCE, 6000, 6), where)
    ringed = machine(switch(2), ring(3), collectives={"default": "auto"})
    assert done.finish == replayed(alone(ALL_REDUCE, 6000, 6), ringed).finish


def test_a_group_without_a_switch_is_refused_by_name(replayed):
    where = machine(switch(2), switch(2), collectives={"all_reduce": "nvls"})
    with pytest.raises(
        ConfigError,
        match="collectives.all_reduce: 'nvls' needs one switch that all members reach without passing a "
        "GPU; the 4 members of group 'world' have none",
    ):
        replayed(alone(ALL_REDUCE, 4000, 4), where)
    several = machine(CLOS, collectives={"all_reduce": "nvls"})
    with pytest.raises(ConfigError, match="8 members of group 'world' have none"):
        replayed(alone(ALL_REDUCE, 4000, 8), several)


def broken(where, *faults):
    return where.with_faults([parse_fault(text) for text in faults])


def test_a_dead_spine_moves_the_tree(replayed):
    where = machine(CLOS, collectives={"all_reduce": "sharp"})
    healthy = replayed(alone(ALL_REDUCE, 4000, 8), where)
    root = next(name for name in crossed(healthy, where) if name.startswith("switch0>switch"))[-1]
    left = broken(where, f"switch={root} down=true")
    done = replayed(alone(ALL_REDUCE, 4000, 8), left)
    assert ends(done) == ends(healthy) == {4 * hop(4000)}
    assert not any(f"switch{root}" in name for name in crossed(done, left))


def test_a_member_cut_from_its_switch_is_named(replayed):
    where = machine(switch(4), ring(2), collectives={"all_reduce": "nvls"})
    nodes = Nodes()
    nodes.collective(ALL_REDUCE, 4000, "node0")
    traces = same_everywhere(nodes, 4, groups={"node0": (0, 1, 2, 3)})
    with pytest.raises(FabricCutError, match="members of group 'node0' have none left, as links are dead"):
        replayed(traces, broken(where, "link=gpu1>switch0 down=true"))


def test_a_slow_branch_slows_the_tree(replayed):
    where = inside(switch(4), algorithm="sharp")
    done = replayed(alone(ALL_REDUCE, 4000, 4), broken(where, "link=gpu1>switch0 bandwidth=0.5"))
    assert ends(done) == {hop(8000) + hop(4000)}
