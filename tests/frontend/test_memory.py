"""Memory by liveness: the published activation formula exactly, sharding, and refusals that help.

Korthikanti et al. 2022 (arXiv 2205.05198), eqs. 1-5: a layer keeps s·b·h·(10 + 24/t + 5·a·s/(h·t)) bytes;
with sequence parallelism (34 + 5·a·s/h)/t; selective recomputation drops 5·a·s/h; full keeps 2·s·b·h.
"""

import pytest

from rapid_des.errors import InfeasibleJobError
from rapid_des.frontend import check_memory, load_job, memory
from rapid_des.frontend.memory import kv_capacity, section_memory
from rapid_des.frontend.parts import EMBEDDING, ModelSection

GIB = 2**30
SHAPES = {
    # model: tp, pp, micro-batch, chunks, hidden, heads, layers
    "megatron_gpt_22b": (8, 1, 4, 1, 6144, 64, 48),
    "megatron_gpt_175b": (8, 8, 1, 3, 12288, 96, 96),
    "megatron_gpt_1t": (8, 64, 1, 1, 25600, 160, 128),
}


def paper_job(model, *, sequence_parallel="false", recompute="none"):
    tp, pp, micro_batch, chunks, *_ = SHAPES[model]
    return load_job(
        "gpt3_175b_train",
        settings=[
            ("model", model),
            ("parallelism.tp", str(tp)),
            ("parallelism.pp", str(pp)),
            ("parallelism.chunks", str(chunks)),
            ("training.schedule", "interleaved_1f1b" if chunks > 1 else "1f1b"),
            ("training.micro_batch", str(micro_batch)),
            ("training.global_batch", str(micro_batch * 128)),
            ("parallelism.sequence_parallel", sequence_parallel),
            ("training.recompute", recompute),
        ],
    )


def layer_formula(model, sequence_parallel, recompute):
    tp, _, b, _, h, a, _ = SHAPES[model]
    s = 2048
    if recompute == "full":
        return 2 * s * b * h // (tp if sequence_parallel else 1)
    core = 0 if recompute == "selective" else 5 * a * s * s * b // tp
    if sequence_parallel:
        return s * b * h * 34 // tp + core
    return s * b * h * (10 * tp + 24) // tp + core


@pytest.mark.parametrize("model", SHAPES)
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_a_layer_keeps_exactly_the_papers_bytes(model, sequence_parallel, recompute):
    job = paper_job(model, sequence_parallel=str(sequence_parallel).lower(), recompute=recompute)
    kept = section_memory(job)[ModelSection("block")].activations
    assert kept == layer_formula(model, sequence_parallel, recompute)


def test_weight_gradients_need_what_their_paper_says():
    # Qi et al. 2023 (arXiv 2401.10241), table 1: a layer's weight gradients hold 32·s·b·h bytes.
    job = load_job(
        "gpt3_175b_train",
        settings=[("parallelism.tp", "1"), ("parallelism.pp", "2"), ("training.schedule", "zb_h1"),
                  ("parallelism.chunks", "1"), ("parallelism.sequence_parallel", "false")],
    )  # fmt: skip
    held = section_memory(job)[ModelSection("block")].deferred
    assert sum(tensor.size for tensor in held) == 32 * 2048 * job.training.micro_batch * 12288


def test_zero_bubble_holds_as_much_as_1f1b_on_its_first_stage_and_keeps_that_on_all(tiny):
    base = [("parallelism.pp", "4"), ("model.vocabulary", "16")]
    plain, late, twice = (
        [stage.activations for stage in memory(tiny(*base, ("training.schedule", name))).stages]
        for name in ("1f1b", "zb_h1", "zb_h2")
    )
    assert max(plain) == plain[0]
    layer = section_memory(tiny(*base))[ModelSection("block")].activations
    assert layer * 4 <= max(late) < layer * 5
    assert layer * 6 < max(twice) < layer * 8


@pytest.mark.parametrize(
    ("model", "gib", "with_both"),
    [
        # Figure 1 and 7 there: the first stage's activations, plain, and with both techniques.
        ("megatron_gpt_22b", 59.25, 9.5625),
        ("megatron_gpt_175b", 66.84375, 12.35156),
        ("megatron_gpt_1t", 131.25, 26.5625),
    ],
)
def test_the_first_stage_holds_what_the_paper_prints(model, gib, with_both):
    both = {"sequence_parallel": "true", "recompute": "selective"}
    for job, expected in ((paper_job(model), gib), (paper_job(model, **both), with_both)):
        held = memory(job).stages[0].activations
        # The figures leave out the embedding's dropout masks (one for each micro-batch in flight), and with
        # pp = 1 the inputs of the head, at most 0.4 % here.
        masks = job.stages * section_memory(job)[EMBEDDING].activations
        assert (held - masks) / GIB == pytest.approx(expected, rel=4e-3)


def test_mixed_precision_adam_takes_18_bytes_a_parameter():
    # fp16 weight 2, fp32 gradient 4, master 4, two moments 8 (Figure 1: 45.5625 GiB for matrices alone).
    stage = memory(paper_job("megatron_gpt_22b")).stages[0]
    model_state = sum(stage.categories[name] for name in ("weights", "gradients", "optimizer"))
    assert model_state == 18 * stage.parameters
    matrices = 12 * 6144**2 * 48 // 8
    assert 18 * matrices / GIB == 45.5625
    # Biases, norms, and the token and position tables are the rest.
    assert stage.parameters - matrices < 0.03 * matrices


def test_zero_1_splits_only_the_optimizer(tiny):
    whole = memory(tiny(("parallelism.dp", "2"))).stages[0]
    split = memory(tiny(("parallelism.dp", "2"), ("training.zero_stage", "1"))).stages[0]
    assert split.categories["optimizer"] * 2 == whole.categories["optimizer"]
    assert split.categories["gradients"] == whole.categories["gradients"]


def test_stages_hold_the_whole_model_once(tiny):
    job = tiny(("parallelism.pp", "2"))
    assert sum(stage.parameters for stage in memory(job).stages) == job.model.parameters
    tied = tiny(("model.tied_embeddings", "true"))
    assert memory(tied).stages[0].parameters == tied.model.parameters
    # A table shared by the first and the last stage stands on both: 256 · 64 parameters more.
    both = tiny(("model.tied_embeddings", "true"), ("parallelism.pp", "2"))
    assert sum(stage.parameters for stage in memory(both).stages) == both.model.parameters + 256 * 64


def test_gpipe_holds_every_micro_batch_and_1f1b_as_many_as_stages_follow(tiny):
    def held(schedule, stage):
        job = tiny(("parallelism.pp", "4"), ("training.schedule", schedule))
        per_layer = section_memory(job)[ModelSection("block")].activations
        return memory(job).stages[stage].activations / per_layer

    assert (held("gpipe", 1), held("1f1b", 1), held("1f1b", 2)) == (8, 3, 2)


def test_the_kv_cache_holds_prompt_and_output(tiny_service):
    # 4 layers · (K and V) · 2 kv heads · 16 wide · 2 requests · (16 + 5) positions · 2 bytes; half with tp 2.
    expected = 4 * 2 * 2 * 16 * 2 * 21 * 2
    assert memory(tiny_service()).stages[0].categories["kv_cache"] == expected
    halved = memory(tiny_service(("parallelism.tp", "2"))).stages[0]
    assert halved.categories["kv_cache"] == expected // 2
    narrow = memory(tiny_service(("precision.kv_cache", "fp8"))).stages[0]
    assert narrow.categories["kv_cache"] == expected // 2


def test_quantised_weights_leave_tables_and_norms_alone(tiny_service):
    plain = memory(tiny_service()).stages[0].categories["weights"]
    narrow = memory(tiny_service(("precision.weights", "int4"))).stages[0].categories["weights"]
    # A layer's matrices: 64·(64 + 2·32) + 64·64 + 3·64·128 = 36,864 parameters, 1.5 bytes less each.
    assert plain - narrow == 4 * 36_864 * 3 // 2


def test_a_job_that_does_not_fit_says_what_is_missing_and_what_would_help(tiny):
    job = tiny(("parallelism.tp", "2"), ("parallelism.dp", "2"), ("training.schedule", "gpipe"))
    peak = memory(job).fullest.peak
    assert check_memory(job, peak).fullest.peak == peak
    with pytest.raises(InfeasibleJobError) as refused:
        check_memory(job, peak - 1)
    said = str(refused.value)
    assert "stage 0 needs" in said
    assert "missing" in said
    assert "training.zero_stage 1" in said
    assert "training.schedule 1f1b" in said
    assert "1 B missing" in said


def test_where_every_other_means_is_used_the_advice_is_to_split_the_model_on_the_same_gpus(tiny):
    used = [("parallelism.tp", "2"), ("parallelism.dp", "2"), ("parallelism.sequence_parallel", "true")]
    job = tiny(*used, ("training.zero_stage", "1"), ("training.recompute", "full"))
    with pytest.raises(InfeasibleJobError, match="training.zero_stage 2 .* or parallelism.tp 4 and dp 1"):
        check_memory(job, memory(job).fullest.peak - 1)


def test_a_hopeless_job_says_what_all_changes_together_reach(tiny):
    with pytest.raises(InfeasibleJobError, match="no single change is enough; with all of") as refused:
        check_memory(tiny(), 1000)
    assert "recompute full" in str(refused.value)  # which does what selective does, and more
    assert "selective" not in str(refused.value) and "`rapid-des plan`" in str(refused.value)


def test_a_service_that_does_not_fit_is_told_to_split_or_to_shrink(tiny_service):
    job = tiny_service(("inference.batch", "64"), ("inference.prompt_length", "100"))
    with pytest.raises(InfeasibleJobError) as refused:
        check_memory(job, memory(job).fullest.peak - 1)
    assert "inference.batch 32" in str(refused.value)
    assert "parallelism.tp 2" in str(refused.value)


def test_tensors_at_the_peak_add_up_to_it_and_bear_operators_names(tiny):
    stage = memory(tiny(("parallelism.pp", "2"))).stages[0]
    assert sum(tensor.size for tensor in stage.tensors) == stage.peak
    assert {"weights", "attention.core", "ffn.activation"} <= {tensor.name for tensor in stage.tensors}


def test_the_timeline_has_every_pass_and_the_optimizers_step(tiny):
    job = tiny(("parallelism.pp", "2"))
    for stage, order in zip(memory(job).stages, job.stage_orders.orders, strict=True):
        assert [moment.name for moment in stage.timeline] == [*(item.phase for item in order), "optimizer"]
        assert max(moment.size for moment in stage.timeline) == stage.peak


def test_a_backward_gives_back_what_its_operators_no_longer_need(tiny):
    # Before the last operators of the backward the attention's input is still there, the loss's is not.
    job = tiny(("training.global_batch", "2"), ("training.micro_batch", "2"))
    passes = memory(job).stages[0].timeline
    assert passes[1].categories["activations"] <= passes[0].categories["activations"]
    after = passes[-1].categories
    assert after["activations"] == after["logits"] == 0


def framework(tiny, *settings, **keys):
    stated = [(f"memory.{key}", str(value)) for key, value in keys.items()]
    return memory(tiny(*settings, *stated)).stages[0]


def test_what_a_framework_takes_is_counted_by_group_and_peer(tiny):
    plain = framework(
        tiny, ("parallelism.tp", "4"), ("parallelism.dp", "2"), context="0 B", communicator="0 B"
    )
    sizes = {"context": "1 GiB", "communicator": "1 MiB", "peer": "1 KiB"}
    taken = framework(tiny, ("parallelism.tp", "4"), ("parallelism.dp", "2"), **sizes)
    # Groups of several ranks: tp, that of the gradients, and the model's (tp · pp); three peers in tp.
    assert taken.peak - plain.peak == GIB + 3 * 2**20 + 3 * 2**10
    assert taken.reserved == plain.reserved


def test_fragmentation_is_a_share_of_what_comes_and_goes(tiny):
    plain, lost = framework(tiny, fragmentation=0), framework(tiny, fragmentation=0.5)
    moving = sum(plain.categories[name] for name in ("activations", "logits", "temporary"))
    assert lost.categories["fragmentation"] == moving // 2 > 0
    assert lost.timeline[-1].allocated == plain.timeline[-1].allocated


def test_gradient_copies_stand_with_replicas_and_last_a_pass_without(tiny):
    alone = framework(tiny, gradient_copies="buckets")
    copies = {tensor.name: tensor for tensor in framework(
        tiny, ("parallelism.dp", "2"), gradient_copies="buckets"
    ).tensors}  # fmt: skip
    # Two bytes a parameter, in 16 bit.
    assert copies["gradient buckets"].size == 2 * alone.parameters
    assert "gradient buckets" not in {tensor.name for tensor in alone.tensors}
    backward = next(moment for moment in alone.timeline if moment.name == "backward")
    assert backward.categories["temporary"] > framework(tiny).timeline[1].categories["temporary"]


def test_stages_may_receive_into_a_buffer_for_each_micro_batch(tiny):
    def received(stage, buffers):
        job = tiny(("parallelism.pp", "2"), ("memory.stage_buffers", buffers))
        return next(one for one in memory(job).stages[stage].tensors if one.name == "stage input and output")

    micro_batches = tiny(("parallelism.pp", "2")).micro_batches
    size = received(0, "one").size // 2
    # The first of two stages receives gradients alone, the last one inputs alone.
    assert {received(stage, "micro_batches")[2:] for stage in (0, 1)} == {
        (micro_batches * size, micro_batches)
    }


def test_zero_gathers_through_copies_where_the_framework_does(tiny):
    settings = ("parallelism.dp", "2"), ("training.zero_stage", "1")
    moment = framework(tiny, *settings, gather_copies="true").timeline[-1]
    parameters = framework(tiny, *settings).parameters
    # All parameters and this rank's half of them, two bytes each.
    assert moment.categories["temporary"] == 2 * (parameters + parameters // 2)


def test_a_service_may_hold_the_whole_token_table_and_more_of_the_stream(tiny_service):
    plain = memory(tiny_service(("parallelism.tp", "2"))).stages[0]
    settings = ("memory.whole_tables", "true"), ("memory.held_outputs", "3")
    held = memory(tiny_service(("parallelism.tp", "2"), *settings)).stages[0]
    # Half of 256 · 64 elements more in 16 bit; three tensors of 2 · 16 tokens by 64.
    assert held.categories["weights"] - plain.categories["weights"] == 256 * 64
    assert held.categories["activations"] - plain.categories["activations"] == 3 * 2 * 16 * 64 * 2


POOL = "{share: 0.5, of: %s, page: 4, tokens: 32, sequences: 8, sampling: %d}"


@pytest.mark.parametrize("of", ["used", "held", "free"])
def test_an_engines_pool_holds_what_its_rule_leaves(tiny_service, of):
    settings = ("memory.context", "1 MiB"), ("memory.kv_pool", POOL % (of, 0))
    job = tiny_service(*settings)
    weights = memory(job).stages[0].categories["weights"]
    one_pass = tiny_service(("inference.batch", "8"), ("inference.prompt_length", "4"))
    active = sum(memory(one_pass).stages[0].categories[kind] for kind in ("activations", "temporary"))
    capacity, context = 16 * 2**20, 2**20
    pool = {
        "used": capacity // 2 - weights - active,
        "held": (capacity - context) // 2 - weights,
        "free": (capacity - context - weights - active) // 2,
    }[of]
    found = kv_capacity(job, capacity)
    # 4 layers · keys and values · 2 heads of 16 · 2 bytes a token; both requests need 21 tokens, in 6 pages.
    assert (found.size, found.tokens, found.needed) == (pool, pool // (512 * 4) * 4, 2 * 24)


def test_the_sampler_can_be_the_fullest_moment_of_an_engines_profile(tiny_service):
    none, some, more = (
        kv_capacity(tiny_service(("memory.kv_pool", POOL % ("used", each))), GIB).size
        for each in (0, 500, 900)
    )
    # 8 requests · 256 tokens of the vocabulary; a sampler of no bytes is not fuller than the pass.
    assert some - more == 400 * 8 * 256
    assert none - some < 500 * 8 * 256 + 32 * 64 * 2


def test_requests_beyond_the_pool_are_refused_with_its_rule(tiny_service):
    job = tiny_service(("memory.kv_pool", POOL % ("used", 0)), ("inference.batch", "64"))
    size = kv_capacity(job, 2 * 2**20).size
    with pytest.raises(InfeasibleJobError) as refused:
        check_memory(job, 2 * 2**20)
    assert "need 1,536 tokens of KV cache" in str(refused.value)
    assert f"hold {size // 2048 * 4:,}: bare: weights, communicators, a pass of 32 tokens" in str(
        refused.value
    )


@pytest.mark.parametrize(
    ("model", "tp", "gemm", "published"),
    [("llama3_1_8b", 1, "bf16", 51.38), ("llama3_1_70b", 2, "fp8", 32.0)],
)
def test_pools_of_published_start_ups_of_vllm_are_found(model, tp, gemm, published):
    # llm-d-benchmark, config_explorer/empirical-vllm-memory-results.md: H100 of 79.18 GiB, max_num_seqs 1024.
    requests = {"batch": 1, "prompt_length": 1000, "output_length": 1}
    document = {"model": model, "phase": "inference", "parallelism": {"tp": tp}, "inference": requests}
    job = load_job(document | {"precision": {"gemm": gemm}}, settings={"memory.kv_pool.sequences": 1024})
    found = kv_capacity(job, int(79.18 * GIB)).size / GIB
    assert found == pytest.approx(published, rel=0.01)
