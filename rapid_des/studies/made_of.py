"""The sections in each part of a model; most parts are equal, so that results are found once a kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct

from rapid_des.frontend.parts import EMBEDDING, HEAD, PREDICTION, ModelSection
from rapid_des.frontend.schedules.schedule import Placement


class Part(NamedTuple):
    """The sections of one kind of part."""

    sections: tuple[ModelSection, ...]
    """The sections in forward order."""
    counts: tuple[tuple[ModelSection, int], ...]
    """Each section and how often it occurs."""


class Parts(Struct, frozen=True):
    """The sections of all parts of a model."""

    kinds: tuple[Part, ...]
    kind_of: tuple[int, ...]
    """The position in `kinds` of each part."""
    placement: Placement
    """The part of each chunk of each stage."""
    copies: int
    """The number of stages that hold the same parts."""

    @classmethod
    def of(
        cls, placement: Placement, layers: Sequence[int], kind_of_layer: Sequence[int], predictions: int
    ) -> Parts:
        """Return the parts of a job, given the layers of each and the kind of every layer."""
        kinds: dict[tuple[ModelSection, ...], int] = {}
        each = _sections(layers, kind_of_layer, predictions)
        kind_of = tuple([kinds.setdefault(sections, len(kinds)) for sections in each])
        made = tuple([Part(sections, tuple(Counter(sections).items())) for sections in kinds])
        copies = sum(set(parts) == set(placement[0]) for parts in placement)
        return cls(made, kind_of, placement, copies)

    def __getitem__(self, part: int) -> Part:
        return self.kinds[self.kind_of[part]]


def _sections(
    layers: Sequence[int], kind_of_layer: Sequence[int], predictions: int
) -> Iterator[tuple[ModelSection, ...]]:
    """Yield the sections of each part, in forward order."""
    first, last = 0, len(layers) - 1
    for part, count in enumerate(layers):
        blocks = [ModelSection("block", kind) for kind in kind_of_layer[first : first + count]]
        before = [EMBEDDING] if part == 0 else []
        after = [*[PREDICTION] * predictions, HEAD] if part == last else []
        yield (*before, *blocks, *after)
        first += count
