"""From a job to the trace of every rank: operator lists, their prices, a program a stage. And to its memory.

What differs by a job's phase, training or inference, is chosen here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property

from msgspec import Struct, structs

from rapid_des.chakra.trace import Exchange, NodeKind
from rapid_des.device.operators import Operator, OperatorModel
from rapid_des.device.spec import arithmetic_dtype
from rapid_des.errors import ConfigError, InfeasibleJobError
from rapid_des.frontend.inference import serving_lists, serving_notes, serving_pieces, serving_program
from rapid_des.frontend.job import Job
from rapid_des.frontend.memory.advice import advice, changed_to, shortage
from rapid_des.frontend.memory.events import JobMemory
from rapid_des.frontend.memory.serving import kv_capacity, serving_memory
from rapid_des.frontend.memory.training import training_memory
from rapid_des.frontend.optimizers import step_kernels
from rapid_des.frontend.parts import (
    OPTIMIZER,
    Lists,
    ModelSection,
    PieceKey,
    Pieces,
    price_lists,
    section_counts,
    stage_parameters,
    stage_sections,
    training_lists,
)
from rapid_des.frontend.routing import exchanges, layer_loads, places
from rapid_des.frontend.template import PieceColumn
from rapid_des.frontend.trace import FinishedProgram, JobTrace, PricedOperator, job_trace
from rapid_des.frontend.training import stage_program
from rapid_des.units import Duration

COMPUTE = int(NodeKind.COMPUTE)
_ALIGNED = 8
"""Rows of a matrix of 16-bit numbers begin at multiples of 16 bytes if they have a multiple of this many
(NVIDIA, Matrix Multiplication Background User's Guide)."""


class PricedJob(Struct, frozen=True, dict=True):
    """A job whose distinct operator lists are priced: all that its programs are written from."""

    job: Job
    operators: OperatorModel
    """The cost model for what stands outside the lists, such as the optimizer."""
    places: tuple[Pieces, ...]
    """Priced pieces for each place along ep if experts' loads differ; else one entry for all ranks."""
    priced: tuple[PricedOperator, ...]
    """The cost of each distinct kernel, in the order in which the sections run."""

    @property
    def pieces(self) -> Pieces:
        """The pieces of ranks at the first place along ep."""
        return self.places[0]

    @property
    def serves(self) -> bool:
        """Whether it is an inference job."""
        return self.job.spec.phase == "inference"

    @cached_property
    def sections(self) -> tuple[Counter[ModelSection], ...]:
        """The number of times that each section occurs in each part of the model."""
        return tuple(section_counts(self.job, part) for part in range(self.job.parts))

    def program(self, stage: int, pieces: Pieces) -> FinishedProgram:
        """Return the program of a stage's ranks, from its own pieces or from given ones."""
        if self.serves:
            return serving_program(self.job, stage, pieces)
        return stage_program(self.job, pieces, stage, self.operators)

    def trace(self, programs: Sequence[FinishedProgram], ranks: Sequence[int] | None = None) -> JobTrace:
        """Return the trace of all ranks, or of some, from one program a stage, or a stage and place."""
        notes = serving_notes(self.job) if self.serves else ()
        notes = (*notes, *self._load_notes(), *self._vocabulary_notes())
        return job_trace(self.job, programs, ranks=ranks, notes=notes, operators=self.priced)

    def _vocabulary_notes(self) -> Iterator[str]:
        """Yield that the head's products are aligned to no 16 bytes, which kernels are priced to be."""
        entries = self.job.vocabulary // self.job.spec.parallelism.tp
        if self.job.model.generates and entries % _ALIGNED:
            yield (
                f"a rank's part of the vocabulary, {entries:,}, is not a multiple of {_ALIGNED}: libraries "
                "take slower kernels for its products than are priced here; vocabulary_multiple: 64 pads it"
            )

    def _load_notes(self) -> Iterator[str]:
        """Yield how uneven experts' loads are, and in training how much time that costs in a step."""
        loads = layer_loads(self.job) if self.job.model.has_experts else ()
        if not loads:
            return
        mean = sum(load.busiest_rank * len(load.layers) for load in loads)
        mean /= sum(len(load.layers) for load in loads)
        worst = max(load.busiest_rank for load in loads)
        text = (
            f"experts' load: a layer's busiest rank computes {mean:.2f} times the mean (at most {worst:.2f})"
        )
        if not self.serves and len(self.places) > 1:
            lost = Duration(max(map(self._lost, range(self.job.stages))))
            text += (
                f"; in each layer all wait for it, in the kernels of a step {lost} more than the mean rank's"
            )
        yield text

    def _lost(self, stage: int) -> int:
        """Return by how much the busiest ranks' kernels are longer than the mean rank's, over a step."""
        lost = 0
        for section, count in stage_sections(self.job, stage).items():
            for phase in ("forward", "backward"):
                pieces = [pieces[PieceKey(section, phase)].rows for pieces in self.places]
                times = [
                    int(rows[rows[:, PieceColumn.KIND] == COMPUTE, PieceColumn.DURATION].sum())
                    for rows in pieces
                ]
                lost += count * (max(times) - sum(times) // len(times))
        return lost * self.job.micro_batches


def price_job(job: Job, operators: OperatorModel, decode_operators: OperatorModel | None) -> PricedJob:
    """Return a job with its operators priced.

    `decode_operators` prices decode steps where they run under other conditions (clock, CUDA graphs).
    """
    decode_operators = decode_operators or operators
    of_places, kinds, uneven = [], 1, tuple[Exchange, ...]()
    if job.model.has_experts:
        kinds, uneven = places(job), exchanges(job)
    for place in range(kinds):
        if job.spec.phase == "inference":
            lists = serving_lists(job, place)
            of_places.append(serving_pieces(job, lists, operators, decode_operators))
        else:
            lists = training_lists(job, place)
            of_places.append(price_lists(lists, operators, job.host, uneven))
    priced = (
        _priced(key, name, operator, decode_operators if key.step > 0 else operators)
        for key, name, operator in _kernels(job, lists)
    )
    return PricedJob(job, operators, tuple(of_places), tuple(priced))


def build(
    job: Job,
    operators: OperatorModel,
    *,
    gpus: int | None = None,
    decode_operators: OperatorModel | None = None,
) -> JobTrace:
    """Return the trace of all ranks, operators priced as by `price_job`.

    `gpus` is what the machine has: a smaller job uses its first ranks, a larger one is a `ConfigError`.
    """
    check_size(job, gpus)
    priced = price_job(job, operators, decode_operators)
    return priced.trace(
        [priced.program(stage, pieces) for pieces in priced.places for stage in range(job.stages)]
    )


def check_size(job: Job, gpus: int | None) -> None:
    """Raise a `ConfigError` if the job needs more GPUs than there are."""
    if gpus is not None and job.gpus > gpus:
        split = job.spec.parallelism
        product = f"tp {split.tp} · cp {split.cp} · dp {split.dp} · pp {split.pp} = {job.gpus}"
        raise ConfigError(f"{product} GPUs, the machine has {gpus}", file=job.file, key="parallelism")


def memory(job: Job) -> JobMemory:
    """Return the memory of each stage's ranks, in bytes.

    >>> from rapid_des.frontend import load_job
    >>> fullest = memory(load_job("llama2_7b_train")).fullest
    >>> fullest.stage, fullest.peak == sum(tensor.size for tensor in fullest.tensors)
    (0, True)
    """
    return serving_memory(job) if job.spec.phase == "inference" else training_memory(job)


def check_memory(job: Job, capacity: int) -> JobMemory:
    """Return the job's memory; `InfeasibleJobError` names what is missing and what would help.

    `capacity` is one GPU's memory in bytes.

    >>> from rapid_des.frontend import load_job
    >>> check_memory(load_job("llama2_7b_train"), 80 * 2**30).fullest.stage
    0
    """
    needed = memory(job)
    if needed.fullest.peak > capacity:
        raise InfeasibleJobError(f"{job.name}: {shortage(needed, capacity)}; {advice(job, capacity, memory)}")
    pool = kv_capacity(job, capacity) if job.spec.phase == "inference" else None
    if pool is not None and pool.shortage:
        raise InfeasibleJobError(f"{job.name}: {pool.shortage}")
    return needed


def in_passes(job: Job, capacity: int) -> Job:
    """Return a job whose prompts take passes of the engine's size, where all in one pass would not fit.

    `capacity` is one GPU's memory in bytes.

    >>> from rapid_des.frontend import load_job
    >>> large = {"inference.batch": 96, "inference.prompt_length": 2700}
    >>> in_passes(load_job("llama2_7b_inference", settings=large), 60 * 2**30).inference.prefill_tokens
    8192
    """
    pool = job.spec.memory.kv_pool
    if job.spec.inference is None or pool is None or job.inference.prefill_tokens is not None:
        return job
    if memory(job).fullest.peak <= capacity:
        return job
    chunked = structs.replace(job.inference, prefill_tokens=pool.tokens)
    return changed_to(job, structs.replace(job.spec, inference=chunked)) or job


def _kernels(job: Job, lists: Lists) -> Iterator[tuple[PieceKey, str, Operator]]:
    """Yield every kernel of the lists, then of each stage what training runs once a step.

    Halves of a backward hold the kernels of the whole.
    """
    for key, operations in lists.items():
        if key.phase not in ("forward", "backward"):
            continue
        for operation in operations:
            if operation.operator is not None:
                yield key, f"{key.phase}.{operation.name}", operation.operator
    for stage in range(job.stages if job.spec.training is not None else 0):
        key = PieceKey(OPTIMIZER, "backward", stage)
        for name, kernel in step_kernels(job, stage, stage_parameters(job, stage)).items():
            yield key, name, kernel


def _priced(key: PieceKey, name: str, operator: Operator, operators: OperatorModel) -> PricedOperator:
    estimate = operators.estimate(operator)
    return PricedOperator(
        name=name,
        section=key.section.name,
        kind=key.section.kind,
        stage=key.stage,
        step=key.step,
        duration=estimate.duration,
        flops=estimate.flops,
        arithmetic=arithmetic_dtype(operator),
        bytes=estimate.bytes,
        bound=estimate.bound,
        model=estimate.model,
    )
