"""Communication libraries in replay: alone, a collective takes what its closed form says."""

import numpy as np
import pytest

from rapid_des.bounded_cache import BoundedCache
from rapid_des.chakra import read_set, write_set
from rapid_des.chakra.trace import CollectiveType, one_collective
from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.network.collectives import demand, prove
from rapid_des.network.collectives.libraries.over_nodes import (
    mesh_chains,
    node_trees,
    rail_chains,
    rail_rings,
)
from rapid_des.network.collectives.schedule import Draft
from rapid_des.network.faults import parse_fault
from rapid_des.network.specs import LibraryChoice, Nccl
from rapid_des.program.collectives.library import Libraries
from rapid_des.program.collectives.templates import one_transfer
from rapid_des.simulation import replay
from rapid_des.studies.traffic import messages

C = CollectiveType
KIB, MIB, GIB = 2**10, 2**20, 2**30
OPERATIONS = [kind for kind in C if kind not in (C.BARRIER, C.REDUCE_SCATTER_BLOCK)]
NODE = load_machine("dgx_a100")
NODES = load_machine("dgx_h100_x8")
TRAINING = LibraryChoice(default=Nccl())
SERVING = load_job("llama2_7b_inference").software.communication


def libraries(machine, asked=TRAINING):
    """Return a machine's libraries under software that asks for some."""
    return Libraries(machine, machine.collectives.libraries_for(asked), BoundedCache())


def group(counts):
    """Return so many GPUs on each of the nodes, none of them at the beginning of its node if they fit."""
    return tuple(
        8 * node + min(1, 8 - own) + place for node, own in enumerate(counts) for place in range(own)
    )


def both(machine, kind, size, ranks):
    """Return the simulated picoseconds of a collective and those of the closed form."""
    laid = libraries(machine).lay_out("dp", kind, size, ranks)
    traces = one_collective(ranks, kind, size, stream="dp")
    return int(replay(traces, machine).step_time), laid.cost.duration


def covering(layouts, sizes):
    """Return cases of layout, operation and size: each operation on each layout with two of the sizes.

    The sizes take turns, so that each operation and each layout meets all of them.
    """
    return [
        (layout, kind, sizes[(place + turn + number) % len(sizes)])
        for place, layout in enumerate(layouts)
        for turn, kind in enumerate(OPERATIONS)
        for number in (0, len(sizes) // 2)
    ]


def spelled(value):
    """The name of a case."""
    return "+".join(map(str, value)) if isinstance(value, tuple) else str(getattr(value, "name", value))


IN_A_NODE = covering([2, 5, 8], [KIB, 48 * KIB, MIB, 24 * MIB, GIB, 16 * GIB])
COUNTS = [(1,) * 8, (2,) * 5, (3, 3), (8, 8), (8,) * 8, (1, 2), (3, 2), (5, 3, 4, 2)]
OVER_NODES = covering(COUNTS, [KIB, MIB, 24 * MIB, 512 * MIB, 16 * GIB])


@pytest.mark.parametrize(("ranks", "kind", "size"), IN_A_NODE, ids=spelled)
def test_a_collective_alone_in_a_node_takes_its_closed_form(ranks, kind, size):
    simulated, stated = both(NODE, kind, size, group((ranks,)))
    assert simulated == pytest.approx(stated, rel=0.02)


@pytest.mark.parametrize(("counts", "kind", "size"), OVER_NODES, ids=spelled)
def test_a_collective_alone_over_nodes_takes_its_closed_form(counts, kind, size):
    ranks = group(counts)
    share = size // len(ranks) if kind in (C.ALL_GATHER, C.GATHER) else size  # as nccl-tests counts them
    simulated, stated = both(NODES, kind, share, ranks)
    assert simulated == pytest.approx(stated, rel=0.02)


@pytest.mark.parametrize(
    ("name", "kind", "size", "ranks"),
    [
        # a broadcast takes all links of a mesh, not one ring's: was 2.4 times its closed form
        ("hgx_a100_x4", C.BROADCAST, 70_000_000, (3, 1, 0, 2)),
        ("hgx_a100_x4", C.REDUCE, GIB, (0, 1, 3)),
        # a GPU gets from all others over the NIC of its place, whatever theirs: was 3.4 times
        ("dgx_h100_superpod_32", C.ALL_TO_ALL, GIB, (50, 97, 164, 200, 221)),
        # blocks that are for one neighbour at once come one after the other, not in turns: 1.5 times
        ("dgx_a100_x8", C.REDUCE_SCATTER, 57_395_688, (3, 16, 18, 19, 59)),
        ("dgx_h100_x8", C.ALL_REDUCE, GIB, (0, 8, 30, 35, 39, 47, 51)),
        # what goes up and down trees goes through the same NICs: 1.3 times
        ("gh200_alps_x16", C.ALL_REDUCE, 305_749_138, (0, 1, 2, 3, 20, 21, 22, 23)),
        # links need a little longer than the closed form: its pace stays (1.9 times in turns)
        ("aws_p5_x32", C.REDUCE, 5_338_179_050, (15, 79, 106, 118)),
    ],
    ids=lambda value: value if isinstance(value, str) else getattr(value, "name", None),
)
def test_collectives_of_groups_laid_anyhow_take_their_closed_form(name, kind, size, ranks):
    simulated, stated = both(load_machine(name), kind, size, ranks)
    assert simulated == pytest.approx(stated, rel=0.02)


@pytest.mark.parametrize("root", [0, 2])
@pytest.mark.parametrize("kind", [C.BROADCAST, C.REDUCE], ids=lambda kind: kind.name)
def test_chains_over_a_mesh_bring_everybody_their_data(kind, root):
    of = demand(kind, 4, 1003, root=root)
    prove(mesh_chains(of, 3), of)


@pytest.mark.parametrize("kind", OPERATIONS, ids=lambda kind: kind.name.lower())
@pytest.mark.parametrize("counts", [(4, 4), (3, 2)], ids=str)
def test_both_engines_agree_to_the_tick(kind, counts):
    traces = one_collective(group(counts), kind, 3 * MIB + 5, stream="dp")
    simpy, compiled = (replay(traces, NODES, engine=name).step_time for name in ("simpy", "compiled"))
    assert simpy == compiled


@pytest.mark.parametrize("kind", [C.ALL_REDUCE, C.ALL_GATHER, C.REDUCE_SCATTER], ids=lambda kind: kind.name)
@pytest.mark.parametrize("counts", [(2, 2), (4, 4), (8, 8), (3, 3, 3), (2, 2, 2), (3, 2), (1, 2), (5, 2, 4)])
def test_rings_over_rails_bring_everybody_their_data(kind, counts):
    of = demand(kind, sum(counts), sum(counts) * min(counts) * 7 + 3)
    prove(rail_rings(of, counts), of)
    without = rail_rings(of, counts, payloads=False)
    assert without.size.sum() == rail_rings(of, counts).size.sum()


@pytest.mark.parametrize("kind", [C.BROADCAST, C.REDUCE], ids=lambda kind: kind.name)
@pytest.mark.parametrize(
    ("counts", "root"), [((2, 2), 0), ((4, 4), 5), ((8, 8), 15), ((3, 3), 1), ((3, 2), 2), ((2, 4, 5), 10)]
)
def test_chains_over_rails_bring_everybody_their_data(kind, counts, root):
    of = demand(kind, sum(counts), 1003, root=root)
    prove(rail_chains(of, counts, 2), of)


@pytest.mark.parametrize("switched", [False, True])
@pytest.mark.parametrize("counts", [(2, 2), (8, 8), (3, 2), (5, 3, 4, 2), (1, 2), (2,) * 7])
def test_trees_over_nodes_bring_everybody_their_data(counts, switched):
    prove(node_trees(1003, counts, switched=switched, chunks=3), demand(C.ALL_REDUCE, sum(counts), 1003))


@pytest.mark.parametrize("order", [1, -1])
def test_nodes_reduce_in_their_own_switches(order):
    ranks = group((8, 8))[::order]
    traces = one_collective(ranks, C.ALL_REDUCE, 24 * MIB, stream="dp")
    simpy, compiled = (replay(traces, NODES, engine=name) for name in ("simpy", "compiled"))
    assert simpy.step_time == compiled.step_time
    moved = {row.link: row.bytes for row in compiled.links()}
    # up: the buffer to be reduced, then its eighth, reduced; down: its eighth, then all that is multicast
    for gpu, switch in ((0, 0), (8, 1)):
        assert moved[f"gpu{gpu}>switch{switch}"] == moved[f"switch{switch}>gpu{gpu}"] == 24 * MIB * 9 // 8
    # an eighth goes to the other node by two trees, half of it up in one and down in the other
    assert moved["gpu0>nic0"] == 3 * MIB


def test_nodes_reduce_in_their_switches_while_these_reach_all_of_their_ranks():
    cut = NODES.with_faults([parse_fault("link=gpu3-switch0 down=true")])
    without = tuple(rank for rank in group((8, 8)) if rank != 3)
    for ranks, algorithm in ((group((8, 8)), "ring"), (without, "nvls_tree")):
        laid = libraries(cut).lay_out("dp", C.ALL_REDUCE, GIB, ranks)
        assert laid.cost.algorithm == algorithm
    assert libraries(NODES).lay_out("dp", C.ALL_REDUCE, GIB, group((8, 8))).cost.algorithm == "nvls_tree"


def test_rings_over_rails_load_every_rail_alike():
    traces = one_collective(group((8,) * 4), C.ALL_GATHER, 64 * MIB, stream="dp")
    loads = [row.bytes for row in replay(traces, NODES).links() if row.dimension == "rail" and row.bytes]
    assert len(loads) >= 2 * 32  # up and down, of every GPU
    assert max(loads) <= 1.01 * min(loads)


def test_a_slow_link_slows_a_collective_and_a_dead_one_is_gone_round():
    ranks = group((7,))
    traces = one_collective(ranks, C.ALL_GATHER, 16 * MIB, stream="dp")
    healthy = replay(traces, NODE).step_time
    slow = NODE.with_faults([parse_fault("link=gpu2-switch0 bandwidth=0.25")])
    timed = NODE.with_faults([parse_fault("link=gpu2-switch0 bandwidth=0.25 from=0s until=1000s")])
    assert replay(traces, slow).step_time > 2 * healthy
    assert int(replay(traces, timed).step_time) == pytest.approx(
        int(replay(traces, slow).step_time), rel=1e-3
    )


def test_slower_links_slow_a_library_in_proportion_and_its_start_stays():
    ranks = group((7,))
    half = load_machine(NODE, settings={"fabric.0.bandwidth": "0.5x"})
    large, small = (
        [both(machine, C.ALL_GATHER, size, ranks)[0] for machine in (NODE, half)] for size in (GIB, KIB)
    )
    assert large[1] == pytest.approx(2 * large[0], rel=0.05)
    assert small[1] == pytest.approx(small[0], rel=0.01)


@pytest.mark.parametrize("mixed", [(16, 0, 8), (9, 0, 8, 1), (3, 1, 2)])
def test_the_order_in_which_a_group_lists_its_ranks_does_not_matter(mixed):
    times = [both(NODES, C.ALL_GATHER, 4 * MIB, group) for group in (tuple(sorted(mixed)), mixed)]
    for simulated, stated in times:
        assert simulated == pytest.approx(stated, rel=0.02)
    assert times[0][1] == times[1][1]
    assert times[0][0] == pytest.approx(times[1][0], rel=1e-4)


def test_inference_takes_the_libraries_that_serve_it():
    reduces = [
        libraries(NODE, asked).lay_out("tp", C.ALL_REDUCE, 64 * KIB, (0, 1)).name
        for asked in (TRAINING, SERVING)
    ]
    assert reduces[0].endswith("by ring ll") and reduces[1].endswith("by one_shot custom")
    large = libraries(NODE, SERVING).lay_out("tp", C.ALL_REDUCE, 256 * MIB, (0, 1))
    assert large.library == "nccl"


def test_a_kind_of_group_that_is_native_asks_no_library():
    native = load_machine(NODE, settings={"collectives.libraries.tp": {"library": "native"}})
    found = libraries(native)
    assert found.lay_out("tp", C.ALL_REDUCE, MIB, (0, 1)) is None
    assert found.message("tp", MIB, (0, 1), (0, 1)) is None
    assert found.lay_out("dp", C.ALL_REDUCE, MIB, (0, 1)).library == "nccl"


def test_a_stated_algorithm_goes_before_the_library():
    stated = load_machine(NODE, settings={"collectives.all_reduce": "ring"})
    assert libraries(stated).lay_out("dp", C.ALL_REDUCE, MIB, (0, 1, 2)) is None
    assert libraries(stated).lay_out("dp", C.ALL_GATHER, MIB, (0, 1, 2)) is not None


@pytest.mark.parametrize(("ends", "least"), [((0, 3), 11e6), ((0, 11), 20e6)])
def test_a_message_takes_its_start_and_its_bytes(ends, least):
    size = 8 * KIB
    cost = libraries(NODES).message("pp", size, ends, ends)
    traces = messages(one_transfer(size), ends)
    assert int(replay(traces, NODES).step_time) == pytest.approx(cost.duration, rel=0.001)
    assert cost.duration > least


def test_a_message_has_the_channels_that_its_communicator_gives_each_peer():
    # to another node a pair has 4 channels; among 64 ranks, 8 a node, 4 peers at most share each of 32, and
    # 64 x 4 are more than 128: 2. In a node 32 channels are for 2 ranks, or 8; among 64, 128 // 64 are left
    def channels(ends, among):
        return libraries(NODES).message("pp", MIB, ends, among).channels

    assert [channels((0, 8), among) for among in ((0, 8), range(64))] == [4, 2]
    assert [channels((0, 1), among) for among in ((0, 1), range(8), range(64))] == [16, 4, 2]


def test_messages_that_name_a_communicator_take_what_it_gives_them(tmp_path):
    size, ranks = 16 * MIB, tuple(range(64))
    cost = libraries(NODES).message("transfer-0", size, (0, 1), ranks)
    draft = Draft(demand(C.ALL_GATHER, 64, size))
    draft.add(np.array([0]), np.array([1]), (0, size))
    traces = messages(draft.seal(), ranks, together=True)
    alone = int(replay(traces, NODES).step_time)
    assert alone == pytest.approx(cost.duration, rel=0.001)
    assert alone > 1.5 * int(replay(messages(draft.seal(), ranks), NODES).step_time)
    write_set(traces, tmp_path, "many")
    assert int(replay(read_set(tmp_path), NODES).step_time) == alone
