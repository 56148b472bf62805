"""Which activations a layer keeps for its backward, and which operators its backward recomputes.

`full` keeps a layer's input and runs its whole forward again: one layer at a time, several together
(uniform), or only the first ones of each part of the model (block), as Megatron-LM's `--recompute-method`.
Names of operators keep what these read and run them again where the backward first needs them, as do small
kernels and every second product (`alternate`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Literal, TypeAlias

from rapid_des.frontend.alternate import QKV, WHOLE, Again, alternate, cut, producer_of
from rapid_des.frontend.layers import Layer
from rapid_des.frontend.layers.layer import CORE, LayerKind, Sublayer
from rapid_des.frontend.operations import Operation, Shard
from rapid_des.frontend.passes import following
from rapid_des.frontend.spec import TrainingSpec
from rapid_des.frontend.template import INPUT
from rapid_des.values import replace

Keeps: TypeAlias = Literal["operators", "input", "nothing"]


class RecomputedKind(LayerKind, frozen=True):
    """A layer kind of which some operators are recomputed."""

    keeps: Keeps = "operators"
    """Tensors of its forward that wait for its backward: what its operators keep; its input; none, where
    several layers are run again together from the input of the first."""
    recomputed: tuple[str, ...] = ()
    """Names of operators that its backward recomputes."""
    alternate: bool = False
    """Whether small kernels and every second product are."""
    early_stop: bool = False
    """Whether recomputation stops before the last operator that keeps its input."""

    @property
    def waits(self) -> bool:
        """Whether a later layer recomputes it."""
        return self.keeps != "operators" and not self.before

    def forward(self, shard: Shard) -> tuple[Operation, ...]:
        """Return the forward as one rank's operator list, with what is kept of it."""
        operations = self.layer.forward(shard)
        if self.keeps == "operators":
            return tuple(_keeping(operations, self._again(operations)))
        dropped = [replace(operation, saved=0, core=0) for operation in operations]
        if self.keeps == "input" and dropped:
            dropped[0] = replace(dropped[0], saved=shard.boundary_bytes)
        return tuple(dropped)

    def backward(self, shard: Shard) -> tuple[Operation, ...]:
        """Return the backward, after the layers that are run again, or with the operators that are."""
        if self.before:
            first = list(_first(self.before, shard, early_stop=self.early_stop))
            return following(first, self.layer.backward(shard))
        forward = self.layer.forward(shard)
        again = self._again(forward)
        alone = {place for place in again if _core_alone(forward, again, place)}
        backward = self.layer.backward(replace(shard, core_again=bool(alone)))
        rest = {place: share for place, share in again.items() if place not in alone}
        return _inserted(backward, _starts(forward, backward, rest))

    def _again(self, operations: Sequence[Operation]) -> Again:
        """Return which operators of a forward are run again, and which share of each."""
        if self.alternate:
            return dict(alternate(operations))
        return {
            place: WHOLE
            for place, operation in enumerate(operations)
            if any(names(name, operation) for name in self.recomputed)
        }


def layer_kinds(
    pattern: Sequence[Layer], parts: Sequence[int], training: TrainingSpec
) -> tuple[LayerKind, ...]:
    """Return every layer of a model as a training job runs it, which has this many layers in each part."""
    ends = list(accumulate(parts, initial=0))
    return tuple(kind for part in pairwise(ends) for kind in _of_part(pattern[slice(*part)], training))


def refusals(training: TrainingSpec, kinds: Sequence[Layer], shard: Shard) -> Iterator[tuple[str, str]]:
    """Yield keys of the training section that do not fit layers of these kinds, and why."""
    full, chosen = training.recompute == "full", training.recompute
    if not full and (training.recompute_layers or training.recompute_method == "block"):
        yield "recompute_layers", "layers are counted and grouped with recompute full only"
    if training.recompute_method == "block" and not training.recompute_layers:
        yield "recompute_layers", "recompute_method block needs how many layers are recomputed"
    there = {kind_name(half) for layer in kinds for half in layer.halves}
    if chosen == "alternate":
        yield from _not_alternate(training, kinds, shard)
    for kind in training.recompute_kinds:
        if kind not in there:
            yield "recompute_kinds", f"{kind} is none of the model's {', '.join(sorted(there))}"
    if training.recompute_kinds and chosen == "none":
        yield "recompute_kinds", "nothing is recomputed: recompute is none"
    if not isinstance(chosen, str):
        yield from _unknown(chosen, kinds, shard)


def _not_alternate(training: TrainingSpec, kinds: Sequence[Layer], shard: Shard) -> Iterator[tuple[str, str]]:
    """Yield why a job's products are not counted, or which key counts for nothing."""
    for layer in kinds:
        made = {operation.name for operation in layer.forward(shard)}
        if not {QKV, "ffn.in"} <= made or any(each.parameters.experts for each in layer.halves):
            yield "recompute", "alternate counts the products of attention and feed-forward layers alone"
            break
    if training.recompute_kinds:
        yield "recompute_kinds", "alternate is of all layers"


def _unknown(chosen: Sequence[str], kinds: Sequence[Layer], shard: Shard) -> Iterator[tuple[str, str]]:
    """Yield names of operators to recompute that do not exist."""
    operations = [operation for layer in kinds for operation in layer.forward(shard)]
    for name in chosen:
        if not any(names(name, operation) for operation in operations):
            known = ", ".join(sorted({each.name for each in operations if each.operator is not None}))
            yield "recompute", f"no operator is named {name!r}; there are {known}"


def _of_part(layers: Sequence[Layer], training: TrainingSpec) -> Iterator[LayerKind]:
    names: tuple[str, ...] = ()
    if training.recompute == "alternate":
        yield from (RecomputedKind(layer, alternate=True) for layer in layers)
        return
    if training.recompute == "selective":
        names = (CORE,)
    elif not isinstance(training.recompute, str):
        names = training.recompute
    elif training.recompute == "full":
        yield from _groups(layers, training)
        return
    for layer in layers:
        yield (
            RecomputedKind(layer, recomputed=names) if names and _meant(layer, training) else LayerKind(layer)
        )


def _groups(layers: Sequence[Layer], training: TrainingSpec) -> Iterator[LayerKind]:
    """Yield layers that are run again from an input: in groups, or the first ones each alone."""
    size, many = training.recompute_layers or 1, len(layers)
    if training.recompute_method == "block":
        size, many = 1, size
    meant = [place < many and _meant(layer, training) for place, layer in enumerate(layers)]
    for place, layer in enumerate(layers):
        if not meant[place]:
            yield LayerKind(layer)
            continue
        first = place - place % size
        group = [layers[other] for other in range(first, min(first + size, len(layers)))]
        last = place == first + len(group) - 1
        before = tuple(group) if last else ()
        keeps: Keeps = "input" if place == first else "nothing"
        yield RecomputedKind(layer, before, keeps, early_stop=training.recompute_early_stop)


def _meant(layer: Layer, training: TrainingSpec) -> bool:
    kinds = training.recompute_kinds
    return not kinds or any(kind_name(half) in kinds for half in layer.halves)


def kind_name(half: Sublayer) -> str:
    """Return the kind of half a layer: `attention`, `mamba`, `delta`, `lightning`, `ffn` or `experts`."""
    return "experts" if half.parameters.experts else half.name


def names(name: str, operation: Operation) -> bool:
    """Return whether a name of operators means this one: its own, a last part of it, or a first part.

    >>> [names(name, Operation("ffn.norm", ())) for name in ("ffn.norm", "norm", "ffn", "no")]
    [True, True, True, False]
    """
    repeated = operation.name
    return repeated == name or repeated.startswith(f"{name}.") or repeated.endswith(f".{name}")


def _core_alone(operations: Sequence[Operation], again: Again, place: int) -> bool:
    """Return whether an operator is of an attention core that is run again by itself: its result is kept."""
    source = place
    while source >= 0 and names(CORE, operations[source]):
        source = producer_of(operations, source)
    return source != place and source not in again


def _keeping(operations: Sequence[Operation], again: Again) -> Iterator[Operation]:
    """Yield a forward with what it keeps: not what stands between operators that are run again."""
    for place, operation in enumerate(operations):
        source = producer_of(operations, place)
        remade = source in again and not _core_alone(operations, again, source)
        saved = operation.saved - round(operation.saved * again[source].lost) if remade else operation.saved
        yield replace(operation, saved=saved + (0 if place in again else operation.core), core=0)


def _first(layers: Sequence[Layer], shard: Shard, *, early_stop: bool) -> Iterator[Operation]:
    """Yield the forwards of recomputed layers, each waiting for the one before."""
    begun = 0
    for place, layer in enumerate(layers):
        distance = len(layers) - 1 - place
        label = f"recompute.{distance}" if distance else "recompute"
        forward: Sequence[Operation] = layer.forward(shard)
        if early_stop and not distance and not shard.dropout:  # dropout's own kernel makes the mask it keeps
            forward = _stopped(forward)
        for operation in forward:
            after = tuple(other + begun if other >= INPUT and begun else other for other in operation.after)
            yield _remade(operation, label, after, operation.saved + operation.core)
        begun += len(forward)


def _stopped(forward: Sequence[Operation]) -> Sequence[Operation]:
    """Return a forward up to the last tensor that its backward needs.

    That one is read by an operator which therefore does not run: what made it is the last that does. An
    attention core keeps what it makes itself, so that it runs.
    """
    last = max((place for place, each in enumerate(forward) if each.saved + each.core), default=0)
    if not last or forward[last].core:
        return forward[: last + 1]
    *forwards, end = forward[:last]
    return [*forwards, replace(end, saved=end.saved + forward[last].saved)]


def _remade(operation: Operation, label: str, after: tuple[int, ...], held: int) -> Operation:
    return replace(
        operation, name=f"{label}.{operation.name}", after=after, saved=0, core=0, held=held, weights=0
    )


def _starts(
    forward: Sequence[Operation], backward: Sequence[Operation], again: Again
) -> Mapping[int, Sequence[Operation]]:
    """Return the recomputed operators, by the position of the backward's operator that they precede.

    Operators that follow each other are run again together, before the first that needs one of them.
    """
    starts: defaultdict[int, list[Operation]] = defaultdict(list)
    for run in _runs(sorted(again)):
        needing = [place for place in range(len(forward)) if producer_of(forward, place) in run]
        uses = [_first_use(backward, forward[place].name) for place in (*run, *needing)]
        start = min(uses)
        for place in run:
            lost = sum(forward[other].saved for other in needing if producer_of(forward, other) == place)
            held = forward[place].core + round(lost * again[place].lost)
            starts[start if start < len(backward) else 0].append(
                _remade(cut(forward[place], again[place].made), "recompute", (), held)
            )
    return starts


def _runs(places: Sequence[int]) -> Iterator[list[int]]:
    """Yield runs of consecutive numbers.

    >>> list(_runs([1, 2, 5]))
    [[1, 2], [5]]
    """
    run: list[int] = []
    for place in places:
        if run and place != run[-1] + 1:
            yield run
            run = []
        run.append(place)
    if run:
        yield run


def _first_use(backward: Sequence[Operation], name: str) -> int:
    bearing = (
        place
        for place, operation in enumerate(backward)
        if operation.name == name or operation.name.startswith(f"{name}.")
    )
    return next(bearing, len(backward))


def _inserted(
    operations: Sequence[Operation], starts: Mapping[int, Sequence[Operation]]
) -> tuple[Operation, ...]:
    """Return a list with others before some of its operators, which wait for them."""
    written: list[Operation] = []
    moved: dict[int, int] = {}
    for place, operation in enumerate(operations):
        after = tuple(moved.get(other, other) for other in operation.after)
        leaving: tuple[int, ...] = ()
        for other in starts.get(place, ()):
            written.append(replace(other, after=after))
            if other.sends:  # what comes meanwhile waits for the same
                leaving = (len(written) - 1,)
            else:
                after, leaving = (*leaving, len(written) - 1), ()
        written.append(replace(operation, after=after))
        moved[place] = len(written) - 1
    return tuple(written)
