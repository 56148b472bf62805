"""Blocks and the graph around them come from the same templates as the flattened trace."""

import pytest

from rapid_des.chakra.trace import NodeKind
from rapid_des.frontend import build
from rapid_des.frontend.blocks import Cuts, blocks, separates
from rapid_des.frontend.template import PieceColumn, PieceNode, make_piece

SPLIT = [
    ("parallelism.tp", "2"),
    ("parallelism.sequence_parallel", "true"),
    ("parallelism.pp", "2"),
    ("parallelism.dp", "2"),
    ("training.bucket_parameters", "10000"),
]


def simulated(taken, replay):
    """Simulate each block on the first inner group of its stage; return its durations."""
    ranks = taken.inner_groups[0]
    found = {}
    for key, block in taken.blocks.items():
        finish = replay(block.on(ranks), rendezvous=True)
        slowest = [max(times) for times in zip(*finish.values(), strict=True)]
        found[key] = Cuts.of(block.passed(slowest))
    return found


@pytest.mark.parametrize(
    "extra",
    [
        [],
        [
            ("training.recompute", "full"),
            ("training.zero_stage", "1"),
            ("training.overlap_parameters", "true"),
        ],
        [("training.schedule", "interleaved_1f1b"), ("parallelism.chunks", "2")],
        [("model.tied_embeddings", "true"), ("training.overlap_pipeline", "false")],
        [("parallelism.cp", "2"), ("training.recompute", "selective")],
        [("training.schedule", "zb_h1"), ("model.tied_embeddings", "true")],
        [("training.schedule", "zb_v"), ("training.recompute", "full")],
        [("training.schedule", "dualpipe"), ("training.zero_stage", "1")],
        [("parallelism.pp", "4"), ("parallelism.layers", "[0, 2, 0, 2]")],
        [("parallelism.pp", "4"), ("training.schedule", "zb_h2"), ("parallelism.layers", "[4, 0, 0, 0]")],
    ],
    ids=str,
)
def test_without_a_network_blocks_and_their_graph_take_as_long_as_the_flat_trace(tiny, prices, replay, extra):
    job = tiny(*SPLIT, *extra)
    taken = blocks(job, prices)
    durations = simulated(taken, replay)
    outer = taken.outer([durations] * job.stages)
    flat = replay(build(job, prices).traces, rendezvous=True)
    finish = replay(outer.traces, rendezvous=True)
    assert [trace.rank for trace in outer.traces.ranks] == [group[0] for group in taken.inner_groups]
    assert len(outer.traces.ranks) == job.gpus // 2
    for rank, times in finish.items():
        assert max(times) == max(flat[rank])


def test_a_stage_runs_only_its_blocks(tiny, prices):
    taken = blocks(tiny(*SPLIT), prices)
    kinds = [sorted({(key.section.name, key.phase) for key in taken.keys(stage)}) for stage in (0, 1)]
    assert ("embedding", "forward") in kinds[0]
    assert ("head", "forward") not in kinds[0]
    assert ("head", "backward") in kinds[1]
    assert [taken.stage(group) for group in range(4)] == [0, 0, 1, 1]


def test_cuts_are_where_gradients_become_final(tiny, prices):
    taken = blocks(tiny(*SPLIT), prices)
    block = next(
        value for key, value in taken.blocks.items() if (key.section.name, key.phase) == ("block", "backward")
    )
    # Four matrices, two norms, and the end.
    assert len(block.cuts) == 7
    assert block.passed(range(len(block.table))) == block.cuts


@pytest.mark.parametrize("steps", ["all", "2"])
def test_decode_steps_share_all_but_their_blocks(tiny_service, prices, replay, steps):
    job = tiny_service(("parallelism.pp", "2"), ("parallelism.tp", "2"), ("inference.decode_steps", steps))
    taken = blocks(job, prices)
    # 5 tokens: the prefill and 4 decode steps, or the first and the last of them
    later = [1, 2, 3, 4] if steps == "all" else [1, 4]
    found = {
        section: [key.step for key in taken.blocks if key.section.name == section] for section in SECTIONS
    }
    assert found == {"embedding": [0, 1], "block": [0, *later], "head": [0, 1]}
    outer = taken.outer([simulated(taken, replay)] * job.stages)
    flat = replay(build(job, prices).traces, rendezvous=True)
    for rank, times in replay(outer.traces, rendezvous=True).items():
        assert max(times) == max(flat[rank])


def test_a_block_is_cut_where_keys_and_values_are_exchanged(tiny, prices):
    taken = blocks(tiny(*SPLIT, ("parallelism.cp", "2")), prices)
    exchanges = {
        (key.section.name, key.phase): [
            block.piece.names[block.piece.rows[row, PieceColumn.NAME]] for row in sorted(rows)
        ]
        for key, block in taken.blocks.items()
        if (rows := block.exchanges)
    }
    gather, scatter = "attention.kv_gather", "attention.kv_gradient_scatter"
    assert exchanges == {("block", "forward"): [gather], ("block", "backward"): [gather, scatter]}
    outer = taken.outer([{}] * 2)
    sizes = {
        kind: len(members) for name, members in outer.traces.groups.items() for kind in [name.split(".")[0]]
    }
    assert (sizes["cp"], sizes["gradient"]) == (2, 4)


def test_an_exchange_beside_other_work_is_not_a_cut(tiny, prices):
    # two rows that wait for the same one, the second on another stream: neither separates the rest
    nodes = [
        PieceNode(str(row), NodeKind.COMPUTE, stream, after) for row, (stream, after) in enumerate(BESIDE)
    ]
    piece = make_piece(nodes)
    assert [separates(piece, row) for row in range(4)] == [True, False, False, True]


BESIDE = [("compute", (-1,)), ("compute", (0,)), ("cp", (0,)), ("compute", (1, 2))]
SECTIONS = ("embedding", "block", "head")
