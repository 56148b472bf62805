"""How far `auto` is from the best algorithm when all groups of a layout do the same collective at once.

Cases are drawn: a fabric (of every shape, of two dimensions too), a layout of its GPUs into groups (along one
axis, as jobs lay out tensor, data and pipeline parallelism; or all of them), a collective and a size. In the
place of a measurement stands the fastest of all candidates that a machine file can name, each simulated with
all groups at once; the prediction is the time with what `auto` chose, the null model the time of the first
algorithm of the registry. So a row's error is what `auto` loses; it is 0 where `auto` takes one algorithm for
each dimension that is faster than any of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from math import prod
from random import Random
from typing import Any

import numpy as np
from msgspec import structs

from rapid_des.arrays import Int64s
from rapid_des.chakra.trace import CollectiveType, NodeKind, RankTrace, TraceSet, node_table
from rapid_des.machine import Machine, load_machine
from rapid_des.network.specs import AUTO, Choice
from rapid_des.program.collectives.candidates import candidates
from rapid_des.program.routes import geometry
from rapid_des.simulation import replay
from rapid_des.values import replace
from validation.measurements import DataFolder
from validation.scoring import Row, Topic

C = CollectiveType
DRAWS = 240
"""Cases of the topic."""
SEED = 28
SIZES = tuple(4**power for power in range(5, 14))
"""Bytes of each member's input: 1 KiB to 64 MiB."""
COLLECTIVES = (
    *(C.ALL_REDUCE, C.ALL_GATHER, C.REDUCE_SCATTER, C.ALL_TO_ALL) * 3,
    *(C.BROADCAST, C.REDUCE, C.SCATTER, C.GATHER),
)
"""Those that jobs are made of are drawn more often."""
SWITCHING: Mapping[str, Mapping[str, Any]] = {
    "cut_through": {"mode": "cut_through", "parts": 12},
    "whole": {"mode": "cut_through"},
    "segments": {"mode": "store_and_forward", "segment": "64 KiB"},
    "fluid": {"mode": "fluid"},
}
"""What is stated besides the protocol; the first is drawn as often as the others together."""
PRESETS = (
    *("torus_2d_a100", "mesh_2d_a100", "hypercube_a100", "king_mesh_a100"),
    *("dgx_a100_x2", "hgx_a100_x4", "hgx_a100_clos_16", "torus2d_ring_a100_64"),
)
LISTED: tuple[tuple[str, int, int, C], ...] = (
    ("torus [8, 2]", 2, 8, C.ALL_GATHER),
    ("torus [2, 8]", 8, 2, C.ALL_GATHER),
    ("torus [8, 2]", 8, 2, C.ALL_GATHER),
    ("mesh [4, 4]", 4, 4, C.ALL_GATHER),
    ("hgx_a100_clos_16", 4, 4, C.ALL_REDUCE),
    ("hgx_a100_clos_16", 16, 1, C.ALL_REDUCE),
)
"""Fabric, members and stride of groups, collective: what is looked at at all sizes."""


@dataclass(frozen=True)
class Case:
    """Groups of `members` ranks, each `stride` above the one before, that do a collective at once."""

    fabric: str
    members: int
    stride: int
    collective: CollectiveType
    size: int
    switching: str = "cut_through"

    @property
    def name(self) -> str:
        """The case in the report."""
        groups = f"{self.members} every {self.stride}"
        return f"{self.fabric}/{groups}/{self.collective.name.lower()}/{self.size}/{self.switching}"


def regret_topics(data: DataFolder) -> Iterator[Topic]:
    """Yield `network/auto/listed|drawn|fluid`; they read no file."""
    del data
    yield Topic("network/auto/listed", lambda: [row_of(case) for case in listed_cases()], split=False)
    for name, flows in (("drawn", False), ("fluid", True)):
        yield Topic(f"network/auto/{name}", partial(_drawn, flows=flows), split=False)


def _drawn(*, flows: bool) -> list[Row]:
    return [row_of(case) for case in drawn_cases() if (case.switching == "fluid") == flows]


def listed_cases() -> Iterator[Case]:
    """Yield the cases that were found to be far from the best."""
    for fabric, members, stride, collective in LISTED:
        for size in SIZES[::2]:
            yield Case(fabric, members, stride, collective, size)


def drawn_cases(draws: int = DRAWS, seed: int = SEED) -> Iterator[Case]:
    """Yield drawn cases, the same ones for a seed."""
    random = Random(seed)
    for _ in range(draws):
        fabric, axes = _fabric(random)
        gpus = prod(axes)
        first = random.randrange(len(axes))
        last = len(axes) if random.random() < 0.2 else first + 1  # the outer axes together
        members, stride = prod(axes[first:last]), prod(axes[:first])
        if random.random() < 0.3:  # however the axes lie
            members = random.choice([part for part in range(2, gpus + 1) if gpus % part == 0])
            stride = random.choice([part for part in range(1, gpus + 1) if gpus // members % part == 0])
        switching = random.choice([*SWITCHING, *list(SWITCHING)[:1] * 2])
        how = switching if " " in fabric else next(iter(SWITCHING))
        size = random.choice(SIZES[:6] if how == "segments" else SIZES)
        yield Case(fabric, members, stride, random.choice(COLLECTIVES), size, how)


def _fabric(random: Random) -> tuple[str, list[int]]:
    """Return a drawn fabric, as `machine_of` reads it, and its axes."""
    if random.random() < 0.15:
        preset = random.choice(PRESETS)
        return preset, list(load_machine(preset).fabric.axes)
    shape = random.choice([*_SHAPES, "pair"])
    if shape == "pair":
        inner, outer = random.choice(_NODES), random.choice(_NODES)
        sizes = [random.choice([2, 4, 8]), random.choice([2, 4, 8])]
        return f"{inner} {sizes[0]}, {outer} {sizes[1]}", sizes
    axes = list(random.choice(_SHAPES[shape]))
    return f"{shape} {axes if len(axes) > 1 else axes[0]}", axes


_NODES = ("switch", "ring", "fully_connected")
_SHAPES: Mapping[str, tuple[tuple[int, ...], ...]] = {
    "ring": ((4,), (7,), (16,)),
    "mesh": ((8,), (4, 4), (8, 2), (3, 5), (2, 3, 4)),
    "torus": ((8, 2), (2, 8), (4, 4), (6, 3), (8, 4), (5, 5), (2, 4, 4)),
    "king_mesh": ((4, 4), (8, 2), (3, 6)),
    "hypercube": ((8,), (16,), (32,)),
    "fully_connected": ((4,), (8,), (16,)),
    "switch": ((4,), (8,), (12,), (32,)),
    "clos": ((4, 4), (4, 8)),
    "dragonfly": ((4, 8),),
}
"""Axes by which groups are laid out; a clos and a dragonfly have (GPUs at a switch, switches)."""
_LINK = {"bandwidth": "50 GB/s", "latency": "700 ns"}
_SLOW = {"bandwidth": "25 GB/s", "latency": "1 us"}


@cache
def machine_of(fabric: str, switching: str) -> Machine:
    """Return the machine of a case: a preset, or dimensions as "shape size" with commas between them."""
    if " " not in fabric:
        return load_machine(fabric)
    parts = [part.split(" ", 1) for part in _split(fabric)]
    dimensions = [_dimension(shape, size, place) for place, (shape, size) in enumerate(parts)]
    return load_machine(
        {
            "name": fabric,
            "device": "a100_sxm_80gb",
            "fabric": dimensions,
            "routing": {"order": "innermost_first", "tie": "balanced"},
            "switching": {
                **SWITCHING[switching],
                "protocol": {
                    "payload": "4 KiB",
                    "header": "26 B",
                    "acknowledgement": "30 B",
                    "packets_per_acknowledgement": 16,
                    "packet_time": "exact",
                },
            },
        }
    )


def _split(fabric: str) -> list[str]:
    return [fabric] if "[" in fabric else fabric.split(", ")


def _dimension(shape: str, size: str, place: int) -> dict[str, Any]:
    extents = [int(part) for part in size.strip("[]").split(", ")]
    stated: dict[str, Any] = {"name": f"d{place}", "shape": shape, **(_SLOW if place else _LINK)}
    if shape == "clos":
        return stated | {"size": prod(extents), "leaf_size": extents[0], "spines": 2, "uplink": _LINK}
    if shape == "dragonfly":
        counts = {"size": prod(extents), "hosts": 4, "routers": 2, "global_links": 2}
        return stated | counts | {"local_link": _LINK, "global_link": _SLOW}
    return stated | {"size": extents if len(extents) > 1 else extents[0]}


def row_of(case: Case) -> Row:
    """Return what `auto` takes beside the best algorithm, in microseconds."""
    machine = machine_of(case.fabric, case.switching)
    groups = _groups(machine.fabric.gpus, case)
    extents, _ = geometry(machine, groups[0].tolist())
    choices = [choice for choice in candidates(case.collective, extents) if isinstance(choice.algorithm, str)]
    times = [_time(case, machine, groups, choice) for choice in choices]
    chosen = _time(case, machine, groups, Choice(algorithm=AUTO))
    return Row(case.name, min(*times, chosen) / 1e6, chosen / 1e6, null=times[0] / 1e6)


def _groups(gpus: int, case: Case) -> Int64s:
    """Return the ranks of all groups, by group."""
    blocks = np.arange(gpus, dtype=np.int64).reshape(-1, case.members, case.stride)
    return np.moveaxis(blocks, 1, 2).reshape(-1, case.members)


def _time(case: Case, machine: Machine, groups: Int64s, choice: Choice) -> int:
    collectives = structs.replace(machine.collectives, **{case.collective.name.lower(): choice})
    stated = replace(machine, spec=structs.replace(machine.spec, collectives=collectives))
    return int(replay(side_by_side(case.collective, case.size, groups), stated, engine="compiled").step_time)


def side_by_side(collective: CollectiveType, size: int, groups: Int64s) -> TraceSet:
    """Return the trace in which every group does the collective once."""
    nodes = node_table(
        [NodeKind.COLLECTIVE], [size], collective=[collective], group=[0], names=("it",), streams=("dp",)
    )
    ranks = sorted((rank, f"g{number}") for number, row in enumerate(groups.tolist()) for rank in row)
    traces = tuple(RankTrace(rank, nodes, groups=(name,)) for rank, name in ranks)
    return TraceSet(traces, {f"g{number}": tuple(row) for number, row in enumerate(groups.tolist())})
