"""The trace of a static batch: prefill, decode with a growing KV cache, pipelines, replicas."""

import numpy as np
import pytest

from rapid_des.chakra.trace import NodeKind
from rapid_des.device import load_device
from rapid_des.device.operators import Estimate
from rapid_des.device.pricing import estimate
from rapid_des.errors import ConfigError
from rapid_des.frontend import build, memory
from rapid_des.frontend.build import in_passes
from rapid_des.frontend.inference import ServingPass, decode_time, one_pass, pass_lists
from rapid_des.frontend.inference import passes as passes_of
from rapid_des.frontend.operations import RequestGroup
from rapid_des.frontend.two_batches import cut
from rapid_des.values import replace


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


UNLIKE = [
    ("inference.batch", "null"),
    ("inference.prompt_length", "null"),
    ("inference.output_length", "null"),
    (
        "inference.requests",
        "[{count: 2, prompt_length: 16, output_length: 2}, {prompt_length: 40, cached: 8, output_length: 4}]",
    ),
]


def kernels(job, current):
    (block,) = (each for key, each in pass_lists(job, current).items() if key.name == "block")
    return {operation.name: operation.operator for operation in block if operation.operator is not None}


def test_requests_of_several_lengths_share_all_but_their_attention(tiny_service):
    prefill, first, second, last = passes_of(job := tiny_service(*UNLIKE))
    shared = kernels(job, prefill)
    assert (shared["attention.qkv"].m, shared["ffn.in"].m) == (64, 64)  # 2 · 16 + 32 tokens
    core = shared["attention.core"]
    # Pairs: 2 · 136 of the first kind, 32 · 8 + 528 of the other: 1056 in all, as 3 · 22 · (5 + 11.5).
    assert (core.batch, core.query_length, core.key_length) == (3, 22, 27)
    assert 1056 <= 3 * core.visible_pairs < 1056 + 3 * 22
    # Steps attend to 17, 17 and 41 positions, the mean of which is 25; then one request is left.
    assert [kernels(job, step)["attention.core"].key_length for step in (first, second, last)] == [25, 42, 43]
    assert [kernels(job, step)["ffn.in"].m for step in (first, second, last)] == [3, 1, 1]


def test_each_kind_of_requests_ends_with_its_own_last_token(tiny_service, prices, replay):
    job = tiny_service(*UNLIKE)
    assert job.tokens == 2 * 2 + 4
    assert [(segment.step, segment.kv_length) for segment in build(job, prices).segments[0]] == [
        (0, 40), (1, 41), (2, 42), (3, 43)
    ]  # fmt: skip
    times = dict(step_times(job, prices, replay))
    alone = [("inference.requests", "[{prompt_length: 41, cached: 40, output_length: 3}]")]
    # What goes on alone takes as long as if it had always been alone: steps at 41, 42 and 43 positions.
    rest = dict(step_times(tiny_service(*UNLIKE[:3], *alone), prices, replay))
    assert (times[2], times[3]) == (rest[2], rest[3])
    assert times[1] > rest[1]


def test_one_pass_of_any_mix_takes_what_the_same_step_of_a_static_batch_takes(tiny_service, prices, replay):
    static = dict(step_times(job := tiny_service(*UNLIKE), prices, replay))
    for step, groups in {
        0: [RequestGroup(2, 16), RequestGroup(1, 32, cached=8)],
        1: [RequestGroup(2, 1, cached=16), RequestGroup(1, 1, cached=40)],
        3: [RequestGroup(1, 1, cached=42)],
    }.items():
        ((number, took),) = step_times(one_pass(job, groups), prices, replay)
        assert (took, number) == (static[step], min(step, 1))  # without a prompt it is a decode step


def test_a_chunk_that_leaves_some_prompt_over_makes_no_token(tiny_service, prices):
    job = one_pass(tiny_service(), [RequestGroup(1, 8, samples=False), RequestGroup(3, 1, cached=9)])
    table = build(job, prices).tables[0]
    (head,) = [row for row in named(table, "forward.head") if table.names[table.name[row]] == "forward.head"]
    assert table.duration[head] == 20 * 3 * 256 * 64
    alone = build(one_pass(job, [RequestGroup(1, 8, samples=False)]), prices).tables[0]
    assert not len(named(alone, "head"))


@pytest.mark.parametrize("most", [1, 7, 16, 20, 33, 64, 1000])
def test_prompts_that_take_several_passes_are_all_computed_in_their_order(most):
    prompts = (RequestGroup(2, 16), RequestGroup(3, 5, cached=8), RequestGroup(1, 1))
    every = list(cut(prompts, most))
    sizes = [sum(group.count * group.query_length for group in groups) for groups in every]
    assert sizes[:-1] == [most] * (len(sizes) - 1)
    assert sum(sizes) == 2 * 16 + 3 * 5 + 1
    assert sum(group.count * group.samples for groups in every for group in groups) == 2 + 3 + 1
    ends = [
        group.key_length for groups in every for group in groups if group.samples for _ in range(group.count)
    ]
    assert ends == [16, 16, 13, 13, 13, 1]


def test_a_prefill_of_several_passes_takes_what_these_take_one_by_one(tiny_service, prices, replay):
    # 2 prompts of 16 tokens in passes of 12: 12, 4 + 8, 8 tokens, then 4 steps.
    job = tiny_service(("inference.prefill_tokens", "12"))
    times = step_times(job, prices, replay)
    assert [step for step, _ in times] == [-2, -1, 0, 1, 2, 3, 4]
    mixes = [
        [RequestGroup(1, 12, samples=0)],
        [RequestGroup(1, 4, cached=12), RequestGroup(1, 8, samples=0)],
        [RequestGroup(1, 8, cached=8)],
    ]
    for (_, took), groups in zip(times, mixes, strict=False):
        assert [took] == [time for _, time in step_times(one_pass(job, groups), prices, replay)]
    steps = dict(step_times(tiny_service(), prices, replay))
    assert times[3:] == [(step, steps[step]) for step in (1, 2, 3, 4)]


def test_stages_compute_chunks_of_prompts_beside_one_another(tiny_service, prices, replay):
    def until_first_token(*settings):
        job = tiny_service(("parallelism.pp", "2"), ("inference.output_length", "1"), *settings)
        return max(map(max, replay(build(job, prices).traces, rendezvous=True).values()))

    # Two stages, two equal passes: three halves of the time instead of two wholes.
    assert until_first_token(("inference.prefill_tokens", "16")) < 0.8 * until_first_token()


def test_prompts_that_do_not_fit_together_take_passes_of_the_engines_size(tiny_service):
    pool = ("memory.kv_pool", "{share: 0.9, of: used, page: 16, tokens: 16, sequences: 2}")
    job = tiny_service(("inference.batch", "64"), pool)
    needed = memory(job).fullest.peak
    assert in_passes(job, needed) is job
    chunked = in_passes(job, needed - 1)
    assert chunked.inference.prefill_tokens == 16
    assert len([one for one in passes_of(chunked) if one.name == "prefill"]) == 64
    # What stays is there in either: only a pass is smaller.
    whole, small = (memory(one).fullest.categories for one in (job, chunked))
    assert (whole["kv_cache"], whole["weights"]) == (small["kv_cache"], small["weights"])
    assert small["activations"] * 64 == whole["activations"]
    assert in_passes(stated := tiny_service(("inference.prefill_tokens", "8"), pool), 1) is stated


def test_a_window_bounds_what_each_of_unlike_requests_sees(tiny_service):
    window = ("model.attention", "{kind: attention, heads: 4, kv_heads: 2, window: 32}")
    job = tiny_service(window, *UNLIKE)
    prefill, first, *_ = passes_of(job)
    # 17, 17 and, of 41, the latest 32.
    assert kernels(job, first)["attention.core"].key_length == 22
    # The prompt that the window cuts has a kernel of its own.
    both = kernels(job, prefill)
    assert both["attention.core"].window == 32
    assert (both["attention.core.prompts"].batch, both["attention.core.prompts"].window) == (2, None)


def test_every_micro_batch_has_a_part_of_each_kind(tiny_service, prices):
    kinds = "[{count: 2, prompt_length: 9, output_length: 2}, {count: 4, prompt_length: 5, output_length: 3}]"
    split = [("parallelism.pp", "2"), ("inference.requests", kinds), ("inference.micro_batch", "3")]
    job = tiny_service(*UNLIKE[:3], *split)
    assert [(group.count, group.query_length) for group in passes_of(job)[0].groups] == [(1, 9), (2, 5)]
    with pytest.raises(ConfigError, match="count 2 is not divisible by the number of micro-batches 3"):
        tiny_service(*UNLIKE[:3], *split[:2], ("inference.micro_batch", "2"))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (UNLIKE[3:], "requests: they are listed, so batch, prompt_length, output_length would never be read"),
        (UNLIKE[:1], "batch: must be there, or `requests`"),
        (
            [*UNLIKE[:3], ("inference.requests", "[{prompt_length: 8, output_length: 1, cached: 8}]")],
            "cached: 8 of 8 tokens of a prompt leave none",
        ),
        (
            [*UNLIKE[:3], ("inference.requests", "[{prompt_length: 100, output_length: 40}]")],
            "inference.requests.0.output_length: 140 positions, tiny.model has max_positions 128",
        ),
    ],
)
def test_senseless_requests_are_refused(tiny_service, settings, problem):
    with pytest.raises(ConfigError) as refused:
        tiny_service(*settings)
    assert problem in str(refused.value)


EXPERTS = ("model.feed_forward", "{kind: experts, experts: 8, topk: 2, hidden: 32}")
DRAFTS = ("inference.speculative", "{method: eagle, tokens: 1, acceptance: [0.5]}")
PREFILL = [("inference.output_length", "1"), ("parallelism.cp", "4")]


@pytest.mark.parametrize("kind", ["all_gather", "ring", "ulysses"])
def test_a_long_prompt_is_split_over_context_parallel_ranks(tiny_service, prices, replay, kind):
    heads = ("model.attention", "{kind: attention, heads: 4}")
    job = tiny_service(*PREFILL, heads, ("parallelism.cp_kind", kind))
    prefill = passes_of(job)[0]
    assert kernels(job, prefill)["ffn.in"].m == 2 * 16 // 4
    replay(build(job, prices).traces, rendezvous=True)
    whole = memory(tiny_service(PREFILL[0], heads)).stages[0].categories["kv_cache"]
    # 17 positions, of which a rank keeps 5 at most.
    assert memory(job).stages[0].categories["kv_cache"] * 17 == whole * 5


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            [*PREFILL[1:], EXPERTS, ("parallelism.ep", "2")],
            "ranks of cp 4 decode the same tokens, which ep 2 would",
        ),
        ([*PREFILL[1:], DRAFTS], "no drafts with cp 4; allowed: output_length 1"),
        ([*PREFILL, ("inference.prompt_length", "20")], "prompt_length 20 is not divisible by two pieces"),
        ([("parallelism.tp", "2"), ("parallelism.sequence_parallel", "true")], "the model is dense"),
        ([("inference.absorbs", "false")], "tiny.model has no latent attention"),
        ([*PREFILL, ("inference.prefill_tokens", "16")], "cp 4 splits whole prompts, no chunks of them"),
    ],
)
def test_splits_that_can_not_serve_are_refused(tiny_service, settings, problem):
    with pytest.raises(ConfigError) as refused:
        tiny_service(*settings)
    assert problem in str(refused.value)


def test_ranks_of_context_parallelism_decode_over_their_parts_of_the_cache(tiny_service, prices, replay):
    alone, split = tiny_service(), tiny_service(PREFILL[1])
    one, four = (kernels(job, passes_of(job)[2]) for job in (alone, split))
    # the second decode step sees 18 positions, of which a rank holds 5
    assert (one["attention.core"].key_length, four["attention.core"].key_length) == (18, 5)
    assert four["ffn.in"] == one["ffn.in"]
    decode = [each for key, each in pass_lists(split, passes_of(split)[1]).items() if key.name == "block"]
    sizes = {each.role: each.size for each in decode[0] if each.role.startswith("cp.")}
    heads, width = alone.model.spec.attention.heads, alone.model.spec.hidden
    assert sizes == {"cp.statistics": 2 * heads * 4, "cp.sum": 2 * width * 2}
    replay(build(split, prices).traces, rendezvous=True)


HOST = ("host", "{kernel: 1 ns, collective: 1 ns, captured: decode, captured_multiple: 8}")


def test_captured_decode_steps_compute_padding_that_attention_and_sampling_leave_out(tiny_service):
    job = tiny_service(HOST, ("inference.batch", "9"))
    prefill, decode, *_ = passes_of(job)
    assert (kernels(job, prefill)["ffn.in"].m, kernels(job, decode)["ffn.in"].m) == (9 * 16, 16)
    assert kernels(job, decode)["attention.core"].batch == 9
    (head,) = (each for key, each in pass_lists(job, decode).items() if key.name == "head")
    assert [one.operator.m for one in head if one.name == "head"] == [9]
    eager = tiny_service(HOST, ("inference.batch", "9"), ("inference.cuda_graphs", "false"))
    assert kernels(eager, decode)["ffn.in"].m == 9


def test_experts_are_read_as_they_are_stored(tiny_service):
    experts = ("model.feed_forward", "{kind: experts, experts: 8, topk: 2, hidden: 32}")
    job = tiny_service(experts, ("precision.weights", "int4"))
    product = kernels(job, passes_of(job)[1])["ffn.in"]
    assert (product.dtype, product.weight_dtype) == ("bf16", "int4")
    device = load_device("h100_sxm")
    narrow, wide = (
        estimate(replace(product, n=8192, k=8192, weight_dtype=each), device) for each in ("int4", None)
    )
    # Four of the experts are reached, with one row each: weights are nearly all that moves.
    assert wide.bytes["hbm"] / narrow.bytes["hbm"] == pytest.approx(4, rel=0.01)


def test_norms_behind_sums_that_are_small_enough_are_in_their_kernels(tiny_service, prices):
    def norms(*settings):
        job = tiny_service(("model.norm", "rms_norm"), ("fusion", "vllm"), *settings)
        return {
            kernel.name: kernel.operator.kind
            for kernels in pass_lists(job, ServingPass(1, (RequestGroup(4, 1, 8),), 1)).values()
            for kernel in kernels
            if "norm" in kernel.name
        }

    split = ("parallelism.tp", "2")
    assert set(norms(split).values()) == {"add_rms_norm"}
    assert set(norms(split, ("norm_in_sum", "1 MiB")).values()) == {"norm_in_sum"}
    assert set(norms(("norm_in_sum", "1 MiB")).values()) == {"add_rms_norm"}  # no sum
    assert set(norms(split, ("norm_in_sum", "8 B")).values()) == {"add_rms_norm"}  # larger ones
