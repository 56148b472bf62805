"""What stands in a GPU's memory, by name and category, and when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rapid_des.units import Size

CATEGORIES = (
    "weights", "gradients", "optimizer", "unsharded", "activations", "logits", "temporary", "communication",
    "kv_cache", "workspace", "fragmentation", "framework", "reserve",
)  # fmt: skip
MOVING = frozenset(("activations", "logits", "temporary"))
"""What comes and goes within a step."""
OUTSIDE = frozenset(("framework", "reserve"))
"""What a framework's allocator does not see."""


class Tensor(NamedTuple):
    """Tensors of one name and category."""

    name: str
    category: str
    size: int
    """Bytes of all of them."""
    number: int = 1
    """How many."""


class Moment(NamedTuple):
    """The fullest moment of a stretch of a step: a pass of the schedule, or the optimizer's."""

    name: str
    """`forward`, `backward`, or `optimizer`."""
    categories: Mapping[str, int]
    left: Mapping[str, int]
    """By category, once it has ended."""
    micro_batch: int = 0
    chunk: int = 0

    @property
    def size(self) -> int:
        """Bytes of all categories."""
        return sum(self.categories.values())

    @property
    def allocated(self) -> int:
        """Bytes that the framework's allocator has handed out (PyTorch: `max_memory_allocated`)."""
        return _inside(self.categories) - self.categories.get("fragmentation", 0)


def _inside(categories: Mapping[str, int]) -> int:
    return sum(size for name, size in categories.items() if name not in OUTSIDE)


@dataclass(frozen=True)
class StageMemory:
    """The fullest moment of one rank of a pipeline stage, in bytes."""

    stage: int
    parameters: int
    categories: Mapping[str, int]
    """At the peak; keys are `CATEGORIES`."""
    tensors: tuple[Tensor, ...] = ()
    """At the peak, largest first; their sizes sum to `peak`."""
    activations: int = 0
    """Training: the most that waits for its backward, logits left out."""
    timeline: tuple[Moment, ...] = ()
    """Training: each pass in the order of the schedule, then the optimizer's step."""

    @property
    def peak(self) -> int:
        """Bytes at the peak."""
        return sum(self.categories.values())

    @property
    def reserved(self) -> int:
        """Bytes of it that the framework's allocator holds (PyTorch: `max_memory_reserved`)."""
        return _inside(self.categories)


@dataclass(frozen=True)
class JobMemory:
    """Every stage's memory, in bytes.

    >>> JobMemory((StageMemory(0, 10, {"weights": 20}), StageMemory(1, 8, {"weights": 16}))).fullest.peak
    20
    """

    stages: tuple[StageMemory, ...]

    @property
    def fullest(self) -> StageMemory:
        """The stage with the highest peak; the first of equals."""
        return max(self.stages, key=lambda stage: (stage.peak, -stage.stage))


def by_category(tensors: Iterable[Tensor]) -> dict[str, int]:
    """Return the bytes of every category.

    >>> by_category([Tensor("loss", "logits", 3), Tensor("head", "logits", 4)])["logits"]
    7
    """
    sizes = dict.fromkeys(CATEGORIES, 0)
    for tensor in tensors:
        sizes[tensor.category] += tensor.size
    return sizes


def merged(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Return tensors with those of one name and category together, largest first, none of no bytes.

    >>> merged([Tensor("a", "logits", 3), Tensor("b", "logits", 4), Tensor("a", "logits", 3)])[0]
    Tensor(name='a', category='logits', size=6, number=2)
    """
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for name, category, size, number in tensors:
        known = found.get((name, category), (0, 0))
        found[name, category] = known[0] + size, known[1] + number
    alike = (Tensor(*key, *sums) for key, sums in found.items() if sums[0])
    return tuple(sorted(alike, key=lambda tensor: (-tensor.size, tensor.name)))


def shown(size: int) -> str:
    """Return a size for people.

    >>> shown(3 * 2**29), shown(512)
    ('1.5 GiB', '512 B')
    """
    for unit in ("GiB", "MiB", "KiB"):
        factor = Size.parse(f"1 {unit}")
        if size >= factor:
            return f"{size / factor:.4g} {unit}"
    return f"{size} B"
