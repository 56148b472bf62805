"""From a job to the trace of every rank."""

from __future__ import annotations

from rapid_des.device.operators import OperatorModel
from rapid_des.errors import ConfigError
from rapid_des.frontend.inference import inference_trace
from rapid_des.frontend.job import Job
from rapid_des.frontend.parts import price_lists, training_lists
from rapid_des.frontend.trace import JobTrace, job_trace
from rapid_des.frontend.training import stage_program


def build(
    job: Job,
    operators: OperatorModel,
    *,
    gpus: int | None = None,
    decode_operators: OperatorModel | None = None,
) -> JobTrace:
    """Return the trace of all ranks, operators priced by `operators`.

    `gpus` is what the machine has: a smaller job uses its first ranks, a larger one is a `ConfigError`.
    `decode_operators` prices decode steps where they are launched otherwise (CUDA graphs).
    """
    check_size(job, gpus)
    if job.spec.phase == "inference":
        return inference_trace(job, operators, decode_operators or operators)
    pieces = price_lists(training_lists(job), operators)
    programs = [stage_program(job, pieces, stage, operators) for stage in range(job.stages)]
    return job_trace(job, programs)


def check_size(job: Job, gpus: int | None) -> None:
    """Raise a `ConfigError` if the job needs more GPUs than there are."""
    if gpus is not None and job.gpus > gpus:
        split = job.spec.parallelism
        product = f"tp {split.tp} · cp {split.cp} · dp {split.dp} · pp {split.pp} = {job.gpus}"
        raise ConfigError(f"{product} GPUs, the machine has {gpus}", file=job.file, key="parallelism")
