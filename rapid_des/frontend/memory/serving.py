"""The memory of a serving rank: weights, KV cache, one pass; and the tokens of an engine's KV pool."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from rapid_des.frontend.groups import byte_count
from rapid_des.frontend.inference import ServingPass, first_passes, pass_lists, serving_shard
from rapid_des.frontend.job import Job
from rapid_des.frontend.memory.events import (
    JobMemory,
    StageMemory,
    Tensor,
    by_category,
    fragments,
    merged,
    shown,
    transient,
)
from rapid_des.frontend.memory.training import framework
from rapid_des.frontend.operations import RequestGroup
from rapid_des.frontend.parts import (
    DRAFT,
    EMBEDDING,
    HEAD,
    ModelSection,
    section_parameters,
    stage_parameters,
    stage_sections,
)
from rapid_des.frontend.routing import heaviest_place
from rapid_des.frontend.spec import KvPool
from rapid_des.frontend.speculation import draft_cache_bytes
from rapid_des.units import ceil_divide


class KvCapacity(Struct, frozen=True):
    """The KV pool of a replica (with attention data parallelism: of one of its ranks)."""

    size: int
    """Bytes of the pool on a GPU of the stage that holds fewest tokens; negative: the bytes missing."""
    pages: int
    page: int
    """The tokens that a page holds."""
    needed: int
    """Tokens that the job's requests hold at their ends, in whole pages."""
    rule: str
    """How the engine sizes the pool, in words."""

    @property
    def tokens(self) -> int:
        """Tokens that fit, for requests as long as the job's."""
        return self.pages * self.page

    @property
    def shortage(self) -> str:
        """Why the job's requests do not fit; empty where they do."""
        if self.size < 0:
            return f"nothing is left a GPU for keys and values, {shown(-self.size)} are missing: {self.rule}"
        if self.needed <= self.tokens:
            return ""
        holds = f"its {shown(self.size)} a GPU hold {self.tokens:,}"
        return f"the requests need {self.needed:,} tokens of KV cache, {holds}: {self.rule}"

    def as_json(self) -> dict[str, int]:
        """Return plain data for JSON."""
        return {
            "pool_bytes": self.size,
            "tokens": self.tokens,
            "pages": self.pages,
            "page_tokens": self.page,
            "needed_tokens": self.needed,
        }


def kv_capacity(job: Job, capacity: int) -> KvCapacity | None:
    """Return how many tokens' keys and values the engine's pool holds on GPUs of `capacity` bytes.

    None where the software profile states no pool, or requests keep nothing (encoders). Requests are taken as
    long as the job's longest: states of Mamba-2 and windows, which do not grow with a request, are spread
    over its tokens.

    >>> from rapid_des.frontend import load_job
    >>> found = kv_capacity(load_job("llama2_7b_inference"), 80 * 2**30)
    >>> found.page, found.needed, found.tokens > 100_000, found.shortage
    (16, 400, True, '')
    """
    pool = job.spec.memory.kv_pool
    if pool is None:
        return None
    lengths = {kind: kind.prompt_length + kind.output_length for kind in job.inference.kinds}
    length, sizes = max(lengths.values()), []
    for stage in range(job.stages):
        counts = stage_sections(job, stage)
        size = _pool_size(job, counts, pool, capacity)
        if a_request := _request_bytes(job, counts, length):
            sizes.append((max(0, size) * length // (a_request * pool.page), size))
    if not sizes:
        return None
    pages, size = min(sizes)
    needed = sum(kind.count * ceil_divide(each, pool.page) * pool.page for kind, each in lengths.items())
    return KvCapacity(size, pages, pool.page, needed, f"{job.software.name}: {_rule(pool)}")


def _rule(pool: KvPool) -> str:
    """Return in words how the pool is sized."""
    share, largest = f"{pool.share:.0%}", f"a pass of {pool.tokens:,} tokens"
    return {
        "used": f"weights, communicators, {largest} and the pool take {share} of the memory",
        "held": f"weights and the pool take {share} of the memory",
        "free": f"the pool takes {share} of what weights, {largest} and the rest leave",
    }[pool.of] + " (memory.kv_pool)"


def _pool_size(job: Job, counts: Mapping[ModelSection, int], pool: KvPool, capacity: int) -> int:
    """Return the bytes of the pool on a rank of a stage; negative if everything else needs more."""
    every = tuple(framework(job))
    context = sum(tensor.size for tensor in every if tensor.name == "context")
    besides, weights = _bytes(every) - context, _weights(job, counts)
    if pool.of == "held":
        return int(pool.share * (capacity - context - besides)) - weights
    group = RequestGroup(pool.sequences, ceil_divide(pool.tokens, pool.sequences))
    active = _bytes(_active(job, counts, ServingPass(0, (group,), 0)))
    if HEAD in counts:
        sampler = pool.sampling * pool.sequences * job.vocabulary
        active = max(active, sampler + job.shard(1, pool.tokens, pool.tokens).boundary_bytes)
    if pool.of == "used":
        return int(pool.share * capacity) - weights - active - besides
    return int(pool.share * (capacity - context - besides - weights - active))


def serving_memory(job: Job) -> JobMemory:
    """Return the memory of each stage's ranks while requests are served."""
    return JobMemory(tuple(_stage(job, stage) for stage in range(job.stages)))


def _stage(job: Job, stage: int) -> StageMemory:
    counts = stage_sections(job, stage)
    standing = [
        Tensor("weights", "weights", _weights(job, counts)),
        Tensor("keys and values", "kv_cache", _cache_bytes(job, counts)),
        *_active(job, counts, _fullest(job)),
        *framework(job),
    ]
    tensors = merged([*standing, *fragments(job, standing)])
    return StageMemory(stage, stage_parameters(job, stage).total(), by_category(tensors), tensors)


def _fullest(job: Job) -> ServingPass:
    """Return the pass of prompts with the highest peak; of a decoding batch its first pass."""
    every = first_passes(job)
    return max(
        (each for each in every if each.step <= max(0, every[0].step)), key=lambda p: (p.tokens, p.sampled)
    )


def _active(job: Job, counts: Mapping[ModelSection, int], current: ServingPass) -> list[Tensor]:
    """Return the temporary memory of a pass at its peak."""
    size, lists = serving_shard(job, current).boundary_bytes, pass_lists(job, current, heaviest_place(job))
    between = 1 + job.spec.memory.held_outputs
    standing = [
        Tensor("between layers", "activations", between * size, between),
        *max((transient(lists[section]) for section in counts), key=_bytes),
    ]
    if job.stages > 1:
        standing.append(Tensor("stage output", "communication", size))
    return standing


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.size for tensor in tensors)


def _cache_bytes(job: Job, counts: Mapping[ModelSection, int]) -> int:
    """Return the cache of a stage's layers for all requests at their last token, in bytes."""
    return sum(
        kind.count * _request_bytes(job, counts, kind.prompt_length + kind.output_length)
        for kind in job.inference.kinds
    )


def _request_bytes(job: Job, counts: Mapping[ModelSection, int], positions: int) -> int:
    """Return the cache of a stage's layers for one request of this many positions, in bytes."""
    shard, positions = job.shard(1, 1, 1), ceil_divide(positions, job.spec.parallelism.cp)
    drafts = draft_cache_bytes(job, shard, positions) if DRAFT in counts else 0
    return drafts + sum(
        count * job.kinds[section.kind].layer.cache_bytes(shard, positions)
        for section, count in counts.items()
        if section.name == "block"
    )


def _weights(job: Job, counts: Mapping[ModelSection, int]) -> int:
    """Return the bytes of a stage's weights: a layer's matrices as stored, all else as activations."""
    precision, sizes = job.spec.precision, section_parameters(job)
    lists = pass_lists(job, first_passes(job)[0], heaviest_place(job))
    narrow = sum(
        count * sum(operation.weights for operation in lists[section]) for section, count in counts.items()
    )
    wide = sum(count * sizes[section].total() for section, count in counts.items()) - narrow
    if job.spec.memory.whole_tables and EMBEDDING in counts:
        wide += (job.vocabulary - job.vocabulary // job.members("tp")) * job.model.spec.hidden
    stored = precision.weights or precision.gemm or precision.activations
    return byte_count(narrow, stored) + byte_count(wide, precision.activations)
