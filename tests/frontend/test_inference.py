"""The trace of a static batch: prefill, decode with a growing KV cache, pipelines, replicas."""

import numpy as np
import pytest

from rapid_des.chakra.trace import NodeKind
from rapid_des.device.operators import Estimate
from rapid_des.frontend import build
from rapid_des.frontend.inference import decode_time


def named(table, text):
    return np.flatnonzero(np.array([text in name for name in table.names])[table.name])


def passes(trace, stage=0):
    return [(segment.name, segment.kv_length) for segment in trace.segments[stage]]


def test_the_first_token_comes_from_the_prefill(tiny_service, prices):
    # 5 tokens: one prefill over 16 positions, 4 steps that attend to 17..20.
    trace = build(tiny_service(), prices)
    assert passes(trace) == [("prefill", 16), ("decode", 17), ("decode", 18), ("decode", 19), ("decode", 20)]
    assert trace.tokens == 2 * 5


def test_a_decode_step_differs_from_the_next_by_one_position_of_attention(tiny_service, prices):
    trace = build(tiny_service(), prices)
    table = trace.tables[0]
    cores = named(table, "attention.core")
    # Prefill: 40 ps · 2 sequences · 4 heads · 16·16 pairs · 16 wide; step k: 40 · 2 · 4 · (16 + k) · 16.
    assert table.duration[cores[:4]].tolist() == [40 * 2 * 4 * 256 * 16] * 4
    assert table.duration[cores[4::4]].tolist() == [40 * 2 * 4 * (16 + step) * 16 for step in (1, 2, 3, 4)]


def test_only_the_last_position_passes_the_head(tiny_service, prices):
    table = build(tiny_service(), prices).tables[0]
    heads = [row for row in named(table, "head") if "norm" not in table.names[table.name[row]]]
    # 2 requests · 256 tokens · 64 wide · 20 ps, in the prefill as in every step.
    assert table.duration[heads].tolist() == [20 * 2 * 256 * 64] * 5


def test_two_all_reduces_a_layer_one_for_the_embedding_one_gather_of_logits(tiny_service, prices):
    table = build(tiny_service(("parallelism.tp", "2")), prices).tables[0]
    sizes = table.size[table.kind == NodeKind.COLLECTIVE]
    prefill, step = [2 * 16 * 64 * 2] * 9, [2 * 64 * 2] * 9
    # Logits: 2 requests · 128 of the 256 tokens · 2 bytes.
    assert sizes.tolist() == prefill + [512] + (step + [512]) * 4


def test_a_pipeline_passes_activations_on_and_tokens_back(tiny_service, prices, replay):
    job = tiny_service(("parallelism.pp", "2"), ("inference.micro_batch", "1"))
    trace = build(job, prices)
    finish = replay(trace.traces, rendezvous=True)
    assert [segment.micro_batch for segment in trace.segments[0]] == [0, 1] * 5
    # A step of a request starts only after its token of the step before came back.
    first, last = trace.segments
    for request in (0, 1):
        starts = [segment.start for segment in first if segment.micro_batch == request]
        ends = [segment.stop - 1 for segment in last if segment.micro_batch == request]
        for before, row in zip(ends, starts[1:], strict=False):
            assert finish[0][row] - trace.tables[0].duration[row] >= finish[1][before]


@pytest.mark.parametrize("split", [{"tp": 4, "pp": 4}, {"pp": 4, "dp": 2}, {"tp": 2, "dp": 2}], ids=str)
@pytest.mark.parametrize("rendezvous", [True, False])
def test_every_split_runs_to_its_end(tiny_service, prices, replay, split, rendezvous):
    chosen = [(f"parallelism.{axis}", str(size)) for axis, size in split.items()]
    trace = build(tiny_service(*chosen), prices)
    replay(trace.traces, rendezvous=rendezvous)
    assert not any(name.startswith("gradient") for name in trace.traces.groups)


def step_times(job, prices, replay):
    """Return (step, duration) of each simulated pass; step 0 is the prefill."""
    trace = build(job, prices)
    finish = replay(trace.traces, rendezvous=True)[0]
    ends = [0, *(finish[segment.stop - 1] for segment in trace.segments[0])]
    steps = [segment.step for segment in trace.segments[0]]
    return list(zip(steps, np.diff(ends).tolist(), strict=True))


def test_sampled_decode_steps_give_the_same_total(tiny_service, prices, replay):
    longer = ("inference.output_length", "12")
    few = tiny_service(longer, ("inference.decode_steps", "3"))
    note = "decode: 3 of 11 steps are simulated, spread evenly; the others are interpolated"
    assert build(few, prices).notes == (note,)
    everything = step_times(tiny_service(longer), prices, replay)[1:]
    sampled = step_times(few, prices, replay)[1:]
    assert ([step for step, _ in sampled], len(everything)) == ([1, 6, 11], 11)
    # These prices are linear in the KV length, so interpolation is exact.
    assert decode_time(sampled, 1, 11) == sum(took for _, took in everything)


def test_one_output_token_needs_no_decode(tiny_service, prices, replay):
    alone = step_times(tiny_service(("inference.output_length", "1")), prices, replay)
    assert alone == step_times(tiny_service(), prices, replay)[:1]


def test_decode_can_have_prices_of_its_own(tiny_service, prices):
    class Graph:
        def estimate(self, operator):
            return Estimate(7, "launch", 0, {})

    table = build(tiny_service(), prices, decode_operators=Graph()).tables[0]
    compute = table.duration[table.kind == NodeKind.COMPUTE]
    assert set(compute[len(compute) // 5 :].tolist()) == {7}
    assert 7 not in compute[: len(compute) // 5]
