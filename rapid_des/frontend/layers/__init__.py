"""Layer kinds: what a model's layers are made of.

A layer is a mixer, which lets positions see one another, and a feed-forward, which works on each alone. A new
kind is a module here with a class that follows `Mixer` or `Sublayer` (see `layer.py`), and its line below;
operator lists, prices, traces, memory and parameter counts follow from what the class says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rapid_des.frontend.layers.attention import grouped_query_attention
from rapid_des.frontend.layers.experts import mixture_of_experts
from rapid_des.frontend.layers.feed_forward import dense_feed_forward
from rapid_des.frontend.layers.latent import latent_attention
from rapid_des.frontend.layers.layer import Layer, Mixer, Parameters, Sublayer
from rapid_des.frontend.spec import (
    AttentionSpec,
    ExpertsSpec,
    FeedForwardSpec,
    LatentAttentionSpec,
    ModelSpec,
)

MIXERS: Mapping[type, Callable[[Any, ModelSpec, str], Mixer]] = {
    AttentionSpec: grouped_query_attention,
    LatentAttentionSpec: latent_attention,
}
FEED_FORWARDS: Mapping[type, Callable[[Any, ModelSpec, str], Sublayer]] = {
    FeedForwardSpec: dense_feed_forward,
    ExpertsSpec: mixture_of_experts,
}
"""By the spec in the model file: how its kind is made of (spec, model, file name for errors)."""

__all__ = ["FEED_FORWARDS", "MIXERS", "Layer", "Mixer", "Parameters", "Sublayer"]
