"""Traffic patterns by name: collectives of every algorithm, point-to-point patterns and training mixes.

Message sizes of the mixes stand to each other as in one layer of Llama-3.1-70B at sequence 4,096 with one
sequence a micro-batch, in bf16 and with tp = 4: activations 64 MiB, a rank's share of them to the next stage
16 MiB, its gradients 408 MiB, keys and values of half a sequence 2 MiB. `size` is the first of these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import numpy as np

from rapid_des.chakra.trace import CollectiveType
from rapid_des.network.collectives import Schedule, algorithm

C = CollectiveType
Held: TypeAlias = dict[int, tuple[int, ...]]
"""A rank to the messages that must have arrived before it goes on."""

TP = 4


@dataclass(frozen=True)
class SentMessage:
    """One message and the earlier ones it waits for."""

    source: int
    destination: int
    size: int
    after: tuple[int, ...]


@dataclass
class Script:
    """Messages in the making."""

    gpus: int
    messages: list[SentMessage] = field(default_factory=list)

    def send(self, source: int, destination: int, size: int, after: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Add one message; return its number."""
        self.messages.append(SentMessage(source, destination, max(1, size), tuple(sorted(set(after)))))
        return (len(self.messages) - 1,)

    def collective(self, schedule: Schedule, ranks: Sequence[int], held: Held | None = None) -> Held:
        """Add a schedule among `ranks`; return what each of them has to wait for afterwards."""
        held = held or {}
        numbers: list[tuple[int, ...]] = []
        touched: dict[int, list[int]] = {rank: list(held.get(rank, ())) for rank in ranks}
        starts = schedule.dependency_starts.tolist()
        for task, (source, destination) in enumerate(zip(schedule.source, schedule.destination, strict=True)):
            before = schedule.dependencies[starts[task] : starts[task + 1]].tolist()
            after = tuple(number for other in before for number in numbers[other])
            if source == destination:
                numbers.append(after)
                continue
            gate = held.get(ranks[source], ())
            numbers.append(
                self.send(ranks[source], ranks[destination], int(schedule.size[task]), after + gate)
            )
            touched[ranks[source]] += numbers[-1]
            touched[ranks[destination]] += numbers[-1]
        return {rank: tuple(messages) for rank, messages in touched.items()}


def _everyone(name: str, kind: CollectiveType, script: Script, size: int) -> None:
    each = size // script.gpus if kind is C.ALL_GATHER else size
    script.collective(algorithm(name)(kind, script.gpus, max(1, each)), range(script.gpus))


def _permutation(script: Script, size: int) -> None:
    order = np.random.default_rng(1).permutation(script.gpus)
    for source, destination in enumerate(order.tolist()):
        if source != destination:
            script.send(source, destination, size)


def _shift(script: Script, size: int) -> None:
    for source in range(script.gpus):
        script.send(source, (source + 3) % script.gpus, size)


def _incast(script: Script, size: int) -> None:
    for source in range(1, min(script.gpus, 16)):
        script.send(source, 0, size)


def _pair(script: Script, size: int) -> None:
    script.send(0, script.gpus - 1, size)


def _tp_groups(script: Script) -> list[list[int]]:
    return [list(range(first, first + TP)) for first in range(0, script.gpus, TP)]


def _all_reduce(script: Script, ranks: Sequence[int], size: int, held: Held | None = None) -> Held:
    return script.collective(algorithm("ring")(C.ALL_REDUCE, len(ranks), size), ranks, held)


def _tp_dp(script: Script, size: int) -> None:
    """Activations among tp ranks, then gradients among dp ranks."""
    held: Held = {}
    for ranks in _tp_groups(script):
        held |= _all_reduce(script, ranks, size)
    for first in range(TP):
        _all_reduce(script, range(first, script.gpus, TP), size * 408 // 64, held)


def _tp_pp(script: Script, size: int) -> None:
    """Two micro-batches through the stages: activations among tp ranks, then to the next stage."""
    done: dict[int, Held] = {}
    for _ in range(2):
        arrived: Held = {}
        for stage, ranks in enumerate(_tp_groups(script)):
            before = {rank: arrived.get(rank, ()) + done.get(stage, {}).get(rank, ()) for rank in ranks}
            done[stage] = _all_reduce(script, ranks, size, before)
            arrived = {}
            if stage + 1 < script.gpus // TP:
                for rank in ranks:
                    arrived[rank + TP] = script.send(rank, rank + TP, size // TP, done[stage][rank])


def _tp_cp(script: Script, size: int) -> None:
    """Activations among tp ranks while keys and values go round a ring of cp = 2."""
    for first in range(0, script.gpus, 2 * TP):
        for rank in range(first, first + TP):
            script.send(rank, rank + TP, size // 32)
            script.send(rank + TP, rank, size // 32)
    for ranks in _tp_groups(script):
        _all_reduce(script, ranks, size)


def _tp_pp_dp(script: Script, size: int) -> None:
    """Stages of pp = 2, each under activations, the message to the next, and gradients at once."""
    half = script.gpus // 2
    for ranks in _tp_groups(script):
        held = _all_reduce(script, ranks, size)
        if ranks[0] < half:
            for rank in ranks:
                script.send(rank, rank + half, size // TP, held[rank])
    for first in (*range(TP), *range(half, half + TP)):
        members = range(first, first + half, TP)
        if len(members) > 1:
            _all_reduce(script, members, size * 408 // 64)


_COLLECTIVES = {
    "all_reduce": ("ring", "bidirectional_ring", "halving_doubling", "double_binary_tree", "direct"),
    "all_gather": ("ring", "halving_doubling"),
    "reduce_scatter": ("ring", "direct"),
    "broadcast": ("binomial_tree", "ring"),
    "all_to_all": ("direct", "ring"),
}

Pattern: TypeAlias = Callable[[Script, int], None]

PATTERNS: Mapping[str, Pattern] = {
    f"{kind}-{name}": partial(_everyone, name, CollectiveType[kind.upper()])
    for kind, names in _COLLECTIVES.items()
    for name in names
} | {
    "p2p": _pair,
    "permutation": _permutation,
    "shift3": _shift,
    "incast": _incast,
    "mix-tp_dp": _tp_dp,
    "mix-tp_pp": _tp_pp,
    "mix-tp_cp": _tp_cp,
    "mix-tp_pp_dp": _tp_pp_dp,
}
