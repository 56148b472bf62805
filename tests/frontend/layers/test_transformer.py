"""Options of attention: windows and chunks, norms of queries and keys, rotation in part, sinks, caps."""

import pytest

from rapid_des.device.operators import Attention
from rapid_des.errors import ConfigError
from rapid_des.frontend import memory
from rapid_des.frontend.parts import ModelSection, PieceKey, training_lists

BLOCK = ModelSection("block", 0)
WINDOW = ("model.attention", "{heads: 4, kv_heads: 2, window: 8}")


def listed(job, phase="forward"):
    return training_lists(job)[PieceKey(BLOCK, phase)]


def cores(job, phase="forward"):
    return [one.operator for one in listed(job, phase) if isinstance(one.operator, Attention)]


def kernel(job, name, phase="forward"):
    return next(one for one in listed(job, phase) if one.name == name)


def test_a_window_bounds_what_the_core_computes(tiny):
    (core,) = cores(tiny(WINDOW))
    # 32 queries: 1 + … + 7 for the first seven, 8 for each of the others.
    assert core.visible_pairs == 28 + 25 * 8
    assert tiny(WINDOW).model.parameters == tiny().model.parameters
    # Two products of 4 heads of 16 channels, forward and twice in the backward, over fewer pairs.
    less = tiny().model_flops - tiny(WINDOW).model_flops
    assert less == 3 * 4 * 8 * (32 * 33 // 2 - 28 - 25 * 8) * 4 * 64


def test_a_window_bounds_the_cache(tiny_service):
    stages = [memory(job).stages[0].categories["kv_cache"] for job in (tiny_service(), tiny_service(WINDOW))]
    assert stages[1] * 21 == stages[0] * 8  # of 16 + 5 positions


def test_with_a_window_context_parallel_ranks_stand_for_those_that_see_most(tiny):
    pieces = [("parallelism.cp", "2"), ("training.sequence_length", "32")]
    pairs = [core.visible_pairs for core in cores(tiny(WINDOW, *pieces))]
    assert pairs == [8 * 8, 8 * 8]  # pieces 1 and 2 of four: every query sees 8 positions
    assert [core.key_length for core in cores(tiny(*pieces))] == [8, 32]


def test_chunks_do_not_see_each_other(tiny, tiny_service):
    chunks = ("model.attention", "{heads: 4, chunk: 12}")
    assert [(core.batch, core.key_length) for core in cores(tiny(chunks))] == [(2, 12), (1, 8)]
    assert tiny_service(chunks).model.pattern[0].mixer.core.seen(20) == 12
    with pytest.raises(ConfigError, match="attention in chunks of 12 leaves blocks of a ring without work"):
        tiny(chunks, ("parallelism.cp", "2"), ("parallelism.cp_kind", "ring"))


def test_norms_of_each_head_have_two_gains_a_layer(tiny):
    normed = ("model.attention", "{heads: 4, kv_heads: 2, qk_norm: head}")
    assert tiny(normed).model.parameters - tiny().model.parameters == 4 * 2 * 16
    rows = kernel(tiny(normed), "attention.q_norm").operator
    assert (rows.rows, rows.columns) == (32 * 4, 16)
    assert kernel(tiny(normed), "attention.k_norm", "backward").parameters == 16


def test_norms_of_all_heads_add_up_squares_over_tp(tiny):
    normed = ("model.attention", "{heads: 4, kv_heads: 2, qk_norm: whole}")
    assert tiny(normed).model.parameters - tiny().model.parameters == 4 * (64 + 32)
    split = tiny(normed, ("parallelism.tp", "2"))
    assert kernel(split, "attention.q_norm").operator.columns == 32
    assert kernel(split, "attention.qk_norm.reduce").size == 2 * 32 * 4  # two fp32 a token


def test_heads_are_rotated_in_part_or_not_at_all(tiny):
    part = tiny(("model.attention", "{heads: 4, kv_heads: 2, rotary: 0.25}"))
    assert kernel(part, "attention.rope").operator.columns == (4 + 2) * 4
    none = tiny(("model.attention", "{heads: 4, rotary: 0}"))
    assert "attention.rope" not in {one.name for one in listed(none)}
    with pytest.raises(ConfigError, match="attention.rotary: .* position is learned"):
        tiny(("model.attention", "{heads: 4, rotary: 0.25}"), ("model.position", "learned"))


def test_a_sink_is_one_parameter_a_head(tiny):
    sinks = tiny(("model.attention", "{heads: 4, kv_heads: 2, sinks: true}"), ("parallelism.tp", "2"))
    assert sinks.model.parameters - tiny().model.parameters == 4 * 4
    assert kernel(sinks, "attention.core", "backward").parameters == 2


def test_scores_are_capped_by_a_kernel_of_their_own_where_attention_is_not_fused(tiny):
    capped = ("model.attention", "{heads: 4, softcap: true}")
    assert kernel(tiny(capped, ("attention", "unfused")), "attention.core.tanh").operator.columns == 32
    assert len(listed(tiny(capped))) == len(listed(tiny()))


def test_layers_may_differ_in_their_window(tiny):
    job = tiny(("model.exceptions", "[{start: 1, every: 2, attention: {heads: 4, kv_heads: 2, window: 4}}]"))
    assert job.model.kind_of_layer == (0, 1, 0, 1)
