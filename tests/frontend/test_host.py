"""What a job's host issues when, by hand: `conftest.py` has the prices."""

import numpy as np
import pytest

from rapid_des.chakra.trace import UNSTATED, NodeKind
from rapid_des.device.operators import Attention, Vector
from rapid_des.device.pricing import unfused_kernels
from rapid_des.errors import ConfigError, UnsupportedByEngine
from rapid_des.frontend import build
from rapid_des.frontend.blocks import blocks
from rapid_des.frontend.software import kernels_of

HOST = {
    "kernel": "10 us",
    "collective": "30 us",
    "graph": "15 us",
    "step": "100 us",
    "captured": "decode",
    "waits": "[gradient_norm, pipeline]",
}
US = 1_000_000


def hosted(**changes):
    """Settings of a job whose host needs these times."""
    return [(f"host.{key}", value) for key, value in (HOST | changes).items()]


def hosts_of(table):
    """The positions of the host's nodes."""
    return np.flatnonzero(table.on_cpu).tolist()


def names(table):
    return [table.names[name] for name in table.name]


def test_without_a_host_nothing_is_issued(tiny, prices):
    (table,) = build(tiny(), prices).tables
    assert "host" not in table.streams
    assert (table.issuer == UNSTATED).all()


def test_every_node_is_issued_after_all_before_it(tiny, prices):
    (table,) = build(tiny(*hosted(waits="[]")), prices).tables
    (host,) = hosts_of(table)
    issued = table.issued[table.issuer == host]
    assert len(issued) == len(table) - 1
    assert (np.diff(issued) > 0).all()
    # 100 us, then the clearing of the gradients, then the embedding
    assert issued[:2].tolist() == [110 * US, 120 * US]
    assert table.duration[host] == issued[-1]


def test_the_host_waits_for_the_gradient_norm_and_then_issues_the_optimizer(tiny, prices):
    (table,) = build(tiny(*hosted()), prices).tables
    first, second = hosts_of(table)
    norm, optimizer = names(table).index("gradient_norm"), names(table).index("optimizer")
    assert table.issuer[[norm, optimizer]].tolist() == [first, second]
    assert table.issued[optimizer] == 10 * US
    start = table.dependency_starts[second]
    assert table.dependencies[start] == norm


def test_gradients_are_issued_where_the_backward_has_made_them(tiny, prices):
    settings = [("parallelism.dp", "2"), ("training.bucket_parameters", "10000")]
    (table,) = build(tiny(*settings, *hosted(waits="[]")), prices).tables
    (host,) = hosts_of(table)
    buckets = [row for row, name in enumerate(names(table)) if name.startswith("gradients.dp.")]
    assert len(buckets) > 2
    for row in buckets:
        (made,) = table.dependencies[table.dependency_starts[row] : table.dependency_starts[row + 1]].tolist()
        # nothing is issued between what completes a bucket and the bucket
        assert table.issued[row] - table.issued[made] == 30 * US
    assert table.duration[host] == table.issued.max()


def test_the_host_waits_for_messages_between_stages_unless_they_travel_beside_compute(tiny, prices):
    micro_batches = 8
    for overlaps, waits in (("false", micro_batches), ("true", 0)):
        settings = [("parallelism.pp", "2"), ("training.overlap_pipeline", overlaps)]
        tables = build(tiny(*settings, *hosted(waits="[pipeline]")), prices).tables
        # the first stage receives a gradient a micro-batch, the second an activation
        assert [len(hosts_of(table)) for table in tables] == [1 + waits, 1 + waits]


def test_a_captured_pass_is_issued_at_once_when_the_token_before_it_is_known(tiny_service, prices):
    (table,) = build(tiny_service(*hosted()), prices).tables
    prefill, *decode = hosts_of(table)
    assert len(decode) == 4
    assert len(set(table.issued[table.issuer == prefill].tolist())) > 10
    for host in decode:
        assert set(table.issued[table.issuer == host].tolist()) == {115 * US}
        (token,) = table.dependencies[table.dependency_starts[host] : table.dependency_starts[host + 1]]
        assert names(table)[token] == "forward.sample"


def test_a_prompt_in_pieces_issues_its_attention_and_a_graph_before_and_after_it(tiny_service, prices):
    (table,) = build(tiny_service(*hosted(captured_prompts="4096")), prices).tables
    (whole,) = build(tiny_service(*hosted()), prices).tables
    prefill = hosts_of(table)[0]
    rows = np.flatnonzero(table.issuer == prefill)
    rows = rows[np.argsort(table.issued[rows], kind="stable")].tolist()
    before = dict(zip(rows, np.diff(table.issued[rows], prepend=100 * US).tolist(), strict=True))
    called = names(table)
    # 15 us launch a graph, 10 us issue a kernel by itself: attention, and what chooses the token
    assert {before[row] for row in rows if called[row].endswith("attention.core")} == {10 * US}
    assert {before[row] for row in rows if called[row].endswith("attention.output")} == {15 * US}
    assert {before[row] for row in rows if called[row].endswith("ffn.in")} == {0}
    assert before[called.index("forward.embedding")] == 15 * US
    assert before[called.index("forward.sample")] == 10 * US
    assert table.issued[rows].max() < whole.issued[whole.issuer == prefill].max() / 2
    short = build(tiny_service(*hosted(captured_prompts="1")), prices).tables[0]  # the prompt is longer
    assert (short.issued == whole.issued).all()


def test_without_graphs_decode_is_issued_kernel_by_kernel(tiny_service, prices):
    for settings in (hosted(captured="nothing"), [*hosted(), ("inference.cuda_graphs", "false")]):
        (table,) = build(tiny_service(*settings), prices).tables
        steps = [table.issued[table.issuer == host] for host in hosts_of(table)]
        # the prefill's kernels and those of a decode step are the same
        assert all((step == steps[0]).all() for step in steps)


def test_messages_of_stages_are_issued_too(tiny, prices):
    tables = build(tiny(("parallelism.pp", "2"), *hosted(waits="[]")), prices).tables
    for table in tables:
        talks = np.isin(table.kind, (NodeKind.SEND, NodeKind.RECV))
        assert talks.any()
        assert (table.issuer[talks] != UNSTATED).all()


@pytest.mark.parametrize(
    ("operator", "count"),
    [
        (Vector("rms_norm", 4, 8), 1),
        (Vector("rms_norm", 4, 8, phase="backward"), 2),
        (Vector("sum", 4, 8), 2),
        (Attention(1, 8, 8, 1, 1, 64), 1),
        (Attention(1, 8, 8, 1, 1, 64, phase="backward"), 3),
        (Attention(1, 8, 8, 1, 1, 64, fused=False), 3),
        (Attention(1, 8, 8, 1, 1, 64, fused=False, phase="backward"), 5),
    ],
)
def test_an_operator_is_as_many_kernels_as_frameworks_launch(operator, count):
    assert kernels_of(operator) == count


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_unfused_attention_is_as_many_kernels_as_it_is_priced_as(phase):
    attention = Attention(1, 8, 8, 1, 1, 64, fused=False, phase=phase)
    assert kernels_of(attention) == len(unfused_kernels(attention))


def test_an_operator_of_several_kernels_is_not_done_before_its_last_can_be(tiny):
    host = tiny(*hosted()).host
    three = Attention(1, 8, 8, 1, 1, 64, phase="backward")
    # 3 kernels of 2 us: the last, issued at 30 us, ends at 32: all 6 us may begin at 26
    assert host.of_kernel(three, 6 * US) == (30 * US, 4 * US)
    # of 50 us: they begin when the first one is issued, and never wait again
    assert host.of_kernel(three, 150 * US) == (30 * US, 20 * US)


def test_what_is_no_time_is_refused_by_name(tiny):
    with pytest.raises(ConfigError, match=r"host: an issue takes at most 1 s"):
        tiny(*hosted(kernel="2 s"))
    with pytest.raises(ConfigError, match=r"host\.captured"):
        tiny(*hosted(captured="prefill"))


def test_each_rank_of_a_tensor_parallel_group_adds_to_issuing_its_collectives(tiny, prices):
    split = [("parallelism.tp", "4"), ("parallelism.dp", "1")]
    job = tiny(*hosted(tensor_rank="2 us"), *split)
    assert job.host.of_collective("tp") == (30 + 4 * 2) * US and job.host.of_collective("dp") == 30 * US
    tables = [build(each, prices).tables[0] for each in (job, tiny(*hosted(), *split))]
    issued = [int(table.duration[hosts_of(table)].sum()) for table in tables]
    tensor = tables[0].streams.index("tp")
    collectives = int(((tables[0].kind == NodeKind.COLLECTIVE) & (tables[0].stream == tensor)).sum())
    assert collectives > 0
    assert issued[0] - issued[1] == collectives * 8 * US


def test_a_blocking_host_waits_for_each_launch_but_for_messages_between_stages(tiny, prices):
    settings = [("parallelism.dp", "2"), ("parallelism.pp", "2"), ("training.bucket_parameters", "10000")]
    free, table = (
        build(tiny(*settings, *hosted(waits="[]", blocking=chosen)), prices).tables[0]
        for chosen in ("false", "true")
    )
    hosts = hosts_of(table)
    assert len(table) == 2 * len(free) - 1  # the first node of the host stands already
    rows = np.setdiff1d(np.arange(len(table)), hosts)
    assert [names(table)[row] for row in rows] == names(free)[1:]
    latest = None
    for row in rows.tolist():
        launch = int(table.issuer[row])
        assert launch == row - 1
        waited = table.dependencies[
            table.dependency_starts[launch] : table.dependency_starts[launch + 1]
        ].tolist()
        assert waited == ([] if latest is None else [latest])
        assert table.issued[row] == table.duration[launch] > 0
        latest = row if table.kind[row] in (NodeKind.COMPUTE, NodeKind.COLLECTIVE) else latest


def test_a_blocking_host_is_refused_where_it_is_not_modelled(tiny, tiny_service, prices):
    job = tiny(*hosted(blocking="true"))
    with pytest.raises(UnsupportedByEngine, match="host.blocking .* use --mode flattened"):
        blocks(job, prices)
    with pytest.raises(ConfigError, match="host.blocking: it is for training"):
        tiny_service(*hosted(blocking="true"))
