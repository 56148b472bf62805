"""An encoder in front of a decoder: its lists stand before those of the decoder's embedding, backward behind.

What an encoder of images makes goes through a projector, whole on every tp rank, and is copied into the
place of some tokens' embeddings. A frozen encoder keeps nothing and has no backward, its projector has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rapid_des.frontend.layers.layer import LayerKind
from rapid_des.frontend.matrices import Linear, column_backward, forward_gemm
from rapid_des.frontend.model import embedding_backward, embedding_forward
from rapid_des.frontend.model_spec import EncoderInput, EncoderSpec
from rapid_des.frontend.operations import (
    Operation,
    OperatorList,
    Shard,
    norm_backward,
    norm_forward,
    rms_norm_backward,
)
from rapid_des.frontend.passes import joined
from rapid_des.frontend.prediction import unsplit
from rapid_des.values import replace

Lists = tuple[tuple[Operation, ...], tuple[Operation, ...]]


def encoder_lists(encoder: EncoderSpec, shard: Shard, layers: Sequence[LayerKind], *, frozen: bool) -> Lists:
    """Return forward and backward of an encoder with its projector.

    `layers` are the encoder's in order. Of a `frozen` one the backward is that of the projector alone, with
    the parameters that stand still.
    """
    source = shard.source
    tower = _of_encoder(encoder, shard, source or EncoderInput(1, 1))
    forward = _named(_forward(tower, layers))
    backward = _named(_backward(tower, layers))
    still = sum(each.parameters for each in backward) if frozen else 0
    if frozen:
        forward = tuple(replace(each, saved=0, core=0, logits=0) for each in forward)
        backward = ()
    if encoder.model.patches is None:
        return _kept(forward, tower), backward
    taken = replace(shard, query_length=source.taken if source else 1, documents=(), padding=0)
    return (
        joined(forward, _projected(encoder, taken)),
        joined(_projection_backward(encoder, taken, still), backward),
    )


def _of_encoder(encoder: EncoderSpec, shard: Shard, source: EncoderInput) -> Shard:
    """Return the shard of the encoder's sequences, which no cache holds."""
    return replace(
        shard, model=encoder.model, sequences=shard.sequences * source.count, query_length=source.length,
        key_length=source.length, documents=(), padding=0, source=None, groups=(),
    )  # fmt: skip


def _named(operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
    return tuple(replace(each, name=f"encoder.{each.name}") for each in operations)


def _of_layer(
    run: Callable[[Shard], tuple[Operation, ...]], number: int, tower: Shard
) -> tuple[Operation, ...]:
    return tuple(replace(each, name=f"L{number}.{each.name}") for each in run(tower))


def _forward(tower: Shard, layers: Sequence[LayerKind]) -> tuple[Operation, ...]:
    """Return embedding, layers and final norm."""
    blocks = (_of_layer(layer.forward, number, tower) for number, layer in enumerate(layers))
    last = OperatorList()
    norm_forward(last, tower, "norm", tower.norm_tokens)
    return joined(embedding_forward(tower), *blocks, last.finish())


def _backward(tower: Shard, layers: Sequence[LayerKind]) -> tuple[Operation, ...]:
    """Return the same from the end; the decoder counts the parameters of a table of tokens."""
    first = OperatorList()
    norm_backward(first, tower, "norm", first.last)
    numbered = list(enumerate(layers))[::-1]
    blocks = (_of_layer(layer.backward, number, tower) for number, layer in numbered)
    last = embedding_backward(tower)
    if tower.model.patches is None:
        table = tower.vocabulary_part * tower.hidden
        last = tuple(
            replace(each, parameters=each.parameters - table) if each.parameters >= table else each
            for each in last
        )
    return joined(first.finish(), *blocks, last)


def _kept(forward: tuple[Operation, ...], tower: Shard) -> tuple[Operation, ...]:
    """Return the list with its output kept, which all layers of the decoder read."""
    *early, last = forward
    return (*early, replace(last, saved=last.saved + tower.boundary_bytes))


def _matrices(encoder: EncoderSpec, rows: int) -> tuple[Linear, ...]:
    widths = zip(encoder.projector_inputs, encoder.projector, strict=True)
    return tuple(
        Linear(f"projector.{number}", outputs, inputs, encoder.projector_bias, rows, narrow=False)
        for number, (inputs, outputs) in enumerate(widths)
    )


def _projected(encoder: EncoderSpec, taken: Shard) -> tuple[Operation, ...]:
    """Return what joins positions, the projector, and the copy of its output among the tokens."""
    operations, whole, rows = OperatorList(), unsplit(taken), taken.tokens
    width = encoder.model.hidden
    if encoder.merge > 1:
        kind = "copy" if encoder.join == "side_by_side" else "residual_add"
        operations.kernel("projector.merge", whole.vector(kind, rows * encoder.merge, width))
    if encoder.projector_norm:
        size = whole.activation_bytes(rows * encoder.projector_inputs[0])
        norm = whole.vector("rms_norm", rows, encoder.projector_inputs[0])
        operations.kernel("projector.norm", norm, saved=size, output=size)
    for number, linear in enumerate(_matrices(encoder, rows)):
        size = whole.activation_bytes(rows * linear.inner)
        if number:
            gelu = whole.vector("gelu", rows, linear.inner)
            operations.kernel(f"projector.{number}.gelu", gelu, saved=size, output=size)
        forward_gemm(operations, whole, linear, saved=size)
    size = whole.activation_bytes(rows * taken.hidden)
    operations.kernel("projector.among_tokens", whole.vector("copy", rows, taken.hidden), output=size)
    return operations.finish()


def _projection_backward(encoder: EncoderSpec, taken: Shard, frozen: int) -> tuple[Operation, ...]:
    """Return the same from the end; its first kernel stands for the parameters that are not trained."""
    operations, whole, rows = OperatorList(), unsplit(taken), taken.tokens
    copy = whole.vector("copy", rows, taken.hidden)
    operations.kernel("projector.of_tokens", copy, output=whole.activation_bytes(rows * taken.hidden))
    matrices = _matrices(encoder, rows)
    ready = operations.last
    for number, linear in reversed(list(enumerate(matrices))):
        ready = column_backward(operations, whole, linear)
        if number:
            gelu = whole.vector("gelu", rows, linear.inner, backward=True)
            ready = operations.kernel(f"projector.{number}.gelu", gelu, after=ready)
    if encoder.projector_norm:
        shape = (rows, encoder.projector_inputs[0])
        rms_norm_backward(operations, whole, "projector.norm", shape, ready, parameters=shape[1])
    if encoder.merge > 1:
        spread = whole.vector("copy", rows * encoder.merge, encoder.model.hidden)
        operations.kernel("projector.merge", spread, after=operations.last)
    listed = operations.finish()
    return (replace(listed[0], parameters=frozen, frozen=frozen > 0), *listed[1:])
