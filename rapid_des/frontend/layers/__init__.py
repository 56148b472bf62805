"""Layer kinds: what a model's layers are made of.

A layer is a mixer, which lets positions see one another, and a feed-forward, which works on each alone. A new
kind is a module here with a class that follows `Mixer` or `Sublayer` (see `layer.py`), and its line below;
operator lists, prices, traces, memory and parameter counts follow from what the class says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from rapid_des.errors import ConfigError
from rapid_des.frontend.layer_spec import (
    AbsentSpec,
    AttentionSpec,
    ExpertsSpec,
    FeedForward,
    FeedForwardSpec,
    GatedDeltaSpec,
    LatentAttentionSpec,
    MambaSpec,
)
from rapid_des.frontend.layer_spec import Mixer as AnyMixer
from rapid_des.frontend.layers.delta import gated_delta
from rapid_des.frontend.layers.latent import latent_attention
from rapid_des.frontend.layers.layer import Absent, Layer, Mixer, Parameters, Sublayer
from rapid_des.frontend.layers.mamba import mamba
from rapid_des.frontend.layers.mixture import mixture_of_experts
from rapid_des.frontend.layers.transformer import dense_feed_forward, grouped_query_attention
from rapid_des.frontend.spec import ModelSpec

MIXERS: Mapping[type, Callable[[Any, ModelSpec, str], Mixer]] = {
    AttentionSpec: grouped_query_attention,
    LatentAttentionSpec: latent_attention,
    MambaSpec: mamba,
    GatedDeltaSpec: gated_delta,
    AbsentSpec: lambda *_: Absent(),
}
FEED_FORWARDS: Mapping[type, Callable[[Any, ModelSpec, str], Sublayer]] = {
    FeedForwardSpec: dense_feed_forward,
    ExpertsSpec: mixture_of_experts,
    AbsentSpec: lambda *_: Absent(),
}
"""By the spec in the model file: how its kind is made of (spec, model, file name for errors)."""


@lru_cache(maxsize=256)
def layer_of(model: ModelSpec, attention: AnyMixer, feed_forward: FeedForward, file: str) -> Layer:
    """Return a layer of its halves; a `ConfigError` names dimensions that do not fit, or what lacks."""
    mixer = MIXERS[type(attention)](attention, model, file)
    half = FEED_FORWARDS[type(feed_forward)](feed_forward, model, file)
    layer = Layer(mixer, half, model.norms, model.block)
    least = 1 if model.block == "sequential" else 2
    if len(layer.halves) < least:
        problem = (
            "a layer needs attention or feed_forward" if least == 1 else f"block {model.block} needs both"
        )
        raise ConfigError(f"{problem}, and here one or both are none", file=file, key="feed_forward")
    return layer


__all__ = ["FEED_FORWARDS", "MIXERS", "Layer", "Mixer", "Parameters", "Sublayer", "layer_of"]
