"""Algorithms from files, by the kind of file, and MSCCL's XML as transfers.

A GPU has thread blocks, each a list of steps that run in order; a step sends to or receives from the thread
block's peer, may wait for a step of another one, and names chunks by buffer (i, o, s) and offset. The steps
are played once with symbols to find which part of the collective's logical buffer every message carries.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from pathlib import Path
from xml.etree import ElementTree

from msgspec import Struct, field, structs

from rapid_des.config.documents import read_text
from rapid_des.errors import ConfigError
from rapid_des.network.collectives.written import (
    WrittenAlgorithm,
    WrittenFile,
    WrittenTransfer,
    load_written,
    written,
)
from rapid_des.units import whole_number

_COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
}
_RECEIVES = {"r", "rcs", "rrc", "rrs", "rrcs"}
_REDUCES = {"rrc", "rrs", "rrcs"}
_SENDS = {"s", "rcs", "rrs", "rrcs"}
_KNOWN = _RECEIVES | _SENDS | {"cpy", "re", "nop"}
MOST_STEPS = 2**16
MOST_CHUNKS = 2**20
"""The most chunks of an algorithm, and the largest number that an attribute may state."""
Slot = tuple[int, str, int]
"""A place for a chunk: (GPU, buffer, offset)."""


class _Message(Struct):
    """The content of one send: logical blocks, one transfer for every run of neighbours."""

    blocks: list[int]
    numbers: list[int]


class _Thread(Struct):
    """A thread block: its steps, how far it is, and the transfers into its GPU that it knows to have come."""

    gpu: int
    send: int
    receive: int
    channel: int
    steps: list[ElementTree.Element]
    done: int = 0
    knows: list[frozenset[int]] = field(default_factory=list)


def load_msccl(path: Path) -> WrittenAlgorithm:
    """Read an MSCCL XML file; a `ConfigError` names the file, the step and what is wrong."""
    try:
        root = ElementTree.fromstring(read_text(path))  # noqa: S314 - no network, entities are expat's
    except ElementTree.ParseError as error:
        raise ConfigError(f"not valid XML: {error}", file=str(path)) from None
    try:
        return _Player(root, str(path)).play()
    except (KeyError, ValueError) as error:
        raise ConfigError(f"an attribute is missing or no number: {error}", file=str(path)) from None


class _Player:
    """Runs all thread blocks to their ends."""

    def __init__(self, root: ElementTree.Element, name: str) -> None:
        self.name = name
        self.members = _count(root.attrib["ngpus"], least=1)
        coll = root.attrib["coll"].lower()
        if coll not in _COLLECTIVES:
            raise ConfigError(f"{coll!r} is not one of {', '.join(_COLLECTIVES)}", file=name, key="coll")
        self.collective = _COLLECTIVES[coll]
        self.in_place = root.attrib.get("inplace", "0") == "1"
        self.threads = {
            (_count(gpu.attrib["id"]), _count(block.attrib["id"])): _Thread(
                _count(gpu.attrib["id"]),
                _count(block.attrib["send"], least=-1),
                _count(block.attrib["recv"], least=-1),
                _count(block.attrib["chan"]),
                _in_order(block),
            )
            for gpu in root
            for block in gpu
        }
        chunks = max([_count(gpu.attrib["i_chunks"]) for gpu in root] + [1])
        self._check_work(chunks)
        if self.collective not in ("all_gather", "all_reduce") and chunks % self.members:
            problem = f"{chunks} chunks do not cut {coll} of {self.members} GPUs; allowed: a multiple of them"
            raise ConfigError(problem, file=name, key="i_chunks")
        self.per_rank = chunks if self.collective in ("all_gather", "all_reduce") else chunks // self.members
        self.holds: dict[Slot, int] = {}
        self.brought: dict[Slot, list[int]] = defaultdict(list)
        self.wires: dict[tuple[int, int, int], deque[_Message]] = defaultdict(deque)
        self.transfers: list[WrittenTransfer] = []
        self.reduced: set[int] = set()
        self._fill(chunks)

    def _check_work(self, chunks: int) -> None:
        """Refuse what would take more than an algorithm of that size can need, before it is played."""
        steps = [step for thread in self.threads.values() for step in thread.steps]
        for what, amount, most in (
            ("steps", len(steps), MOST_STEPS),
            ("GPUs x chunks", self.members * chunks, MOST_CHUNKS),
            ("chunks in all steps", sum(_count(step.attrib["cnt"]) for step in steps), MOST_CHUNKS),
        ):
            if amount > most:
                raise ConfigError(f"{amount:,} {what}; allowed: up to {most:,}", file=self.name)

    @property
    def blocks(self) -> int:
        """Blocks of the logical buffer."""
        factor = {"all_reduce": 1, "all_to_all": self.members**2}.get(self.collective, self.members)
        return self.per_rank * factor

    def _fill(self, chunks: int) -> None:
        """Say where the input stands at the start."""
        for gpu, chunk in itertools.product(range(self.members), range(chunks)):
            logical = chunk
            if self.collective == "all_gather":
                logical = gpu * self.per_rank + chunk
                self.holds[gpu, "o", logical] = logical
            elif self.collective == "all_to_all":
                logical = gpu * chunks + chunk
            self.holds[gpu, "i", chunk] = logical

    def _slot(self, gpu: int, buffer: str, offset: int) -> Slot:
        if buffer == "o" and self.in_place and self.collective in ("all_reduce", "reduce_scatter"):
            return gpu, "i", offset
        return gpu, buffer, offset

    def play(self) -> WrittenAlgorithm:
        """Run every step that can run until none is left."""
        moved = True
        while moved:
            moved = False
            for key in sorted(self.threads):
                while self._step(key):
                    moved = True
        for (gpu, block), thread in sorted(self.threads.items()):
            if thread.done < len(thread.steps):
                problem = f"gpu {gpu}, tb {block}, step {thread.done} waits for something that never comes"
                raise ConfigError(problem, file=self.name)
        rows = [
            structs.replace(row, reduces=number in self.reduced) for number, row in enumerate(self.transfers)
        ]
        file = WrittenFile(
            collective=self.collective, members=self.members, blocks=self.blocks, transfers=tuple(rows)
        )
        return written(file, self.name)

    def _step(self, key: tuple[int, int]) -> bool:
        """Run a thread block's next step if it can; say whether it did."""
        thread = self.threads[key]
        if thread.done == len(thread.steps):
            return False
        step = thread.steps[thread.done].attrib
        kind = step["type"]
        if kind not in _KNOWN:
            raise ConfigError(f"step type {kind!r} is not one of {', '.join(sorted(_KNOWN))}", file=self.name)
        wire = self.wires[thread.receive, thread.gpu, thread.channel]
        if not self._awaited_is_done(thread, step) or (kind in _RECEIVES and not wire):
            return False
        known = self._known(thread, step)
        blocks = self._source_blocks(thread.gpu, step) if kind not in _RECEIVES else []
        if kind in _RECEIVES:
            message = wire.popleft()
            known, blocks = known | frozenset(message.numbers), message.blocks
            self._land(thread.gpu, step, message)
        elif kind in ("cpy", "re"):
            self._copy(thread.gpu, step, reduce=kind == "re")
        if kind in _SENDS:
            self._send(thread, blocks, known)
        thread.knows.append(known)
        thread.done += 1
        return True

    def _awaited_is_done(self, thread: _Thread, step: dict[str, str]) -> bool:
        awaited = _count(step["depid"], least=-1)
        return awaited < 0 or self.threads[thread.gpu, awaited].done > _count(step["deps"])

    def _known(self, thread: _Thread, step: dict[str, str]) -> frozenset[int]:
        """Return the arrivals that a thread block knows of, with those of the step it has waited for."""
        known = thread.knows[-1] if thread.knows else frozenset()
        awaited = _count(step["depid"], least=-1)
        if awaited >= 0:
            known |= self.threads[thread.gpu, awaited].knows[_count(step["deps"])]
        return known

    def _range(self, gpu: int, step: dict[str, str], side: str) -> list[Slot]:
        offset, count = _count(step[f"{side}off"]), _count(step["cnt"])
        return [self._slot(gpu, step[f"{side}buf"], offset + index) for index in range(count)]

    def _source_blocks(self, gpu: int, step: dict[str, str]) -> list[int]:
        if step["type"] == "nop":
            return []
        slots = self._range(gpu, step, "src")
        empty = [slot for slot in slots if slot not in self.holds]
        if empty:
            _, buffer, offset = empty[0]
            problem = f"gpu {gpu} reads chunk {buffer}[{offset}] before anything is there"
            raise ConfigError(problem, file=self.name)
        return [self.holds[slot] for slot in slots]

    def _land(self, gpu: int, step: dict[str, str], message: _Message) -> None:
        if step["type"] in _REDUCES:
            self.reduced.update(message.numbers)
        if step["type"] == "rrs":
            return
        for slot, block in zip(self._range(gpu, step, "dst"), message.blocks, strict=True):
            self.holds[slot] = block
            self.brought[slot] = list(message.numbers)

    def _copy(self, gpu: int, step: dict[str, str], *, reduce: bool) -> None:
        pairs = zip(self._range(gpu, step, "src"), self._range(gpu, step, "dst"), strict=True)
        for source, target in pairs:
            if reduce:
                self.reduced.update(self.brought[source])
            self.holds[target] = self.holds[source]

    def _send(self, thread: _Thread, blocks: list[int], known: frozenset[int]) -> None:
        numbers = []
        start = 0
        for end in range(1, len(blocks) + 1):
            if end < len(blocks) and blocks[end] == blocks[end - 1] + 1:
                continue
            numbers.append(len(self.transfers))
            self.transfers.append(
                WrittenTransfer(
                    source=thread.gpu,
                    destination=thread.send,
                    block=blocks[start],
                    count=end - start,
                    after=tuple(sorted(known)),
                )
            )
            start = end
        self.wires[thread.gpu, thread.send, thread.channel].append(_Message(blocks, numbers))


def _in_order(block: ElementTree.Element) -> list[ElementTree.Element]:
    return sorted(block, key=lambda step: _count(step.attrib["s"]))


def _count(text: str, least: int = 0) -> int:
    return whole_number(text.strip(), least, MOST_CHUNKS)


READERS = {".xml": load_msccl, ".json": load_written, ".yaml": load_written, ".csv": load_written}


def load_algorithm(path: Path) -> WrittenAlgorithm:
    """Read, check and prove an algorithm: MSCCL's XML, or transfers as JSON, YAML or CSV."""
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise ConfigError(f"an algorithm's file ends in one of {', '.join(READERS)}", file=str(path))
    return reader(path)
