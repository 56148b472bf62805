"""Layer kinds: what a model's layers are made of.

A layer is a mixer, which lets positions see one another, and a feed-forward, which works on each alone. A new
kind is a module here with a class that follows `Mixer` or `Sublayer` (see `layer.py`), and its spec in
`layer_spec`; operator lists, prices, traces, memory and parameter counts follow from what the class says.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import Any

from rapid_des.errors import ConfigError
from rapid_des.frontend.layer_spec import FeedForward
from rapid_des.frontend.layer_spec import Mixer as AnyMixer
from rapid_des.frontend.layers.cross import cross_attention
from rapid_des.frontend.layers.extension import LayerSource as LayerSource
from rapid_des.frontend.layers.layer import Layer as Layer
from rapid_des.frontend.layers.layer import Mixer as Mixer
from rapid_des.frontend.layers.layer import Parameters as Parameters
from rapid_des.frontend.layers.layer import Sublayer as Sublayer
from rapid_des.frontend.model_spec import ModelSpec


@lru_cache(maxsize=256)
def layer_of(model: ModelSpec, attention: AnyMixer, feed_forward: FeedForward, file: str) -> Layer:
    """Return a layer of its halves; a `ConfigError` names dimensions that do not fit, or what lacks."""
    mixer, half = (_half(spec, model, file) for spec in (attention, feed_forward))
    if not isinstance(mixer, Mixer):
        problem = f"{mixer.name} works on each position alone: it cannot be a mixer"
        raise ConfigError(problem, file=file, key="attention")
    cross = cross_attention(attention, model, file)
    layer = Layer(mixer, half, model.norms, model.block, cross)
    least = 1 if model.block == "sequential" else 2
    if len(layer.halves) < least:
        problem = (
            "a layer needs attention or feed_forward" if least == 1 else f"block {model.block} needs both"
        )
        raise ConfigError(f"{problem}, and here one or both are none", file=file, key="feed_forward")
    return layer


def _half(spec: AnyMixer | FeedForward, model: ModelSpec, file: str) -> Any:
    """Return a half of a layer, made by the function that its spec names."""
    module, name = spec.made_by.split(".")
    return getattr(import_module(f"{__name__}.{module}"), name)(spec, model, file)
