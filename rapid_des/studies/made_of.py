"""What the parts of a model are made of: most are alike, so what follows from that is found once a kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct

from rapid_des.frontend import Job
from rapid_des.frontend.parts import EMBEDDING, HEAD, PREDICTION, ModelSection
from rapid_des.frontend.schedules.schedule import Placement


class Part(NamedTuple):
    """What a part is made of."""

    sections: tuple[ModelSection, ...]
    """In forward order."""
    counts: tuple[tuple[ModelSection, int], ...]
    """How often it has each."""


class Parts(Struct, frozen=True):
    """What all parts of a model are made of."""

    kinds: Sequence[Part]
    kind_of: Sequence[int]
    """By part, which of them it is."""
    placement: Placement
    """By stage and chunk: which part."""
    copies: int
    """How many stages hold the same parts."""

    @classmethod
    def of(cls, job: Job, kind_of_layer: Sequence[int]) -> Parts:
        """Return those of a job, given the kind of every layer."""
        kinds: dict[tuple[ModelSection, ...], int] = {}
        kind_of = [kinds.setdefault(sections, len(kinds)) for sections in _sections(job, kind_of_layer)]
        made = [Part(sections, tuple(Counter(sections).items())) for sections in kinds]
        return cls(made, kind_of, job.placement, len(job.copies[0]))

    def __getitem__(self, part: int) -> Part:
        return self.kinds[self.kind_of[part]]


def _sections(job: Job, kind_of_layer: Sequence[int]) -> Iterator[tuple[ModelSection, ...]]:
    """Yield the sections of each part, in forward order."""
    first, last = 0, job.parts - 1
    for part, count in enumerate(job.layers):
        blocks = [ModelSection("block", kind) for kind in kind_of_layer[first : first + count]]
        before = [EMBEDDING] if part == 0 else []
        after = [*[PREDICTION] * job.predictions, HEAD] if part == last else []
        yield (*before, *blocks, *after)
        first += count
