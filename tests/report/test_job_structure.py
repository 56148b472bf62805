"""The explanation is what the trace has, in the words of theory."""

import pytest

from rapid_des.device import load_device
from rapid_des.device.pricing import operator_model
from rapid_des.frontend import build, load_job
from rapid_des.report.job_structure import explain


@pytest.fixture
def experts_after_a_dense_stage():
    """tp 2, dp 2, pp 2, and of each stage's four ranks ep 2, edp 2; the first layer alone has no experts."""
    split = {"ep": 2, "etp": 1, "layers": "[1, 26]"}
    settings = [(f"parallelism.{key}", str(value)) for key, value in split.items()]
    job = load_job("llama2_7b_train", settings=[("model", "deepseek_v2_lite"), *settings])
    return explain(build(job, operator_model(load_device("a100_sxm_80gb"))))


def test_groups_of_experts_lie_in_the_second_layout_and_where_experts_are(experts_after_a_dense_stage):
    groups = {each.name: each for each in experts_after_a_dense_stage.groups}
    # Only ranks 4 to 7 hold experts: neighbours exchange tokens, every second one sums gradients.
    assert (groups["ep"].members, groups["ep"].count, groups["ep"].first) == (2, 2, (4, 5))
    experts = groups["expert_gradient"]
    assert (experts.axes, experts.members, experts.count, experts.first) == (("edp",), 2, 2, (4, 6))
    assert (groups["gradient"].count, groups["gradient"].first) == (4, (0, 2))
    assert "etp" not in groups
    names = {each.name for each in experts_after_a_dense_stage.messages if each.group == "ep"}
    assert "forward.L*.ffn.dispatch" in names


def test_sections_are_the_distinct_layers_with_a_ranks_share(experts_after_a_dense_stage):
    sections = {each.name: each for each in experts_after_a_dense_stage.sections}
    assert sections["attention + ffn"].layers == (0,)
    experts = sections["attention + experts"]
    assert experts.layers == tuple(range(1, 27))
    # A router, and the exchange before and after the experts, beside what a dense layer has.
    dense = sections["attention + ffn"].passes["forward"]
    assert experts.passes["forward"].kernels > dense.kernels
    collectives = [
        each
        for each in experts_after_a_dense_stage.messages
        if each.stage == 1 and each.name.startswith("forward.L*.")
    ]
    assert experts.passes["forward"].collectives == len(collectives)


def test_groups_and_messages_of_a_job():
    # tp 2, pp 2, dp 2
    job = load_job("llama2_7b_train", settings=[("parallelism.sequence_parallel", "false")])
    explanation = explain(build(job, operator_model(load_device("a100_sxm_80gb"))))
    groups = {group.name: (group.members, group.count, group.first) for group in explanation.groups}
    assert groups["tp"] == (2, 4, (0, 1))
    assert groups["gradient"] == (2, 4, (0, 2))
    assert groups["model"] == (4, 2, (0, 1, 4, 5))
    assert explanation.layers == (16, 16)
    messages = explanation.messages
    reduce = next(item for item in messages if item.name == "forward.L*.attention.output.reduce")
    # 4,096 tokens · 4,096 · 2 bytes, in 16 layers for 16 micro-batches.
    assert (reduce.what, reduce.group, reduce.size, reduce.count) == ("all_reduce", "tp", 2**25, 256)
    assert reduce.layers == 16
    sent = next(item for item in messages if item.what == "send")
    assert (sent.stage, sent.name, sent.size, sent.count) == (0, "send.activation", 2**25, 16)
