"""What collectives and messages cost kernels beside them, and kernels one another.

A collective's kernel keeps SMs to itself: NCCL's blocks do not share them with other kernels (its maintainer
in github.com/NVIDIA/nccl, issue 689), and its data pass HBM two or three times (issue 1428). What is left:

    time beside = launch + busy · max(S / (S - taken), u · B / (B - taken))

of S SMs and B bytes a second of HBM. The first holds for kernels that the chip bounds (arithmetic, shared
memory, L2, whose ports are the SMs'), smoothly: a last wave of blocks that just fills the whole GPU takes up
to twice as long, one that has room for more does not. u is the share of the bandwidth that the kernel uses
itself, 1 if that bounds it. Who wants all of the memory gets half of it at least.

Every stream is a digit: 0 while it serves nothing that takes anything, else which of the different
`Occupancy` of its visits. The sum of the digits' weights is a column of the table that engines look shares
up in.

Messages take multiprocessors and memory bandwidth, and are not slowed. Kernels on two streams share what
both need: of the chip (products and vectors in it) and of the memory each uses its average over its time
alone; where both together use more than all of it they go on at one rate that uses all. So a pair takes
no less than either kernel alone, or than the chip or the memory needs for both, and no more than one after
the other.
Places on multiprocessors are not followed: blocks that memory holds up are taken to leave some free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, prod
from typing import cast

import numpy as np

from rapid_des.arrays import Floats, Int32s, Int64s, distinct, distinct_rows
from rapid_des.chakra.trace import BOUNDS, UNSTATED, NodeKind, NodeTable
from rapid_des.device.device import Device
from rapid_des.device.operators import Bound
from rapid_des.program.builders import NOTHING, Occupancy
from rapid_des.program.program import NONE, Contention, RankProgram
from rapid_des.program.timetable import ALONE
from rapid_des.units import PS_PER_S
from rapid_des.values import fields, replace

_ON_CHIP: frozenset[Bound] = frozenset({"tensor", "vector", "shared", "l2"})
MOST_STATES = 4096
"""Most columns of a rank's table. With more, a stream counts with its most demanding visit throughout."""
WHOLE = 16
"""A kernel's use of its GPU is an integer in 1 / `WHOLE`, rounded up."""


def slowdowns(device: Device, kernel: tuple[Bound, int, int], sms: Int64s, traffic: Int64s) -> Floats:
    """Return how many times as long a kernel takes beside each of several takers.

    `kernel` is what bounds it, its picoseconds alone (launch included), and its bytes from and to HBM.

    >>> from rapid_des.device.device import load_device
    >>> gemm = ("tensor", 10**9 + load_device("h100_sxm").launch_overhead, 0)
    >>> beside = slowdowns(load_device("h100_sxm"), gemm, np.array([0, 24]), np.array([0, 0]))
    >>> [round(float(factor), 2) for factor in beside]
    [1.0, 1.22]
    """
    bound, duration, moved = kernel
    whole, bandwidth = device.spec.sms, float(device.spec.hbm.bandwidth)
    busy = max(duration - device.launch_overhead, 0)
    used = 1.0 if bound == "hbm" else min(1.0, moved / bandwidth * PS_PER_S / max(busy, 1))
    memory = used * bandwidth / (bandwidth - np.minimum(traffic, bandwidth / 2))
    chip = whole / (whole - np.minimum(sms, whole - 1)) if bound in _ON_CHIP else np.ones(len(sms))
    slower: Floats = np.maximum(np.maximum(chip, memory), 1.0)
    if duration <= 0:
        return np.ones_like(slower)
    return 1.0 + busy / duration * (slower - 1.0)


def with_contention(
    program: RankProgram,
    nodes: NodeTable,
    durations: Int64s,
    occupancy: tuple[Int32s, Sequence[Occupancy]],
    device: Device,
) -> RankProgram:
    """Return the program of a node table with the slowdown of its kernels; unchanged if nothing slows them.

    `occupancy` is which entry of a list each node takes, or NONE. Only kernels of known `bound` slow: a
    recorded duration holds already what ran beside it.
    """
    kernels = np.flatnonzero((nodes.kind == NodeKind.COMPUTE) & (nodes.bound != UNSTATED) & ~nodes.on_cpu)
    if not len(kernels):
        return program
    visits = np.flatnonzero(program.node != NONE)
    columns = nodes.bound[kernels], durations[kernels], nodes.tensor_bytes[kernels], nodes.flops[kernels]
    different, kind_of = distinct_rows(*columns)
    uses = [_use(device, row) for row in different.tolist()]
    which, takers = occupancy
    if len(distinct(program.server[visits[kernels]])) > 1:
        which, takers = which.copy(), [*takers, *uses]
        which[kernels] = len(takers) - len(uses) + kind_of
    streams = _digits(program.server[visits], (which, takers))
    if not streams:
        return program
    weight, states = np.zeros(len(program), np.int32), [NOTHING]
    for server, kinds in streams.items():
        # A mixed-radix number: the weight of this stream is the number of states of the streams before it.
        digit = {occupant: _digit(occupant, kinds) * len(states) for occupant in dict.fromkeys(takers)}
        on_it = np.flatnonzero(program.server[visits] == server)
        weight[visits[on_it]] = np.array([*map(digit.__getitem__, takers), 0])[which[on_it]]
        states = [_together(state, kind) for kind in (NOTHING, *kinds) for state in states]
    kind = np.full(len(program), NONE, np.int32)
    rows = zip(different.tolist(), uses, strict=True)
    beside = {part: np.array([getattr(state, part) for state in states]) for part in fields(Occupancy)}
    shares = np.stack([_shares(device, row, use, beside) for row, use in rows]).astype(np.int32)
    kind[visits[kernels]] = kind_of
    return replace(program, contention=Contention(weight, kind, shares))


def _digits(servers: Int32s, occupancy: tuple[Int32s, Sequence[Occupancy]]) -> dict[int, list[Occupancy]]:
    """Return, for each stream, the distinct occupancies of its visits, few enough for `MOST_STATES` sums."""
    which, takers = occupancy
    takes = (which != NONE) & (servers != NONE)
    pairs = distinct(servers[takes].astype(np.int64) * max(len(takers), 1) + which[takes])
    # Only occupancies that occur on a stream become digits of it.
    occupied = {divmod(pair, len(takers)) for pair in pairs.tolist()}
    streams: dict[int, list[Occupancy]] = {}
    for server, occupant in sorted({(server, takers[occupant]) for server, occupant in occupied}):
        if occupant != NOTHING:
            streams.setdefault(server, []).append(occupant)
    if prod(len(kinds) + 1 for kinds in streams.values()) > MOST_STATES:
        return {server: [_most(kinds)] for server, kinds in streams.items()}
    return streams


def _digit(occupant: Occupancy, kinds: Sequence[Occupancy]) -> int:
    """Return the number of an occupancy among a stream's kinds, from 1; 0 if it takes nothing."""
    if occupant == NOTHING:
        return 0
    return kinds.index(occupant) + 1 if occupant in kinds else len(kinds)


def _most(kinds: Sequence[Occupancy]) -> Occupancy:
    return Occupancy(*(max(getattr(kind, part) for kind in kinds) for part in fields(Occupancy)))


def _together(first: Occupancy, second: Occupancy) -> Occupancy:
    return Occupancy(*(getattr(first, part) + getattr(second, part) for part in fields(Occupancy)))


def _use(device: Device, row: Sequence[int]) -> Occupancy:
    """Return how much of its GPU a kernel uses, averaged over its duration alone.

    All that its work takes of what bounds it, and of the rest what its bytes and FLOPs (as if in 16 bits,
    since a node does not say in what) need at the peak.
    """
    bound, duration, moved, flops = row
    work = max(duration - int(device.spec.launch.graph), 0)
    needed = [
        work if BOUNDS[bound] in _ON_CHIP else max(flops, 0) / device.tensor_rate("bf16") * PS_PER_S,
        work if BOUNDS[bound] == "hbm" else max(moved, 0) / device.spec.hbm.bandwidth * PS_PER_S,
    ]
    chip, memory = (min(WHOLE, ceil(WHOLE * time / max(duration, 1))) for time in needed)
    return Occupancy(chip=chip, memory=memory)


def _shares(device: Device, row: Sequence[int], use: Occupancy, beside: Mapping[str, Int64s]) -> Int64s:
    """Return a kernel's share of the rate beside each set of streams, rounded down.

    `beside` is what each set takes, by the fields of `Occupancy`.
    """
    bound, duration, moved, _ = row
    kernel = cast(Bound, BOUNDS[bound]), duration, max(moved, 0)
    slower = slowdowns(device, kernel, beside["sms"], beside["traffic"])
    # Where a kernel and its neighbours want more than WHOLE of a resource, all slow alike.
    chip, memory = beside["chip"], beside["memory"]
    wanted = np.maximum(WHOLE, np.maximum(chip + use.chip, memory + use.memory)) / WHOLE
    slower *= np.where((chip + memory) > 0, wanted, 1)
    return np.maximum(1, np.floor(ALONE / slower)).astype(np.int64)
