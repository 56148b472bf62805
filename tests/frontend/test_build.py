"""What a job's kernels cost, and why, stands beside its trace: each distinct one once."""

import re

import pytest

from rapid_des.chakra.trace import NodeKind
from rapid_des.device import load_device
from rapid_des.device.pricing import operator_model
from rapid_des.frontend import build
from rapid_des.frontend.blocks import blocks

LAYER = re.compile(r"\bL\d+\.")
TRAINING = [("parallelism.pp", "2"), ("parallelism.dp", "2"), ("precision.activations", "fp16")]


def costs_of(table):
    """Return (name without layer, duration, FLOPs, bytes) of the kernels of a table."""
    rows = (table.kind == NodeKind.COMPUTE).nonzero()[0].tolist()
    return {
        (
            LAYER.sub("", table.names[table.name[row]]),
            int(table.duration[row]),
            int(table.flops[row]),
            int(table.tensor_bytes[row]),
        )
        for row in rows
    }


@pytest.mark.parametrize("phase", ["training", "inference"])
def test_every_kernel_of_the_trace_is_priced_and_nothing_else(tiny, tiny_service, prices, phase):
    job = tiny(*TRAINING) if phase == "training" else tiny_service(("parallelism.pp", "2"))
    trace = build(job, prices)
    priced = {(row.name, row.duration, row.flops, row.bytes.get("hbm", 0)) for row in trace.operators}
    assert set.union(*map(costs_of, trace.tables)) == priced
    assert blocks(job, prices).outer([{}] * job.stages).operators == trace.operators


def test_an_operator_says_what_bounds_it_and_which_model_says_so(tiny):
    rows = {
        (row.name, row.stage): row
        for row in build(tiny(*TRAINING), operator_model(load_device("h100_sxm"))).operators
    }
    core, optimizer = rows["backward.attention.core", -1], rows["optimizer", 1]
    assert (core.section, core.bound, core.model) == ("block", "launch", "attention.flash")
    assert (optimizer.section, optimizer.model) == ("optimizer", "vector")


def test_decode_steps_are_told_apart(tiny_service, prices):
    rows = [row for row in build(tiny_service(), prices).operators if row.name == "forward.attention.core"]
    # 40 ps · 2 sequences · 4 heads · 16 wide · pairs: 16² in the prefill, then 17 to 20
    assert [(row.step, row.duration // (40 * 2 * 4 * 16)) for row in rows] == [
        (0, 256), (1, 17), (2, 18), (3, 19), (4, 20),
    ]  # fmt: skip
