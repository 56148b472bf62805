"""What a model file says of a layer's halves: the mixer, and the feed-forward after it.

A kind is a spec with a tag that is listed in `Mixer` or in `FeedForward`. Its `made_by` names the function in
`rapid_des.frontend.layers` that makes it. Kinds of other distributions are all an `ExtensionSpec`.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from rapid_des.config import Spec

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=10**9)]
Activation: TypeAlias = Literal["gelu", "relu", "squared_relu", "swiglu", "geglu"]


class AttentionSpec(Spec, frozen=True, tag_field="kind", tag="attention"):
    """Self-attention with `heads` query heads that share `kv_heads` key and value heads (MHA, GQA, MQA)."""

    made_by = "transformer.grouped_query_attention"

    heads: Count
    """Query heads; tp divides them."""
    kv_heads: Count | None = None
    """The number of heads of keys and values; unset: as many as `heads`."""
    head_dim: Count | None = None
    """Unset: hidden / heads."""
    qkv_bias: bool = False
    """Whether the query, key and value projection has biases."""
    key_bias: bool = True
    """Whether keys have a bias where `qkv_bias` gives one; false: queries and values alone (DINOv3)."""
    output_bias: bool = False
    """Whether the projection after the attention has a bias."""
    window: Count | None = None
    """Sliding window: the latest positions, its own among them, that a query sees. Unset: all."""
    chunk: Count | None = None
    """Local attention: positions of the chunks that do not see each other. Unset: one chunk."""
    rotary: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    """Share of a head's channels that is rotated (RoPE); 0: none. Unset: all where `position` is rope."""
    qk_norm: Literal["none", "head", "whole"] = "none"
    """RMS norms of queries and keys: of each head (Qwen3, Gemma 3), or of all heads together (OLMo 2)."""
    softcap: bool = False
    """Whether scores are capped by a tanh (Gemma 2)."""
    causal: bool = True
    """Whether a query sees the positions up to its own; false: all of them, as in encoders."""
    sinks: bool = False
    """Whether each head has a learned score that takes attention away from all positions (gpt-oss)."""
    output_gate: bool = False
    """Whether sigmoids of a projection as wide as the queries scale what the heads make (Qwen3-Next)."""


class IndexerSpec(Spec, frozen=True):
    """What chooses the positions that queries attend to (DeepSeek sparse attention, DeepSeek-V3.2)."""

    heads: Count
    """Heads that score positions; all tp ranks have all of them."""
    head_dim: Count
    """Channels of a head's query, and of the one key."""
    topk: Count
    """Positions that a query attends to at most."""


class LatentAttentionSpec(Spec, frozen=True, tag_field="kind", tag="latent_attention"):
    """Multi-head latent attention (MLA, DeepSeek-V2): all heads' keys and values from one latent a token."""

    made_by = "latent.latent_attention"

    heads: Count
    """Query heads; tp divides them."""
    kv_rank: Count
    """Width of the latent of keys and values."""
    head_dim: Count
    """Channels of a query or key head that are not rotated."""
    rope_dim: Count
    """Channels of a query head, and of the key that all heads share, that are rotated."""
    value_dim: Count
    """Channels of a value head."""
    q_rank: Count | None = None
    """Width of the queries' latent; unset: queries are projected from the residual stream."""
    indexer: IndexerSpec | None = None
    """What chooses the positions that a query attends to; such models are served, training is refused. Unset:
    queries attend to all positions."""


class MambaSpec(Spec, frozen=True, tag_field="kind", tag="mamba2"):
    """Mamba-2: heads that carry a state from position to position (Dao and Gu 2024)."""

    made_by = "mamba.mamba"

    heads: Count
    """Heads; tp divides them."""
    head_dim: Count
    """Channels of a head."""
    state: Count
    """Width of the state of a channel."""
    groups: Count = 1
    """Groups of heads that share how states take in and give out; tp divides them."""
    window: Count = 4
    """Positions that the convolution before the scan sees."""
    window_bias: bool = True
    """Whether the convolution has a bias a channel."""
    chunk: Count = 256
    """Positions that are computed together."""
    bias: bool = False
    """Whether both projections have biases."""


class GatedDeltaSpec(Spec, frozen=True, tag_field="kind", tag="gated_delta"):
    """Gated delta rule: heads that correct a state position by position (Yang, Kautz, Hatamizadeh 2024)."""

    made_by = "delta.gated_delta"

    heads: Count
    """Value heads, each with a state; tp divides them."""
    key_heads: Count | None = None
    """Query and key heads, each for several value heads. Unset: as `heads`."""
    key_dim: Count = 128
    """Channels of a query or key head."""
    value_dim: Count = 128
    """Channels of a value head."""
    window: Count = 4
    """Positions that the convolution of queries, keys and values sees."""
    chunk: Count = 64
    """Positions that are computed together."""


class LightningSpec(Spec, frozen=True, tag_field="kind", tag="lightning_attention"):
    """Lightning attention: linear attention whose states decay by a fixed rate a head (MiniMax-01, 2025)."""

    made_by = "lightning.lightning_attention"

    heads: Count
    """Heads, each with queries, keys and values; tp divides them."""
    head_dim: Count
    """Channels of a query, key or value head."""
    chunk: Count = 256
    """Positions that are computed together."""


class AbsentSpec(Spec, frozen=True, tag_field="kind", tag="none"):
    """A half that the layer lacks: it consists of the other one, with its norm."""

    made_by = "layer.absent"


class FeedForwardSpec(Spec, frozen=True, tag_field="kind", tag="dense"):
    """The dense feed-forward block; `swiglu` and `geglu` have a gate beside the up projection."""

    made_by = "transformer.dense_feed_forward"

    activation: Activation
    """Activation between the matrices; swiglu and geglu with a gate (SiLU, GELU) beside the up projection."""
    hidden: Count
    """Width between the two matrices; tp divides it."""
    bias: bool = False
    """Whether both matrices have biases."""


class ExpertsSpec(Spec, frozen=True, tag_field="kind", tag="experts"):
    """A mixture of experts: a router sends each token to `topk` of the routed experts.

    `shared_hidden` is the width of the experts that every token passes, all together.
    """

    made_by = "mixture.mixture_of_experts"

    experts: Annotated[int, msgspec.Meta(ge=1, le=2**16)]
    """Routed experts; ep divides them."""
    topk: Annotated[int, msgspec.Meta(ge=1, le=2**10)]
    """Routed experts that each token passes."""
    hidden: Count
    """Width of one routed expert; etp divides it."""
    activation: Activation = "swiglu"
    """Activation between the matrices; swiglu and geglu with a gate (SiLU, GELU) beside the up projection."""
    shared_hidden: Annotated[int, msgspec.Meta(ge=0, le=10**9)] = 0
    """Width of the shared experts together; 0: there are none. tp divides it."""
    shared_gate: bool = False
    """Whether a gate, one weight a channel, scales what the shared experts add."""
    bias: bool = False
    """Whether both matrices of an expert have biases."""
    router_bias: bool = False
    """Whether the router has a bias an expert."""
    latent: Count | None = None
    """Channels to which tokens are projected before they travel to the routed experts, and from which results
    are projected back (latent experts, Nemotron 3). Unset: they travel whole."""
    capacity: Annotated[float, msgspec.Meta(gt=0, le=1000)] | None = None
    """Capacity factor: each expert takes this times its even share of a rank's tokens, padded or dropped.
    Unset: dropless."""


class ExtensionSpec(Spec, frozen=True, tag_field="kind", tag="extension"):
    """A layer kind of another package, which has an entry point of the group `rapid_des.layers`."""

    made_by = "extension.extension"

    name: str
    """The name of the entry point, such as retention."""
    keys: dict[str, bool | int | float | str] = {}
    """The keys that the layer kind has, such as {heads: 32, head_dim: 128}."""

    def __hash__(self) -> int:
        return hash((self.name, *sorted(self.keys.items())))


Mixer: TypeAlias = (
    AttentionSpec
    | LatentAttentionSpec
    | MambaSpec
    | GatedDeltaSpec
    | LightningSpec
    | ExtensionSpec
    | AbsentSpec
)
FeedForward: TypeAlias = FeedForwardSpec | ExpertsSpec | ExtensionSpec | AbsentSpec


class PatchesSpec(Spec, frozen=True):
    """Images in place of tokens: a sequence is an image's patches, behind tokens that are learned (ViT)."""

    size: Count
    """Side of a patch, in pixels."""
    image: Count
    """Side of an image, in pixels."""
    channels: Count = 3
    """Values of a pixel."""
    extra: Annotated[int, msgspec.Meta(ge=0, le=10**4)] = 1
    """Learned tokens before the patches: the one that stands for the class, and registers. 0: SigLIP."""
    mask: bool = False
    """Whether a further learned token takes the place of hidden patches while the model learns (DINOv2)."""
    bias: bool = True
    """Whether the product that embeds patches has a bias; false: CLIP."""
    norm: bool = False
    """Whether a norm of its own stands between the embeddings and the layers (CLIP)."""

    def __post_init__(self) -> None:
        if self.image % self.size:
            raise ValueError(f"image {self.image} is not divisible by size {self.size}")

    @property
    def count(self) -> int:
        """Patches of an image.

        >>> PatchesSpec(16, 224).count, PatchesSpec(16, 224).positions, PatchesSpec(16, 224).width
        (196, 197, 768)
        """
        return (self.image // self.size) ** 2

    @property
    def positions(self) -> int:
        """Length of a sequence."""
        return self.count + self.extra

    @property
    def width(self) -> int:
        """Values of a patch."""
        return self.size**2 * self.channels
