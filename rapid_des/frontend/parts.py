"""The distinct operator lists of a job, and what each part of the model is made of.

Everything downstream reads these lists: the trace (priced), the memory walk (bytes kept).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from rapid_des.device.operators import OperatorModel
from rapid_des.frontend.block import block_forward
from rapid_des.frontend.block_backward import block_backward
from rapid_des.frontend.ends import embedding_backward, embedding_forward, loss_backward, loss_forward
from rapid_des.frontend.pipeline import Phase
from rapid_des.frontend.pricing import price
from rapid_des.frontend.resolved import Job
from rapid_des.frontend.steps import Step, Steps
from rapid_des.frontend.template import Piece, renamed

Section: TypeAlias = Literal["embedding", "block", "head", "norms"]


@dataclass(frozen=True)
class PieceKey:
    """Which operator list: a section of the model in one direction; `stage` where stages differ in it."""

    section: Section
    phase: Phase
    stage: int = -1
    step: int = 0
    """Serving: 0 is the prefill, else the first decode step that runs it."""


def training_steps(job: Job) -> Mapping[PieceKey, tuple[Step, ...]]:
    """Return the operator lists of training: each section's for one micro-batch, and each stage's norms.

    "norms", once a step, sums the gradients of what sequence parallelism leaves whole on every tp rank.
    """
    shard = job.training_shard
    shares = job.model.spec.tied_embeddings and job.stages == 1
    norms = {PieceKey("norms", "backward", stage): norm_steps(job, stage) for stage in range(job.stages)}
    return (norms if job.spec.parallelism.sequence_parallel else {}) | {
        PieceKey("embedding", "forward"): embedding_forward(shard),
        PieceKey("block", "forward"): block_forward(shard),
        PieceKey("head", "forward"): loss_forward(shard),
        PieceKey("head", "backward"): loss_backward(shard, shares_table=shares),
        PieceKey("block", "backward"): block_backward(shard, job.training.recompute),
        PieceKey("embedding", "backward"): embedding_backward(shard),
    }


def norm_steps(job: Job, stage: int) -> tuple[Step, ...]:
    """Return the sum over tp of gradients that each rank has for its sequence shard only."""
    layer = job.model.layer
    layers = sum(job.layers[part] for part in range(stage, job.parts, job.stages))
    elements = layers * (layer.norms + layer.whole_biases)
    elements += job.model.position_parameters * (stage == 0)
    elements += job.model.norm_parameters * (stage == job.stages - 1)
    steps = Steps()
    size = job.training_shard.message("tp.norm_gradients", elements, job.spec.precision.gradients)
    steps.message("gradients.norms", "tp.norm_gradients", size)
    return tuple(steps.steps)


def price_steps(
    steps: Mapping[PieceKey, tuple[Step, ...]], operators: OperatorModel
) -> Mapping[PieceKey, Piece]:
    """Return each list as a priced piece."""
    return {key: price(value, operators) for key, value in steps.items()}


def sections(job: Job, part: int) -> tuple[tuple[Section, str], ...]:
    """Return what one part of the model consists of, in forward order, each with its label.

    Layers are numbered through the whole model.
    """
    first = sum(job.layers[:part])
    found: list[tuple[Section, str]] = [("block", f"L{first + index}") for index in range(job.layers[part])]
    if part == 0:
        found.insert(0, ("embedding", ""))
    if part == job.parts - 1:
        found.append(("head", ""))
    return tuple(found)


def part_pieces(job: Job, part: int, phase: Phase, pieces: Mapping[PieceKey, Piece]) -> tuple[Piece, ...]:
    """Return the pieces of one part in the order in which `phase` runs them, named by layer."""
    order = sections(job, part)
    if phase == "backward":
        order = order[::-1]
    found = []
    for section, label in order:
        prefix = f"{phase}.{label}." if label else f"{phase}."
        found.append(renamed(pieces[PieceKey(section, phase)], prefix))
    return tuple(found)
