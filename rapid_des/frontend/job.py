"""Job files: which model, trained or served how, split over how many GPUs in which way."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from rapid_des.config import Spec
from rapid_des.device.fusion import Policy
from rapid_des.device.operators import Dtype
from rapid_des.frontend.model import Count
from rapid_des.units import Size

Axis: TypeAlias = Literal["tp", "cp", "ep", "dp", "pp"]


class ParallelismSpec(Spec, frozen=True):
    """How many ways each axis splits the job; ranks are laid out by mixed radix, `order` innermost first."""

    tp: Count = 1
    cp: Count = 1
    ep: Count = 1
    dp: Count = 1
    pp: Count = 1
    order: tuple[Axis, ...] = ("tp", "cp", "ep", "dp", "pp")
    """cp gathers keys and values and balances causal work (Grattafiori et al. 2024, section 3.3.2)."""
    sequence_parallel: bool = False
    """Megatron's: norms and residuals split along the sequence over tp."""
    chunks: Count = 1
    """Model chunks a stage holds (virtual pipeline stages), for interleaved schedules."""
    layers: Literal["even", "endpoints"] | tuple[Count, ...] = "even"
    """Layers of each part: alike; alike but the embedding and the head count as one layer each; or listed."""


class PrecisionSpec(Spec, frozen=True):
    """Number formats; unset `gemm` and `kv_cache` follow `activations`, unset `weights` follows `gemm`."""

    activations: Dtype = "bf16"
    gemm: Dtype | None = None
    weights: Dtype | None = None
    """As stored for the GEMMs; narrower than `gemm` is weight-only quantisation (inference)."""
    gradients: Dtype = "fp32"
    """In which gradients are accumulated."""
    gradient_reduce: Dtype = "fp32"
    """In which gradients travel between replicas."""
    master_weights: Dtype | None = "fp32"
    optimizer: Dtype = "fp32"
    kv_cache: Dtype | None = None


class TrainingSpec(Spec, frozen=True):
    """One optimizer step."""

    global_batch: Count
    """Sequences."""
    micro_batch: Count
    """Sequences a replica passes at once."""
    sequence_length: Count
    schedule: Literal["gpipe", "1f1b", "interleaved_1f1b"] = "1f1b"
    recompute: Literal["none", "selective", "full"] = "none"
    """`selective`: the attention core; `full`: every layer from its input."""
    dropout: bool = False
    optimizer: Literal["adam", "adamw"] = "adamw"
    zero_stage: Annotated[int, msgspec.Meta(ge=0, le=1)] = 0
    """1: optimizer states split over dp (Megatron's distributed optimizer)."""
    bucket_parameters: Count = 40_000_000
    """Gradients travel once this many parameters are ready."""
    overlap_gradients: bool = True
    """Gradient buckets travel beside the last micro-batch's backward."""
    overlap_parameters: bool = False
    """ZeRO-1: parameters are gathered beside the next forward, not after the optimizer."""
    overlap_pipeline: bool | None = None
    """A stage computes on while its messages travel; otherwise it waits for its own to leave, and asks for
    one only when it needs it (while interleaving, ahead: stages would block each other). Unset: as
    Megatron-LM does, only where the schedule interleaves."""
    gradient_norm: bool = True
    """Global gradient norm (clipping) before the optimizer."""


class InferenceSpec(Spec, frozen=True):
    """A static batch: one prefill, then one token a step."""

    batch: Count
    """Requests a replica serves together."""
    prompt_length: Count
    output_length: Count
    micro_batch: Count | None = None
    """Requests that pass the pipeline together; unset: all."""
    decode_steps: Literal["all"] | Count = "all"
    """How many decode steps are simulated, spread evenly from the first to the last; the report
    interpolates between them."""
    cuda_graphs: bool = True
    """Decode launches its kernels as one graph."""


class JobSpec(Spec, frozen=True):
    """A job file."""

    model: str
    phase: Literal["training", "inference"]
    parallelism: ParallelismSpec = ParallelismSpec()
    precision: PrecisionSpec = PrecisionSpec()
    training: TrainingSpec | None = None
    inference: InferenceSpec | None = None
    fusion: Policy = "megatron"
    """Which small kernels are fused (the lists of `rapid_des.device.fusion`)."""
    attention: Literal["flash", "unfused"] = "flash"
    vocabulary_multiple: Count | None = None
    """The vocabulary is padded to a multiple of this times tp; unset: not padded."""
    memory_reserve: Size | None = None
    """Memory a GPU spends outside the model: context, communication library, allocator. Unset: none."""
