"""Lightning attention: parameters, what is computed and split, what serving keeps."""

import pytest

from rapid_des.device.operators import Gemm
from rapid_des.errors import ConfigError
from rapid_des.frontend.inference import pass_lists, passes
from rapid_des.frontend.parts import ModelSection, PieceKey, section_parameters, training_lists

BLOCK = ModelSection("block", 0)
LIGHTNING = ("model.attention", "{kind: lightning_attention, heads: 4, head_dim: 16, chunk: 8}")
ALONE = ("model.feed_forward", "{kind: none}")


def listed(job, phase="forward"):
    return training_lists(job)[PieceKey(BLOCK, phase)]


@pytest.mark.parametrize("tp", [1, 2])
def test_a_rank_holds_its_heads(tiny, tp):
    job = tiny(LIGHTNING, ALONE, ("parallelism.tp", str(tp)))
    # queries, keys, values, gate and output of 4 x 16 channels, a gain for each, and the layer's norm
    assert section_parameters(job)[BLOCK].total() == (5 * 64 * 64 + 64) // tp + 64
    assert sum(each.parameters for each in listed(job, "backward")) == (5 * 64 * 64 + 64) // tp + 64


def test_the_forward_scans_chunks_of_every_head(tiny):
    shapes = {
        each.name: (each.operator.batch, each.operator.m, each.operator.n, each.operator.k)
        for each in listed(tiny(LIGHTNING, ALONE))
        if isinstance(each.operator, Gemm)
    }
    # 32 positions are four chunks of eight for each of four heads
    assert shapes == {
        "lightning.input": (1, 32, 4 * 64, 64),
        "lightning.states": (16, 16, 16, 8),
        "lightning.scores": (16, 8, 8, 16),
        "lightning.scan": (16, 8, 16, 4 + 16),
        "lightning.output": (1, 32, 64, 64),
    }


def test_tensor_parallel_ranks_add_up_the_squares_of_the_norm(tiny):
    names = [each.name for each in listed(tiny(LIGHTNING, ALONE, ("parallelism.tp", "2")))]
    assert "lightning.norm.reduce" in names
    assert "lightning.norm.reduce" not in [each.name for each in listed(tiny(LIGHTNING, ALONE))]


def test_a_decode_step_updates_states_and_costs_the_same_later(tiny_service):
    job = tiny_service(LIGHTNING)
    step = pass_lists(job, passes(job)[-1])[BLOCK]
    (update,) = (each.operator for each in step if each.name == "lightning.update")
    assert (update.rows, update.columns) == (2 * 4, 16 * 16)
    assert pass_lists(job, passes(job)[1])[BLOCK] == step


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ([("parallelism.tp", "8")], "4 lightning_attention heads are not divisible by tp 8"),
        ([("parallelism.cp", "8")], "4 lightning_attention heads of a tp rank are not divisible by cp 8"),
    ],
)
def test_heads_that_do_not_divide_are_refused(tiny, settings, said):
    with pytest.raises(ConfigError, match=said):
        training_lists(tiny(LIGHTNING, *settings))
