"""Model files as trees: the architectures that measured sets name, in the dimensions that they print."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rapid_des.values import replace
from validation.measurements import Record

Tree = dict[str, Any]


@dataclass(frozen=True)
class Style:
    """What decoders of one architecture have in common."""

    activation: str
    norm: str
    position: str
    bias: bool = False
    tied: bool = False
    rotary: float | None = None
    """Share of a head's channels that is rotated; None: all, or none of learned positions."""
    block: str = "sequential"
    window: int | None = None
    """Tokens that attention reaches back; None: all."""
    qk_norm: str = "none"

    @property
    def gated(self) -> bool:
        """Whether the feed-forward has three matrices."""
        return self.activation == "swiglu"


LLAMA = Style("swiglu", "rms_norm", "rope")
GPT = Style("gelu", "layer_norm", "learned", bias=True, tied=True)
MPT = Style("gelu", "layer_norm", "learned", tied=True)
NEMOTRON = Style("squared_relu", "layer_norm", "rope", rotary=0.5)
"""Nemotron-4: Parmar et al. 2024 (arXiv 2402.16819), section 2."""
MISTRAL = replace(LLAMA, window=4096)
"""Jiang et al. 2023 (arXiv 2310.06825), Table 1."""
QWEN3 = replace(LLAMA, qk_norm="head")
GPT_J = Style("gelu", "layer_norm", "rope", rotary=0.25, block="parallel_one_norm")
FALCON = Style("gelu", "layer_norm", "rope", tied=True, block="parallel")
"""The models' published config.json."""


@dataclass(frozen=True)
class Experts:
    """A mixture of experts in place of the feed-forward."""

    count: int
    topk: int
    hidden: int
    shared: int = 0
    """Width of the experts that every token passes, together."""


@dataclass(frozen=True)
class Dimensions:
    """What tells one decoder of an architecture from another."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocabulary: int
    head_dim: int = 0
    """0: hidden over heads."""
    experts: Experts | None = None


def decoder(style: Style, size: Dimensions, *, positions: int) -> Tree:
    """Return a model's tree.

    >>> decoder(LLAMA, Dimensions(32, 4096, 32, 8, 14336, 128256), positions=8192)["norm"]
    'rms_norm'
    """
    attention: Tree = {
        "heads": size.heads,
        "kv_heads": size.kv_heads,
        "qkv_bias": style.bias,
        "output_bias": style.bias,
        "qk_norm": style.qk_norm,
    }
    optional = {"head_dim": size.head_dim or None, "rotary": style.rotary, "window": style.window}
    attention |= {key: value for key, value in optional.items() if value is not None}
    return {
        "hidden": size.hidden,
        "layers": size.layers,
        "attention": attention,
        "feed_forward": _feed_forward(style, size),
        "norm": style.norm,
        "block": style.block,
        "position": style.position,
        "vocabulary": size.vocabulary,
        "max_positions": positions,
        "tied_embeddings": style.tied,
    }


def _feed_forward(style: Style, size: Dimensions) -> Tree:
    if size.experts is None:
        return {"activation": style.activation, "hidden": size.ffn, "bias": style.bias}
    experts = size.experts
    return {
        "kind": "experts",
        "experts": experts.count,
        "topk": experts.topk,
        "hidden": experts.hidden,
        "activation": style.activation,
        "shared_hidden": experts.shared,
    }


def printed(record: Record, *, vocabulary: int = 0) -> Dimensions:
    """Return the dimensions that a row of training prints."""
    return Dimensions(
        layers=record.count("layers"),
        hidden=record.count("hidden"),
        heads=record.count("heads"),
        kv_heads=record.count("kv_heads"),
        ffn=record.count("ffn"),
        vocabulary=vocabulary or record.count("vocab"),
    )


STYLES: Mapping[str, Style] = {
    "llama": LLAMA,
    "gpt": GPT,
    "mpt": MPT,
    "nemotron": NEMOTRON,
    "mistral": MISTRAL,
    "qwen3": QWEN3,
    "gpt-j": GPT_J,
    "falcon": FALCON,
}
"""By the names of `models.csv`."""


def parameters(size: Dimensions, *, gated: bool, tied: bool = False) -> float:
    """Return about how many parameters a token meets, for null models: matrices alone."""
    head = size.head_dim or size.hidden // size.heads
    attention = size.hidden * head * (2 * size.heads + 2 * size.kv_heads)
    feed_forward = (3 if gated else 2) * size.hidden * _width(size)
    return size.layers * (attention + feed_forward) + (1 if tied else 2) * size.vocabulary * size.hidden


def training_flops(size: Dimensions, *, gated: bool, sequence: int, sequences: int) -> float:
    """Return about the FLOPs of a step (forward and backward, causal attention), for null models."""
    head = size.head_dim or size.hidden // size.heads
    matrices = 6 * (parameters(size, gated=gated) - size.vocabulary * size.hidden)
    attention = 6 * size.layers * size.heads * head * sequence
    return (matrices + attention) * sequence * sequences


def _width(size: Dimensions) -> int:
    """Return the width of what a token passes between the matrices of a feed-forward."""
    if size.experts is None:
        return size.ffn
    return size.experts.topk * size.experts.hidden + size.experts.shared
