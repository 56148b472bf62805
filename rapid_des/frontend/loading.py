"""Loading a job file and the files that it names: its software, model and schedule."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
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
from rapid_des.config.specs import is_model
from rapid_des.errors import ConfigError
from rapid_des.frontend.job import Job
from rapid_des.frontend.job_checks import SCHEDULE, check_job
from rapid_des.frontend.model import Model, model_of
from rapid_des.frontend.model_spec import ModelSpec
from rapid_des.frontend.routing import with_counts, with_products, with_routing
from rapid_des.frontend.schedules import ScheduleSpec
from rapid_des.frontend.software import Software, applied, software_of, with_defaults
from rapid_des.frontend.spec import JobSpec, RoutingSpec
from rapid_des.values import replace

_MODEL = "model."
_SCHEDULE_FILES = frozenset((".yaml", ".yml"))


def load_job(
    reference: str | Path | Mapping[str, Any] | Document | Job,
    *,
    settings: Settings = (),
    folder: Path | None = None,
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
    if "model" not in document.tree and {"hidden", "layers"} <= document.tree.keys():
        raise ConfigError(is_model(str(document.path)))
    path, settings = document.path, as_pairs(settings)
    of_model = tuple(setting for setting in settings if setting[0].startswith(_MODEL))
    of_job = [setting for setting in settings if setting not in of_model]
    document = apply_overrides(document, of_job, root="job", folder=folder or Path())
    if isinstance(document.tree.get("model"), dict):
        document, of_model = apply_overrides(document, of_model, root="job"), ()
    document, schedule_file = _with_schedule(document)
    with settings_named(document):
        software = software_of(document)
        spec = _with_defaults(document, software)
        model = _model(spec, path, of_model)
        if not model.has_experts and "routing" not in document.tree:
            # an engine's default dispatcher, nothing to a dense model
            spec = structs.replace(spec, routing=RoutingSpec())
        if model.has_experts or spec.routing != RoutingSpec():
            spec = with_counts(spec, path)
            model = with_routing(with_products(model, software), spec, str(path))
        name = reference.name if isinstance(reference, Job) else path.stem
        spec = _with_draft(spec, path)
        whole = structs.replace(spec, model=model.spec, software=applied(software))
        job = Job(name, str(path), whole, model, _changed)
        with _named(schedule_file):
            check_job(job)
    return job


def _with_schedule(document: Document) -> tuple[Document, Path | None]:
    """Return a job's document with the schedule that it names a file of in its place, and the file."""
    training = document.tree.get("training")
    if not isinstance(training, dict):
        return document, None
    chosen = training.get("schedule")
    if not isinstance(chosen, str) or Path(chosen).suffix not in _SCHEDULE_FILES:
        return document, None
    files = [path for path in (document.path.parent / chosen, Path(chosen)) if path.is_file()]
    if not files:
        raise ConfigError(f"no schedule file {chosen!r} here", file=str(document.path), key=SCHEDULE)
    read = load_document(files[0])
    decode(read, ScheduleSpec)
    tree = document.tree | {"training": training | {"schedule": read.tree}}
    return replace(document, tree=tree), files[0]


def _changed(job: Job, changes: Mapping[str, object]) -> Job:
    """Return a job with other values; keys of its parallelism and its phase's section may stand alone."""
    sections = ("parallelism", job.spec.phase)
    paths = {
        key: f"{section}.{key}" for section in sections for key in structs.asdict(getattr(job.spec, section))
    }
    return load_job(job, settings={paths.get(key, key): value for key, value in changes.items()})


@contextmanager
def _named(schedule_file: Path | None) -> Iterator[None]:
    """Make errors in a job's schedule name the file that holds it."""
    try:
        yield
    except ConfigError as error:
        if schedule_file is None or error.key != SCHEDULE:
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


def _with_draft(spec: JobSpec, path: Path) -> JobSpec:
    """Return a job's spec with the model that drafts in the place of its name."""
    drafts = None if spec.inference is None else spec.inference.speculative
    if spec.inference is None or drafts is None or not isinstance(drafts.model, str):
        return spec
    key = "inference.speculative.model"
    draft_path = resolve(drafts.model, "model", folder=path.parent, named_in=str(path), key=key)
    model = decode(kinds_named(load_document(draft_path)), ModelSpec)
    speculative = structs.replace(drafts, model=model)
    return structs.replace(spec, inference=structs.replace(spec.inference, speculative=speculative))


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
    """Return a document with the default `kind` filled in, in its model (under `key`, or the whole)."""
    model = document.tree.get(key) if key else document.tree
    if not isinstance(model, dict):
        return document
    exceptions = model.get("exceptions", ())
    named = _with_kinds(model)
    if isinstance(exceptions, list):
        named["exceptions"] = [
            _with_kinds(exception) if isinstance(exception, dict) else exception for exception in exceptions
        ]
    tree = document.tree | {key: named} if key else named
    return replace(document, tree=tree)


def _with_kinds(tree: dict[str, Any]) -> dict[str, Any]:
    named = {
        key: {"kind": kind} | tree[key] for key, kind in _KINDS.items() if isinstance(tree.get(key), dict)
    }
    return tree | named


def with_spec(job: Job, spec: JobSpec) -> Job:
    """Return the job with another spec, checked."""
    changed = replace(with_ep(job, spec.parallelism.ep), spec=spec)
    check_job(changed)
    return changed


def with_ep(job: Job, ep: int) -> Job:
    """Return the job, not checked, with its experts where this many ranks hold them."""
    if ep == job.spec.parallelism.ep or not job.model.has_experts:
        return job
    spec = structs.replace(job.spec, parallelism=structs.replace(job.spec.parallelism, ep=ep))
    return replace(job, spec=spec, model=with_routing(job.model, spec, job.file))
