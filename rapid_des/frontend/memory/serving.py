"""The memory of a rank that serves a static batch: weights, the KV cache at its longest, one pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rapid_des.frontend.inference import pass_lists, passes, serving_shard
from rapid_des.frontend.job import Job
from rapid_des.frontend.memory.events import transient
from rapid_des.frontend.memory.standing import fragments, framework
from rapid_des.frontend.memory.tensors import JobMemory, StageMemory, Tensor, by_category, merged
from rapid_des.frontend.parts import EMBEDDING, Section, section_parameters, stage_parameters, stage_sections
from rapid_des.frontend.routing import heaviest_place
from rapid_des.frontend.shard import byte_count


def serving_memory(job: Job) -> JobMemory:
    """Return the memory of each stage's ranks while requests are served."""
    return JobMemory(tuple(_stage(job, stage) for stage in range(job.stages)))


def _stage(job: Job, stage: int) -> StageMemory:
    prefill = passes(job)[0]
    shard, lists = serving_shard(job, prefill), pass_lists(job, prefill, heaviest_place(job))
    counts = stage_sections(job, stage)
    between = 1 + job.spec.memory.held_outputs
    found = [
        Tensor("weights", "weights", _weights(job, counts)),
        Tensor("keys and values", "kv_cache", _cache_bytes(job, counts)),
        Tensor("between layers", "activations", between * shard.boundary_bytes, between),
        *max((transient(lists[section]) for section in counts), key=_bytes),
        *framework(job),
    ]
    if job.stages > 1:
        found.append(Tensor("stage output", "communication", shard.boundary_bytes))
    tensors = merged([*found, *fragments(job, found)])
    return StageMemory(stage, stage_parameters(job, stage).total(), by_category(tensors), tensors)


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.size for tensor in tensors)


def _cache_bytes(job: Job, counts: Mapping[Section, int]) -> int:
    """Return what a stage's layers keep of all requests at their last token."""
    shard = job.shard(1, 1, 1)
    return sum(
        kind.count
        * count
        * job.kinds[section.kind].layer.mixer.cache_bytes(shard, kind.prompt_length + kind.output_length)
        for section, count in counts.items()
        for kind in job.inference.kinds
        if section.name == "block"
    )


def _weights(job: Job, counts: Mapping[Section, int]) -> int:
    """Return the bytes of a stage's weights: a layer's matrices as stored, all else as activations."""
    precision, sizes = job.spec.precision, section_parameters(job)
    lists = pass_lists(job, passes(job)[0], heaviest_place(job))
    narrow = sum(
        count * sum(operation.weights for operation in lists[section]) for section, count in counts.items()
    )
    wide = sum(count * sizes[section].total() for section, count in counts.items()) - narrow
    if job.spec.memory.whole_tables and EMBEDDING in counts:
        wide += (job.vocabulary - job.vocabulary // job.members("tp")) * job.model.spec.hidden
    stored = precision.weights or precision.gemm or precision.activations
    return byte_count(narrow, stored) + byte_count(wide, precision.activations)
