"""Any combination of axes, order, schedule and options that is accepted also runs to its end."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rapid_des.errors import ConfigError
from rapid_des.frontend import build, memory
from rapid_des.frontend.schedules import SCHEDULES

AXES = ("tp", "cp", "ep", "dp", "pp")
FLAGS = st.sampled_from(["true", "false"])


@st.composite
def experts(draw, sizes, *, together):
    """Return four experts and how ranks are laid out for them; `together`: tp ranks share tokens."""
    ranks = sizes["tp"] * sizes["cp"] * sizes["dp"]
    inner = sizes["tp"] if together and sizes["tp"] > 1 else None
    pairs = [(ep, etp) for ep in (1, 2, 4) for etp in (1, 2) if ranks % (ep * etp) == 0]
    ep, etp = draw(st.sampled_from([pair for pair in pairs if inner in (None, pair[0] * pair[1])]))
    shared, capacity = draw(st.sampled_from([0, 64])), draw(st.sampled_from(["null", "1.25"]))
    kind = (
        f"{{kind: experts, experts: 4, topk: 2, hidden: 32, shared_hidden: {shared}, capacity: {capacity}}}"
    )
    start = draw(st.sampled_from([0, 1]))
    return {
        "model.exceptions": f"[{{start: {start}, every: 2, feed_forward: {kind}}}]",
        "parallelism.ep": str(ep),
        "parallelism.etp": str(etp),
    }


LATENT = "heads: 4, kv_rank: 16, head_dim: 8, rope_dim: 4, value_dim: 12"
MIXERS = st.sampled_from(
    [
        "{heads: 4, kv_heads: 2, window: 8, qk_norm: head, rotary: 0.5}",
        f"{{kind: latent_attention, q_rank: 24, {LATENT}}}",
        f"{{kind: latent_attention, {LATENT}}}",
        "{heads: 4, window: 24, qk_norm: whole, sinks: true, softcap: true, rotary: 0}",
    ]
)


@st.composite
def contexts(draw, sizes):
    """Return how attention sees all of a sequence; both ways at once on four ranks."""
    kind = draw(st.sampled_from(["all_gather", "ring", "ulysses", "ulysses_ring"]))
    if kind != "ulysses_ring":
        return {"parallelism.cp_kind": kind}
    sizes["cp"] = 4
    return {"parallelism.cp_kind": kind, "parallelism.cp_heads": "2", "parallelism.cp": "4"}


@st.composite
def sharings(draw, stage, sizes):
    """Return copies of what replicas split, how far layers are split between their passes, and formats."""
    chosen = {"training.reshard": draw(FLAGS)}
    if stage == "0":
        return chosen
    chosen["parallelism.dp_replicate"] = copies = draw(st.sampled_from(["1", str(sizes["dp"])]))
    if stage == "3" and sizes["cp"] * sizes["dp"] // int(copies) >= 4:
        chosen["training.reshard"] = draw(st.sampled_from(["true", "false", "2"]))
    if draw(st.booleans()):
        chosen["precision.parameter_gather"] = draw(st.sampled_from(["bf16", "fp32"]))
    return chosen


@st.composite
def optimizers(draw):
    """Return who updates what, where it stands meanwhile, and which documents sequences hold."""
    chosen = {"training.optimizer": draw(st.sampled_from(["adamw", "adam_8bit", "sgd", "muon"]))}
    chosen["training.offload_optimizer"] = draw(FLAGS)
    chosen["training.offload_activations"] = draw(st.sampled_from(["0", "0.5"]))
    chosen["training.unit_copies"] = draw(st.sampled_from(["none", "flat", "per_parameter"]))
    chosen["training.documents"] = draw(st.sampled_from(["[]", "[16, 16]", "[8, 24]"]))
    if draw(st.booleans()):
        chosen["training.adapters"] = "{rank: 4, matrices: [attention.output]}"
    return chosen


REFUSED = {
    "parallelism.cp": ("a window of", "do not divide"),
    "training.overlap_tp": ("beside which adapters stand whole",),
    "parallelism.dp_replicate": ("replicas of experts",),
    "training.reshard": ("share expert parameters",),
}
"""By key why a drawn combination has no meaning."""


@st.composite
def combinations(draw):
    sizes = {axis: draw(st.sampled_from([1, 2])) for axis in ("tp", "cp", "dp", "pp")}
    chosen = {f"parallelism.{axis}": str(size) for axis, size in sizes.items()}
    chosen |= draw(contexts(sizes))
    chosen["parallelism.order"] = f"[{', '.join(draw(st.permutations(AXES)))}]"
    chosen["parallelism.sequence_parallel"] = draw(FLAGS) if sizes["tp"] > 1 else "false"
    if chosen["parallelism.sequence_parallel"] == "true":
        chosen["training.overlap_tp"] = draw(st.sampled_from(["none", "ring", "pipeline", "userbuffers"]))
    chosen["training.recompute"] = draw(st.sampled_from(["none", "selective", "full"]))
    chosen["training.zero_stage"] = draw(st.sampled_from(["0", "1", "2", "3"]))
    if chosen["training.zero_stage"] in {"1", "2"}:
        chosen["training.overlap_parameters"] = draw(FLAGS)
    chosen["training.reduce_each_micro_batch"] = draw(FLAGS)
    chosen |= draw(sharings(chosen["training.zero_stage"], sizes))
    chosen["training.prefetch"] = draw(st.sampled_from(["0", "1", "3"]))
    for flag in ("overlap_gradients", "overlap_pipeline", "gradient_norm", "dropout"):
        chosen[f"training.{flag}"] = draw(FLAGS)
    chosen["model.tied_embeddings"] = draw(FLAGS)
    chosen["training.schedule"] = draw(st.sampled_from(sorted(SCHEDULES)))
    if SCHEDULES[chosen["training.schedule"]].chunks != 1:
        chosen |= {"parallelism.pp": "2", "parallelism.chunks": "2"}
    if draw(st.booleans()):
        chosen |= draw(experts(sizes, together=chosen["parallelism.sequence_parallel"] == "false"))
    if draw(st.booleans()):
        chosen["model.norms"] = draw(st.sampled_from(["before", "after", "both"]))
        chosen["model.block"] = draw(st.sampled_from(["sequential", "parallel"]))
        chosen["model.head_bias"] = chosen["model.logit_softcap"] = draw(FLAGS)
    if draw(st.booleans()):
        chosen["model.attention"] = draw(MIXERS)
    if draw(st.booleans()):
        chosen |= draw(optimizers())
    chosen["training.bucket_parameters"] = draw(st.sampled_from(["5000", "40000000"]))
    return tuple(chosen.items())


@settings(max_examples=18, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chosen=combinations(), rendezvous=st.booleans())
def test_every_accepted_combination_runs_to_its_end(tiny, prices, replay, chosen, rendezvous):
    try:
        job = tiny(*chosen)
    except ConfigError as refusal:
        assert any(reason in refusal.message for reason in REFUSED[refusal.key])
        return
    trace = build(job, prices)
    finish = replay(trace.traces, rendezvous=rendezvous)
    # No rank is done before its own kernels could be, and replicas of a stage do the same work.
    for entry, stage in zip(trace.traces.ranks, trace.stage_of_rank, strict=True):
        table = trace.tables[stage]
        compute = int(table.duration[table.stream == table.streams.index("compute")].sum())
        assert max(finish[entry.rank]) >= compute
    # The fullest moment is at least what stands throughout.
    by_unit = job.sharding.policy.by_unit
    for used in memory(job).stages:
        assert min(tensor.size for tensor in used.tensors) >= 0
        assert used.peak == max(moment.size for moment in used.timeline)
    shares = max(sharding.replicas for sharding in job.shardings.values()) if by_unit else 1
    assert all(stage.peak * shares >= 2 * stage.parameters for stage in memory(job).stages)
