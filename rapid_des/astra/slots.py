"""What the slots of a rank's program are, before it is known which rank runs it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from rapid_des.astra.collectives import Axis


@dataclass(frozen=True)
class Whole:
    """A process group: its slot in `RankTrace.groups`, or None for the world."""

    group: int | None


@dataclass(frozen=True)
class Along:
    """Those ranks of a group that is the whole world which differ from this one only along an axis."""

    group: int | None
    axis: Axis


@dataclass(frozen=True)
class Channel:
    """Messages to, or from, the rank behind a slot of `RankTrace.peers`."""

    peer: int
    sends: bool


@dataclass(frozen=True)
class Memory:
    """The remote memory that this rank uses."""


Slot = Whole | Along | Channel | Memory


@dataclass
class SlotNumbers:
    """Numbers the slots of one rank program in the order of their first use, with the templates of each."""

    numbers: dict[Slot, int] = field(default_factory=dict)
    templates: list[dict[int, None]] = field(default_factory=list)

    def number(self, slot: Slot) -> int:
        """Return the number of a slot."""
        number = self.numbers.setdefault(slot, len(self.numbers))
        if number == len(self.templates):
            self.templates.append({})
        return number

    def use(self, slot: Slot, template: int) -> int:
        """Return the number of a slot, remembering that it runs `template`."""
        number = self.number(slot)
        self.templates[number][template] = None
        return number

    def remember(self, numbers: Iterable[int], templates: Iterable[int]) -> None:
        """Remember which templates slots run, by number, one each."""
        for number, template in zip(numbers, templates, strict=True):
            self.templates[number][template] = None
