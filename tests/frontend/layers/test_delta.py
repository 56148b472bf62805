"""The gated delta rule: parameters, what is computed and split, what serving keeps; gates of attention."""

from math import prod

import pytest

from rapid_des.device.operators import Gemm
from rapid_des.errors import ConfigError
from rapid_des.frontend import build, load_model, memory
from rapid_des.frontend.inference import pass_lists, passes
from rapid_des.frontend.parts import ModelSection, PieceKey, section_parameters, training_lists

BLOCK = ModelSection("block", 0)
DELTA = (
    "model.attention",
    "{kind: gated_delta, heads: 4, key_heads: 2, key_dim: 16, value_dim: 32, chunk: 8}",
)
ALONE = ("model.feed_forward", "{kind: none}")
MIXED = 2 * 2 * 16 + 4 * 32
PROJECTED = MIXED + 4 * 32 + 2 * 4


def listed(job, phase="forward"):
    return training_lists(job)[PieceKey(BLOCK, phase)]


def flops(operations, *names):
    gemms = [each.operator for each in operations if isinstance(each.operator, Gemm)]
    named = [
        each.operator
        for each in operations
        if isinstance(each.operator, Gemm) and each.name.split(".")[-1] in names
    ]
    return sum(2 * prod((gemm.batch, gemm.m, gemm.n, gemm.k)) for gemm in (named if names else gemms))


def test_parameters_of_published_models():
    # as Hugging Face counts the checkpoint's tensors without its layer that predicts a further token
    assert load_model("qwen3_next_80b_a3b").parameters == 79_674_391_296
    # 397 B with the tower for images
    assert load_model("qwen3_5_397b_a17b").parameters == 396_346_350_336


@pytest.mark.parametrize("tp", [1, 2])
def test_a_rank_holds_its_heads(tiny, tp):
    job = tiny(DELTA, ALONE, ("parallelism.tp", str(tp)))
    expected = (64 * (PROJECTED + 128) + MIXED * 4 + 2 * 4) // tp + 32 + 64
    assert section_parameters(job)[BLOCK].total() == expected
    assert sum(each.parameters for each in listed(job, "backward")) == expected


def test_key_heads_are_copied_where_there_are_fewer_than_tp(tiny):
    job = tiny(DELTA, ALONE, ("parallelism.tp", "4"))
    mixed = 2 * 16 + 32
    assert section_parameters(job)[BLOCK].total() == 64 * (mixed + 32 + 2 + 32) + mixed * 4 + 2 + 32 + 64


def test_the_forward_computes_the_rule_in_chunks(tiny):
    shapes = {
        each.name: (each.operator.batch, each.operator.m, each.operator.n, each.operator.k)
        for each in listed(tiny(DELTA, ALONE))
        if isinstance(each.operator, Gemm)
    }
    # 32 positions are four chunks of eight for each of four value heads
    assert shapes == {
        "delta.input": (1, 32, PROJECTED, 64),
        "delta.scores": (16, 8, 8, 16),
        "delta.inverse": (16, 8, 8, 3),
        "delta.wy": (16, 8, 16 + 32, 8),
        "delta.states": (16, 8, 32, 2 * 16),
        "delta.rule": (16, 8, 32, 16 + 8 * (16 + 32) // (2 * 32)),
        "delta.output": (1, 32, 64, 128),
    }


def test_the_backward_makes_wy_form_and_states_again_and_two_products_for_each(tiny):
    job = tiny(DELTA, ALONE)
    forward, backward = listed(job), listed(job, "backward")
    assert flops(backward, "input_gradient", "weight_gradient") == 2 * flops(forward, "input", "output")
    assert flops(backward, "wy", "states") == flops(forward, "wy", "states")
    gradients = flops(backward, "values_gradient", "states_gradient", "keys_gradient", "wy_gradient")
    products = flops(forward, "scores", "wy", "states", "rule")
    assert 2 * products < gradients < 3.5 * products


def test_a_request_of_any_length_keeps_the_same_state(tiny_service):
    kept = [
        memory(tiny_service(DELTA, ("inference.output_length", length))).stages[0].categories["kv_cache"]
        for length in ("5", "50")
    ]
    assert kept == [4 * 2 * (4 * 4 * 16 * 32 + 2 * 4 * MIXED)] * 2  # layers, requests; fp32 states


def test_a_decode_step_reads_and_writes_states_and_costs_the_same_later(tiny_service, prices):
    job = tiny_service(DELTA, ALONE)
    _, first, *_, last = passes(job)
    kernels = {each.name: each.operator for each in pass_lists(job, first)[BLOCK]}
    update = kernels["delta.update"]
    assert (update.rows, update.columns, update.dtype) == (2 * 4, 16 * 32, "fp32")
    assert "delta.rule" not in kernels
    assert pass_lists(job, last)[BLOCK] == pass_lists(job, first)[BLOCK]
    assert len(build(job, prices).tables[0]) > 0


@pytest.mark.parametrize("kind", ["all_gather", "ring", "ulysses"])
def test_cp_gives_each_rank_all_positions_of_some_heads(tiny, kind):
    job = tiny(DELTA, ALONE, ("parallelism.cp", "2"), ("parallelism.cp_kind", kind))
    operations = listed(job)
    assert [each.name for each in operations if each.role == "cp.states"] == [
        "delta.input.to_heads",
        "delta.output.from_heads",
    ]
    (rule,) = (each.operator for each in operations if each.name == "delta.rule")
    assert rule.batch == 16 // 2  # half of the heads over all four chunks


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ([("model.attention.key_heads", "3")], "4 heads do not divide by 3 key_heads"),
        ([("parallelism.tp", "8")], "4 gated_delta heads are not divisible by tp 8"),
        (
            [("parallelism.cp", "4"), ("parallelism.tp", "2")],
            "2 gated_delta heads of a tp rank are not divisible by cp 4",
        ),
    ],
)
def test_what_does_not_divide_is_refused(tiny, changes, problem):
    with pytest.raises(ConfigError, match=problem):
        training_lists(tiny(DELTA, ALONE, *changes))


def test_a_gate_of_attention_is_projected_beside_the_queries_and_kept(tiny):
    plain, gated = tiny(), tiny(("model.attention.output_gate", "true"))
    more = section_parameters(gated)[BLOCK].total() - section_parameters(plain)[BLOCK].total()
    core = gated.model.kinds[0].mixer.core
    width = core.heads * core.head_dim
    assert more == 64 * width
    marked = sum(each.parameters for each in listed(gated, "backward"))
    assert marked == section_parameters(gated)[BLOCK].total()
    kept = {each.name: each.saved for each in listed(gated)}
    assert kept["attention.gate"] == 2 * 32 * width
    assert "attention.gate" in {each.name for each in listed(gated, "backward")}
