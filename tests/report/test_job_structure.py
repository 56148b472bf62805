"""The explanation is what the trace has, in the words of theory."""

from rapid_des.device import load_device
from rapid_des.device.pricing import operator_model
from rapid_des.frontend import build, load_job
from rapid_des.report.job_structure import explain


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
    sent = next(item for item in messages if item.what == "send")
    assert (sent.stage, sent.name, sent.size, sent.count) == (0, "send.activation", 2**25, 16)
