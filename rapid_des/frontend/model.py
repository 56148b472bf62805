"""A checked model: its layers, and what stands before and behind them; counts and operator lists.

That is: token table, output head, loss, choice of a token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

from rapid_des.device.operators import Dtype, Vector
from rapid_des.errors import ConfigError
from rapid_des.frontend.groups import byte_count
from rapid_des.frontend.images import embed_patches, patch_gradients, pooled
from rapid_des.frontend.layers import Layer, layer_of
from rapid_des.frontend.layers.cross import CrossAttention
from rapid_des.frontend.layers.layer import Sublayer
from rapid_des.frontend.layers.pooling import pooling_backward, pooling_forward
from rapid_des.frontend.layers.transformer import GroupedQueryAttention, causal_flops
from rapid_des.frontend.matrices import (
    Linear,
    column_backward,
    column_forward,
    gather_gradient,
    reduce_output,
)
from rapid_des.frontend.model_spec import EncoderInput, ModelSpec
from rapid_des.frontend.operations import Operation, OperatorList, Shard, norm_backward, norm_forward


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
    """All layers in order; layers of one kind are one object."""

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
        """The index of each layer in `kinds`."""
        numbers = {kind: number for number, kind in enumerate(self.kinds)}
        return tuple(numbers[layer] for layer in self.pattern)

    @cached_property
    def _layers_of_kind(self) -> Counter[int]:
        return Counter(self.kind_of_layer)

    def unsplit_parameters(self, layer: Layer) -> int:
        """Return a layer's parameters that are whole on every tp rank: norms, and biases after reductions."""
        whole = sum(half.parameters.whole_vectors for half in layer.halves)
        return layer.norm_count * self.spec.norm_parameters + self._gains(layer) + whole

    def _gains(self, layer: Layer) -> int:
        """Return the parameters of a layer that scale what its halves add."""
        return len(layer.halves) * self.spec.hidden * self.spec.layer_scale

    def layer_parameters(self, kind: int) -> int:
        """Return all parameters of a layer of one kind."""
        layer = self.kinds[kind]
        halves = sum(half.parameters.total for half in layer.halves)
        return layer.norm_count * self.spec.norm_parameters + self._gains(layer) + halves

    def head_parameters(self) -> int:
        """Return the output head's parameters, but for a bias."""
        columns = self.spec.vocabulary if self.spec.features is None else self.spec.features
        return columns * self.spec.hidden

    def embedding_parameters(self) -> int:
        """Return the parameters of the token table, or of what embeds patches with the learned tokens."""
        patches = self.spec.patches
        if patches is None:
            return self.spec.vocabulary * self.spec.hidden
        tokens = patches.width + patches.bias + patches.extra + patches.mask
        return self.spec.hidden * tokens + self.spec.norm_parameters * patches.norm

    @property
    def parameters(self) -> int:
        """All parameters, a tied table once, the vocabulary without padding.

        >>> from rapid_des.frontend import load_model
        >>> load_model("llama2_7b").parameters
        6738415616
        """
        head = 0 if self.spec.tied_embeddings else self.head_parameters()
        layers = sum(count * self.layer_parameters(kind) for kind, count in self._layers_of_kind.items())
        return (
            layers
            + self.embedding_parameters()
            + head
            + self.spec.position_parameters
            + self.spec.norm_parameters
            + (self.spec.features or self.spec.vocabulary) * self.spec.head_bias
            + self.spec.pooling_parameters
            + self.encoder_parameters()
        )

    def forward_flops(self, requests: int, positions: range, *, logits: int) -> int:
        """Return the model FLOPs of a forward pass of `positions` (from 1 on) of each of `requests`.

        Narayanan et al. 2021 (eq. 3), as `Sublayer.flops` says it, but a position sees only itself and those
        before it, as far as its layer's window reaches; `logits` positions pass the output head.
        """
        layers = sum(
            count * sum(_pass_flops(half, positions) for half in self.kinds[kind].halves)
            for kind, count in self._layers_of_kind.items()
        )
        patches = self.spec.patches
        if patches is not None:
            layers += 2 * patches.count * patches.width * self.spec.hidden
        if patches is not None or self.spec.features is not None:
            logits = requests
        return requests * layers + 2 * logits * self.head_parameters()

    def prediction_flops(self, requests: int, positions: range) -> int:
        """Return the forward FLOPs of a module that predicts a further token: projection, layer and head."""
        ends = 2 * len(positions) * (2 * self.spec.hidden**2 + self.head_parameters())
        return requests * (ends + sum(_pass_flops(half, positions) for half in self.pattern[-1].halves))

    @cached_property
    def encoder(self) -> Model | None:
        """The encoder in front of it."""
        spec = self.spec.encoder
        return None if spec is None else model_of(spec.model, Path(f"{self.name}.encoder"))

    def encoder_parameters(self) -> int:
        """Return the parameters of encoder and projector, without a table that the decoder has too."""
        if self.encoder is None or self.spec.encoder is None:
            return 0
        shared = 0 if self.encoder.spec.patches else self.encoder.embedding_parameters()
        return self.encoder.parameters - shared + self.spec.encoder.projector_parameters

    def encoder_flops(
        self, source: EncoderInput | None, positions: int, *, passes: int = 1, frozen: bool = False
    ) -> int:
        """Return the FLOPs of what an encoder reads for a sequence, and of attention to it.

        `passes`: how many times as many as forward; a frozen encoder itself has the forward alone.
        """
        spec, encoder = self.spec.encoder, self.encoder
        if source is None or encoder is None or spec is None:
            return 0
        tower = encoder.forward_flops(source.count, range(1, source.length + 1), logits=0)
        pairs = zip(spec.projector_inputs, spec.projector, strict=False)
        projector = 2 * source.taken * sum(inputs * outputs for inputs, outputs in pairs)
        crossed = sum(self._cross_flops(layer, source, positions) for layer in self.pattern)
        return tower * (1 if frozen else passes) + passes * (projector + crossed)

    @staticmethod
    def _cross_flops(layer: Layer, source: EncoderInput, positions: int) -> int:
        if not isinstance(layer.cross, CrossAttention):
            return 0
        key_value, core = layer.cross.of_source(source.positions)
        return key_value * source.positions + core * positions

    @cached_property
    def is_causal(self) -> bool:
        """Whether attention sees no later positions, in all layers."""
        mixers = (layer.mixer for layer in self.kinds)
        return all(mixer.core.causal for mixer in mixers if isinstance(mixer, GroupedQueryAttention))

    @property
    def generates(self) -> bool:
        """Whether it makes tokens one after another, and not features or what an encoder makes."""
        return self.is_causal and self.spec.features is None


def _pass_flops(half: Sublayer, positions: range) -> int:
    """Return the FLOPs of positions, which see those up to themselves, or all of them."""
    if isinstance(half, GroupedQueryAttention) and not half.core.causal:
        return len(positions) * half.flops(positions[-1])
    return causal_flops(half.flops, positions)


def model_of(spec: ModelSpec, path: Path) -> Model:
    """Return the model of the spec in a file; a `ConfigError` names dimensions that do not divide."""
    if spec.norm_bias is not None and spec.norm != "layer_norm":
        raise ConfigError(f"norm is {spec.norm}, which has no bias", file=str(path), key="norm_bias")
    if spec.norms == "after" and spec.block == "parallel_one_norm":
        problem = "one norm for both halves stands before them, and norms is after"
        raise ConfigError(problem, file=str(path), key="block")
    of_head = spec.tied_embeddings or spec.predictions or spec.logit_softcap
    if spec.features is not None and (of_head or (spec.head_bias and not spec.features)):
        problem = "stand in place of a head, which has no cap or predictions, and is not tied"
        raise ConfigError(problem, file=str(path), key="features")
    return Model(path.stem, spec, tuple(_layer(spec, number, str(path)) for number in range(spec.layers)))


def _layer(spec: ModelSpec, number: int, file: str) -> Layer:
    """Return one layer: as the model's are, but for what its exceptions state."""
    attention, feed_forward = spec.attention, spec.feed_forward
    for other in spec.exceptions:
        if number in range(other.start, other.stop or spec.layers, other.every):
            attention, feed_forward = other.attention or attention, other.feed_forward or feed_forward
    return layer_of(spec, attention, feed_forward, file)


LOSS_REDUCTIONS = ("maximum", "target", "sum")
"""Sums over tp in vocabulary-parallel cross-entropy, each of one fp32 a token."""


_EMBEDDING_NORM = "embedding.norm"


def _has_norm(shard: Shard) -> bool:
    return shard.model.patches is not None and shard.model.patches.norm


def _has_positions(shard: Shard) -> bool:
    return shard.model.position == "learned"


def relative_heads(shard: Shard) -> int:
    """Return the heads of a rank that have a bias for each distance."""
    return max(1, shard.model.position_parameters // shard.model.position_buckets // shard.tp)


def embedding_forward(shard: Shard) -> tuple[Operation, ...]:
    """Return the lookup in this rank's rows of the table, summed over tp, and the position embedding."""
    operations = OperatorList()
    if shard.model.patches is not None:
        embed_patches(operations, shard, shard.model.patches)
    else:
        elements = shard.tokens * shard.hidden
        lookup = shard.vector("embedding", shard.tokens, shard.hidden)
        operations.kernel("embedding", lookup, output=shard.activation_bytes(elements))
        reduce_output(operations, shard, "embedding", elements)
    rows, columns = shard.norm_tokens, shard.hidden
    size = shard.activation_bytes(rows * columns)
    if _has_positions(shard):
        operations.kernel("embedding.position", shard.vector("residual_add", rows, columns), output=size)
    if shard.model.position == "relative":
        pairs = shard.vector("embedding", shard.query_length * shard.key_length, relative_heads(shard))
        operations.kernel("embedding.distances", pairs)
    if _has_norm(shard):
        norm_forward(operations, shard, _EMBEDDING_NORM, rows, adds=False)
    if shard.dropout:
        kernel = shard.vector("dropout", rows, columns)
        operations.kernel("embedding.dropout", kernel, saved=rows * columns, output=size)
    return operations.finish()


def embedding_backward(shard: Shard) -> tuple[Operation, ...]:
    """Return the scatter of gradients into this rank's rows of the table.

    PyTorch scatters into a table of zeros in the activations' format, which then is added to the gradient
    accumulated so far (`embedding_dense_backward`, and the hooks of parameters).
    """
    operations = OperatorList()
    if shard.dropout:
        kernel = shard.vector("dropout", shard.norm_tokens, shard.hidden, backward=True)
        operations.kernel("embedding.dropout", kernel)
    if _has_norm(shard):
        norm_backward(operations, shard, _EMBEDDING_NORM, operations.last)
    gather_gradient(operations, shard, "embedding", shard.tokens * shard.hidden)
    if shard.model.patches is not None:
        patch_gradients(operations, shard, shard.model.patches)
        return operations.finish()
    rows, columns = shard.vocabulary_part, shard.hidden
    clear = shard.vector("fill", rows, columns)
    add = Vector("gradient_add", rows, columns, shard.precision.gradients)
    size = shard.activation_bytes(rows * columns)
    operations.kernel("embedding.clear", clear, output=size, deferrable=True)
    scatter = shard.vector("embedding_gradient", shard.tokens, columns)
    operations.kernel("embedding.weight_gradient", scatter, output=size, deferrable=True)
    parameters = rows * columns + shard.model.position_parameters
    operations.kernel("embedding.weight_gradient.add", add, parameters=parameters, deferrable=True)
    return operations.finish()


def _head_part(shard: Shard) -> int:
    """Return the columns of the output head on this rank: features or tokens; 0 without a head."""
    return shard.vocabulary_part if shard.model.features is None else shard.model.features // shard.tp


def _head(shard: Shard, rows: int, *, tied: bool = False) -> Linear:
    """Return the output head, column-parallel over the vocabulary."""
    bias = shard.model.head_bias
    return Linear("head", _head_part(shard), shard.hidden, bias, rows, narrow=False, tied=tied)


LOSSES: Mapping[str, str] = {
    "one_pass": "cross_entropy",
    "separate": "cross_entropy_separate",
    "compiled": "cross_entropy_compiled",
    "online": "cross_entropy_online",
    "torch": "cross_entropy_torch",
}
"""The kernel kind of each loss."""


def _loss(shard: Shard, *, backward: bool) -> Vector:
    phase: Literal["forward", "backward"] = "backward" if backward else "forward"
    return Vector(LOSSES[shard.cross_entropy], shard.tokens, shard.vocabulary_part, _loss_dtype(shard), phase)


def _loss_dtype(shard: Shard) -> Dtype:
    """Return the format in which the loss reads logits."""
    return shard.precision.activations if shard.cross_entropy == "online" else "fp32"


def loss_forward(shard: Shard) -> tuple[Operation, ...]:
    """Return final norm, logits and vocabulary-parallel cross-entropy, in fp32 unless it is `online`.

    The logits (or their softmax, or gradient, in their place) are kept from the loss to the backward.
    """
    operations = OperatorList()
    norm_forward(operations, shard, "head.norm", shard.norm_tokens)
    if not _head_part(shard):
        _pool(operations, shard, pooling_forward)
        return operations.finish()
    kept = shard.activation_bytes(shard.norm_tokens * shard.hidden)
    shard = _of_head(shard)
    if shard.model.features is not None:
        column_forward(operations, shard, _head(shard, shard.tokens), saved=kept)
        return operations.finish()
    rows, columns = shard.tokens, shard.vocabulary_part
    dtype = _loss_dtype(shard)
    size = byte_count(rows * columns, dtype)
    column_forward(
        operations, shard, _head(shard, rows), saved=shard.activation_bytes(shard.norm_tokens * shard.hidden)
    )
    if dtype == "fp32":
        operations.kernel("head.cast", Vector("cast", rows, columns, dtype), output=size)
    if shard.model.logit_softcap:
        operations.kernel("head.cap", Vector("tanh", rows, columns, dtype), logits=size)
    operations.kernel("loss", _loss(shard, backward=False), logits=size)
    if shard.tp > 1:
        for name in LOSS_REDUCTIONS:
            operations.message(f"loss.{name}", "tp.loss", shard.message("tp.loss", rows, "fp32"))
    for number in range(shard.logged_losses):
        _append_logged_loss(operations, f"head.logged.{number}", rows, columns)
    return operations.finish()


def _append_logged_loss(operations: OperatorList, name: str, rows: int, columns: int) -> None:
    """Append a cross-entropy as torch.nn.functional's: fp32 logits, and the logarithm of their softmax."""
    size = 4 * rows * columns
    operations.kernel(f"{name}.cast", Vector("cast", rows, columns, "fp32"), output=size)
    operations.kernel(name, Vector("softmax", rows, columns, "fp32"), output=size)


def loss_backward(shard: Shard, *, shares_table: bool) -> tuple[Operation, ...]:
    """Return the backward of cross-entropy, head and final norm.

    Where the head is the embedding of the same rank (`shares_table`), the embedding's backward completes
    the table's gradient.
    """
    operations = OperatorList()
    if not _head_part(shard):
        _pool(operations, shard, pooling_backward)
        norm_backward(operations, shard, "head.norm", operations.last)
        return operations.finish()
    whole, shard = shard, _of_head(shard)
    rows, columns = shard.tokens, _head_part(shard)
    if shard.model.features is not None:
        norm_backward(operations, whole, "head.norm", column_backward(operations, shard, _head(shard, rows)))
        return operations.finish()
    if shard.cross_entropy == "torch":
        # The block of the logits as they came is too small for fp32, and free for their gradient alone.
        # Over tp, gradient and softmax stand beside their sum and its product (PyTorch's loss_parallel).
        wide = 4 * (3 if shard.tp > 1 else 2)
        operations.kernel("loss", _loss(shard, backward=True), output=(wide + 2) * rows * columns)
        operations.kernel("head.cast", Vector("cast", rows, columns, "fp32"), output=2 * rows * columns)
    else:
        operations.kernel("loss", _loss(shard, backward=True), output=2 * rows * columns)
    if shard.model.logit_softcap:
        operations.kernel("head.cap", Vector("tanh", rows, columns, _loss_dtype(shard), "backward"))
    ready = column_backward(operations, shard, _head(shard, rows, tied=shares_table))
    norm_backward(operations, whole, "head.norm", ready)
    return operations.finish()


def _pool(
    operations: OperatorList, shard: Shard, append: Callable[[OperatorList, Shard, Sublayer], None]
) -> None:
    """Append what pools positions by attention, if the model does; its feed-forward is as the layers'."""
    model = shard.model
    if model.pooling == "attention":
        append(operations, shard, layer_of(model, model.attention, model.feed_forward, "").feed_forward)


def _of_head(shard: Shard) -> Shard:
    """Return what the head sees: all positions, or one of each sequence of images and for features."""
    return shard if shard.model.patches is None and shard.model.features is None else pooled(shard)


def sampling(shard: Shard) -> tuple[Operation, ...]:
    """Return final norm, the logits of each sequence's last position, and the choice of a token.

    Chunks of prompts whose end is still to come choose none.
    """
    operations = OperatorList()
    rows = shard.sampled
    if not rows:
        return ()
    if not _head_part(shard):  # features of all positions, or of one
        norm_forward(operations, shard, "head.norm", shard.norm_tokens)
        _pool(operations, shard, pooling_forward)
        return operations.finish()
    norm_forward(operations, shard, "head.norm", rows)
    column_forward(operations, shard, _head(shard, rows), saved=0)
    if shard.model.logit_softcap:
        operations.kernel("head.cap", shard.vector("tanh", rows, shard.vocabulary_part))
    if shard.tp > 1:
        elements = rows * _head_part(shard) * shard.tp
        output = shard.activation_bytes(elements)
        operations.message("head.gather", "tp.logits", shard.message("tp.logits", elements), output=output)
    if shard.model.features is not None:
        return operations.finish()
    operations.kernel("sample", shard.vector("sample", rows, shard.vocabulary))
    return operations.finish()
