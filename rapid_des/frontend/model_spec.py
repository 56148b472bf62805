"""Model files: a decoder by its dimensions, or an encoder, or both."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Struct

from rapid_des.config import Spec
from rapid_des.frontend.layer_spec import (
    AttentionSpec,
    Count,
    FeedForward,
    FeedForwardSpec,
    Mixer,
    PatchesSpec,
)

Norms: TypeAlias = Literal["before", "after", "both"]
Block: TypeAlias = Literal["sequential", "parallel", "parallel_one_norm"]


class EncoderInput(Struct, frozen=True):
    """What an encoder reads for each sequence of the decoder: a text, or images."""

    count: int
    """Number of sequences of the encoder."""
    length: int
    """Positions of each."""
    taken: int = 0
    """Positions of the decoder's sequence whose embeddings it makes; 0: layers attend to what it makes."""

    @property
    def positions(self) -> int:
        """Positions of all its sequences."""
        return self.count * self.length


class LayerException(Spec, frozen=True):
    """Layers that differ from the others: `start`, `start + every`, … below `stop`."""

    start: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 0
    """Number of the first layer, counted from 0."""
    stop: Annotated[int, msgspec.Meta(ge=1, le=10_000)] | None = None
    """Number after the last layer; unset: up to the last layer of the model."""
    every: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1
    """Distance between the layers."""
    attention: Mixer | None = None
    """Attention of these layers; unset: as before."""
    feed_forward: FeedForward | None = None
    """Feed-forward of these layers; unset: as before."""


class EncoderSpec(Spec, frozen=True):
    """An encoder in front of the decoder, of texts, to which every layer attends (T5), or of images.

    What it makes of an image goes through a projector, and stands in the place of some tokens' embeddings.
    """

    model: ModelSpec
    """The encoder, as a model file without a head: `vocabulary: 0` with patches, and with a text that of the
    decoder, whose table of tokens it shares."""
    merge: Count = 1
    """Images: positions that are joined into one token; `join` says how."""
    join: Literal["mean", "side_by_side"] = "mean"
    """Images: whether merged positions are averaged (Gemma 3), or stand side by side (Qwen2-VL)."""
    projector: tuple[Count, ...] = ()
    """Images: outputs of the projector's matrices, the last as wide as the decoder; a GELU stands between two
    of them."""
    projector_bias: bool = True
    """Images: whether these matrices have biases."""
    projector_norm: bool = False
    """Images: whether an RMS norm stands before them (Gemma 3)."""

    @property
    def tokens(self) -> int:
        """Tokens of the decoder's sequence that an image takes, without the learned tokens before patches."""
        return 0 if self.model.patches is None else self.model.patches.count // self.merge

    @property
    def projector_inputs(self) -> tuple[int, ...]:
        """Inputs of each matrix of the projector."""
        first = self.model.hidden * (self.merge if self.join == "side_by_side" else 1)
        return (first, *self.projector[:-1]) if self.projector else ()

    @property
    def projector_parameters(self) -> int:
        """Parameters of the projector: matrices, biases and the norm."""
        pairs = zip(self.projector_inputs, self.projector, strict=True)
        matrices = sum((inputs + self.projector_bias) * outputs for inputs, outputs in pairs)
        return matrices + sum(self.projector_inputs[:1]) * self.projector_norm


class ModelSpec(Spec, frozen=True):
    """A model file. Of `attention` and `feed_forward` a `kind` says which is meant (`attention`, `dense`)."""

    hidden: Count
    """Width of the residual stream."""
    layers: Annotated[int, msgspec.Meta(ge=1, le=10_000)]
    """Number of layers."""
    attention: Mixer
    """The attention of every layer."""
    feed_forward: FeedForward
    """The feed-forward of every layer."""
    norm: Literal["layer_norm", "rms_norm"]
    """Which norm stands at both halves of a layer and before the head."""
    position: Literal["rope", "learned", "relative", "none"]
    """Rotary embedding of queries and keys, a learned table of positions, a learned bias a head and distance,
    of `position_buckets` distances, that all layers share (T5), or none of them."""
    vocabulary: Annotated[int, msgspec.Meta(ge=0, le=10**9)]
    """Tokens of the vocabulary, without padding; of images the classes, and 0 for a model without a head,
    which makes features (DINO)."""
    max_positions: Count
    """The longest sequence; with learned positions the rows of their table."""
    tied_embeddings: bool
    """Whether the output head is the token embedding."""
    norms: Norms = "before"
    """Where each half has a norm: of what it reads, of what it adds (OLMo 2), or of both (Gemma 2)."""
    norm_bias: bool | None = None
    """Whether layer norms have biases beside their gains; unset: they have."""
    norm_gain: bool = True
    """Whether norms have a gain a channel; false: they have no parameters at all (OLMo)."""
    block: Block = "sequential"
    """Whether the feed-forward reads what attention made, or both the same stream (GPT-NeoX): each by a
    norm of its own, or by one (Falcon 7B)."""
    layer_scale: bool = False
    """Whether a gain a channel scales what each half adds (CaiT, DINO)."""
    head_bias: bool = False
    """Whether the output head has a bias a token, or a feature (SigLIP)."""
    logit_softcap: bool = False
    """Whether logits are capped by a tanh (Gemma 2)."""
    patches: PatchesSpec | None = None
    """Images in place of tokens. Unset: tokens."""
    features: Annotated[int, msgspec.Meta(ge=0, le=2**31)] | None = None
    """Width of the projection of one position of each sequence, which stands in place of the head over the
    vocabulary (CLIP); 0: all positions are given as they are (the text encoder of Stable Diffusion). Unset:
    there is a head."""
    predictions: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    """Modules that predict further tokens (DeepSeek-V3), each with a layer as the last; only training has
    them, and parameters do not count them."""
    exceptions: tuple[LayerException, ...] = ()
    """Layers that differ; of several for one layer the last that states something holds."""
    position_buckets: Count = 32
    """Number of distances that have a bias of their own with `position: relative`."""
    pooling: Literal["first", "attention"] = "first"
    """Images: what reads the positions: the first one, or a layer in which a learned query attends to all of
    them (SigLIP)."""
    encoder: EncoderSpec | None = None
    """An encoder in front of these layers. Unset: none."""

    def __post_init__(self) -> None:
        for other in self.exceptions:
            stop = self.layers if other.stop is None else other.stop
            if not other.start < stop <= self.layers:
                raise ValueError(f"exceptions: there are no layers {other.start} to {stop} of {self.layers}")
            if other.attention is None and other.feed_forward is None:
                raise ValueError("exceptions: one states neither attention nor feed_forward")
        self._check_ends()

    def _check_ends(self) -> None:
        if self.layer_scale and (self.norms, self.block) != ("before", "sequential"):
            raise ValueError("layer_scale: allowed with norms before, and a sequential block")
        if self.patches is not None:
            self._check_images(self.patches)
        elif not self.vocabulary:
            raise ValueError("vocabulary 0: only models of images (patches) have none")

        if self.pooling == "attention":
            self._check_pooling()
        if self.encoder is not None:
            self._check_encoder(self.encoder)

    def _check_pooling(self) -> None:
        if self.patches is None or self.vocabulary or self.features:
            raise ValueError("pooling: attention is for images, and stands in place of a head")
        plain, half = isinstance(self.attention, AttentionSpec), self.feed_forward
        if not (plain and isinstance(half, FeedForwardSpec)) or half.activation in ("swiglu", "geglu"):
            raise ValueError("pooling: attention needs layers of kind attention and dense, without a gate")

    def _check_encoder(self, encoder: EncoderSpec) -> None:
        model, projector = encoder.model, encoder.projector
        if model.encoder is not None or self.patches is not None or self.predictions:
            raise ValueError("encoder: stands in front of a decoder of tokens without predictions, and alone")
        if model.patches is None:
            alike = (model.vocabulary, model.hidden) == (self.vocabulary, self.hidden)
            if not (alike and model.tied_embeddings) or projector or model.features:
                problem = "has the decoder's hidden and vocabulary, tied_embeddings, and no projector"
                raise ValueError(f"encoder: one of texts {problem}")
        elif not projector or projector[-1] != self.hidden:
            raise ValueError(f"encoder.projector: must end with the decoder's hidden {self.hidden}")
        elif model.vocabulary or model.features or model.patches.count % encoder.merge:
            raise ValueError("encoder: one of images has no head, and merge divides its patches")

    def _check_images(self, patches: PatchesSpec) -> None:
        if self.max_positions != patches.positions:
            has = f"an image has {patches.count} patches, behind {patches.extra} learned tokens"
            raise ValueError(f"max_positions {self.max_positions}: {has}")
        if self.tied_embeddings or self.predictions:
            raise ValueError("patches: images have no table of tokens to tie a head to, or to predict")
        if self.head_bias and not self.vocabulary:
            raise ValueError("head_bias: there is no head, as vocabulary is 0")

    @property
    def norm_parameters(self) -> int:
        """Parameters of one norm: a gain, and for LayerNorm a bias."""
        bias = self.norm == "layer_norm" and self.norm_bias is not False
        return self.hidden * (1 + bias) * self.norm_gain

    @property
    def pooling_parameters(self) -> int:
        """Parameters of pooling by attention: query, four matrices, norm, and a feed-forward."""
        if self.pooling == "first" or not isinstance(self.feed_forward, FeedForwardSpec):
            return 0
        inner, bias = self.feed_forward.hidden, self.feed_forward.bias
        feed_forward = 2 * self.hidden * inner + (inner + self.hidden) * bias
        return self.hidden + 4 * self.hidden * (self.hidden + 1) + self.norm_parameters + feed_forward

    @property
    def position_parameters(self) -> int:
        """Parameters of learned positions, or of biases for distances."""
        if self.position == "relative":
            return self.position_buckets * getattr(self.attention, "heads", 0)
        return self.max_positions * self.hidden if self.position == "learned" else 0
