"""Why a job's axes and policies can not split its model: keys and problems, the first that counts first."""

from __future__ import annotations

from collections.abc import Iterator

from rapid_des.device.operators import DTYPE_BITS
from rapid_des.frontend.job import Job


def context_refusals(job: Job) -> Iterator[tuple[str, str]]:
    """Yield why cp can not split the sequences."""
    split = job.spec.parallelism
    if (split.cp_heads is not None) != (split.cp_kind == "ulysses_ring"):
        problem = f"cp_kind is {split.cp_kind}; ulysses_ring needs cp_heads, no other has it"
        yield "parallelism.cp_heads", problem
    if split.cp_heads and split.cp % split.cp_heads:
        yield "parallelism.cp_heads", f"cp {split.cp} does not divide by cp_heads {split.cp_heads}"
    if split.cp > split.head_ways and job.spec.training is not None and job.training.documents:
        yield (
            "training.documents",
            f"cp {split.cp} cuts sequences evenly, whatever documents they hold: take cp_kind ulysses",
        )
    for layer in job.model.kinds:
        refusal = layer.mixer.context_refusal(split)
        if refusal:
            yield "parallelism.cp", refusal


def sharding_refusals(job: Job) -> Iterator[tuple[str, str]]:
    """Yield why replicas and tp ranks can not hold, gather and sum what they share as the job says."""
    spec, split, stage = job.training, job.spec.parallelism, job.training.zero_stage
    total = sum(spec.documents)
    if spec.documents and total != spec.sequence_length:
        yield "training.documents", f"they sum to {total}, sequence_length is {spec.sequence_length}"
    copies, policy = split.dp_replicate, job.sharding.policy
    if spec.overlap_tp != "none" and not split.sequence_parallel:
        problem = f"{spec.overlap_tp} cuts gathers and sums of sequence shards: set sequence_parallel"
        yield "training.overlap_tp", problem
    if spec.overlap_tp != "none" and spec.adapters is not None:
        yield "training.overlap_tp", f"{spec.overlap_tp} cuts products, beside which adapters stand whole"
    if copies > 1 and not policy.split:
        problem = f"{copies} copies of a state that zero_stage {stage} does not split"
        yield "parallelism.dp_replicate", problem
    if split.dp % copies:
        yield "parallelism.dp_replicate", f"dp {split.dp} does not divide by dp_replicate {copies}"
    experts = job.members("expert_gradient") if job.model.has_experts else 0
    if experts % copies:
        problem = f"replicas of experts (edp) {experts} does not divide by dp_replicate {copies}"
        yield "parallelism.dp_replicate", problem
    if not isinstance(spec.reshard, bool):
        yield from _reshard_refusals(job, spec.reshard)
    yield from _gather_refusals(job)


def _reshard_refusals(job: Job, ranks: int) -> Iterator[tuple[str, str]]:
    stage = job.training.zero_stage
    if not job.sharding.policy.by_unit:
        yield "training.reshard", f"only zero_stage 3 reshards, over {ranks} ranks or others; it is {stage}"
    for domain, sharding in job.shardings.items():
        if sharding.replicas > 1 and sharding.replicas % ranks:
            problem = (
                f"{sharding.replicas} replicas share {domain} parameters, which does not divide by {ranks}"
            )
            yield "training.reshard", problem


def _gather_refusals(job: Job) -> Iterator[tuple[str, str]]:
    precision, key = job.spec.precision, "precision.parameter_gather"
    if precision.parameter_gather is None:
        return
    if job.sharding.policy.gather is None:
        yield key, f"zero_stage {job.training.zero_stage} gathers no parameters"
    used = job.training_shard.gemm_dtype
    if DTYPE_BITS[precision.gathers] < DTYPE_BITS[used]:
        problem = f"{precision.gathers} is narrower than {used}, in which they multiply"
        yield key, f"{problem}; quantised gathers that are widened again are not modelled"
