"""What stands in a GPU's memory, by name and category: allocations and releases of one section's operators.

A forward operator keeps what its backward needs until the last operator of the backward that bears its name
(or continues it: `ffn.in.weight_gradient`) has run; where none does, until the list ends. Its result stands
while it is written and while those that wait for it run. What a backward recomputes stands until its end.
Where a backward runs in two halves, the inputs of matrices and the gradients of their outputs stand from the
first to the end of the second, also where they were recomputed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, overload

from msgspec import Struct

from rapid_des.frontend.job import Job
from rapid_des.frontend.operations import Operation
from rapid_des.frontend.parts import Lists, ModelSection, PieceKey, training_lists
from rapid_des.frontend.passes import gradient_bytes
from rapid_des.frontend.routing import heaviest_place
from rapid_des.frontend.schedules.schedule import Item, PassKind
from rapid_des.units import Size
from rapid_des.values import replace

CATEGORIES = (
    "weights", "gradients", "optimizer", "unsharded", "activations", "logits", "temporary", "communication",
    "kv_cache", "workspace", "fragmentation", "framework", "reserve",
)  # fmt: skip
MOVING = frozenset(("activations", "logits", "temporary"))
"""Categories that are allocated and released within a step."""
OUTSIDE = frozenset(("framework", "reserve"))
"""Categories outside the framework's allocator."""


class Tensor(NamedTuple):
    """Tensors of one name and category, added up."""

    name: str
    category: str
    size: int
    """Bytes of all of them together."""
    number: int = 1
    """The number of equal tensors."""


class Moment(NamedTuple):
    """The peak of a part of a step: of a pass of the schedule, or of the optimizer's step."""

    name: str
    """`forward`, `backward`, or `optimizer`."""
    categories: Mapping[str, int]
    left: Mapping[str, int]
    """Bytes by category after the part has ended."""
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


class Instant(NamedTuple):
    """The state of memory: sections held and lent, gradients of the pass, and the running section."""

    held: dict[tuple[ModelSection, bool], int]
    lent: dict[ModelSection, int]
    passed: int
    here: Sequence[Tensor]
    outputs: int
    """Number of micro-batches in flight, over all chunks."""


class MemoryOfItem(NamedTuple):
    """The states of memory at the peak of an item and after it."""

    fullest: Instant | None
    left: Instant
    state: int


@dataclass(frozen=True)
class Timeline(Sequence[Moment]):
    """The moments of a step, computed on demand: many items share few states."""

    items: tuple[Item, ...]
    passed: tuple[MemoryOfItem, ...]
    """The states of each item."""
    end: Moment
    """The peak of the optimizer's step."""
    sizes: Callable[[MemoryOfItem], tuple[Mapping[str, int], Mapping[str, int]]] = field(compare=False)
    """Returns the bytes by category at the peak of an item, and after it."""

    def __len__(self) -> int:
        return len(self.items) + 1

    @overload
    def __getitem__(self, place: int) -> Moment: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Moment]: ...
    def __getitem__(self, place: int | slice) -> Moment | Sequence[Moment]:
        """Return the moment at a place, or several."""
        if isinstance(place, slice):
            return [self[each] for each in range(len(self))[place]]
        number = range(len(self))[place]
        if number == len(self.items):
            return self.end
        item = self.items[number]
        return Moment(item.phase, *self.sizes(self.passed[number]), item.micro_batch, item.chunk)


class StageMemory(Struct, frozen=True):
    """The peak memory of one rank of a pipeline stage, in bytes."""

    stage: int
    parameters: int
    categories: Mapping[str, int]
    """Bytes at the peak by category; keys are `CATEGORIES`."""
    tensors: tuple[Tensor, ...] = ()
    """Tensors at the peak, largest first; their sizes add up to `peak`."""
    activations: int = 0
    """Training: the largest sum of activations kept for backwards, without logits, in bytes."""
    timeline: Sequence[Moment] = ()
    """Training: the peak of each pass in the order of the schedule, then of the optimizer's step."""

    def __hash__(self) -> int:
        return hash((self.stage, self.parameters, self.tensors, self.activations))

    @property
    def peak(self) -> int:
        """Bytes at the peak."""
        return sum(self.categories.values())

    @property
    def reserved(self) -> int:
        """Bytes of the peak that the framework's allocator holds (PyTorch: `max_memory_reserved`)."""
        return _inside(self.categories)


class JobMemory(Struct, frozen=True):
    """Every stage's memory, in bytes.

    >>> JobMemory((StageMemory(0, 10, {"weights": 20}), StageMemory(1, 8, {"weights": 16}))).fullest.peak
    20
    """

    stages: tuple[StageMemory, ...]

    @property
    def fullest(self) -> StageMemory:
        """The stage with the highest peak; the first of equals."""
        return max(self.stages, key=lambda stage: (stage.peak, -stage.stage))

    @property
    def light(self) -> JobMemory:
        """The same memory without timelines, which only pictures need."""
        return JobMemory(tuple(replace(stage, timeline=()) for stage in self.stages))


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
    """Return tensors merged by name and category, largest first, without empty ones.

    >>> merged([Tensor("a", "logits", 3), Tensor("b", "logits", 4), Tensor("a", "logits", 3)])[0]
    Tensor(name='a', category='logits', size=6, number=2)
    """
    largest: dict[tuple[str, str], tuple[int, int]] = {}
    for name, category, size, number in tensors:
        known = largest.get((name, category), (0, 0))
        largest[name, category] = known[0] + size, known[1] + number
    alike = (Tensor(*key, *sums) for key, sums in largest.items() if sums[0])
    return tuple(sorted(alike, key=lambda tensor: (-tensor.size, tensor.name)))


def shown(size: int) -> str:
    """Return a size as text, such as 1.5 GiB.

    >>> shown(3 * 2**29), shown(512)
    ('1.5 GiB', '512 B')
    """
    for unit in ("GiB", "MiB", "KiB"):
        factor = Size.parse(f"1 {unit}")
        if size >= factor:
            return f"{size / factor:.4g} {unit}"
    return f"{size} B"


class SectionMemory(Struct, frozen=True, dict=True):
    """The tensors that a section keeps between forward and backward, and those at the peak of either."""

    saved: tuple[Tensor, ...]
    """Tensors kept from the forward to the backward."""
    fullest: Mapping[PassKind, tuple[Tensor, ...]]
    """The tensors at the peak of each phase: those kept by then, and temporary ones."""
    deferred: tuple[Tensor, ...] = ()
    """Tensors kept from the first half of a backward to the second."""
    remade: tuple[Tensor, ...] = ()
    """The tensors of a layer recomputed with later ones that are kept from then until its backward."""
    others: int = 0
    """Number of preceding layers that its backward recomputes for their backwards."""
    away: int = 0
    """Bytes of activations that are offloaded to the host's memory between forward and backward."""

    @cached_property
    def activations(self) -> int:
        """Bytes kept, without logits."""
        return size_of(self.saved, "activations")

    @cached_property
    def logits(self) -> int:
        """Bytes of logits that are kept."""
        return size_of(self.saved, "logits")

    @cached_property
    def highest(self) -> Mapping[PassKind, int]:
        """Bytes at the peak of each phase."""
        return {phase: sum(tensor.size for tensor in tensors) for phase, tensors in self.fullest.items()}


def section_memory(job: Job, lists: Lists | None = None) -> dict[ModelSection, SectionMemory]:
    """Return what each section of a training job keeps, under its recomputation.

    `lists` are the operators of ranks at the fullest place, where they are known already.
    """
    place = heaviest_place(job) if job.model.has_experts else 0
    lists = training_lists(job, place) if lists is None else lists
    sections = [key.section for key in lists if key.phase == "forward"]
    share = job.training.offload_activations
    return {
        section: _offloaded(memory, share if section.name == "block" else 0)
        for section in sections
        for memory in [_section(job, section, place, lists)]
    }


def _offloaded(memory: SectionMemory, share: float) -> SectionMemory:
    """Return what a section keeps on the GPU while a share of its activations is in the host's memory."""
    if not share:
        return memory
    saved = tuple(
        tensor._replace(size=tensor.size - round(share * tensor.size))
        if tensor.category == "activations"
        else tensor
        for tensor in memory.saved
    )
    return replace(memory, saved=saved, away=memory.activations - size_of(saved, "activations"))


def size_of(tensors: Iterable[Tensor], category: str) -> int:
    """Return the sum of the sizes of one category, in bytes."""
    return sum(tensor.size for tensor in tensors if tensor.category == category)


def _section(job: Job, section: ModelSection, place: int, lists: Lists) -> SectionMemory:
    """Return what a section keeps on ranks at one place among the ep ranks."""
    forward, backward = lists[PieceKey(section, "forward")], lists[PieceKey(section, "backward")]
    kind = job.kinds[section.kind] if section.name == "block" else None
    by_operator = [list(_saved(operation)) for operation in forward]
    saved = [tensor for tensors in by_operator for tensor in tensors]
    waits, inputs = kind is not None and kind.waits, lists.get(PieceKey(section, "input_gradient"))
    whole = forward
    if kind is not None and (waits or inputs is not None):
        whole = kind.made_again(replace(job.training_shard, expert_place=place))
    remade = [tensor for operation in whole for tensor in _saved(operation)] if waits else []
    standing = [*saved, *remade]
    ends = _releases(standing, backward)
    fullest: dict[PassKind, tuple[Tensor, ...]] = {
        "forward": _fullest(forward, _growing(by_operator)),
        "backward": _fullest(backward, _shrinking(standing, ends, len(backward))),
    }
    others = 0 if kind is None else max(len(kind.before) - 1, 0)
    if inputs is None:
        return SectionMemory(tuple(saved), fullest, (), tuple(remade), others)
    weights = lists[PieceKey(section, "weight_gradient")]
    needed = _last_uses(weights)
    deferred = [tensor for operation in whole for tensor in _saved(operation) if tensor.name in needed]
    deferred += [
        Tensor(gradient.name, "activations", size)
        for gradient in weights
        if (size := gradient_bytes(gradient))
    ]
    last = [len(inputs) if tensor.name in needed else end
            for tensor, end in zip(standing, _releases(standing, inputs), strict=True)]  # fmt: skip
    fullest["input_gradient"] = _fullest(inputs, _shrinking(standing, last, len(inputs)))
    fullest["weight_gradient"] = _fullest(weights, iter([deferred] * len(weights)))
    return SectionMemory(tuple(saved), fullest, tuple(deferred), tuple(remade), others)


def _saved(operation: Operation) -> Iterator[Tensor]:
    if operation.saved + operation.core:
        yield Tensor(operation.name, "activations", operation.saved + operation.core)
    if operation.logits:
        yield Tensor(operation.name, "logits", operation.logits)


def _releases(saved: Sequence[Tensor], backward: Sequence[Operation]) -> list[int]:
    """Return for each tensor after which position of the backward it is given back."""
    last_use, last = _last_uses(backward), len(backward) - 1
    return [last_use.get(tensor.name, last) for tensor in saved]


def _last_uses(operations: Sequence[Operation]) -> dict[str, int]:
    """Return by name the last position whose operator bears or continues it (`ffn.in.weight_gradient`)."""
    last: dict[str, int] = {}
    for position, operation in enumerate(operations):
        name = operation.name
        while name:
            last[name] = position
            name = name.rpartition(".")[0]
    return last


def _growing(by_operator: Sequence[list[Tensor]]) -> Iterator[list[Tensor]]:
    """Yield what is kept while each operator of a forward runs."""
    held: list[Tensor] = []
    for tensors in by_operator:
        held = held + tensors
        yield held


def _shrinking(saved: Sequence[Tensor], ends: Sequence[int], count: int) -> Iterator[list[Tensor]]:
    """Yield what is still kept while each operator of a backward runs."""
    for position in range(count):
        yield [tensor for tensor, end in zip(saved, ends, strict=True) if end >= position]


def fragments(job: Job, moving: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield the memory that the allocator loses to fragmentation."""
    size = sum(tensor.size for tensor in moving if tensor.category in MOVING)
    yield Tensor("fragmentation", "fragmentation", round(job.spec.memory.fragmentation * size))


def transient(operations: Sequence[Operation]) -> tuple[Tensor, ...]:
    """Return the tensors at the peak of a list that keeps nothing."""
    return _fullest(operations, iter([[]] * len(operations)))


def _fullest(operations: Sequence[Operation], saved: Iterator[list[Tensor]]) -> tuple[Tensor, ...]:
    """Return the tensors at the peak of a list: kept, recomputed so far, a result, its inputs."""
    most, fullest = -1, tuple[Tensor, ...]()
    again: list[Tensor] = []
    for operation, standing in zip(operations, saved, strict=True):
        if operation.held:
            again.append(Tensor(operation.name, "temporary", operation.held))
        results = [operations[position] for position in operation.after if position >= 0]
        besides = [
            Tensor(working.name, "temporary", working.output)
            for working in (*results, operation)
            if working.output
        ]
        size = sum(tensor.size for tensor in (*standing, *again, *besides))
        if size > most:
            most, fullest = size, (*standing, *again, *besides)
    return fullest
