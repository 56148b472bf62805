"""What a pipeline stage consists of, summed from the operator lists."""

from __future__ import annotations

from rapid_des.frontend.block_backward import block_backward
from rapid_des.frontend.ends import embedding_backward, loss_backward
from rapid_des.frontend.parts import Section, sections
from rapid_des.frontend.resolved import Job


def section_parameters(job: Job) -> dict[Section, int]:
    """Return the parameters of one rank in each section, as its backward list makes their gradients."""
    shard = job.shard(1, 1, 1)
    shares = job.model.spec.tied_embeddings and job.stages == 1
    lists = {
        "embedding": embedding_backward(shard),
        "block": block_backward(shard, "none"),
        "head": loss_backward(shard, shares_table=shares),
    }
    found: dict[Section, int] = {}
    for section, steps in lists.items():
        found[section] = sum(step.parameters for step in steps)  # type: ignore[index]
    return found


def stage_sections(job: Job, stage: int) -> tuple[Section, ...]:
    """Return the sections of all chunks of a stage."""
    parts = range(stage, job.parts, job.stages)
    return tuple(section for part in parts for section, _ in sections(job, part))


def stage_parameters(job: Job, stage: int) -> int:
    """Return the parameters of one rank of a stage."""
    own = section_parameters(job)
    return sum(own[section] for section in stage_sections(job, stage))
