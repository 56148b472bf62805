"""DeepSeek sparse attention: what the indexer adds, and what the core then reads."""

import pytest

from rapid_des.errors import ConfigError
from rapid_des.frontend.inference import pass_lists, passes
from rapid_des.frontend.parts import ModelSection, section_parameters

BLOCK = ModelSection("block", 0)
LATENT = "kind: latent_attention, heads: 4, kv_rank: 32, head_dim: 16, rope_dim: 8, value_dim: 16, q_rank: 24"
ALL = ("model.attention", f"{{{LATENT}}}")
FEW = ("model.attention", f"{{{LATENT}, indexer: {{heads: 2, head_dim: 8, topk: 12}}}}")
INDEXER = 24 * 2 * 8 + 64 * (8 + 2) + 2 * 8
"""Projections of queries, of keys and weights, and the keys' layer norm."""


def step(job, number):
    return {each.name: each for each in pass_lists(job, passes(job)[number])[BLOCK]}


@pytest.mark.parametrize("tp", ["1", "2"])
def test_every_rank_has_the_whole_indexer(tiny_service, tp):
    few, every = (
        section_parameters(tiny_service(kind, ("parallelism.tp", tp)))[BLOCK].total() for kind in (FEW, ALL)
    )
    assert few - every == INDEXER


def test_prompts_are_scored_by_one_product_and_attend_to_the_chosen(tiny_service):
    prompt = step(tiny_service(FEW), 0)
    scores = prompt["attention.index.scores.prompts"].operator
    # 16 positions see 1 to 16: 8.5 on average
    assert (scores.m, scores.n, scores.k, scores.batch, scores.dtype) == (16, 9, 2 * 8, 2, "fp8")
    core = prompt["attention.core"].operator
    assert (core.window, core.head_dim, core.kv_heads) == (12, 32 + 8, 1)
    assert core.visible_pairs == sum(min(position, 12) for position in range(1, 17))


def test_a_decode_step_reads_all_narrow_keys_and_few_latents(tiny_service):
    decode = step(tiny_service(FEW), 1)
    scores, core = (decode[name].operator for name in ("attention.index.scores", "attention.core"))
    assert (scores.rows, scores.columns, scores.dtype) == (2 * 17, 8, "fp8")
    assert core.read_keys == 12


def test_few_positions_need_no_choice(tiny_service):
    names = step(tiny_service(FEW, ("inference.prompt_length", "8")), 0)
    assert "attention.index.cache" in names
    assert not [
        name for name in names if name.startswith(("attention.index.scores", "attention.index.choice"))
    ]


def test_flops_grow_by_the_indexer_alone_beyond_the_chosen(tiny_service):
    few, every = (tiny_service(kind).model.kinds[0].mixer for kind in (FEW, ALL))
    assert few.flops(100) - few.flops(99) == 2 * 2 * 8
    assert few.flops(5) - every.flops(5) == 2 * (INDEXER - 2 * 8) + 5 * 2 * 2 * 8
    model = tiny_service(FEW).model
    mixer = model.kinds[0].mixer
    half = model.kinds[0].feed_forward.flops(0)
    counted = sum(mixer.flops(position) + half for position in range(1, 41)) * 4
    assert model.forward_flops(1, range(1, 41), logits=0) == counted


def test_the_cache_holds_a_narrow_key_and_its_scale_beside_the_latent(tiny_service):
    few, every = (tiny_service(kind) for kind in (FEW, ALL))
    mixers = [job.model.kinds[0].mixer for job in (few, every)]
    sizes = [mixer.cache_bytes(few.shard(1, 1, 1), 10) for mixer in mixers]
    assert sizes[0] - sizes[1] == 10 * (8 + 4)


def test_training_and_context_parallelism_are_refused(tiny, tiny_service):
    with pytest.raises(ConfigError, match="has an indexer"):
        tiny(FEW)
    with pytest.raises(ConfigError, match="an indexer chooses among all positions"):
        tiny_service(FEW, ("parallelism.cp", "2"), ("inference.output_length", "1"))
