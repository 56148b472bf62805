"""Low-rank adapters: which products there are, what is frozen, what memory and replicas see of it."""

from math import prod

import pytest

from rapid_des.device.operators import Gemm
from rapid_des.errors import ConfigError
from rapid_des.frontend import build, memory
from rapid_des.frontend.parts import (
    EMBEDDING,
    HEAD,
    ModelSection,
    PieceKey,
    section_parameters,
    training_lists,
)

BLOCK = ModelSection("block", 0)
LORA = ("training.adapters", "{rank: 4}")
QLORA = ("training.adapters", "{rank: 4, weights: fp4}")
ONE = ("training.adapters", "{rank: 4, matrices: [ffn.in]}")
# The tiny model: hidden 64, four heads over two of 16 channels, a gated feed-forward of 128.
MATRICES = {
    "attention.qkv": (128, 64),
    "attention.output": (64, 64),
    "ffn.in": (256, 64),
    "ffn.out": (64, 128),
}
FACTORS = sum(4 * sum(shape) for shape in MATRICES.values())


def listed(job, phase="forward", section=BLOCK):
    return training_lists(job)[PieceKey(section, phase)]


def shapes(operations):
    return {
        one.name: (one.operator.m, one.operator.n, one.operator.k)
        for one in operations
        if isinstance(one.operator, Gemm)
    }


def test_factors_are_trained_and_all_else_is_frozen(tiny):
    plain, lora = tiny(), tiny(LORA)
    sizes, before = section_parameters(lora), section_parameters(plain)
    assert sizes[BLOCK]["dense"] == FACTORS
    assert sum(part["frozen"] for part in sizes.values()) == sum(part.total() for part in before.values())


def test_products_stand_beside_those_with_the_matrix(tiny):
    forward, backward = shapes(listed(tiny(LORA))), shapes(listed(tiny(LORA), "backward"))
    for name, (columns, inner) in MATRICES.items():
        assert forward[f"{name}.adapter.a"] == (32, 4, inner)
        assert forward[f"{name}.adapter.b"] == (32, columns, 4)
        assert backward[f"{name}.adapter.b.input_gradient"] == (32, 4, columns)
        assert backward[f"{name}.adapter.a.input_gradient"] == (32, inner, 4)
        assert backward[f"{name}.adapter.b.weight_gradient"] == (columns, 4, 32)
        assert backward[f"{name}.adapter.a.weight_gradient"] == (4, inner, 32)
    assert not any(name.endswith("weight_gradient") and "adapter" not in name for name in backward)


def test_the_backward_of_frozen_matrices_is_half(tiny):
    def work(job):
        own = (each for name, each in shapes(listed(job, "backward")).items() if "adapter" not in name)
        return sum(map(prod, own))

    assert 2 * work(tiny(ONE)) == work(tiny())
    assert listed(tiny(LORA), "backward", EMBEDDING) == ()


def test_what_follows_waits_for_both_products(tiny):
    operations = listed(tiny(LORA))
    place = {one.name: number for number, one in enumerate(operations)}
    up = operations[place["ffn.in.adapter.b"]]
    assert set(up.after) == {place["ffn.in"], place["ffn.in.adapter.a"]}
    follower = operations[place["ffn.in.adapter.b"] + 1]
    assert follower.after == (place["ffn.in.adapter.b"],)
    for number, one in enumerate(operations):
        assert all(other < number for other in one.after)


def test_tp_sums_what_the_whole_factor_makes(tiny):
    job = tiny(LORA, ("parallelism.tp", "2"))
    forward = {one.name: one for one in listed(job) if not one.operator}
    backward = {one.name: one for one in listed(job, "backward") if not one.operator}
    assert {name for name in forward if "adapter" in name} == {
        "attention.output.adapter.a.reduce", "ffn.out.adapter.a.reduce",
    }  # fmt: skip
    assert {name for name in backward if "adapter" in name} == {
        "attention.qkv.adapter.b.input_gradient.reduce", "ffn.in.adapter.b.input_gradient.reduce",
    }  # fmt: skip
    assert forward["ffn.out.adapter.a.reduce"].size == 32 * 4 * 2


def test_memory_holds_no_gradients_of_frozen_weights(tiny):
    plain, lora, narrow = (memory(tiny(*each)).stages[0].categories for each in ((), (LORA,), (QLORA,)))
    trained = 4 * FACTORS  # layers
    assert lora["gradients"] == 4 * trained and lora["optimizer"] == 12 * trained
    assert lora["weights"] == plain["weights"] + 2 * trained
    ends = 2 * 256 * 64 + 64
    frozen = plain["weights"] // 2 - ends
    assert narrow["weights"] == 2 * trained + 2 * ends + frozen // 2


def test_matrices_stored_narrow_are_widened_before_every_product(tiny):
    for phase, times in (("forward", 4), ("backward", 4)):
        widened = [one for one in listed(tiny(QLORA), phase) if one.name.endswith("dequantize")]
        assert sorted(one.operator.columns for one in widened) == sorted(map(prod, MATRICES.values()))
        assert len(widened) == times


@pytest.mark.parametrize(
    "settings",
    [
        [],
        [("parallelism.tp", "2"), ("parallelism.sequence_parallel", "true")],
        [("parallelism.pp", "2"), ("training.schedule", "zb_h1")],
        [("training.recompute", "full"), ("parallelism.dp", "2"), ("training.zero_stage", "1")],
    ],
)
def test_it_runs_in_combination_and_replicas_sum_factors_alone(tiny, prices, settings):
    job = tiny(LORA, *settings)
    tables = build(job, prices).tables
    reduced = [
        table.size[row]
        for table in tables
        for row, name in enumerate(table.name)
        if table.names[name].startswith("gradients.dp")
    ]
    assert sum(reduced) == (4 * 4 * FACTORS if ("parallelism.dp", "2") in settings else 0)


@pytest.mark.parametrize(("adapters", "bits"), [(LORA, 16), (QLORA, 4)])
def test_replicas_split_frozen_weights_and_gather_them_as_stored(tiny, prices, adapters, bits):
    shared = ("parallelism.dp", "2"), ("training.zero_stage", "3"), ("training.global_batch", "2")
    whole, split = tiny(adapters), tiny(adapters, *shared)
    sizes = section_parameters(split)
    weights = [memory(job).stages[0].categories["weights"] for job in (whole, split)]
    assert weights[1] == weights[0] // 2
    (table,) = build(split, prices).tables
    gathered = [
        int(table.size[row])
        for row, name in enumerate(table.name)
        if table.names[name].startswith("frozen.gather")
    ]
    layers, (before, after) = 4, (sizes[section]["frozen"] for section in (EMBEDDING, HEAD))
    # a rank's half: of layers and head each way, of the embedding, which has no backward, once
    assert sorted(gathered) == sorted(
        [before, after, after] + 2 * layers * [sizes[BLOCK]["frozen"] * bits // 16]
    )


@pytest.mark.parametrize("software", ["torchtitan", "megatron-2025"])  # one grouped product, or one an expert
def test_routed_experts_are_frozen_and_have_no_adapters(tiny, software):
    experts = ("model.feed_forward", "{kind: experts, experts: 4, topk: 1, hidden: 8}")
    settings = [("software", software), ("training.zero_stage", "1"), experts]
    adapters = "{rank: 4, weights: fp4, matrices: [attention.qkv, attention.output]}"
    plain, lora = tiny(*settings), tiny(*settings, ("training.adapters", adapters))
    sizes, before = section_parameters(lora)[BLOCK], section_parameters(plain)[BLOCK]
    assert (sizes["frozen"], sizes["frozen_expert"]) == (before["dense"], before["expert"])
    assert sizes["dense"] == 4 * (128 + 64 + 64 + 64)
    names = [one.name for one in listed(lora, "backward")]
    assert "ffn.in.input_gradient" in names and "ffn.in.weight_gradient" not in names
    widened = {one.name: one.operator.columns for one in listed(lora) if one.name.endswith("dequantize")}
    assert widened["ffn.in.dequantize"] == 4 * 64 * 16 and "ffn.router.dequantize" not in widened


def test_what_waited_for_a_frozen_gradient_waits_for_the_kernel_before_it(tiny):
    biased = ("model.attention", "{heads: 4, kv_heads: 2, output_bias: true}")
    backward = listed(tiny(biased, ("parallelism.cp", "2"), LORA), "backward")
    (gather,) = [place for place, one in enumerate(backward) if one.role == "cp.gather"]
    assert backward[gather].after == (gather - 1,)
    assert backward[gather - 1].name == "attention.output.adapter.a.weight_gradient"


def test_frozen_experts_of_several_ranks_are_gathered_from_those_that_hold_the_same(tiny, prices):
    experts = ("model.feed_forward", "{kind: experts, experts: 4, topk: 1, hidden: 8}")
    adapters = ("training.adapters", "{rank: 4, weights: fp4, matrices: [attention.qkv, attention.output]}")
    split = [("parallelism.dp", "4"), ("parallelism.ep", "2"), ("training.zero_stage", "3")]
    job = tiny(experts, adapters, *split)
    sizes, held = section_parameters(job)[BLOCK], 2 * 3 * 64 * 8
    assert (sizes["frozen_expert"], job.shardings["frozen_expert"].replicas) == (held, 2)
    (table,) = build(job, prices).tables
    names = [table.names[name] for name in table.name]
    gathers = [place for place, name in enumerate(names) if name.startswith("frozen.experts.gather")]
    assert {int(table.size[row]) for row in gathers} == {held // 2 // 2}  # of two replicas, half a byte each
    assert len(gathers) == 2 * 4 * 2  # each way, of layers, of micro-batches
    tensors = {tensor.name: tensor.size for tensor in memory(job).stages[0].tensors}
    assert tensors["frozen experts' weights"] == 4 * held // 2 // 2


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ([("training.adapters", "{rank: 4, matrices: [ffn.up]}")], "'ffn.up' is no matrix of these layers"),
        ([("training.adapters", "{rank: 4, weights: fp8}")], "fp8 has no kernel that widens it"),
        ([("training.adapters", "{rank: 4, matrices: []}")], "must name one matrix or more, each once"),
        ([("training.adapters", "{rank: 4, matrices: [ffn.in, ffn.in]}")], "must name one matrix or more"),
        ([LORA, ("model.feed_forward", "{kind: experts, experts: 4, topk: 1, hidden: 8}")], "routed experts"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused_by_name(tiny, settings, problem):
    with pytest.raises(ConfigError, match=problem):
        tiny(*settings)
