"""The explanation is what the trace has, in the words of theory."""

from rapid_des.frontend import build, explain

SPLIT = [("parallelism.tp", "2"), ("parallelism.pp", "2"), ("parallelism.dp", "2")]


def test_groups_and_messages_of_a_job(tiny, prices):
    found = explain(build(tiny(*SPLIT), prices))
    groups = {group.name: (group.members, group.count, group.first) for group in found.groups}
    assert groups["tp"] == (2, 4, (0, 1))
    assert groups["gradient"] == (2, 4, (0, 2))
    assert groups["model"] == (4, 2, (0, 1, 4, 5))
    assert found.layers == (2, 2)
    reduce = next(item for item in found.messages if item.name == "forward.L*.attention.output.reduce")
    # 32 tokens · 64 · 2 bytes, in 2 layers for 4 micro-batches.
    assert (reduce.what, reduce.group, reduce.size, reduce.count) == ("all_reduce", "tp", 4096, 8)
    sent = next(item for item in found.messages if item.what == "send")
    assert (sent.stage, sent.name, sent.size, sent.count) == (0, "send.activation", 4096, 4)
