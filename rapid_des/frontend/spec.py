"""Job files: a model trained or served how, on how many GPUs.

`FrameworkMemory` is what a framework takes of a GPU's memory besides the model.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import msgspec

from rapid_des.config import Spec
from rapid_des.device.operators import Dtype
from rapid_des.device.vector import Policy
from rapid_des.frontend.groups import ZERO_STAGES
from rapid_des.frontend.layer_spec import Count
from rapid_des.frontend.model_spec import EncoderInput, ModelSpec
from rapid_des.frontend.schedules import SCHEDULES, ScheduleSpec
from rapid_des.frontend.servers import ServingSpec
from rapid_des.frontend.software import HostSpec, Software, TwoBatchesSpec
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
    """What the allocator holds and cannot use, as a share of what comes and goes within a step."""
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
    stage_buffers: Literal["one", "micro_batches"] = "one"
    """What a pipeline stage receives into: one buffer a direction, or one for each micro-batch, which stays
    (torch.distributed.pipelining)."""
    whole_tables: bool = False
    """Serving: each rank has the whole token table, not its part of it over tp."""
    kv_pool: KvPool | None = None
    """Serving: what is set aside for keys and values. Unset: what the requests need, to their last tokens."""


Axis: TypeAlias = Literal["tp", "cp", "ep", "dp", "pp"]
ContextKind: TypeAlias = Literal["all_gather", "ring", "ulysses", "ulysses_ring"]
TensorOverlap: TypeAlias = Literal["none", "ring", "pipeline", "userbuffers"]
CrossEntropy: TypeAlias = Literal["one_pass", "separate", "compiled", "online", "torch"]
Recipe: TypeAlias = Literal["delayed", "current", "blockwise", "mxfp8", "nvfp4"]
Placement: TypeAlias = Literal["contiguous", "eplb"]
Recompute: TypeAlias = Literal["none", "selective", "full", "alternate"] | tuple[str, ...]
ZeroStage: TypeAlias = Annotated[int, msgspec.Meta(ge=min(ZERO_STAGES), le=max(ZERO_STAGES))]
if TYPE_CHECKING:
    ScheduleName: TypeAlias = str
else:
    ScheduleName = Literal[tuple(SCHEDULES)]


class BalancedLoad(Spec, frozen=True, tag_field="kind", tag="balanced"):
    """All experts get as many copies of tokens."""


class HistogramLoad(Spec, frozen=True, tag_field="kind", tag="histogram"):
    """Experts get counted shares of copies: `counts` here, or in a `file`."""

    counts: tuple[tuple[Annotated[int, msgspec.Meta(ge=0)], ...], ...] = ()
    """Copies of each expert, in one row for all layers with experts, or one for each of them."""
    file: str | None = None
    """A text file, by its path from the job's folder, whose lines are such rows, commas between numbers."""


class ZipfLoad(Spec, frozen=True, tag_field="kind", tag="zipf"):
    """The r-th expert, in an order drawn for each layer, gets r^-exponent."""

    exponent: Annotated[float, msgspec.Meta(ge=0, le=10)]
    """Exponent of the ranks; 0: all experts get the same."""
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**32)]
    """Seed of the draw."""
    layers: Count | None = None
    """How many different layers are drawn, which then repeat; unset: every layer."""


class DirichletLoad(Spec, frozen=True, tag_field="kind", tag="dirichlet"):
    """Shares drawn for each layer from a symmetric Dirichlet distribution."""

    concentration: Annotated[float, msgspec.Meta(gt=0, le=1e6)]
    """Concentration of every expert; the smaller, the more uneven."""
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**32)]
    """Seed of the draw."""
    layers: Count | None = None
    """How many different layers are drawn, which then repeat; unset: every layer."""


ExpertLoad: TypeAlias = BalancedLoad | HistogramLoad | ZipfLoad | DirichletLoad


class RoutingSpec(Spec, frozen=True):
    """How tokens find their experts: how many go to which, who holds these, and how they travel."""

    load: ExpertLoad = BalancedLoad()
    """How copies of tokens spread over routed experts (`kind` says which is meant)."""
    placement: Placement = "contiguous"
    """Which rank holds which: in their order, or `eplb`: dealt out so that ranks carry about the same."""
    redundant: Annotated[int, msgspec.Meta(ge=0, le=2**16)] = 0
    """Further copies of the experts that carry most (inference); ep divides all copies together."""
    pads: bool = True
    """With a capacity factor: experts with fewer tokens are padded; false: they compute what they get."""
    dispatcher: Literal["all_to_all", "all_gather", "deepep", "hybridep"] = "all_to_all"
    """How tokens travel: every copy by itself; all tokens to all ranks (Megatron's allgather); or as DeepEP's
    normal kernels: once to each node, and there once to each rank; decode steps take its low-latency
    kernels, which send every copy by itself in the order of experts. `hybridep`: once too, by Hybrid-EP's
    kernels, whatever the phase (Megatron's moe-flex-dispatcher-backend)."""
    nodes: Count | None = None
    """Most nodes to which a token goes (DeepSeek-V3: 4); with deepep or hybridep. Unset: any."""
    dispatch: Dtype | None = None
    """Format in which copies travel; unset: as activations. Results return in the format of activations."""
    overlap_shared: bool = False
    """Shared experts compute while copies and results travel, as Megatron's moe-shared-expert-overlap."""

    @property
    def sends_once(self) -> bool:
        """Whether a token travels once to each node, and to each rank there, for all of its experts."""
        return self.dispatcher in ("deepep", "hybridep")


class ParallelismSpec(Spec, frozen=True):
    """The degrees by which axes split the job; ranks are laid out by mixed radix, `order` innermost first."""

    tp: Count = 1
    """Tensor parallel: number of ranks that split matrices."""
    cp: Count = 1
    """Context parallel: number of ranks that split sequences, and the KV cache of what decodes."""
    cp_kind: ContextKind = "all_gather"
    """How attention sees all of a sequence. `all_gather`: keys and values are gathered (Grattafiori et al.
    2024, section 3.3.2). `ring`: they pass from rank to rank beside the attention to those that are there
    (Liu et al. 2023). `ulysses`: an all-to-all gives each rank some heads of all positions (Jacobs et al.
    2023). `ulysses_ring`: that among `cp_heads` ranks, a ring of such groups (Megatron's a2a+p2p). All but
    ulysses balance causal work: a rank holds pieces i and 2·cp - 1 - i."""
    cp_heads: Annotated[int, msgspec.Meta(ge=2, le=10**9)] | None = None
    """ulysses_ring: the ranks of cp that split heads, innermost; divides cp."""
    ep: Count = 1
    """Expert parallel: the degree by which routed experts are spread; ep · etp divides tp · cp · dp. For
    experts the ranks of a stage, as `order` has them, are laid out apart: etp innermost, then ep, then
    replicas."""
    etp: Count | None = None
    """Expert tensor parallel: number of ranks that split each routed expert. Unset: as tp."""
    dp: Count = 1
    """Data parallel: number of replicas."""
    dp_replicate: Count = 1
    """Copies of the state that replicas split (HSDP; Megatron-LM's distributed optimizer instances): this
    many groups of dp / dp_replicate replicas, ranks that follow one another. Parameters are gathered inside a
    group, gradients reduced inside and then summed over the copies."""
    pp: Count = 1
    """Pipeline parallel: number of stages."""
    order: tuple[Axis, ...] = ("tp", "cp", "ep", "dp", "pp")
    """Order of the axes in rank numbers, innermost first."""
    placement: str | tuple[Annotated[int, msgspec.Meta(ge=0)], ...] | None = None
    """The GPU of each rank: a list, a JSON file with one by its path from the job's folder, or auto, which
    looks for one by the job's traffic, on as many of the first GPUs. Simulated flattened. Unset: rank 0
    stands on GPU 0, and so on."""
    sequence_parallel: bool = False
    """Megatron's: norms and residuals split along the sequence over tp."""
    chunks: Count = 1
    """Model chunks a stage holds (virtual pipeline stages), for schedules that interleave any number."""
    layers: Literal["even", "endpoints"] | tuple[Annotated[int, msgspec.Meta(ge=0, le=10**9)], ...] = "even"
    """Layers of each part: alike; alike but the embedding and the head count as one layer each (Megatron's
    account-for-embedding-in-pipeline-split); or listed, of which some may be 0."""

    @property
    def expert_degree(self) -> int:
        """Number of ranks that split each routed expert."""
        return self.tp if self.etp is None else self.etp

    @property
    def passes_blocks(self) -> bool:
        """Whether blocks of keys and values are passed round the cp ranks."""
        return self.cp_kind in ("ring", "ulysses_ring") and self.cp > self.head_degree

    @property
    def head_degree(self) -> int:
        """The degree of cp by which attention is split by heads, not by blocks of keys."""
        return {"ulysses": self.cp, "ulysses_ring": self.cp_heads or 1}.get(self.cp_kind, 1)


class PrecisionSpec(Spec, frozen=True):
    """Number formats; unset `gemm` and `kv_cache` follow `activations`, unset `weights` follows `gemm`."""

    activations: Dtype = "bf16"
    """Format of activations and their messages."""
    gemm: Dtype | None = None
    """Format in which GEMMs multiply; unset: as activations."""
    recipe: Recipe | None = None
    """How narrow training finds scales, as Transformer Engine's recipes: `delayed` from earlier steps, so
    that a norm's kernel writes narrow values itself; `current` from the tensor, which is read once more;
    `blockwise`, `mxfp8` and `nvfp4` from each block while casting. Unset: delayed, where gemm is narrower
    than activations."""
    quantisation: Literal["library", "fused"] = "library"
    """Inference in narrow GEMMs: what brings their inputs to that format: kernels of the GEMM's library,
    where it has some, or the kernels that make them, by scales that are known (TensorRT's engines)."""
    weights: Dtype | None = None
    """Stored format of GEMM weights; narrower than `gemm` is weight-only quantisation (inference)."""
    wide: Literal["nothing", "attention"] = "nothing"
    """Which layers' matrices `gemm` and `weights` leave out, and stay as activations (inference): those of
    attention, as checkpoints do that quantise feed-forwards alone (gpt-oss, DeepSeek-R1 in nvfp4)."""
    gradients: Dtype = "fp32"
    """Format in which gradients are accumulated."""
    gradient_reduce: Dtype = "fp32"
    """Format in which gradients are reduced between replicas."""
    parameter_gather: Dtype | None = None
    """In which parameters travel where replicas gather them (zero_stage 3: narrower than products take them,
    they are widened); unset: as activations."""
    master_weights: Dtype | None = "fp32"
    """Format of the optimizer's own copy of the weights; null, or that of activations: it has none."""
    optimizer: Dtype = "fp32"
    """Format of each optimizer state."""
    kv_cache: Dtype | None = None
    """Format of cached keys and values; unset: as activations."""

    @property
    def own_weights(self) -> Dtype | None:
        """The format of the optimizer's own copy of the weights; None where it has none."""
        return None if self.master_weights == self.activations else self.master_weights

    @property
    def gathers(self) -> Dtype:
        """The format in which replicas gather parameters."""
        return self.parameter_gather or self.activations


class AdaptersSpec(Spec, frozen=True):
    """Low-rank adapters (LoRA): the model's own weights are frozen, of these alone there are gradients."""

    rank: Annotated[int, msgspec.Meta(ge=1, le=2**16)]
    """Rank of the two factors of an adapter."""
    matrices: tuple[str, ...] = ("attention.qkv", "attention.output", "ffn.in", "ffn.out")
    """Matrices of every layer that have an adapter, by the names of their operators."""
    weights: Dtype | None = None
    """Format in which the frozen matrices of the layers are stored (QLoRA: fp4); they are widened before each
    product. Unset: as activations."""


class TrainingSpec(Spec, frozen=True):
    """One optimizer step."""

    global_batch: Count
    """Sequences of a step."""
    micro_batch: Count
    """Sequences of a micro-batch of one replica."""
    sequence_length: Count
    """Tokens of a sequence."""
    source_length: Count | None = None
    """Tokens that the encoder reads for each sequence, of models with one for texts (T5). Unset: none."""
    images: Count | None = None
    """Images that the encoder reads for each sequence, of models with one for images; each takes its tokens
    of `sequence_length`. Unset: none."""
    frozen_encoder: bool = False
    """The encoder runs and is not trained: of images, whose projector is."""
    schedule: ScheduleName | ScheduleSpec = "1f1b"
    """The order in which stages pass micro-batches on: by name, by a file's path, or what that would hold."""
    micro_batch_group: Count | None = None
    """interleaved_1f1b: micro-batches that pass a chunk one after the other (Megatron Core's
    microbatch-group-size-per-vp-stage). Unset: the fewest from pp on that leave over none or pp or more."""
    recompute: Recompute = "none"
    """`selective`: the attention core; `full`: every layer from its input; `alternate`: small kernels and
    every second product (torchtitan's selective by operator: keys, output and up); or names of operators:
    whole (`ffn.activation`), their last part (`norm`) or first (`ffn`); what they make is made again."""
    recompute_method: Literal["uniform", "block"] = "uniform"
    """recompute full: all layers, in groups from the input of the first; or the first ones of each part of
    the model (chunk of a stage), each from its own (Megatron-LM's)."""
    recompute_layers: Count | None = None
    """uniform: layers of a group; unset: 1. block: how many are recomputed."""
    recompute_kinds: tuple[Literal["attention", "mamba", "delta", "lightning", "ffn", "experts"], ...] = ()
    """Only layers with a half of one of these kinds are recomputed; none named: all."""
    recompute_early_stop: bool = False
    """recompute full: what is run again stops at the last tensor that its backward needs, so that the last
    product is not (torch.utils.checkpoint from PyTorch 2.1 on, where it is not reentrant)."""
    logged_losses: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    """Cross-entropies besides the loss that the trainer works out from each micro-batch's logits for its log,
    each by kernels of its own in fp32 (Composer's train metrics)."""
    dropout: bool = False
    """Whether dropout kernels run and keep their masks."""
    optimizer: Literal["adam", "adamw", "adam_8bit", "sgd", "muon"] = "adamw"
    """Which optimizer. adam_8bit: moments of a byte, quantised in blocks; sgd: with momentum; muon: layers'
    matrices by orthogonalised momentum, all else by AdamW."""
    offload_activations: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    """Share of what each layer keeps for its backward that goes to the host's memory and comes back, a layer
    ahead of need, beside compute."""
    offload_optimizer: bool = False
    """Master weights and optimizer states stand in the host's memory, and its processor updates them:
    gradients go there, weights come back, bucket by bucket (ZeRO-Offload, Ren et al. 2021)."""
    zero_stage: ZeroStage = 0
    """Split over dp: 1: optimizer states (Megatron's distributed optimizer); 2: gradients too; 3: parameters
    too, gathered for each layer's forward and backward (FSDP, DeepSpeed ZeRO-3)."""
    prefetch: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 1
    """zero_stage 3: how many layers ahead of the one that computes are gathered."""
    gather_singly: bool | Annotated[int, msgspec.Meta(ge=2, le=2**40)] = False
    """zero_stage 3: each matrix of a layer is gathered by itself and given back after each use, so that
    layers which are run again gather once more (DeepSpeed before 0.6); a number: what has fewer parameters
    stays whole on every replica. Otherwise a layer's parameters travel together."""
    unit_copies: Literal["none", "flat", "per_parameter", "lists"] = "none"
    """zero_stage 3: what is copied of a whole layer besides. flat: its gradients into one tensor, which is
    widened and divided before it travels (PyTorch's first FSDP); per_parameter: parameters out of what was
    gathered, gradients into what is reduced (its second, fully_shard); lists: each matrix by itself out of
    the lists of torch.distributed's all_gather, its gradient divided and into those of reduce_scatter."""
    reshard: bool | Annotated[int, msgspec.Meta(ge=2, le=10**9)] = True
    """zero_stage 3: a layer's parameters are given back after its forward and gathered again for its
    backward (FSDP: FULL_SHARD); false: they stay until then (SHARD_GRAD_OP); a number: they stay split over
    this many ranks that follow one another, and are gathered from these (ZeRO++ hpZ, Wang et al. 2023)."""
    reduce_each_micro_batch: bool | None = None
    """Gradients are reduced after each micro-batch's backward; otherwise they are accumulated whole and
    reduced after the last one's. Unset: with zero_stage 2 and 3."""
    bucket_parameters: Count = 40_000_000
    """Gradients travel once this many parameters are ready."""
    bucket_parameters_per_replica: Annotated[int, msgspec.Meta(ge=0, le=2**40)] = 0
    """And not before there are this many for each rank that they are reduced over."""
    fused_accumulation: bool = True
    """Products of weights' gradients add to what earlier micro-batches left (Megatron-LM's
    gradient_accumulation_fusion); false: they write in the activations' format, and a kernel adds each."""
    overlap_gradients: bool = True
    """Gradient buckets travel beside the last micro-batch's backward."""
    overlap_parameters: bool = False
    """ZeRO-1: parameters are gathered beside the next forward, not after the optimizer."""
    overlap_pipeline: bool | None = None
    """A stage computes on while its messages travel; otherwise it waits for its own to leave, and asks for
    one only when it needs it (ahead where stages would block each other). Unset: as Megatron-LM does, with
    all schedules but gpipe and 1f1b."""
    overlap_batches: bool = False
    """Each forward runs beside a backward of another micro-batch and computes while the other's tokens travel
    to experts (Megatron Core's overlap-moe-expert-parallel-comm): with interleaved_1f1b, or 1f1b of one
    stage. The pairs of dualpipe do so anyway."""
    overlap_tp_gradients: bool = True
    """Sums over tp of the input gradients of column-parallel matrices travel beside the products of their
    weights' gradients (Megatron-LM's async_tensor_model_parallel_allreduce); false: behind them."""
    overlap_tp: TensorOverlap = "none"
    """Whether gathers and sums of sequence shards travel piece by piece beside the products that need or
    make them: passed on in a ring, by a collective for each of tp pieces (pipeline), or as Transformer
    Engine's user buffers do by default, gathers in a ring and sums in a pipeline. The head's are whole."""
    sequence_copies: bool = False
    """A kernel copies all of a tensor behind each gather of sequence shards, and before each sum to them: in
    PyTorch the sequence is a tensor's second dimension (torch.distributed's _functional_collectives.py:
    `torch.cat`; torchtitan's pull request 437). What `overlap_tp` cuts is not copied."""
    batched_messages: bool = False
    """Messages between stages that do not overlap compute go through the communicator of all stages, as
    torch's batch_isend_irecv sends them; otherwise each two ranks have one of their own."""
    scatter_gather: bool = False
    """Where tp ranks hold the same output of a stage (no sequence parallelism), each sends its part, and the
    ranks of the next stage gather the parts (Narayanan et al. 2021, section 4.1)."""
    documents: tuple[Count, ...] = ()
    """Lengths of the documents that are packed into every sequence, which attention does not cross; they sum
    to its length. cp cuts each of them by itself. None stated: one document."""
    adapters: AdaptersSpec | None = None
    """Low-rank adapters (LoRA) that are trained in the place of the model. Unset: the model is."""
    gradient_norm: bool = True
    """Global gradient norm (clipping) before the optimizer."""

    @property
    def accumulates_in_products(self) -> bool:
        """Whether no kernel but products adds gradients; the factors of adapters always do."""
        return self.fused_accumulation or self.adapters is not None


class SpeculativeSpec(Spec, frozen=True):
    """Speculative decoding: tokens drafted a step, which one pass of the model checks (`speculation`)."""

    method: Literal["draft", "eagle", "mtp"]
    """The drafter: a smaller `model`; a module of a projection and a layer as the model's last, trained for
    it (EAGLE); that of a model with `predictions` (multi-token prediction)."""
    tokens: Count
    """Number of tokens drafted for each request in each step."""
    acceptance: tuple[Annotated[float, msgspec.Meta(ge=0, le=1)], ...]
    """Share of passes that keep a drafted token where all before it are kept, as measured; for each token."""
    model: str | ModelSpec | None = None
    """draft: the smaller model, by name or path or what its file would hold."""

    def __post_init__(self) -> None:
        if len(self.acceptance) != self.tokens:
            raise ValueError(f"acceptance: {len(self.acceptance)} numbers for {self.tokens} drafted tokens")
        if (self.model is None) == (self.method == "draft"):
            raise ValueError(
                f"model: method {self.method} {'needs one' if self.model is None else 'has none'}"
            )

    @property
    def tokens_a_step(self) -> float:
        """Tokens that a step is expected to make.

        >>> SpeculativeSpec("eagle", 2, (0.8, 0.5)).tokens_a_step
        2.2
        """
        return float(sum(math.prod(self.acceptance[:n]) for n in range(self.tokens + 1)))


class RequestsSpec(Spec, frozen=True):
    """Requests of a static batch that are alike."""

    prompt_length: Count
    """Tokens of each prompt."""
    output_length: Annotated[int, msgspec.Meta(ge=0, le=10**9)]
    """Tokens that each generates, the first by the prefill; 0: a prompt that does not end in this pass."""
    count: Count = 1
    """Number of requests."""
    cached: Annotated[int, msgspec.Meta(ge=0, le=10**9)] = 0
    """Tokens of each prompt that stand in the KV cache before the first pass (a shared prefix, or chunks
    that have passed)."""
    drafted: Annotated[int, msgspec.Meta(ge=0, le=10**9)] = 0
    """Last tokens of each prompt that are drafts: the first pass checks them, and chooses a token after each
    and after the one before them. With output_length above 0."""

    def __post_init__(self) -> None:
        if self.cached >= self.prompt_length:
            raise ValueError(f"cached: {self.cached} of {self.prompt_length} tokens of a prompt leave none")
        if self.drafted and not (self.output_length and self.drafted < self.prompt_length - self.cached):
            raise ValueError(f"drafted: {self.drafted} need a token before them to pass, and output_length")


class InferenceSpec(Spec, frozen=True):
    """A static batch: one prefill, then one token a step.

    Requests are alike (`batch`, `prompt_length`, `output_length`) or listed by kind (`requests`).
    """

    batch: Count | None = None
    """Requests a replica serves together."""
    prompt_length: Count | None = None
    """Tokens of each prompt."""
    output_length: Count | None = None
    """Tokens that each request generates, the first by the prefill."""
    source_length: Count | None = None
    """Tokens that the encoder reads for each request, of models with one for texts (T5); `prompt_length` is
    then what the decoder begins with, as 1. Unset: none."""
    images: Count | None = None
    """Images of each request, of models with an encoder for images; each takes its tokens of the prompt.
    Unset: none."""
    requests: tuple[RequestsSpec, ...] = ()
    """Requests of several lengths, in the place of these three: all begin with one prefill, each kind ends
    with its own last token, and the others go on without it."""
    micro_batch: Count | None = None
    """Requests that pass the pipeline together, of each kind as large a part; unset: all."""
    prefill_tokens: Count | None = None
    """Tokens of a pass of prompts at most: longer ones take several, in their order, that cut prompts. Unset:
    one pass; where that does not fit into memory, passes of `memory.kv_pool.tokens`."""
    decode_steps: Literal["all"] | Count = "all"
    """How many decode steps are simulated, spread evenly from the first to the last; the report
    interpolates between them. Where requests end at different steps, first and last step between two ends
    are simulated in any case."""
    cuda_graphs: bool = True
    """Decode launches its kernels as one graph; false: one by one, whatever the device's `launch`."""

    absorbs: bool = True
    """Latent attention decodes over the latent, with the up-projections multiplied into queries and results;
    false: it makes keys and values of all cached tokens in each step."""
    shared_stream: Literal["never", "decode"] | Annotated[int, msgspec.Meta(ge=1, le=2**31)] = "never"
    """Passes in which shared experts run on a second stream of kernels, beside the router and the routed
    experts: those that decode, or that have at most this many tokens. Where the tokens of all ranks are
    gathered they run beside the products alone; dispatchers that send tokens once leave them in line."""
    two_batches: TwoBatchesSpec | None = None
    """Passes that run as two half-batches which take turns at the exchanges of tokens among experts: while
    tokens of one travel, the other computes. Unset: none."""
    speculative: SpeculativeSpec | None = None
    """Drafted tokens that a step checks, as in `{method: mtp, tokens: 1, acceptance: [0.8]}`. Unset: a step
    makes one token."""

    def __post_init__(self) -> None:
        alike = {name: getattr(self, name) for name in ("batch", "prompt_length", "output_length")}
        stated = [name for name, value in alike.items() if value is not None]
        if self.requests and stated:
            raise ValueError(f"requests: they are listed, so {', '.join(stated)} would never be read")
        missing = [name for name in alike if name not in stated]
        if missing and not self.requests:
            problem = f"{', '.join(missing)}: must be there, or `requests`, a list by length, in their place"
            raise ValueError(problem)

    @property
    def kinds(self) -> tuple[RequestsSpec, ...]:
        """The kinds of requests."""
        if self.batch is None or self.prompt_length is None or self.output_length is None:
            return self.requests
        return (RequestsSpec(self.prompt_length, self.output_length, self.batch),)

    @property
    def total(self) -> int:
        """Number of requests of all kinds."""
        return sum(kind.count for kind in self.kinds)

    @property
    def tokens_a_step(self) -> float:
        """Tokens that a decode step makes of a request, on average."""
        return 1.0 if self.speculative is None else self.speculative.tokens_a_step

    def steps_of(self, kind: RequestsSpec) -> int:
        """Return in how many passes a kind takes part: one of its prompts, others for later tokens."""
        return 1 + math.ceil(max(0, kind.output_length - 1) / self.tokens_a_step)

    @property
    def steps(self) -> int:
        """Number of passes until the last token."""
        return max(map(self.steps_of, self.kinds))


class JobSpec(Spec, frozen=True):
    """A job file."""

    model: str | ModelSpec
    """A model file by name or path, or what it would hold."""
    phase: Literal["training", "inference"]
    """Whether the job trains or serves."""
    software: str | Software | None = None
    """The framework or engine: a profile by name (`rapid-des presets software`) or path, or what it would
    hold. Its `defaults` stand for keys that the job does not state. Unset: megatron-2025, or vllm-0.x."""
    parallelism: ParallelismSpec = ParallelismSpec()
    """How the job is split over GPUs."""
    precision: PrecisionSpec = PrecisionSpec()
    """Number formats."""
    routing: RoutingSpec = RoutingSpec()
    """How tokens find their experts, in models with experts."""
    training: TrainingSpec | None = None
    """One optimizer step; with phase training."""
    inference: InferenceSpec | None = None
    """A batch of requests, as in `{batch: 8, prompt_length: 512, output_length: 128}`; in phase inference."""
    serving: ServingSpec | None = None
    """How a server takes requests as they come, as in `{policy: sglang, router: session}`; with phase
    inference. Unset: by the defaults of its keys."""
    fusion: Policy = "megatron"
    """Which small kernels are fused (the lists of `rapid_des.device.vector`)."""
    norm_in_sum: Size | None = None
    """Inference: sums over tp of up to this many bytes take the residual and the RMS norm behind them into
    their kernel (FlashInfer's `trtllm_allreduce_fusion`); unset: the norm is a kernel by itself."""
    attention: Literal["flash", "unfused"] = "flash"
    """Attention as one fused kernel (flash), or as separate kernels for scores, softmax and values."""
    cross_entropy: CrossEntropy = "one_pass"
    """Kernels of the loss in training. `separate`: PyTorch's, one for each of its steps, over fp32 logits
    (Megatron-LM's vocabulary-parallel cross-entropy); `compiled`: the same with steps joined by
    torch.compile (its cross_entropy_loss_fusion); `online`: Triton's, which read logits as they are and
    leave the gradient in their place (Transformer Engine); `torch`: torch.nn.functional.cross_entropy on
    fp32 logits, which keeps the logarithm of their softmax and makes a gradient of that and of the logits.
    `one_pass`: a cast, and a forward and a backward kernel."""
    vocabulary_multiple: Count | None = None
    """The vocabulary is padded to a multiple of this times tp; unset: not padded."""
    host: HostSpec | None = None
    """What the host of each rank needs to issue its work; unset: nothing."""
    memory: FrameworkMemory = FrameworkMemory()
    """What the framework takes of a GPU's memory besides the model."""
    memory_reserve: Size | None = None
    """Memory to leave free on a GPU in addition. Unset: none."""

    @property
    def source(self) -> EncoderInput | None:
        """What an encoder reads for each sequence; None: the model has none, or its length is not stated."""
        section, encoder = self.training or self.inference, getattr(self.model, "encoder", None)
        if section is None or encoder is None:
            return None
        if encoder.model.patches is None:
            return EncoderInput(1, section.source_length) if section.source_length else None
        patches, images = encoder.model.patches, section.images or 0
        return EncoderInput(images, patches.positions, images * encoder.tokens) if images else None

    @property
    def reads_source(self) -> bool:
        """Whether it states what only jobs with an encoder have, or its model has one."""
        section, frozen = self.training or self.inference, self.training and self.training.frozen_encoder
        stated = section is not None and (section.source_length or section.images)
        return bool(stated or frozen or getattr(self.model, "encoder", None))

    @property
    def freezes(self) -> bool:
        """Whether training leaves some parameters as they are."""
        spec = self.training
        return spec is not None and (spec.adapters is not None or spec.frozen_encoder)

    @property
    def speculative(self) -> SpeculativeSpec | None:
        """How tokens are drafted; None: they are not."""
        return None if self.inference is None else self.inference.speculative
