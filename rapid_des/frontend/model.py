"""Model files: a decoder transformer by its dimensions, and its exact parameter counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

import msgspec

from rapid_des.config import Document, Spec, decode
from rapid_des.errors import ConfigError

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=10**9)]


class AttentionSpec(Spec, frozen=True):
    """Self-attention with `heads` query heads that share `kv_heads` key and value heads (MHA, GQA, MQA)."""

    heads: Count
    kv_heads: Count | None = None
    """Unset: as `heads`."""
    head_dim: Count | None = None
    """Unset: hidden / heads."""
    qkv_bias: bool = False
    output_bias: bool = False


class FeedForwardSpec(Spec, frozen=True):
    """The dense feed-forward block; `swiglu` has a gate beside the up projection."""

    activation: Literal["gelu", "swiglu"]
    hidden: Count
    bias: bool = False


class ModelSpec(Spec, frozen=True):
    """A model file."""

    hidden: Count
    layers: Annotated[int, msgspec.Meta(ge=1, le=10_000)]
    attention: AttentionSpec
    feed_forward: FeedForwardSpec
    norm: Literal["layer_norm", "rms_norm"]
    position: Literal["rope", "learned"]
    vocabulary: Count
    max_positions: Count
    """The longest sequence; with learned positions the rows of their table."""
    tied_embeddings: bool
    """The output head is the token embedding."""


@dataclass(frozen=True)
class LayerParameters:
    """Parameters of one transformer layer: matrices that tp splits, and vectors by whether tp splits them."""

    qkv: int
    output: int
    feed_forward_in: int
    feed_forward_out: int
    split_biases: int
    """Biases of column-parallel matrices."""
    whole_biases: int
    """Biases of row-parallel matrices, whole on every tp rank."""
    norms: int

    @property
    def matrices(self) -> int:
        """The four weight matrices."""
        return self.qkv + self.output + self.feed_forward_in + self.feed_forward_out

    @property
    def total(self) -> int:
        """All parameters of the layer."""
        return self.matrices + self.split_biases + self.whole_biases + self.norms


@dataclass(frozen=True)
class Model:
    """A checked model with its derived dimensions."""

    name: str
    spec: ModelSpec

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.spec.attention.head_dim or self.spec.hidden // self.spec.attention.heads

    @property
    def kv_heads(self) -> int:
        """Key (and value) heads."""
        return self.spec.attention.kv_heads or self.spec.attention.heads

    @property
    def gated(self) -> bool:
        """Whether the first feed-forward projection is twice as wide, for the gate."""
        return self.spec.feed_forward.activation == "swiglu"

    @property
    def norm_parameters(self) -> int:
        """Parameters of one norm: a gain, and for LayerNorm a bias."""
        return self.spec.hidden * (2 if self.spec.norm == "layer_norm" else 1)

    @property
    def layer(self) -> LayerParameters:
        """Parameters of one layer."""
        hidden, attention, ffn = self.spec.hidden, self.spec.attention, self.spec.feed_forward
        query, kv = attention.heads * self.head_dim, self.kv_heads * self.head_dim
        wide = ffn.hidden * (2 if self.gated else 1)
        return LayerParameters(
            qkv=hidden * (query + 2 * kv),
            output=query * hidden,
            feed_forward_in=hidden * wide,
            feed_forward_out=ffn.hidden * hidden,
            split_biases=(query + 2 * kv) * attention.qkv_bias + wide * ffn.bias,
            whole_biases=hidden * (attention.output_bias + ffn.bias),
            norms=2 * self.norm_parameters,
        )

    def embedding_parameters(self, vocabulary: int | None = None) -> int:
        """Return the token table's parameters, of a padded vocabulary where one is given."""
        return (vocabulary or self.spec.vocabulary) * self.spec.hidden

    @property
    def position_parameters(self) -> int:
        """Parameters of learned positions."""
        return self.spec.max_positions * self.spec.hidden if self.spec.position == "learned" else 0

    @property
    def parameters(self) -> int:
        """All parameters, a tied table once, the vocabulary without padding.

        >>> from pathlib import Path
        >>> from rapid_des.config import load_document, resolve
        >>> load_model(load_document(resolve("llama2_7b", "model", folder=Path()))).parameters
        6738415616
        """
        tables = 1 if self.spec.tied_embeddings else 2
        return (
            self.spec.layers * self.layer.total
            + tables * self.embedding_parameters()
            + self.position_parameters
            + self.norm_parameters
        )

    def forward_flops(self, tokens: int, sequence: int, *, logits: int) -> int:
        """Return the model FLOPs of a forward pass of `tokens`, each attending to `sequence` positions.

        The convention of Narayanan et al. 2021 (eq. 3): matrices and full (not causal) attention, no
        recomputation, no norms; `logits` positions pass the output head.
        """
        query = self.spec.attention.heads * self.head_dim
        layer = 2 * self.layer.matrices + 4 * sequence * query
        return tokens * self.spec.layers * layer + 2 * logits * self.embedding_parameters()


def load_model(document: Document) -> Model:
    """Return the model of one document; a `ConfigError` names dimensions that do not divide."""
    spec = decode(document, ModelSpec)
    attention = spec.attention
    file = str(document.path)
    if attention.head_dim is None and spec.hidden % attention.heads:
        problem = f"hidden {spec.hidden} does not divide by {attention.heads} heads: give head_dim"
        raise ConfigError(problem, file=file, key="attention.heads")
    if attention.kv_heads and attention.heads % attention.kv_heads:
        problem = f"{attention.heads} heads do not divide by {attention.kv_heads} kv_heads"
        raise ConfigError(problem, file=file, key="attention.kv_heads")
    return Model(document.path.stem, spec)
