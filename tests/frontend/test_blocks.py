"""Blocks and the graph around them come from the same templates as the flattened trace."""

import pytest

from rapid_des.errors import UnsupportedByEngine
from rapid_des.frontend import blocks, build

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
        found[key] = block.durations(slowest)
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
    assert len(outer.traces.ranks) == 4
    for rank, times in finish.items():
        assert max(times) == max(flat[rank])


def test_a_stage_runs_only_its_blocks(tiny, prices):
    taken = blocks(tiny(*SPLIT), prices)
    kinds = [sorted({(key.section, key.phase) for key in taken.keys(stage)}) for stage in (0, 1)]
    assert ("embedding", "forward") in kinds[0]
    assert ("head", "forward") not in kinds[0]
    assert ("head", "backward") in kinds[1]
    assert [taken.stage(group) for group in range(4)] == [0, 0, 1, 1]


def test_cuts_are_where_gradients_become_final(tiny, prices):
    taken = blocks(tiny(*SPLIT), prices)
    block = next(
        value for key, value in taken.blocks.items() if (key.section, key.phase) == ("block", "backward")
    )
    # Four matrices, two norms, and the end.
    assert len(block.cuts) == 7
    assert block.durations(list(range(len(block.table))))[0] == block.cuts[0]


def test_inference_is_not_taken_apart(tiny_service, prices):
    with pytest.raises(UnsupportedByEngine, match="only training is taken apart"):
        blocks(tiny_service(), prices)
