"""The trace of a training step: it ends, it does the work, it sends what theory says."""

import numpy as np
import pytest

from rapid_des.chakra.trace import UNSTATED, CollectiveType, NodeKind
from rapid_des.device.operators import Attention
from rapid_des.errors import ConfigError
from rapid_des.frontend import build, load_job, memory
from rapid_des.frontend.optimizers import bucket_parameters
from rapid_des.frontend.parts import narrow_weights
from rapid_des.frontend.schedules import SCHEDULES
from rapid_des.machine import load_machine
from rapid_des.simulation import simulate

SPLITS = [
    {},
    {"tp": 2},
    {"tp": 2, "sequence_parallel": "true"},
    {"pp": 2},
    {"pp": 4, "dp": 2},
    {"tp": 2, "pp": 2, "dp": 2, "sequence_parallel": "true"},
]
WHOLE = SPLITS[-1]


def settings(split):
    return [(f"parallelism.{axis}", str(size)) for axis, size in split.items()]


def rows(table, stream, name=""):
    """Return the rows of one stream whose name contains `name`."""
    named = np.array([name in text for text in table.names])[table.name]
    return np.flatnonzero((table.stream == table.streams.index(stream)) & named)


def end(finish):
    return max(max(times) for times in finish.values())


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_every_split_and_schedule_runs_to_its_end(tiny, prices, replay, split, schedule):
    layers, batch = ("8", "16") if split.get("pp") == 4 else ("4", "8")
    chosen = [*settings(split), ("training.schedule", schedule), ("model.layers", layers)]
    chosen.append(("training.global_batch", batch))
    if SCHEDULES[schedule].chunks is None:
        chosen.append(("parallelism.chunks", "2"))
    if SCHEDULES[schedule].chunks != 1 and "pp" not in split:
        pytest.skip("several chunks need stages")
    extras = [[("training.overlap_pipeline", "false")], [("model.tied_embeddings", "true")]]
    extras.append([("training.recompute", "full"), ("training.scatter_gather", "true")])
    if split.get("dp"):
        extras.append([("training.zero_stage", "1"), ("training.overlap_parameters", "true")])
    place = SPLITS.index(split) + list(SCHEDULES).index(schedule)  # each extra meets every split and schedule
    # a send that waits for its receive is the harder case; the plain job is tried with both in turns
    replay(build(tiny(*chosen), prices).traces, rendezvous=place % 2 == 0)
    extra = extras[place % len(extras)]
    replay(build(tiny(*chosen, *extra), prices).traces, rendezvous=True)


def test_one_gpu_takes_the_sum_of_its_kernels(tiny, prices, replay):
    trace = build(tiny(), prices)
    table = trace.tables[0]
    assert (table.kind == NodeKind.COMPUTE).all()
    assert end(replay(trace.traces, rendezvous=True)) == table.duration.sum()


def test_ranks_of_a_stage_share_one_table(tiny, prices):
    trace = build(tiny(*settings(WHOLE)), prices)
    assert [rank.nodes is trace.tables[rank.rank // 4] for rank in trace.traces.ranks] == [True] * 8
    assert not trace.tables[0].duration.flags.writeable


def test_matrices_cost_three_passes(tiny, prices):
    # Forward 2·m·n·k FLOPs a matrix and token; its input and weight gradients as much again.
    trace = build(tiny(), prices)
    table = trace.tables[0]
    gemm = sum(int(table.flops[rows(table, "compute", name)].sum()) for name in ("ffn.in", "ffn.out"))
    parameters = 3 * 64 * 128
    # UnitPrices counts 20 ps (as "FLOPs") for each multiply-add; 4 layers, 8 sequences of 32 tokens.
    assert gemm == 3 * 20 * parameters * 4 * 8 * 32


@pytest.mark.parametrize("sequence_parallel", ["false", "true"])
def test_tensor_parallel_messages_of_a_layer(tiny, prices, sequence_parallel):
    table = build(tiny(*settings({"tp": 2, "sequence_parallel": sequence_parallel})), prices).tables[0]
    tensor = 32 * 64 * 2  # tokens · hidden · 2 bytes

    def found(phase):
        layer = rows(table, "tp", f"{phase}.L1.")
        return sorted(zip(table.collective[layer].tolist(), table.size[layer].tolist(), strict=True))

    if sequence_parallel == "false":
        # Two all-reduces each way (Shoeybi et al. 2019), for each of 8 micro-batches.
        forward = backward = [(CollectiveType.ALL_REDUCE, tensor)] * 2 * 8
    else:
        # Forward: gather before and scatter after each half; backward the same for the gradients, and the two
        # gathered inputs again. The comm_size of a gather is this rank's half.
        gather = [(CollectiveType.ALL_GATHER, tensor // 2)] * 2 * 8
        scatter = [(CollectiveType.REDUCE_SCATTER, tensor)] * 2 * 8
        forward, backward = gather + scatter, gather + gather + scatter
    assert found("forward") == sorted(forward)
    assert found("backward") == sorted(backward)


def test_gradients_travel_once_in_fp32(tiny, prices):
    job = tiny(*settings(WHOLE), ("training.bucket_parameters", "10000"))
    trace = build(job, prices)
    for stage, table in enumerate(trace.tables):
        buckets = rows(table, "dp", "dp.reduce")
        assert len(buckets) > 2
        assert table.size[buckets].sum() == 4 * memory(job).stages[stage].parameters


def test_buckets_leave_while_the_last_backward_runs(tiny, prices, replay):
    chosen = [("parallelism.dp", "2"), ("training.bucket_parameters", "10000")]
    for overlap in ("true", "false"):
        trace = build(tiny(*chosen, ("training.overlap_gradients", overlap)), prices)
        table = trace.tables[0]
        finish = replay(trace.traces, rendezvous=True)[0]
        first = finish[rows(table, "dp", "dp.reduce")[0]]
        backward = max(finish[row] for row in rows(table, "compute", "backward."))
        assert (first < backward) == (overlap == "true")


def test_the_optimizer_waits_for_the_reduced_gradients_and_their_norm(tiny, prices, replay):
    trace = build(tiny(*settings(WHOLE)), prices)
    table = trace.tables[0]
    finish = replay(trace.traces, rendezvous=True)[0]
    norm, optimizer = rows(table, "compute", "gradient_norm")[0], rows(table, "compute", "optimizer")[0]
    reduced = max(finish[row] for row in rows(table, "dp", "gradients."))
    assert finish[optimizer] > finish[norm] >= reduced + table.duration[norm]


def test_zero_1_scatters_gradients_gathers_parameters_and_steps_on_a_part(tiny, prices):
    chosen = [("parallelism.dp", "2"), ("training.zero_stage", "1")]
    job = tiny(*chosen)
    table = build(job, prices).tables[0]
    parameters = memory(job).stages[0].parameters
    scatter, gather = rows(table, "dp", "dp.scatter"), rows(table, "dp", "parameters.gather")
    assert table.size[scatter].sum() == 4 * parameters
    # Each rank contributes its half, two bytes a parameter.
    assert table.size[gather].sum() == 2 * parameters // 2
    assert table.duration[rows(table, "compute", "optimizer")].tolist() == [parameters // 2]
    assert gather.min() > rows(table, "compute", "optimizer")[0]


def test_gathers_beside_the_forward_come_first_and_layers_wait_for_theirs(tiny, prices, replay):
    chosen = [("training.zero_stage", "1"), ("training.overlap_parameters", "true")]
    trace = build(tiny(("parallelism.dp", "2"), ("training.bucket_parameters", "10000"), *chosen), prices)
    table = trace.tables[0]
    gathers = rows(table, "dp", "parameters.gather")
    assert gathers.max() < rows(table, "compute")[0]
    starts = table.dependency_starts
    waits = [
        {*table.dependencies[starts[row] : starts[row + 1]].tolist()} & {*gathers.tolist()}
        for row in rows(table, "compute", "attention.norm")[:4]
    ]
    # Layers in order wait for later and later gathers.
    assert all(waits)
    assert [max(own) for own in waits] == sorted(max(own) for own in waits)
    assert max(waits[0]) < max(waits[3])


def test_a_tied_table_is_summed_between_the_first_and_the_last_stage(tiny, prices):
    trace = build(tiny(("parallelism.pp", "4"), ("model.tied_embeddings", "true")), prices)
    assert trace.traces.groups["embedding.0"] == (0, 3)
    sizes = [table.size[rows(table, "dp", "gradients.embedding")].tolist() for table in trace.tables]
    # 256 tokens · 64 · 4 bytes.
    assert sizes == [[65536], [], [], [65536]]


def test_pipeline_messages_carry_the_boundary_once_each_way(tiny, prices):
    trace = build(tiny(*settings(WHOLE)), prices)
    first, last = trace.tables
    # 8 sequences over dp 2: 4 micro-batches; 32 tokens · 64 · 2 bytes, halved by sequence parallelism.
    for table in (first, last):
        assert table.size[rows(table, "pp-send")].tolist() == [2048] * 4
    tags = [
        sorted(table.tag[rows(table, stream)].tolist())
        for table, stream in ((first, "pp-send"), (last, "pp-recv"))
    ]
    assert tags[0] == tags[1]
    assert [rank.peers for rank in trace.traces.ranks[:2]] == [(4,), (5,)]


def test_full_recomputation_runs_every_layer_forward_twice(tiny, prices, replay):
    def compute(recompute):
        return build(tiny(("training.recompute", recompute)), prices).tables[0]

    plain, full, selective = compute("none"), compute("full"), compute("selective")
    forward = [row for row in rows(plain, "compute", "forward.L")]
    assert full.duration.sum() - plain.duration.sum() == plain.duration[forward].sum()
    core = rows(plain, "compute", "core")
    core = [row for row in core if plain.names[plain.name[row]].startswith("forward")]
    assert selective.duration.sum() - plain.duration.sum() == plain.duration[core].sum()


def test_overlapped_pipeline_messages_never_cost_more(tiny, prices, replay):
    def step(overlap):
        job = tiny(("parallelism.pp", "4"), ("training.overlap_pipeline", overlap))
        return end(replay(build(job, prices).traces, rendezvous=True))

    assert step("true") <= step("false")


def test_segments_cover_the_table_in_order(tiny, prices):
    trace = build(tiny(*settings(WHOLE)), prices)
    for table, segments in zip(trace.tables, trace.segments, strict=True):
        assert segments[-1].name == "optimizer"
        assert segments[-1].stop == len(table)
        assert all(before.stop <= after.start for before, after in zip(segments, segments[1:], strict=False))
        assert sum(segment.name == "forward" for segment in segments) == 4


def test_a_job_larger_than_the_machine_is_refused_with_both_numbers(tiny, prices):
    job = tiny(*settings(WHOLE))
    assert len(build(job, prices, gpus=16).traces.ranks) == 8
    with pytest.raises(ConfigError, match=r"tp 2 · cp 1 · dp 2 · pp 2 = 8 GPUs, the machine has 4"):
        build(job, prices, gpus=4)


def test_a_thousand_gpus_share_eight_tables(prices):
    trace = build(load_job("llama3_1_70b_train_1024"), prices)
    assert (len(trace.traces.ranks), len(trace.tables)) == (1024, 8)
    # tp groups 128, dp groups 64, and the world.
    assert sum(name.startswith("tp.") for name in trace.traces.groups) == 128
    assert sum(name.startswith("gradient.") for name in trace.traces.groups) == 64


CONTEXT = [("parallelism.cp", "2"), ("parallelism.tp", "2"), ("parallelism.sequence_parallel", "true")]


@pytest.mark.parametrize("rendezvous", [True, False])
def test_context_parallelism_runs_with_every_other_axis(tiny, prices, replay, rendezvous):
    more = [("parallelism.pp", "2"), ("parallelism.dp", "2"), ("training.zero_stage", "1")]
    trace = build(tiny(*CONTEXT, *more), prices)
    assert len(trace.traces.ranks) == 16
    # Gradients are summed over cp and dp together.
    assert {len(ranks) for name, ranks in trace.traces.groups.items() if name.startswith("gradient.")} == {4}
    replay(trace.traces, rendezvous=rendezvous)


def test_context_parallelism_exchanges_keys_and_values_of_all_parts(tiny, prices):
    table = build(tiny(*CONTEXT), prices).tables[0]
    # K and V of 32 positions, 1 of the 2 kv heads, 16 wide, 2 bytes: 2048 in all, half on each rank.
    messages = rows(table, "cp", "L1.")
    kinds = sorted(zip(table.collective[messages].tolist(), table.size[messages].tolist(), strict=True))
    gather, scatter = (CollectiveType.ALL_GATHER, 1024), (CollectiveType.REDUCE_SCATTER, 2048)
    assert kinds == sorted(([gather] * 2 + [scatter]) * 8)


def test_early_and_late_pieces_balance_causal_attention():
    # Visible pairs of a causal kernel: q·(k - q) + q·(q + 1)/2. Of 4·2 pieces of 512 positions, piece i
    # and piece 7 - i together see the same on every rank, and all ranks together what one GPU sees.
    job = load_job(
        "llama2_7b_train",
        settings=[
            ("parallelism.cp", "4"),
            ("parallelism.tp", "1"),
            ("parallelism.sequence_parallel", "false"),
        ],
    )
    layer = job.model.pattern[0].forward(job.training_shard)
    kernels = [entry.operator for entry in layer if isinstance(entry.operator, Attention)]
    shapes = [(kernel.query_length, kernel.key_length) for kernel in kernels]
    assert 4 * sum(q * (k - q) + q * (q + 1) // 2 for q, k in shapes) == 4096 * 4097 // 2


def test_half_precision_unscales_gradients_and_agrees_on_overflow(tiny, prices):
    chosen = [*settings(WHOLE), ("precision.activations", "fp16")]
    table = build(tiny(*chosen), prices).tables[0]
    names = [table.names[table.name[row]] for row in range(len(table) - 5, len(table))]
    tail = [
        "gradient_unscale",
        "gradient_unscale.overflow",
        "gradient_norm",
        "gradient_norm.reduce",
        "optimizer",
    ]
    assert names == tail
    assert len(rows(build(tiny(*settings(WHOLE)), prices).tables[0], "compute", "gradient_unscale")) == 0


def test_a_step_begins_by_clearing_the_accumulators(tiny, prices):
    job = tiny()
    table = build(job, prices).tables[0]
    assert table.names[table.name[0]] == "gradients.zero"
    assert table.duration[0] == job.model.parameters


SHARDED = {"dp": 4, "tp": 2}


def sharded(tiny, stage, **training):
    settings = [(f"parallelism.{axis}", str(size)) for axis, size in SHARDED.items()]
    training = {"zero_stage": stage, "global_batch": 16} | training
    return tiny(*settings, *((f"training.{key}", str(value).lower()) for key, value in training.items()))


def messages_of(table, prefix):
    """Return name and bytes of the messages whose names begin so, in order."""
    names = [table.names[number] for number in table.name.tolist()]
    return [
        (name, size) for name, size in zip(names, table.size.tolist(), strict=True) if name.startswith(prefix)
    ]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize(
    ("schedule", "split"),
    [
        ("1f1b", {}),
        ("1f1b", {"pp": 2}),
        ("interleaved_1f1b", {"pp": 2, "chunks": 2}),
        ("zb_v", {"pp": 2}),
        ("dualpipe", {"pp": 2}),
    ],
)
def test_every_sharding_runs_to_its_end(tiny, prices, replay, stage, each, schedule, split):
    chosen = [(f"parallelism.{axis}", str(size)) for axis, size in split.items()]
    chosen.append(("training.schedule", schedule))
    job = tiny(
        ("parallelism.dp", "2"), ("training.zero_stage", str(stage)),
        ("training.reduce_each_micro_batch", str(each).lower()), *chosen,
    )  # fmt: skip
    replay(build(job, prices).traces, rendezvous=True)


def test_zero_2_scatters_gradients_after_every_micro_batch(tiny, prices):
    once, each = (build(sharded(tiny, stage), prices).tables[0] for stage in (1, 2))
    scatters = [len(messages_of(table, "gradients.dp.scatter")) for table in (once, each)]
    assert scatters == [1, 4]
    assert messages_of(once, "parameters.gather") == messages_of(each, "parameters.gather")


def test_zero_3_gathers_each_layer_for_both_passes_and_scatters_its_gradients(tiny, prices):
    job = sharded(tiny, 3)
    table = build(job, prices).tables[0]
    gathers, scatters = messages_of(table, "parameters.gather"), messages_of(table, "gradients.dp.scatter")
    units, micro_batches = 6, 4  # embedding, four layers, head
    assert len(gathers) == 2 * units * micro_batches and len(scatters) == units * micro_batches
    whole = sum(size for _, size in scatters) // micro_batches  # fp32, the input of each rank
    assert whole == 4 * memory(job).fullest.parameters
    # A gather's input is a quarter, in 16 bit.
    assert sum(size for _, size in gathers) == pytest.approx(2 * micro_batches * whole / 2 / 4, rel=1e-3)


def test_parameters_that_stay_are_gathered_once_a_micro_batch(tiny, prices):
    table = build(sharded(tiny, 3, reshard=False), prices).tables[0]
    assert len(messages_of(table, "parameters.gather")) == 6 * 4


def test_gradients_that_are_accumulated_are_scattered_once(tiny, prices):
    job = sharded(tiny, 3, reduce_each_micro_batch=False)
    assert len(messages_of(build(job, prices).tables[0], "gradients.dp.scatter")) == 6
    split, whole = memory(sharded(tiny, 3)).fullest.categories, memory(job).fullest.categories
    # Whole ones, and the parts that they are scattered to; one unit's own are in 16 bits.
    assert whole["gradients"] == pytest.approx((4 + 1) * split["gradients"], rel=1e-3)
    assert 0 < whole["unsharded"] < split["unsharded"]


def test_gathers_ahead_hide_behind_compute():
    """Without prefetching a layer waits for its own gather, which waits for the layer before."""
    machine, small = load_machine("dgx_a100"), {"model.layers": 4, "parallelism": {"dp": 8}}
    changes = small | {"training.zero_stage": 3, "training.global_batch": 8}
    hidden = [
        simulate(load_job("llama2_7b_train", settings=changes | {"training.prefetch": depth}), machine)
        for depth in (0, 1, 2)
    ]
    exposed = [int(result.breakdown["dp"]) for result in hidden]
    assert exposed[0] > 1.2 * exposed[1] >= exposed[2]


def test_memory_falls_with_every_stage(tiny):
    peaks = [memory(sharded(tiny, stage)).fullest.categories for stage in range(4)]
    assert peaks[1]["optimizer"] < peaks[0]["optimizer"]
    assert peaks[2]["gradients"] < peaks[1]["gradients"]
    assert peaks[3]["weights"] < peaks[2]["weights"] and peaks[3]["unsharded"] > 0 == peaks[2]["unsharded"]


def test_scattered_pipeline_messages_are_gathered_where_they_arrive(tiny, prices, replay):
    split = [("parallelism.tp", "2"), ("parallelism.pp", "2"), ("training.scatter_gather", "true")]
    table = build(tiny(*split), prices).tables[1]
    assert {size for _, size in messages_of(table, "receive.activation")} == {32 * 64 * 2 // 2}
    assert [name for name, _ in messages_of(table, "receive.activation")[:2]] == [
        "receive.activation", "receive.activation.gather",
    ]  # fmt: skip
    whole = build(tiny(*split, ("parallelism.sequence_parallel", "true")), prices).tables[1]
    assert not messages_of(whole, "receive.activation.gather")
    replay(build(tiny(*split), prices).traces, rendezvous=True)


NARROW = [("precision.gemm", "fp8")]


@pytest.mark.parametrize(
    ("recipe", "casts"),
    # forward: attention output and ffn.out; with scales that are not known before, qkv and ffn.in too.
    # backward: the gradients of all four outputs.
    [("delayed", 2 + 4), ("current", 2 * (4 + 4)), ("blockwise", 8), ("mxfp8", 8), ("nvfp4", 3 * 8)],
)
def test_a_recipe_casts_operands_and_gradients_of_every_layer(tiny, prices, recipe, casts):
    table = build(tiny(*NARROW, ("precision.recipe", recipe)), prices).tables[0]
    names = [table.names[number] for number in table.name.tolist()]
    layer = [name for name in names if ".L0." in name and "cast" in name]
    assert len(layer) == 8 * casts  # micro-batches
    assert "weights.cast" in names


def test_what_is_cast_before_it_is_gathered_travels_narrow(tiny, prices):
    split = [("parallelism.tp", "2"), ("parallelism.sequence_parallel", "true")]
    wide, narrow = (build(tiny(*split, *more), prices).tables[0] for more in ([], NARROW))
    (name, size), *_ = messages_of(wide, "forward.L0.attention.qkv.gather")
    assert messages_of(narrow, name)[0] == (name, size // 2)
    scatter = "forward.L0.attention.output.scatter"
    assert messages_of(narrow, scatter) == messages_of(wide, scatter)


def test_a_recipe_without_narrow_products_is_refused(tiny):
    with pytest.raises(ConfigError, match="precision.recipe: current needs gemm narrower"):
        tiny(("precision.recipe", "current"))


def test_narrow_copies_are_made_of_layers_matrices_alone():
    # Llama 2 7B: half of 32 layers' 4 * 4096^2 + 3 * 4096 * 11008, of which tp has half; tables, head and
    # norms stay as activations are
    settings = [("parallelism.tp", "2"), ("parallelism.pp", "2"), ("precision.gemm", "fp8")]
    job = load_job("llama2_7b_train", settings=settings)
    assert narrow_weights(job, 0) == narrow_weights(job, 1) == 16 * 202_375_168 // 2


def test_a_bucket_waits_for_its_share_of_each_replica(tiny):
    job = tiny(("parallelism.dp", "4"), ("training.bucket_parameters", "10"))
    assert bucket_parameters(job) == 10
    each = ("training.bucket_parameters_per_replica", "5")
    job = tiny(("parallelism.dp", "4"), ("training.bucket_parameters", "10"), each)
    assert bucket_parameters(job) == 20  # as Megatron's max(40 M, 1 M ranks)


@pytest.mark.parametrize(("overlaps", "group"), [("false", "stages"), ("true", None)])
def test_batched_messages_between_stages_name_the_communicator_of_all_stages(tiny, prices, overlaps, group):
    stated = [("training.batched_messages", "true"), ("training.overlap_pipeline", overlaps)]
    rank = build(tiny(*settings(WHOLE), *stated), prices).traces.ranks[0]
    sends = rank.nodes.group[rank.nodes.kind == NodeKind.SEND].tolist()
    assert sends
    assert {None if one == UNSTATED else rank.groups[one].partition(".")[0] for one in sends} == {group}


def test_stages_with_copies_of_parts_reduce_their_gradients_with_each_other(tiny, prices):
    split = [("parallelism.pp", "4"), ("parallelism.dp", "2")]
    jobs = [tiny(*split, ("training.schedule", name), ("training.global_batch", "16"))
            for name in ("1f1b", "dualpipe")]  # fmt: skip
    (_, plain), (job, trace) = [(job, build(job, prices)) for job in jobs]
    # Ranks 0 and 1 are the replicas of stage 0, 6 and 7 those of stage 3, which holds the same two parts.
    groups = {members for name, members in trace.traces.groups.items() if name.startswith("gradient.")}
    assert groups == {(0, 1, 6, 7), (2, 3, 4, 5)}
    for stage, table in enumerate(trace.tables):
        reduced = int(table.size[rows(table, "dp", "dp.reduce")].sum())
        others = [plain.tables[number] for number in (stage, 3 - stage)]
        assert reduced == sum(int(each.size[rows(each, "dp", "dp.reduce")].sum()) for each in others)
        assert reduced == 4 * memory(job).stages[stage].parameters


def test_a_v_goes_down_the_stages_and_back(tiny, prices):
    job = tiny(("parallelism.pp", "2"), ("training.schedule", "zb_v"))
    trace = build(job, prices)
    # Part 1 hands on to part 2 on its own stage: 8 micro-batches cross once each way to either side.
    assert [len(rows(table, "pp-send")) for table in trace.tables] == [16, 16]
    assert [rank.peers for rank in trace.traces.ranks] == [(1,), (0,)]


def test_micro_batches_need_not_divide_by_the_stages(tiny, prices, replay):
    split = [("parallelism.pp", "4"), ("parallelism.chunks", "2"), ("model.layers", "8"),
             ("training.schedule", "interleaved_1f1b"), ("training.global_batch", "10")]  # fmt: skip
    for count in ("3", "10"):
        replay(build(tiny(*split, ("training.global_batch", count)), prices).traces, rendezvous=True)
    assert tiny(*split).stage_orders == tiny(*split, ("training.micro_batch_group", "5")).stage_orders
    with pytest.raises(ConfigError, match=r"10 in groups of 4 leave 2, fewer than pp 4, .* may be 5, 6, 10"):
        tiny(*split, ("training.micro_batch_group", "4"))
