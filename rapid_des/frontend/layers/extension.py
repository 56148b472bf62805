"""Layer kinds of other distributions, found by their entry points of the group `rapid_des.layers`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

from rapid_des.config import Document, Spec, decode
from rapid_des.errors import ConfigError, InputError
from rapid_des.extensions import LAYERS, find
from rapid_des.frontend.layer_spec import ExtensionSpec
from rapid_des.frontend.layers.layer import Sublayer
from rapid_des.frontend.model_spec import ModelSpec


class LayerSource(Struct, frozen=True):
    """A layer kind: the keys that a model file states, and the function that makes the layer of them."""

    spec: type[Spec]
    """The keys, each with a type and a docstring."""
    make: Callable[[Any, ModelSpec], Sublayer]
    """Returns a `Sublayer`, or a `Mixer` where positions see each other, from the keys and the model."""


def extension(spec: ExtensionSpec, model: ModelSpec, file: str) -> Sublayer:
    """Return a half of a layer of another distribution; a `ConfigError` says what is wrong with its keys."""
    try:
        source = find(LAYERS, spec.name, LayerSource)
    except InputError as error:
        raise ConfigError(str(error), file=file) from None
    try:
        keys = decode(Document(Path(file), dict(spec.keys)), source.spec)
    except ConfigError as error:
        raise ConfigError(error.message, file=file, key=f"{spec.name}.keys.{error.key}".rstrip(".")) from None
    half = source.make(keys, model)
    if not isinstance(half, Sublayer) or half != source.make(keys, model):
        problem = "must make a Sublayer that equals another of the same keys (a frozen Struct does)"
        raise InputError(f"{LAYERS}: {spec.name!r} made {half!r:.80}; it {problem}")
    return half
