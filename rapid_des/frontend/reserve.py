"""What a framework takes of a GPU's memory besides the model: context, libraries, allocator, copies."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from rapid_des.config import Spec
from rapid_des.units import Size


class KvPool(Spec, frozen=True):
    """How an engine sets memory aside for keys and values before the first request comes."""

    share: Annotated[float, msgspec.Meta(gt=0, le=1)]
    """Share of the memory that `of` names."""
    of: Literal["used", "held", "free"]
    """`used`: of a GPU's memory, for weights, what a pass of `tokens` takes at its fullest, communicators and
    the pool (vLLM's gpu_memory_utilization and its profile run). `held`: of what is free before the weights,
    for these and the pool; passes run in the rest (SGLang's mem_fraction_static). `free`: of what all else
    leaves (TensorRT-LLM's free_gpu_memory_fraction)."""
    page: Annotated[int, msgspec.Meta(ge=1, le=2**20)]
    """Tokens per page."""
    tokens: Annotated[int, msgspec.Meta(ge=1, le=2**30)]
    """Tokens of the largest pass that the engine is built or profiled for."""
    sequences: Annotated[int, msgspec.Meta(ge=1, le=2**20)]
    """Requests of that pass, each of which samples."""
    sampling: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0
    """Bytes that the sampler takes for each request and token of the vocabulary."""


class FrameworkMemory(Spec, frozen=True):
    """Memory that a software profile states; a job's section `memory` stands over it key by key.

    Sizes that are unset are nothing.
    """

    context: Size | None = None
    """The CUDA context with the code of loaded kernels, outside the allocator."""
    communicator: Size | None = None
    """Memory of the communication library for each process group of several ranks, outside the allocator."""
    peer: Size | None = None
    """Memory of that library for each other rank of the tp group, outside the allocator."""
    workspace: Size | None = None
    """Memory of matrix libraries, inside the allocator."""
    fragmentation: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    """What the allocator holds and can not use, as a share of what comes and goes within a step."""
    gradient_copies: Literal["none", "buckets"] = "none"
    """Gradients of a pass stand beside their accumulators, in the format of activations: in buckets that stay
    (PyTorch's DistributedDataParallel), without replicas until the pass ends. none: kernels accumulate."""
    gather_buffers: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    """Buffers of a whole sequence that stay, into which sequence parallelism gathers."""
    gather_copies: bool = False
    """Whether updated parameters are gathered through copies: of all, and of the rank's own part."""
    held_outputs: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    """Tensors of the size of what passes between layers that stand besides: of each micro-batch in flight on
    a pipeline stage, of a pass of requests."""
    whole_tables: bool = False
    """Serving: each rank has the whole token table, not its part of it over tp."""
    kv_pool: KvPool | None = None
    """Serving: what is set aside for keys and values. Unset: what the requests need, to their last tokens."""
