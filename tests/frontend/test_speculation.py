"""Speculative decoding: steps that check drafted tokens, what drafts them, and how many are kept."""

import pytest

from rapid_des.errors import ConfigError
from rapid_des.frontend import build, memory
from rapid_des.frontend.inference import pass_lists, passes
from rapid_des.frontend.parts import DRAFT, HEAD, ModelSection

BLOCK = ModelSection("block")
DRAFT_MODEL = (
    "{hidden: 32, layers: 2, attention: {kind: attention, heads: 2}, norm: rms_norm, position: rope, "
    "feed_forward: {kind: dense, activation: gelu, hidden: 64}, vocabulary: 256, max_positions: 128, "
    "tied_embeddings: false}"
)


def drafting(method, acceptance, **more):
    stated = {"method": method, "tokens": len(acceptance), "acceptance": acceptance} | more
    return (
        "inference.speculative",
        "{" + ", ".join(f"{key}: {value}" for key, value in stated.items()) + "}",
    )


def kernels(job, current, section):
    return {one.name: one.operator for one in pass_lists(job, current)[section] if one.operator is not None}


def test_a_step_makes_what_the_acceptance_promises(tiny_service):
    job = tiny_service(drafting("eagle", [0.5, 0.5]), ("inference.output_length", "8"))
    # 1 + 1/2 + 1/4 tokens a step: 7 further ones take 4, at 16, 16 + 1.75, 16 + 3.5 and 16 + 5.25.
    prefill, *steps = passes(job)
    assert [step.groups[0].cached for step in steps] == [16, 17, 19, 21]
    assert {(step.tokens, step.sampled) for step in steps} == {(2 * 3, 2 * 3)}
    assert (prefill.tokens, prefill.sampled) == (2 * 16, 2)


def test_the_model_checks_all_drafted_tokens_in_one_pass(tiny_service):
    step = passes(job := tiny_service(drafting("eagle", [0.5, 0.5])))[1]
    assert kernels(job, step, HEAD)["head"].m == kernels(job, step, BLOCK)["ffn.in"].m == 6
    core = kernels(job, step, BLOCK)["attention.core"]
    assert (core.batch, core.query_length, core.key_length) == (2, 3, 19)


def test_a_module_drafts_from_all_checked_tokens_then_from_its_own(tiny_service):
    job = tiny_service(drafting("eagle", [0.5, 0.5]))
    prefill, step, *_ = passes(job)
    assert projections(job, step) == [6, 2]
    assert projections(job, prefill) == [32, 2]
    cores = [one.operator for one in pass_lists(job, step)[DRAFT] if one.name == "draft.attention.core"]
    # After 16 + 3 tokens the next is the 20th.
    assert [(core.query_length, core.key_length) for core in cores] == [(3, 19), (1, 20)]


def projections(job, current):
    drafts = pass_lists(job, current)[DRAFT]
    return [one.operator.m for one in drafts if one.name == "draft.predict.project"]


def test_a_smaller_model_drafts_token_after_token(tiny_service, prices):
    job = tiny_service(
        drafting("draft", [1.0, 1.0, 1.0], model=DRAFT_MODEL), ("inference.output_length", "5")
    )
    step = passes(job)[1]
    drafts = [one for one in pass_lists(job, step)[DRAFT] if one.name == "draft.ffn.in"]
    assert [(one.operator.m, one.operator.n) for one in drafts] == [(2, 64)] * 6  # two layers, three tokens
    # Four tokens a step: the four after the first take one.
    assert [segment.step for segment in build(job, prices).segments[0]] == [0, 1]


def test_drafts_take_memory_for_their_weights_and_tokens(tiny_service):
    plain, drafted = (memory(tiny_service(*more)).stages[0] for more in (
        (), [drafting("draft", [0.5], model=DRAFT_MODEL)]))  # fmt: skip
    draft = (
        2 * (4 * 32 * 32 + 2 * 32 * 64 + 2 * 32) + 32 + 2 * 256 * 32
    )  # layers, their norms, the last, tables
    assert drafted.categories["weights"] - plain.categories["weights"] == 2 * draft
    # 2 requests of 21 tokens, keys and values of 2 heads of 16 in 2 layers, 2 bytes.
    assert drafted.categories["kv_cache"] - plain.categories["kv_cache"] == 2 * 21 * 2 * 32 * 2 * 2


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ([drafting("eagle", [0.5]), ("parallelism.pp", "2")], "engines draft with pp 1 alone"),
        ([drafting("mtp", [0.5])], "has no module that predicts further tokens"),
        ([drafting("eagle", [0.5], model=DRAFT_MODEL)], "model: method eagle has none"),
        ([drafting("draft", [0.5])], "model: method draft needs one"),
        ([drafting("eagle", [0.5] * 16)], "16; at most 15 are checked"),
        ([drafting("draft", [0.5], model=DRAFT_MODEL.replace("256", "512"))], "has a vocabulary of 512"),
        ([drafting("draft", [0.5], model=DRAFT_MODEL), ("parallelism.tp", "4")], "draft: 2 attention heads"),
        ([("inference.speculative", "{method: eagle, tokens: 2, acceptance: [0.5]}")], "1 numbers for 2"),
    ],
)  # fmt: skip
def test_drafts_that_can_not_be_are_refused(tiny_service, settings, problem):
    with pytest.raises(ConfigError) as refused:
        tiny_service(*settings)
    assert problem in str(refused.value)
