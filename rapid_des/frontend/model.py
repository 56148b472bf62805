"""A checked model: its spec, its layers, and what follows from them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from rapid_des.errors import ConfigError
from rapid_des.frontend.layers import Layer, layer_of
from rapid_des.frontend.layers.layer import Sublayer
from rapid_des.frontend.spec import ModelSpec


@dataclass(frozen=True)
class Model:
    """A checked model: what stands before and after its layers (`spec`), and the layers.

    >>> from rapid_des.frontend import load_model
    >>> len(load_model("llama2_7b").pattern)
    32
    """

    name: str = field(compare=False)
    spec: ModelSpec
    pattern: tuple[Layer, ...]
    """All layers in order, each by its kind."""

    @cached_property
    def kinds(self) -> tuple[Layer, ...]:
        """The distinct layers, in order of first use."""
        return tuple(dict.fromkeys(self.pattern))

    @cached_property
    def has_experts(self) -> bool:
        """Whether some layer has routed experts."""
        return any(half.parameters.experts for layer in self.kinds for half in layer.halves)

    @cached_property
    def kind_of_layer(self) -> tuple[int, ...]:
        """For each layer its place in `kinds`."""
        numbers = {kind: number for number, kind in enumerate(self.kinds)}
        return tuple(numbers[layer] for layer in self.pattern)

    @cached_property
    def _layers_of_kind(self) -> Counter[int]:
        return Counter(self.kind_of_layer)

    def unsplit_parameters(self, layer: Layer) -> int:
        """Return a layer's parameters that are whole on every tp rank: norms, and biases after reductions."""
        whole = sum(half.parameters.whole_vectors for half in layer.halves)
        return layer.norm_count * self.spec.norm_parameters + whole

    def layer_parameters(self, kind: int) -> int:
        """Return all parameters of a layer of one kind."""
        layer = self.kinds[kind]
        halves = sum(half.parameters.total for half in layer.halves)
        return layer.norm_count * self.spec.norm_parameters + halves

    def embedding_parameters(self) -> int:
        """Return the token table's parameters."""
        return self.spec.vocabulary * self.spec.hidden

    @property
    def parameters(self) -> int:
        """All parameters, a tied table once, the vocabulary without padding.

        >>> from rapid_des.frontend import load_model
        >>> load_model("llama2_7b").parameters
        6738415616
        """
        tables = 1 if self.spec.tied_embeddings else 2
        layers = sum(count * self.layer_parameters(kind) for kind, count in self._layers_of_kind.items())
        return (
            layers
            + tables * self.embedding_parameters()
            + self.spec.position_parameters
            + self.spec.norm_parameters
            + self.spec.vocabulary * self.spec.head_bias
        )

    def forward_flops(self, requests: int, positions: range, *, logits: int) -> int:
        """Return the model FLOPs of a forward pass of `positions` (from 1 on) of each of `requests`.

        Narayanan et al. 2021 (eq. 3), as `Sublayer.flops` says it, but a position sees only itself and those
        before it, as far as its layer's window reaches; `logits` positions pass the output head.
        """
        layers = sum(
            count * sum(_causal_flops(half, positions) for half in self.kinds[kind].halves)
            for kind, count in self._layers_of_kind.items()
        )
        return requests * layers + 2 * logits * self.embedding_parameters()

    def prediction_flops(self, requests: int, positions: range) -> int:
        """Return those of a module that predicts a further token: projection, layer and head."""
        ends = 2 * len(positions) * (2 * self.spec.hidden**2 + self.embedding_parameters())
        return requests * (ends + sum(_causal_flops(half, positions) for half in self.pattern[-1].halves))


def _causal_flops(half: Sublayer, positions: range) -> int:
    alone, first = half.flops(0), half.flops(1)
    flops = len(positions) * alone
    if first == alone:
        return flops
    reach = (half.flops(positions[-1]) - alone) // (first - alone)
    growing = range(positions.start, max(positions.start, min(positions.stop, reach + 1)))
    seen = (growing.start + growing.stop - 1) * len(growing) // 2 + (len(positions) - len(growing)) * reach
    return flops + seen * (first - alone)


def model_of(spec: ModelSpec, path: Path) -> Model:
    """Return the model of the spec in a file; a `ConfigError` names dimensions that do not divide."""
    if spec.norm_bias is not None and spec.norm != "layer_norm":
        raise ConfigError(f"norm is {spec.norm}, which has no bias", file=str(path), key="norm_bias")
    if spec.norms == "after" and spec.block == "parallel_one_norm":
        problem = "one norm for both halves stands before them, and norms is after"
        raise ConfigError(problem, file=str(path), key="block")
    return Model(path.stem, spec, tuple(_layer(spec, number, str(path)) for number in range(spec.layers)))


def _layer(spec: ModelSpec, number: int, file: str) -> Layer:
    """Return one layer: as the model's are, but for what its exceptions state."""
    attention, feed_forward = spec.attention, spec.feed_forward
    for other in spec.exceptions:
        if number in range(other.start, other.stop or spec.layers, other.every):
            attention, feed_forward = other.attention or attention, other.feed_forward or feed_forward
    return layer_of(spec, attention, feed_forward, file)
