"""Checks that a job's numbers fit together; each yields keys and problems, the most important first.

Every refusal names both numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from rapid_des.errors import ConfigError
from rapid_des.frontend import adapters, two_batches
from rapid_des.frontend.encoders import encoder_refusals
from rapid_des.frontend.groups import ZERO_STAGES
from rapid_des.frontend.job import Job
from rapid_des.frontend.layers.latent import LatentAttention
from rapid_des.frontend.layers.transformer import GroupedQueryAttention
from rapid_des.frontend.recompute import refusals
from rapid_des.frontend.schedules import SCHEDULES, pairs_refusal
from rapid_des.frontend.speculation import speculation_refusals
from rapid_des.frontend.unit_copies import widens_parameters
from rapid_des.units import ceil_divide

SCHEDULE = "training.schedule"
AXES = ("tp", "cp", "ep", "dp", "pp")
NODES_A_LAYER = 40
MOST_NODES = 2**25
MOST_GPUS = 2**22


def check_job(job: Job) -> None:
    """Raise a `ConfigError` for the first thing that does not fit."""
    _check_sections(job)
    _check_axes(job)
    if job.model.spec.patches or not job.model.generates or job.spec.reads_source:
        _refuse_first(job, encoder_refusals(job))
    _check_tensor_parallel(job)
    if job.spec.phase == "training":
        _check_training(job)
    else:
        _check_inference(job)
    _check_pipeline(job)
    if problem := _too_long(job):
        _refuse(job, job.spec.phase, problem)


def _refuse(job: Job, key: str, problem: str) -> None:
    raise ConfigError(problem, file=job.file, key=key)


def _refuse_first(job: Job, problems: Iterable[tuple[str, str]]) -> None:
    for key, problem in problems:
        _refuse(job, key, problem)


def _divide(job: Job, key: str, total: tuple[str, int], part: tuple[str, int]) -> None:
    if total[1] % part[1]:
        _refuse(job, key, f"{total[0]} {total[1]} is not divisible by {part[0]} {part[1]}")


def _check_sections(job: Job) -> None:
    phase = job.spec.phase
    other = "inference" if phase == "training" else "training"
    if getattr(job.spec, phase) is None:
        _refuse(job, phase, f"phase is {phase}, so the section {phase!r} must be there")
    if getattr(job.spec, other) is not None:
        _refuse(job, other, f"phase is {phase}, so the section {other!r} would never be read")
    if phase == "training" and job.spec.serving is not None:
        _refuse(job, "serving", "phase is training, so the section 'serving' would never be read")


def _check_axes(job: Job) -> None:
    split = job.spec.parallelism
    if sorted(split.order) != sorted(AXES):
        _refuse(job, "parallelism.order", f"{list(split.order)} must name each of {', '.join(AXES)} once")
    if job.gpus > MOST_GPUS:
        _refuse(job, "parallelism", f"{job.gpus} GPUs; at most {MOST_GPUS}")
    _refuse_first(job, _context_refusals(job))
    _check_experts(job)
    if split.sequence_parallel and split.tp == 1:
        _refuse(job, "parallelism.sequence_parallel", "sequence parallelism splits over tp, and tp is 1")


def _check_experts(job: Job) -> None:
    split = job.spec.parallelism
    if not job.model.has_experts:
        if split.ep > 1 or split.etp is not None:
            axis = "ep" if split.ep > 1 else "etp"
            needs = f"({axis} {getattr(split, axis)}) needs a mixture-of-experts model"
            _refuse(job, f"parallelism.{axis}", f"expert parallelism {needs}, {job.model.name} is dense")
        return
    ranks, etp = split.tp * split.cp * split.dp, split.expert_degree
    if ranks % (etp * split.ep):
        problem = f"ep {split.ep} · etp {etp} does not divide tp · cp · dp = {ranks}, the ranks of a stage"
        _refuse(job, "parallelism.ep", problem)


def _check_tensor_parallel(job: Job) -> None:
    tp, key = job.spec.parallelism.tp, "parallelism.tp"
    for half in (half for layer in job.model.kinds for half in layer.halves):
        if problem := half.refusal(job.spec.parallelism):
            _refuse(job, key, problem)
    if job.vocabulary % tp:
        problem = f"vocabulary {job.vocabulary} is not divisible by tp {tp}; vocabulary_multiple pads it"
        _refuse(job, key, problem)


def _check_pipeline(job: Job) -> None:
    rule, count, key = job.spec.parallelism.layers, job.model.spec.layers, "parallelism.layers"
    parts = f"pp {job.stages}" + (f" · chunks {job.parts // job.stages}" if job.parts > job.stages else "")
    if isinstance(rule, tuple):
        if len(rule) != job.parts:
            _refuse(job, key, f"{len(rule)} parts are listed for {parts} = {job.parts}")
        if sum(rule) != count:
            _refuse(job, key, f"the listed layers sum to {sum(rule)}, {job.model.name} has {count}")
    elif rule == "even" and count % job.parts:
        _refuse(
            job, "parallelism.pp", f"layers {count} do not divide by {parts}; list them in parallelism.layers"
        )
    elif rule == "endpoints" and (count + 2) % job.parts:
        _refuse(job, key, f"layers {count} + 2 (embedding and head) do not divide by {parts}")
    elif rule == "endpoints" and min(job.layers) < 0:
        _refuse(job, key, f"{parts} leaves the first part of the {count} layers without its embedding")


def _check_training(job: Job) -> None:
    spec, split = job.training, job.spec.parallelism
    share = spec.micro_batch * split.dp
    if spec.global_batch % share:
        problem = (
            f"global_batch {spec.global_batch} is not divisible by "
            f"micro_batch {spec.micro_batch} · dp {split.dp} = {share}"
        )
        _refuse(job, "training.global_batch", problem)
    _check_length(job, "training.sequence_length", spec.sequence_length)
    mixers = (layer.mixer for layer in job.model.kinds)
    if any(isinstance(mixer, LatentAttention) and mixer.indexer for mixer in mixers):
        _refuse(
            job, "model", f"{job.model.name} has an indexer (sparse attention), which serves alone so far"
        )
    if split.cp > 1:
        pieces = (f"two pieces for each of cp {split.cp}:", 2 * split.cp)
        _divide(job, "parallelism.cp", ("sequence_length", spec.sequence_length), pieces)
    if split.sequence_parallel:
        part = ("sequence_length / cp", spec.sequence_length // split.cp)
        _divide(job, "parallelism.tp", part, ("tp", split.tp))
    _check_schedule(job)
    _check_choices(job)
    _refuse_first(job, _sharding_refusals(job))
    if spec.overlap_parameters and (job.sharding.policy.gather is None or job.sharding.policy.by_unit):
        known = " or ".join(str(n) for n, rule in ZERO_STAGES.items() if rule.gather and not rule.by_unit)
        problem = f"parameters are gathered only with zero_stage {known}, it is {spec.zero_stage}"
        _refuse(job, "training.overlap_parameters", problem)
    stated = job.spec.precision
    if stated.weights is not None or stated.kv_cache is not None or stated.wide != "nothing":
        _refuse(job, "precision", "weights, wide and kv_cache are for inference; training multiplies in gemm")
    if job.spec.precision.recipe is not None and job.training_shard.recipe is None:
        problem = f"{job.spec.precision.recipe} needs gemm narrower than activations"
        _refuse(job, "precision.recipe", problem)


def _check_choices(job: Job) -> None:
    """Refuse an optimizer or a recomputation that the job cannot have."""
    spec = job.training
    kinds, shard = job.model.kinds, job.training_shard
    problems = [] if spec.adapters is None else [adapters.refusals(spec.adapters, kinds, shard)]
    grouped = spec.recompute_method, spec.recompute_layers, spec.recompute_kinds
    if spec.recompute != "none" or grouped != ("uniform", None, ()):
        problems.append(refusals(spec, kinds, shard))
    for key, problem in chain.from_iterable(problems):
        _refuse(job, f"training.{key}", problem)


def _check_schedule(job: Job) -> None:
    chosen, chunks = job.training.schedule, job.spec.parallelism.chunks
    if chunks not in (1, job.shape.chunks):
        known = " or ".join(name for name, schedule in SCHEDULES.items() if schedule.chunks is None)
        _refuse(job, "parallelism.chunks", f"{chunks} chunks need schedule {known}, it is {chosen}")
    problem = job.schedule.refusal(job.shape)
    if problem:
        _refuse(job, SCHEDULE, problem)
    if job.training.overlap_batches:
        ep, by_unit = job.spec.parallelism.ep, job.sharding.policy.by_unit
        problem = pairs_refusal(chosen, job.stages, ep=ep, by_unit=by_unit)
        if problem:
            _refuse(job, "training.overlap_batches", problem)
    if job.training.micro_batch_group is not None and chosen != "interleaved_1f1b":
        problem = f"micro-batches pass in groups with schedule interleaved_1f1b, it is {chosen}"
        _refuse(job, "training.micro_batch_group", problem)


def _check_inference(job: Job) -> None:
    spec = job.inference
    _refuse_first(job, _serving_refusals(job))
    for number, kind in enumerate(spec.kinds):
        key = "output_length" if spec.batch else f"requests.{number}.output_length"
        made = kind.output_length if job.model.generates else 0
        _check_length(job, f"inference.{key}", kind.prompt_length + made)
    if spec.micro_batch:
        key = "inference.micro_batch"
        _divide(job, key, ("batch", spec.total), ("micro_batch", spec.micro_batch))
        for kind in spec.kinds:
            _divide(job, key, ("count", kind.count), ("the number of micro-batches", job.micro_batches))


def _serving_refusals(job: Job) -> Iterator[tuple[str, str]]:
    """Yield why a batch of requests cannot be served so."""
    spec, split = job.inference, job.spec.parallelism
    yield from _of_training(job)
    if split.sequence_parallel and not job.model.has_experts:
        problem = "sequence shards serve experts that spread over replicas; the model is dense"
        yield "parallelism.sequence_parallel", problem
    if split.cp > 1:
        yield from _context_of_requests(job)
    if not (spec.absorbs or any(isinstance(layer.mixer, LatentAttention) for layer in job.model.kinds)):
        yield "inference.absorbs", f"{job.model.name} has no latent attention"
    yield from two_batches.refusals(job)
    yield from speculation_refusals(job)
    if spec.decode_steps != "all" and spec.decode_steps > max(1, spec.steps - 1):
        problem = f"{spec.decode_steps} steps cannot be taken from the {spec.steps - 1} there are"
        yield "inference.decode_steps", problem


def _of_training(job: Job) -> Iterator[tuple[str, str]]:
    """Yield what a job that serves states and only training reads."""
    split, precision, host = job.spec.parallelism, job.spec.precision, job.spec.host
    if split.dp_replicate > 1:
        yield "parallelism.dp_replicate", "replicas that serve share no state"
    if split.chunks > 1:
        yield "parallelism.chunks", "inference passes each stage once; chunks must be 1"
    for key in ("recipe", "parameter_gather"):
        if getattr(precision, key) is not None:
            yield f"precision.{key}", "it is for training; phase is inference"
    if host is not None and host.blocking:
        yield "host.blocking", "it is for training; phase is inference"


def _context_of_requests(job: Job) -> Iterator[tuple[str, str]]:
    """Yield why prompts cannot be split over cp."""
    spec, cp, kinds = job.inference, job.spec.parallelism.cp, job.inference.kinds
    if spec.steps > 1:
        yield from _context_of_decoding(job)
    if len(kinds) > 1 or kinds[0].cached:
        yield "parallelism.cp", f"cp {cp} splits prompts of one length of which nothing is cached"
    if spec.prefill_tokens is not None:
        yield "inference.prefill_tokens", f"cp {cp} splits whole prompts, no chunks of them"
    if kinds[0].prompt_length % (2 * cp):
        problem = f"prompt_length {kinds[0].prompt_length} is not divisible by two pieces for each of cp {cp}"
        yield "parallelism.cp", problem


def _context_of_decoding(job: Job) -> Iterator[tuple[str, str]]:
    """Yield why the KV cache cannot be split over cp while tokens decode."""
    split, alone = job.spec.parallelism, "output_length 1, or tp or dp instead"
    if not all(isinstance(layer.mixer, GroupedQueryAttention | LatentAttention) for layer in job.model.kinds):
        problem = f"cp {split.cp} splits a KV cache, and not the state of a recurrent layer; allowed: {alone}"
        yield "parallelism.cp", problem
    if split.ep > 1:
        problem = f"ranks of cp {split.cp} decode the same tokens, which ep {split.ep} would send twice"
        yield "parallelism.ep", f"{problem}; allowed: {alone}"
    if job.inference.speculative is not None:
        yield "inference.speculative", f"no drafts with cp {split.cp}; allowed: {alone}"


def _check_length(job: Job, key: str, length: int) -> None:
    most = job.model.spec.max_positions
    if length > most:
        _refuse(job, key, f"{length} positions, {job.model.name} has max_positions {most}")


def _context_refusals(job: Job) -> Iterator[tuple[str, str]]:
    """Yield why cp cannot split the sequences."""
    split = job.spec.parallelism
    if (split.cp_heads is not None) != (split.cp_kind == "ulysses_ring"):
        problem = f"cp_kind is {split.cp_kind}; ulysses_ring needs cp_heads, no other has it"
        yield "parallelism.cp_heads", problem
    if split.cp_heads and split.cp % split.cp_heads:
        yield "parallelism.cp_heads", f"cp {split.cp} is not divisible by cp_heads {split.cp_heads}"
    if split.passes_blocks and job.spec.attention != "flash":
        problem = f"cp_kind {split.cp_kind} joins partial results by what flash attention keeps of each row"
        yield "parallelism.cp", f"{problem}; attention is {job.spec.attention}"
    documents = () if job.spec.training is None or split.cp == split.head_degree else job.training.documents
    for length in documents:
        if length % (2 * split.cp):
            problem = f"cp {split.cp} cuts each document into two pieces a rank, and one of {length} does not"
            padded = ceil_divide(length, 2 * split.cp) * 2 * split.cp
            yield "training.documents", f"{problem} divide: pad it to {padded}, or take cp_kind ulysses"
    for layer in job.model.kinds if split.cp > 1 else ():
        refusal = layer.mixer.context_refusal(split)
        if refusal:
            yield "parallelism.cp", refusal


def _sharding_refusals(job: Job) -> Iterator[tuple[str, str]]:
    """Yield why replicas and tp ranks cannot hold, gather and sum what they share as the job says."""
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
        yield "parallelism.dp_replicate", f"dp {split.dp} is not divisible by dp_replicate {copies}"
    experts = job.members("expert_gradient") if job.model.has_experts else 0
    if experts % copies:
        problem = f"replicas of experts (edp) {experts} is not divisible by dp_replicate {copies}"
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
                f"{sharding.replicas} replicas share {domain} parameters, which is not divisible by {ranks}"
            )
            yield "training.reshard", problem


def _gather_refusals(job: Job) -> Iterator[tuple[str, str]]:
    copies = job.training.unit_copies
    if job.training.gather_singly and copies in ("flat", "per_parameter"):
        problem = f"{copies} copies whole units, and gather_singly gathers matrices one by one"
        yield "training.unit_copies", problem
    precision, key = job.spec.precision, "precision.parameter_gather"
    if precision.parameter_gather is None:
        return
    if job.sharding.policy.gather is None:
        yield key, f"zero_stage {job.training.zero_stage} gathers no parameters"
    used = job.training_shard.gemm_dtype
    if widens_parameters(job) and not job.sharding.policy.by_unit:
        problem = f"{precision.gathers} is narrower than {used}, in which they multiply"
        yield (
            key,
            f"{problem}: only zero_stage 3 widens them before each use, it is {job.training.zero_stage}",
        )


def _too_long(job: Job) -> str | None:
    """Return why no trace can hold a job: a rank's program is one table in memory."""
    passes = job.micro_batches
    if job.spec.phase == "inference":
        steps = job.inference.decode_steps
        prompts = sum(kind.count * (kind.prompt_length - kind.cached) for kind in job.inference.kinds)
        chunks = prompts // passes // (job.inference.prefill_tokens or prompts)
        passes *= chunks + (job.inference.steps if steps == "all" else steps + 1)
    nodes = passes * max(job.layers) * len(job.placement[0]) * NODES_A_LAYER
    if nodes <= MOST_NODES:
        return None
    problem = f"{passes} passes of {max(job.layers)} layers are about {nodes} nodes a rank"
    return f"{problem}, at most {MOST_NODES} fit a trace"
