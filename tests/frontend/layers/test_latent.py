"""Multi-head latent attention: parameters, what is split, what serving keeps, and the absorbed decode."""

import pytest

from rapid_des.device.operators import Attention, Gemm
from rapid_des.frontend import memory
from rapid_des.frontend.inference import pass_lists, passes, serving_shard
from rapid_des.frontend.parts import ModelSection, PieceKey, section_parameters, training_lists

BLOCK = ModelSection("block", 0)
SIZES = "heads: 4, kv_rank: 16, head_dim: 8, rope_dim: 4, value_dim: 12"
LATENT = ("model.attention", f"{{kind: latent_attention, q_rank: 24, {SIZES}}}")
STRAIGHT = ("model.attention", f"{{kind: latent_attention, {SIZES}}}")
SPLIT = [("parallelism.tp", "2"), ("parallelism.sequence_parallel", "true")]


def listed(job, phase="forward"):
    return training_lists(job)[PieceKey(BLOCK, phase)]


def sizes(operations, role):
    return [one.size for one in operations if one.role == role]


def flops(operations):
    gemms = [one.operator for one in operations if isinstance(one.operator, Gemm)]
    return sum(2 * gemm.batch * gemm.m * gemm.n * gemm.k for gemm in gemms)


@pytest.mark.parametrize(
    ("setting", "queries"), [(LATENT, 64 * 24 + 24 + 24 * 4 * 12), (STRAIGHT, 64 * 4 * 12)]
)
def test_parameters_are_those_of_all_projections_and_norms(tiny, setting, queries):
    job = tiny(setting)
    keys_and_values = 64 * (16 + 4) + 16 + 16 * 4 * (8 + 12)
    mixer = job.model.pattern[0].mixer
    assert mixer.parameters.total == queries + keys_and_values + 4 * 12 * 64
    ffn = job.model.pattern[0].feed_forward.parameters.total
    assert section_parameters(job)[BLOCK].total() == mixer.parameters.total + ffn + 2 * 64


@pytest.mark.parametrize("setting", [LATENT, STRAIGHT])
def test_what_the_forward_computes_is_what_it_counts(tiny, setting):
    job = tiny(setting)
    layer = job.model.pattern[0]
    weights = sum(half.flops(0) for half in layer.halves)
    assert flops(listed(job)) == 32 * weights
    assert flops(listed(job, "backward")) == 2 * 32 * weights
    core = next(one.operator for one in listed(job) if isinstance(one.operator, Attention))
    assert (core.heads, core.kv_heads, core.head_dim, core.value_width) == (4, 4, 12, 12)
    assert layer.mixer.flops(32) - layer.mixer.flops(0) == 2 * 32 * 4 * (12 + 12)


def test_a_rank_has_its_heads_and_the_whole_down_projection(tiny):
    job = tiny(LATENT, ("parallelism.tp", "2"))
    mixer, ffn = job.model.pattern[0].halves
    split = (mixer.parameters.matrices + ffn.parameters.matrices) // 2
    assert section_parameters(job)[BLOCK].total() == split + mixer.parameters.whole_vectors + 2 * 64


def test_with_sequence_parallelism_latents_are_gathered_not_the_stream(tiny):
    operations = listed(tiny(LATENT, *SPLIT))
    # Half of 32 tokens by query latent 24, rotated key 4, latent 16; then the feed-forward's input of 64.
    assert sizes(operations, "sp.gather") == [16 * width * 2 for width in (24, 4, 16, 64)]
    assert "tp.reduce" not in {one.role for one in operations}
    backward = listed(tiny(LATENT, ("parallelism.tp", "2")), "backward")
    reduced = sizes(backward, "tp.reduce_gradient")
    assert sorted(reduced) == sorted(32 * width * 2 for width in (24, 4, 16, 64))


def test_serving_keeps_the_latent_whole_on_every_rank(tiny_service):
    for tp in ("1", "2"):
        kept = memory(tiny_service(LATENT, ("parallelism.tp", tp))).stages[0].categories["kv_cache"]
        assert kept == 4 * 2 * 21 * (16 + 4) * 2  # layers, requests, positions, channels, bytes


def test_a_decode_step_runs_over_the_latent_and_a_prefill_over_heads(tiny_service):
    job = tiny_service(LATENT, ("parallelism.tp", "2"))
    prefill, decode = passes(job)[:2]
    kernels = {one.name: one.operator for one in pass_lists(job, decode)[BLOCK]}
    core = kernels["attention.core"]
    assert (core.heads, core.kv_heads, core.head_dim, core.value_width) == (2, 1, 20, 16)
    assert core.shared_latent
    assert kernels["attention.absorb"] == Gemm(2, 16, 8, batch=2)
    assert kernels["attention.value"] == Gemm(2, 12, 16, batch=2)
    assert "attention.kv_up" not in kernels
    kernels = {one.name: one.operator for one in pass_lists(job, prefill)[BLOCK]}
    assert not kernels["attention.core"].shared_latent
    assert kernels["attention.kv_up"] == Gemm(32, 2 * 20, 16, out_dtype="bf16")


def test_decoding_that_does_not_absorb_makes_keys_and_values_of_all_cached_tokens(tiny_service):
    job = tiny_service(LATENT, ("inference.absorbs", "false"))
    first, second = passes(job)[1:3]
    for step, keys in ((first, 17), (second, 18)):
        kernels = {one.name: one.operator for one in pass_lists(job, step)[BLOCK]}
        assert "attention.absorb" not in kernels
        assert kernels["attention.kv_up"].m == 2 * keys
        assert kernels["attention.core"].kv_heads == kernels["attention.core"].heads
    grown = {one.name: one.operator for one in job.kinds[0].layer.on_cache(serving_shard(job, second))}
    assert grown["attention.kv_up"].m == 2 * 18
