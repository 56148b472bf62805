"""What a framework takes of a GPU's memory besides the model: context, libraries, allocator, copies."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from rapid_des.config import Spec
from rapid_des.units import Size


class FrameworkMemory(Spec, frozen=True):
    """Memory that a software profile states; a job's section `memory` stands over it key by key.

    Sizes that are unset are nothing.
    """

    context: Size | None = None
    """The CUDA context with the code of loaded kernels, outside the allocator."""
    communicator: Size | None = None
    """Of the communication library, for each process group of several ranks, outside the allocator."""
    peer: Size | None = None
    """Of that library, for each other rank of the tp group, outside the allocator."""
    workspace: Size | None = None
    """Of matrix libraries, inside the allocator."""
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
