"""Reading a job file and the model it names; whether their numbers fit together.

Every refusal names both numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from msgspec import structs

from rapid_des.config import (
    Document,
    Settings,
    apply_overrides,
    as_pairs,
    decode,
    load_document,
    open_document,
    resolve,
    settings_named,
    to_tree,
)
from rapid_des.errors import ConfigError
from rapid_des.frontend import adapters
from rapid_des.frontend.extent import MOST_GPUS, too_long
from rapid_des.frontend.job import Job
from rapid_des.frontend.model import Model, model_of
from rapid_des.frontend.recompute import refusals
from rapid_des.frontend.refusals import context_refusals, sharding_refusals
from rapid_des.frontend.routing import with_counts, with_products, with_routing
from rapid_des.frontend.schedules import SCHEDULES, pairs_refusal
from rapid_des.frontend.schedules.files import with_schedule
from rapid_des.frontend.sharding import ZERO_STAGES
from rapid_des.frontend.software import Software, applied, software_of, with_defaults
from rapid_des.frontend.spec import JobSpec, ModelSpec

_MODEL = "model."
_SCHEDULE = "training.schedule"
AXES = ("tp", "cp", "ep", "dp", "pp")


def load_job(
    reference: str | Path | Mapping[str, Any] | Job, *, settings: Settings = (), folder: Path | None = None
) -> Job:
    """Return the job that a path, a preset's bare name, a mapping (as a file would hold) or a job stands for.

    `settings` are set over it: a mapping {"training.micro_batch": 2}, or (key path, YAML text) pairs. Keys
    below `model.` change the model file ("model.layers"), the key `model` which one it is. References are
    looked up in `folder` (default: the working directory), then the presets. A `ConfigError` says what is
    wrong: file, key, value and what is allowed.

    >>> job = load_job("llama2_7b_train")
    >>> load_job(job, settings={"parallelism.tp": 4, "parallelism.dp": 1}).gpus, job.gpus
    (8, 8)
    """
    if isinstance(reference, Job):
        document = Document(Path(reference.file), to_tree(reference.spec, "job"))
    else:
        document = open_document(reference, "job", folder=folder or Path())
    path, settings = document.path, as_pairs(settings)
    of_model = tuple(setting for setting in settings if setting[0].startswith(_MODEL))
    of_job = [setting for setting in settings if setting not in of_model]
    document = apply_overrides(document, of_job, root="job", folder=folder or Path())
    if isinstance(document.tree.get("model"), dict):
        document, of_model = apply_overrides(document, of_model, root="job"), ()
    document, schedule_file = with_schedule(document)
    with settings_named(document):
        software = software_of(document)
        spec = with_counts(_with_defaults(document, software), path)
        model = with_products(_model(spec, path, of_model), software)
        model = with_routing(model, spec, str(path))
        name = reference.name if isinstance(reference, Job) else path.stem
        job = Job(name, str(path), structs.replace(spec, model=model.spec, software=applied(software)), model)
        with _named(schedule_file):
            check_job(job)
    return job


@contextmanager
def _named(schedule_file: Path | None) -> Iterator[None]:
    """Have what is wrong with a job's schedule name the file that holds it."""
    try:
        yield
    except ConfigError as error:
        if schedule_file is None or error.key != _SCHEDULE:
            raise
        raise ConfigError(error.message, file=str(schedule_file)) from None


def _with_defaults(document: Document, software: Software) -> JobSpec:
    """Return what a job file says, and its software where the file says nothing."""
    try:
        return decode(kinds_named(with_defaults(document, software), "model"), JobSpec)
    except ConfigError as error:
        decode(kinds_named(document, "model"), JobSpec)  # or the file itself is wrong
        problem = f"{error.message}; so the defaults of software {software.name!r} have it"
        raise ConfigError(problem, file=error.file, key=error.key) from None


def _model(spec: JobSpec, path: Path, settings: Iterable[tuple[str, str]]) -> Model:
    """Return the model that a job file holds, or that of the file which it names, with settings applied."""
    if isinstance(spec.model, ModelSpec):
        return model_of(spec.model, path)
    model_path = resolve(spec.model, "model", folder=path.parent, named_in=str(path), key="model")
    changes = [(key.removeprefix(_MODEL), text) for key, text in settings]
    document = apply_overrides(load_document(model_path), changes, root="job.model")
    with settings_named(document):
        return model_of(decode(kinds_named(document), ModelSpec), model_path)


def load_model(
    reference: str | Path | Mapping[str, Any], *, settings: Settings = (), folder: Path | None = None
) -> Model:
    """Return the model that a path, a preset's bare name or a mapping stands for; all as in `load_job`.

    >>> load_model("llama2_7b", settings={"layers": 16}).parameters
    3500281856
    """
    document = open_document(reference, "model", folder=folder or Path())
    changed = apply_overrides(document, as_pairs(settings))
    return model_of(decode(kinds_named(changed), ModelSpec), changed.path)


_KINDS = {"attention": "attention", "feed_forward": "dense"}


def kinds_named(document: Document, key: str = "") -> Document:
    """Return a document with the usual `kind` in what says none: in its model (under `key`, or the whole)."""
    model = document.tree.get(key) if key else document.tree
    if not isinstance(model, dict):
        return document
    exceptions = model.get("exceptions", ())
    named = _with_kinds(model)
    if isinstance(exceptions, list):
        named["exceptions"] = [_with_kinds(one) if isinstance(one, dict) else one for one in exceptions]
    tree = document.tree | {key: named} if key else named
    return replace(document, tree=tree)


def _with_kinds(tree: dict[str, Any]) -> dict[str, Any]:
    named = {
        key: {"kind": kind} | tree[key] for key, kind in _KINDS.items() if isinstance(tree.get(key), dict)
    }
    return tree | named


def with_spec(job: Job, spec: JobSpec) -> Job:
    """Return the job with another spec, checked."""
    changed = replace(job, spec=spec)
    check_job(changed)
    return changed


def check_job(job: Job) -> None:
    """Raise a `ConfigError` for the first thing that does not fit."""
    _check_sections(job)
    _check_axes(job)
    _check_tensor_parallel(job)
    if job.spec.phase == "training":
        _check_training(job)
    else:
        _check_inference(job)
    _check_pipeline(job)
    if problem := too_long(job):
        _refuse(job, job.spec.phase, problem)


def _refuse(job: Job, key: str, problem: str) -> None:
    raise ConfigError(problem, file=job.file, key=key)


def _refuse_first(job: Job, problems: Iterable[tuple[str, str]]) -> None:
    for key, problem in problems:
        _refuse(job, key, problem)


def _divide(job: Job, key: str, total: tuple[str, int], part: tuple[str, int]) -> None:
    if total[1] % part[1]:
        _refuse(job, key, f"{total[0]} {total[1]} does not divide by {part[0]} {part[1]}")


def _check_sections(job: Job) -> None:
    phase = job.spec.phase
    other = "inference" if phase == "training" else "training"
    if getattr(job.spec, phase) is None:
        _refuse(job, phase, f"phase is {phase}, so the section {phase!r} must be there")
    if getattr(job.spec, other) is not None:
        _refuse(job, other, f"phase is {phase}, so the section {other!r} would never be read")


def _check_axes(job: Job) -> None:
    split = job.spec.parallelism
    if sorted(split.order) != sorted(AXES):
        _refuse(job, "parallelism.order", f"{list(split.order)} must name each of {', '.join(AXES)} once")
    if job.gpus > MOST_GPUS:
        _refuse(job, "parallelism", f"{job.gpus} GPUs; at most {MOST_GPUS}")
    if split.cp > 1 and job.spec.attention != "flash":
        _refuse(job, "parallelism.cp", f"context parallelism (cp {split.cp}) needs attention flash")
    _refuse_first(job, context_refusals(job))
    _check_experts(job)
    if split.sequence_parallel and split.tp == 1:
        _refuse(job, "parallelism.sequence_parallel", "sequence parallelism splits over tp, and tp is 1")


def _check_experts(job: Job) -> None:
    split = job.spec.parallelism
    if not job.model.has_experts:
        if split.ep > 1 or split.etp is not None:
            key, axis = ("ep", "ep") if split.ep > 1 else ("etp", "etp")
            problem = f"expert parallelism ({axis} {getattr(split, key)}) needs a mixture-of-experts model, "
            _refuse(job, f"parallelism.{key}", f"{problem}{job.model.name} is dense")
        return
    ranks = split.tp * split.cp * split.dp
    if ranks % (job.etp * split.ep):
        problem = (
            f"ep {split.ep} · etp {job.etp} does not divide tp · cp · dp = {ranks}, the ranks of a stage"
        )
        _refuse(job, "parallelism.ep", problem)


def _check_tensor_parallel(job: Job) -> None:
    tp, key = job.spec.parallelism.tp, "parallelism.tp"
    for half in (half for layer in job.model.kinds for half in layer.halves):
        problem = half.refusal(job.spec.parallelism)
        if problem:
            _refuse(job, key, problem)
    if job.vocabulary % tp:
        problem = f"vocabulary {job.vocabulary} does not divide by tp {tp}; vocabulary_multiple pads it"
        _refuse(job, key, problem)


def _check_pipeline(job: Job) -> None:
    rule, count = job.spec.parallelism.layers, job.model.spec.layers
    key = "parallelism.layers"
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
            f"global_batch {spec.global_batch} does not divide by "
            f"micro_batch {spec.micro_batch} · dp {split.dp} = {share}"
        )
        _refuse(job, "training.global_batch", problem)
    _check_length(job, "training.sequence_length", spec.sequence_length)
    if split.cp > 1:
        pieces = (f"two pieces for each of cp {split.cp}:", 2 * split.cp)
        _divide(job, "parallelism.cp", ("sequence_length", spec.sequence_length), pieces)
    if split.sequence_parallel:
        part = ("sequence_length / cp", spec.sequence_length // split.cp)
        _divide(job, "parallelism.tp", part, ("tp", split.tp))
    _check_schedule(job)
    _check_choices(job)
    _refuse_first(job, sharding_refusals(job))
    if spec.overlap_parameters and (job.sharding.policy.gather is None or job.sharding.policy.by_unit):
        known = " or ".join(map(str, (n for n, one in ZERO_STAGES.items() if one.gather and not one.by_unit)))
        problem = f"parameters are gathered only with zero_stage {known}, it is {spec.zero_stage}"
        _refuse(job, "training.overlap_parameters", problem)
    if job.spec.precision.weights is not None or job.spec.precision.kv_cache is not None:
        _refuse(job, "precision", "weights and kv_cache are for inference; training multiplies in gemm")
    if job.spec.precision.recipe is not None and job.training_shard.recipe is None:
        problem = f"{job.spec.precision.recipe} needs gemm narrower than activations"
        _refuse(job, "precision.recipe", problem)


def _check_choices(job: Job) -> None:
    """Refuse an optimizer or a recomputation that the job can not have."""
    spec = job.training
    if spec.optimizer == "muon" and spec.zero_stage > 1:
        problem = f"muon updates whole matrices: zero_stage is 0 or 1, it is {spec.zero_stage}"
        _refuse(job, "training.optimizer", problem)
    if spec.offload_optimizer and spec.optimizer == "muon":
        _refuse(job, "training.offload_optimizer", "muon's products are not run on the host")
    if spec.offload_activations and (job.sharding.policy.by_unit or spec.overlap_parameters):
        problem = "activations are not offloaded where layers wait for their parameters too "
        _refuse(job, "training.offload_activations", f"{problem}(zero_stage 3, overlap_parameters)")
    kinds, shard = job.model.kinds, job.training_shard
    for key, problem in chain(adapters.refusals(spec, kinds, shard), refusals(spec, kinds, shard)):
        _refuse(job, f"training.{key}", problem)


def _check_schedule(job: Job) -> None:
    chosen, chunks = job.training.schedule, job.spec.parallelism.chunks
    if chunks not in (1, job.shape.chunks):
        known = " or ".join(name for name, schedule in SCHEDULES.items() if schedule.chunks is None)
        _refuse(job, "parallelism.chunks", f"{chunks} chunks need schedule {known}, it is {chosen}")
    problem = job.schedule.refusal(job.shape)
    if problem:
        _refuse(job, _SCHEDULE, problem)
    ep, by_unit = job.spec.parallelism.ep, job.sharding.policy.by_unit
    problem = pairs_refusal(chosen, job.stages, ep=ep, by_unit=by_unit)
    if job.training.overlap_batches and problem:
        _refuse(job, "training.overlap_batches", problem)
    if job.training.micro_batch_group is not None and chosen != "interleaved_1f1b":
        problem = f"micro-batches pass in groups with schedule interleaved_1f1b, it is {chosen}"
        _refuse(job, "training.micro_batch_group", problem)


def _check_inference(job: Job) -> None:
    spec = job.inference
    if job.spec.parallelism.sequence_parallel:
        _refuse(job, "parallelism.sequence_parallel", "sequence parallelism is for training only")
    if job.spec.parallelism.cp > 1:
        _refuse(job, "parallelism.cp", "context parallelism is for training only, so far")
    if job.spec.parallelism.dp_replicate > 1:
        _refuse(job, "parallelism.dp_replicate", "replicas that serve share no state")
    if job.spec.parallelism.chunks > 1:
        _refuse(job, "parallelism.chunks", "inference passes each stage once; chunks must be 1")
    length = spec.prompt_length + spec.output_length
    _check_length(job, "inference.output_length", length)
    if spec.micro_batch:
        _divide(job, "inference.micro_batch", ("batch", spec.batch), ("micro_batch", spec.micro_batch))
    if spec.decode_steps != "all" and spec.decode_steps > max(1, spec.output_length - 1):
        problem = f"{spec.decode_steps} steps can not be taken from the {spec.output_length - 1} there are"
        _refuse(job, "inference.decode_steps", problem)


def _check_length(job: Job, key: str, length: int) -> None:
    most = job.model.spec.max_positions
    if length > most:
        _refuse(job, key, f"{length} positions, {job.model.name} has max_positions {most}")
