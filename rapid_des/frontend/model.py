"""A model: its file, its layers by kind, and its exact parameter and FLOP counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

from rapid_des.config import Document, decode
from rapid_des.frontend.layers import Layer, layer_pattern
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
    def kind_of_layer(self) -> tuple[int, ...]:
        """For each layer its place in `kinds`."""
        numbers = {kind: number for number, kind in enumerate(self.kinds)}
        return tuple(numbers[layer] for layer in self.pattern)

    @cached_property
    def _layers_of_kind(self) -> Counter[int]:
        return Counter(self.kind_of_layer)

    def unsplit_parameters(self, kind: int) -> int:
        """Return a layer's parameters that are whole on every tp rank: norms, and biases after reductions."""
        halves = self.kinds[kind].halves
        return sum(self.spec.norm_parameters + half.parameters.whole_vectors for half in halves)

    def layer_parameters(self, kind: int) -> int:
        """Return all parameters of a layer of one kind."""
        halves = self.kinds[kind].halves
        return sum(self.spec.norm_parameters + half.parameters.total for half in halves)

    def embedding_parameters(self) -> int:
        """Return the token table's parameters."""
        return self.spec.vocabulary * self.spec.hidden

    @property
    def parameters(self) -> int:
        """All parameters, a tied table once, the vocabulary without padding.

        >>> from pathlib import Path
        >>> from rapid_des.config import load_document, resolve
        >>> model_of(load_document(resolve("llama2_7b", "model", folder=Path()))).parameters
        6738415616
        """
        tables = 1 if self.spec.tied_embeddings else 2
        layers = sum(count * self.layer_parameters(kind) for kind, count in self._layers_of_kind.items())
        return (
            layers
            + tables * self.embedding_parameters()
            + self.spec.position_parameters
            + self.spec.norm_parameters
        )

    def forward_flops(self, tokens: int, sequence: int, *, logits: int) -> int:
        """Return the model FLOPs of a forward pass of `tokens`, each attending to `sequence` positions.

        The convention of Narayanan et al. 2021 (eq. 3), as `Sublayer.flops` says it; `logits` positions pass
        the output head.
        """
        layers = sum(
            count * sum(half.flops(sequence) for half in self.kinds[kind].halves)
            for kind, count in self._layers_of_kind.items()
        )
        return tokens * layers + 2 * logits * self.embedding_parameters()


def model_of(document: Document) -> Model:
    """Return the model of one document; a `ConfigError` names dimensions that do not divide."""
    spec = decode(document, ModelSpec)
    return Model(document.path.stem, spec, layer_pattern(spec, str(document.path)))
