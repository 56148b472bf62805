"""Where norms stand, and blocks whose halves read the same stream."""

import pytest

from rapid_des.errors import ConfigError
from rapid_des.frontend.inference import pass_lists, passes
from rapid_des.frontend.parts import HEAD, ModelSection, PieceKey, section_parameters, training_lists

BLOCK = ModelSection("block", 0)


def listed(job, phase="forward", section=BLOCK):
    return training_lists(job)[PieceKey(section, phase)]


def names(job, phase="forward"):
    return [one.name for one in listed(job, phase) if "norm" in one.name or "residual" in one.name]


@pytest.mark.parametrize(
    ("norms", "block", "count"),
    [
        ("before", "sequential", 2),
        ("after", "sequential", 2),
        ("both", "sequential", 4),
        ("before", "parallel", 2),
        ("before", "parallel_one_norm", 1),
    ],
)
def test_a_layer_has_its_norms_once_each_way(tiny, norms, block, count):
    job = tiny(("model.norms", norms), ("model.block", block))
    assert sum("norm" in name for name in names(job)) == count
    layer = job.model.pattern[0]
    halves = sum(half.parameters.total for half in layer.halves)
    assert job.model.layer_parameters(0) == halves + count * 64
    assert section_parameters(job)[BLOCK].total() == halves + count * 64
    assert sum(name.endswith("norm") for name in names(job, "backward")) == count


def test_norms_of_what_is_added_stand_before_the_addition(tiny, tiny_service):
    assert names(tiny(("model.norms", "both")))[:3] == [
        "attention.norm", "attention.post_norm", "attention.residual",
    ]  # fmt: skip
    # An engine adds the stream in a norm that reads it, and there is none.
    job = tiny_service(("model.norms", "after"))
    decode = pass_lists(job, passes(job)[1])
    assert [one.operator.kind for one in decode[BLOCK] if "residual" in one.name] == ["residual_add"] * 2
    assert decode[HEAD][0].operator.kind == "rms_norm"
    usual = tiny_service()
    assert pass_lists(usual, passes(usual)[1])[HEAD][0].operator.kind == "add_rms_norm"


def test_one_norms_gradient_waits_for_both_halves(tiny):
    operations = listed(tiny(("model.block", "parallel_one_norm"), ("parallelism.tp", "2")), "backward")
    add = next(one for one in operations if one.name == "attention.norm.residual")
    assert [operations[place].name for place in add.after] == [
        "ffn.in.reduce_gradient", "attention.qkv.reduce_gradient",
    ]  # fmt: skip


def test_a_head_may_have_a_bias_and_a_cap(tiny):
    job = tiny(("model.head_bias", "true"), ("model.logit_softcap", "true"), ("parallelism.tp", "2"))
    assert job.model.parameters - tiny().model.parameters == 256
    assert section_parameters(job)[HEAD].total() == 128 * 64 + 128 + 64
    caps = [one.operator for phase in ("forward", "backward") for one in listed(job, phase, HEAD)]
    assert [cap.phase for cap in caps if getattr(cap, "kind", "") == "tanh"] == ["forward", "backward"]


@pytest.mark.parametrize(("activation", "matrices"), [("geglu", 3), ("relu", 2), ("squared_relu", 2)])
def test_activations_have_a_gate_or_none(tiny, activation, matrices):
    job = tiny(("model.feed_forward", f"{{activation: {activation}, hidden: 128}}"))
    assert job.model.pattern[0].feed_forward.parameters.total == matrices * 64 * 128
    kinds = [getattr(one.operator, "kind", "") for one in listed(job)]
    assert activation in kinds


def test_what_does_not_fit_together_is_refused(tiny):
    with pytest.raises(ConfigError, match="norm_bias: norm is rms_norm, which has no bias"):
        tiny(("model.norm_bias", "true"))
    with pytest.raises(ConfigError, match="block: one norm for both halves stands before them"):
        tiny(("model.norms", "after"), ("model.block", "parallel_one_norm"))
    plain = tiny(("model.norm", "layer_norm"), ("model.norm_bias", "false"))
    assert plain.model.parameters == tiny().model.parameters
