"""What the figures of a candidate follow from: candidates with equal keys have a figure in common."""

from __future__ import annotations

from collections.abc import Hashable

from rapid_des.frontend import Job
from rapid_des.frontend.routing import places
from rapid_des.frontend.template import Domain
from rapid_des.frontend.unit_copies import widens_parameters
from rapid_des.studies.earliest import passes_whole


def model_key(job: Job) -> tuple[Hashable, ...]:
    """Return what a rank's share of a layer follows from."""
    split = job.spec.parallelism
    shares = job.model.spec.tied_embeddings or job.predictions > 0
    one_table = shares and (split.pp == 1 or len(job.table_stages) == 1)
    return split.tp, split.cp, split.ep, split.etp, one_table


def plain_key(job: Job) -> tuple[Hashable, ...]:
    """Return what the kernels of a layer follow from that is not recomputed."""
    split, training = job.spec.parallelism, job.training
    replicas = split.dp if job.model.has_experts and places(job) > 1 else 1
    return (*model_key(job), replicas, split.sequence_parallel, training.micro_batch, *halves_key(job),
            copies_key(job))  # fmt: skip


def copies_key(job: Job) -> tuple[Domain, ...]:
    """Return the parameters of which whole units are copied beside their gathers: under ZeRO-3 alone."""
    copied = job.training.unit_copies != "none" or widens_parameters(job)
    if not copied or not job.sharding.policy.by_unit:
        return ()
    return tuple(domain for domain, sharding in job.shardings.items() if sharding.unit_gathers)


def halves_key(job: Job) -> tuple[bool, bool]:
    """Tell whether a stage holds both ends of the model, and whether no backward is taken apart."""
    return job.training.schedule in ("dualpipe", "dualpipe_v"), passes_whole(job)


def kernels_key(job: Job) -> tuple[Hashable, ...]:
    """Return what the kernels of a layer follow from."""
    return (*plain_key(job), *again_key(job))


def again_key(job: Job) -> tuple[Hashable, ...]:
    """Return what is run again, which of layers as they stand in parts where these are counted or grouped."""
    training = job.training
    counted = training.recompute == "full" and training.recompute_layers is not None
    return (
        training.recompute,
        training.recompute_method,
        training.recompute_layers,
        training.recompute_kinds,
        job.layers if counted else (),
    )


def layout_key(job: Job) -> tuple[Hashable, ...]:
    """Return where the ranks of a split stand."""
    split = job.spec.parallelism
    return split.order, split.dp, split.pp


def layer_key(job: Job) -> tuple[Hashable, ...]:
    """Return what the passes of a layer follow from; of ranks' places what their groups notice."""
    split, training = job.spec.parallelism, job.training
    spread = split.cp > 1 or split.order[0] != "tp" or job.model.has_experts
    where: tuple[int, ...] = (job.layout.stride("tp"), job.layout.stride("cp")) if spread else ()
    if job.model.has_experts:
        where = (*where, job.layout.stride("dp"), split.dp)
    chosen = split.sequence_parallel, training.micro_batch, *halves_key(job), copies_key(job)
    return (*model_key(job), *chosen, *again_key(job), where)


def stages_key(job: Job) -> tuple[Hashable, ...]:
    """Return what the parts of each stage follow from."""
    split = job.spec.parallelism
    return split.pp, split.chunks, split.layers, job.training.schedule


def parts_key(job: Job) -> tuple[Hashable, ...]:
    """Return what it follows from which sections each stage has."""
    return *again_key(job), *stages_key(job)


def pass_key(job: Job) -> Hashable:
    """Return what the order of all passes follows from."""
    return *stages_key(job), job.micro_batches


def state_key(job: Job) -> tuple[Hashable, ...]:
    """Return what the exchange between replicas and the optimizer follow from."""
    return (*model_key(job), *layout_key(job), job.training.zero_stage, job.placement, job.layers,
            job.spec.parallelism.sequence_parallel)  # fmt: skip
