"""Random traces on random machines: small, crowded, and full of ties."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from rapid_des.chakra.trace import CollectiveType
from rapid_des.machine import Machine
from rapid_des.network.fabric import Routes
from rapid_des.program.lowering import lower
from rapid_des.program.program import NONE, Contention, DelayTable, Program, Timetable, VisitKind
from rapid_des.program.services import with_tails
from rapid_des.program.timetable import ALONE, FULL_RATE
from rapid_des.values import replace
from tests.program.machines import STORE, dimension, machine, ring, switch
from tests.program.tracing import Nodes, trace_set

SEGMENTS = STORE | {"segment": "100 B"}
CUT = {"mode": "cut_through", "segment": "64 B"}
PACKETS: dict[str, Any] = {
    "mode": "cut_through",
    "protocol": {
        "payload": "100 B",
        "header": "10 B",
        "acknowledgement": "0 B",
        "packets_per_acknowledgement": 1,
        "packet_time": "exact",
    },
}
PARTS = CUT | {"parts": 3}
PACKET_PARTS = PACKETS | {"parts": 2}

PAIRS = [
    PARTS | {"congestion": {"control": "none"}},
    {
        "mode": "cut_through",
        "parts": 4,
        "protocol": PACKETS["protocol"] | {"acknowledgement": "7 B", "packets_per_acknowledgement": 2},
        "congestion": {"control": "window", "bandwidth_delay_products": 0.7},
        "spray": {"ways": 2, "per": "part"},
    },
]
"""Messages on queue pairs (R9)."""
SPRAYS = [
    PARTS | {"spray": {"ways": 3, "per": "part", "weights": "bandwidth"}},
    CUT | {"spray": {"ways": 2, "per": "message"}},
]
PAUSING = [
    one | {"congestion": one["congestion"] | {"pause": {"stop_above": above, "go_at": at}}}
    for one in PAIRS
    for above, at in (("40 B", "0 B"), ("200 B", "120 B"))
]
"""Links that nodes stop (R13)."""
DCQCN = {
    "kmin": "30 B",
    "kmax": "250 B",
    "pmax": 0.3,
    "cnp_interval": "150 ns",
    "gain": 0.1,
    "alpha_timer": "130 ns",
    "rate_timer": "170 ns",
    "byte_counter": "300 B",
    "fast_recovery": 1,
    "additive_increase": "9 MB/s",
    "hyper_increase": "50 MB/s",
    "minimum_rate": "20 MB/s",
    "clamp": "every_cut",
}
SLOWING = [
    one | {"congestion": one["congestion"] | {"dcqcn": DCQCN | other}}
    for one in (*PAIRS, PAUSING[1])
    for other in (
        {},
        {"clamp": "after_timer", "kmin": "0 B", "kmax": "60 B", "fast_recovery": 0, "seed": 7},
        {"byte_counter": "0 B", "cnp_interval": "1 ns", "pmax": 1.0, "dimensions": ["d0"]},
    )
]
"""Senders that marks slow (R14)."""
BY_LOAD = {"ways": 2, "choose": "least_loaded", "detours": 2, "bias": "20 ns"}
CHOOSING = [
    PARTS | {"spray": BY_LOAD | {"per": "part"}},
    CUT | {"spray": BY_LOAD | {"per": "message"}},
    *(one | {"spray": BY_LOAD | {"per": per}} for one in PAIRS for per in ("part", "message")),
]
"""Ways chosen by load (R12)."""

FLUID = [{"mode": "fluid"}, {"mode": "fluid", "protocol": PACKETS["protocol"]}]

UPLINK = {"bandwidth": "500 MB/s", "latency": "50 ns"}
FABRICS = [
    (ring(2),),
    (ring(5),),
    (switch(4),),
    (dimension("mesh", [2, 3]),),
    (dimension("torus", [3, 2]),),
    (dimension("king_mesh", [3, 2]),),
    (dimension("hypercube", 8),),
    (dimension("fully_connected", 4),),
    (ring(3), switch(2, bandwidth="500 MB/s")),
    (switch(2), ring(2), dimension("fully_connected", 2, bandwidth="250 MB/s")),
    (switch(4, nic={"gpus": 1, "bandwidth": "2 GB/s", "latency": "10 ns"}),),
    (dimension("clos", 6, leaf_size=2, spines=2, uplink=UPLINK),),
]
WITH_WAYS = [
    (dimension("clos", 6, leaf_size=2, spines=3, uplink=UPLINK),),
    (dimension("hyperx", 8, routers=[2, 2], hosts=2, router_link=UPLINK),),
    (dimension("fully_connected", 2), dimension("clos", 4, leaf_size=2, spines=2, uplink=UPLINK)),
]
"""Where messages have several ways, and detours."""
ONE_FOR_ALL = [
    "ring",
    "bidirectional_ring",
    "direct",
    "halving_doubling",
    "double_binary_tree",
    "binomial_tree",
]
PER_AXIS = ONE_FOR_ALL[:4]
"""Trees do no reduce-scatter, which a collective along several axes needs."""
IN_SWITCH = ["nvls", "sharp"]
"""For dimensions with switches."""
KINDS = [kind for kind in CollectiveType if kind is not CollectiveType.BARRIER]


REROUTED = (STORE, SEGMENTS, CUT, PACKETS, PARTS, PACKET_PARTS)
HOPS = (*REROUTED, *PAIRS, *SPRAYS)


@st.composite
def machines(draw, switchings=REROUTED, fabrics=FABRICS):
    """A machine of up to eight GPUs with any of these switchings and any algorithms."""
    fabric = draw(st.sampled_from(fabrics))
    switching = draw(st.sampled_from(switchings))
    inside = [IN_SWITCH if part["shape"] in ("switch", "clos") else [] for part in fabric]
    algorithm = draw(st.sampled_from([*ONE_FOR_ALL, *max(inside), "auto"]))
    if draw(st.booleans()):
        algorithm = [
            draw(st.sampled_from([*PER_AXIS, *own]))
            for part, own in zip(fabric, inside, strict=True)
            for _ in (part["size"] if isinstance(part["size"], list) else [0])
        ]
    chunks = 1 if algorithm == "auto" else draw(st.sampled_from([1, 1, 3]))
    return machine(
        *fabric, switching=switching, collectives={"default": {"algorithm": algorithm, "chunks": chunks}}
    )


@st.composite
def traces(draw, gpus, *, unordered=False, priorities=True):
    """Nodes appended in one global order, so that streams in order cannot deadlock."""
    rng = draw(st.randoms(use_true_random=False))
    ranks = rng.randint(2, gpus)
    programs = [Nodes() for _ in range(ranks)]
    groups = {f"g{place}": tuple(rng.sample(range(ranks), rng.randint(1, ranks))) for place in range(2)}
    groups["world"] = tuple(range(ranks))
    for _ in range(rng.randint(1, 14)):
        _event(rng, programs, groups, priorities=priorities)
    names = ["compute", "s0", "s1", "send", "recv"]
    loose = [name for name in names if unordered and rng.random() < 0.5]
    return trace_set(programs, groups, unordered=loose)


def _event(rng, programs, groups, *, priorities):
    kind = rng.choice(["compute", "compute", "collective", "collective", "message"])
    if kind == "compute":
        nodes = rng.choice(programs)
        duration = rng.choice([0, 1, 100, 1000, 70_000])
        stream = rng.choice(["compute", "compute", "s0"])
        after, priority = _earlier(rng, nodes), _priority(rng, priorities)
        nodes.compute(duration, stream=stream, after=after, priority=priority)
    elif kind == "collective":
        name = rng.choice(sorted(groups))
        collective = rng.choice([*KINDS, CollectiveType.ALL_REDUCE, CollectiveType.BARRIER])
        size, stream = rng.choice([1, 64, 300]), rng.choice(["s0", "s1"])
        for rank in sorted(groups[name]):
            nodes = programs[rank]
            after, priority = _earlier(rng, nodes), _priority(rng, priorities)
            nodes.collective(collective, size, name, stream=stream, after=after, priority=priority)
    else:
        source, destination = rng.randrange(len(programs)), rng.randrange(len(programs))
        size, tag = rng.choice([0, 1, 100, 250]), rng.randint(0, 1)
        sender, receiver = programs[source], programs[destination]
        after, priority = _earlier(rng, sender), _priority(rng, priorities)
        sender.send(destination, size, tag=tag, after=after, priority=priority)
        receiver.recv(source, size, tag=tag, after=_earlier(rng, receiver))


def _earlier(rng, nodes):
    count = len(nodes.rows)
    return tuple(sorted(rng.sample(range(count), min(count, rng.randint(0, 2)))))


def _priority(rng, wanted):
    return rng.choice([0, 0, 1, -3]) if wanted else 0


@st.composite
def programs(  # noqa: PLR0913 - what programs have, by name
    draw,
    *,
    unordered=False,
    priorities=True,
    timetables=False,
    fluid=False,
    contention=False,
    late=False,
    choosing=False,
    pausing=False,
    slowing=False,
):
    """A lowered program."""
    kinds = CHOOSING if choosing else PAUSING if pausing else SLOWING if slowing else FLUID if fluid else HOPS
    some = [*FABRICS, *WITH_WAYS] if pausing or slowing else WITH_WAYS if choosing else FABRICS
    where = draw(machines(kinds, some))
    program = lower(
        draw(traces(where.fabric.gpus, unordered=unordered, priorities=priorities)), where
    ).program
    rng = draw(st.randoms(use_true_random=False)) if timetables or contention or late else None
    if late:
        program = with_delays(program, rng)
    if contention:
        program = with_contention(program, rng)
    return with_timetables(program, where, rng) if timetables else program


def with_delays(program: Program, rng) -> Program:
    """The program with messages that come late, by two rows of draws, on most of the routes."""
    limits = [[2**31, 2**32], sorted(rng.sample(range(1, 2**32), 4)) + [2**32]]
    routes = len(program.route_starts) - 1
    return replace(
        program,
        delays=DelayTable(
            seed=np.array([rng.randrange(2**63)], np.int64),
            rank=np.array([binding.rank for binding in program.bindings], np.int32),
            starts=np.array([0, 2, 7], np.int64),
            limits=np.array(sum(limits, []), np.int64),
            values=np.array([rng.choice([0, 1, 50_000, 333_333]) for _ in range(7)], np.int64),
            noise=np.array([rng.choice([NONE, 0, 1, 1]) for _ in range(routes)], np.int32),
            losses=np.array([rng.choice([NONE, 0, 1]) for _ in range(routes)], np.int32),
            retries=np.array(
                [rng.choice([0, 1]) for _ in range(2 * len(program.hops.bytes))], np.int32
            ).reshape(-1, 2),
            loss_seed=np.array([3, rng.randrange(2**63)], np.int64),
        ),
    )


def with_contention(program: Program, rng) -> Program:
    """The program with visits that slow others of their ranks, on most of the ranks."""
    slowed = [replace(own, contention=_contention(own, rng)) for own in program.programs]
    return replace(
        program,
        programs=tuple(
            rng.choice([one, one, own]) for one, own in zip(slowed, program.programs, strict=True)
        ),
    )


def _contention(own, rng) -> Contention:
    weight = [rng.choice([0, 1, 2]) if server != NONE else 0 for server in own.server.tolist()]
    computes = (own.kind == VisitKind.COMPUTE) & (own.server != NONE)
    kind = [rng.choice([NONE, 0, 1, 1]) if one else NONE for one in computes.tolist()]
    shares = [[rng.choice([1, 777, ALONE // 2, ALONE]) for _ in range(13)] for _ in range(2)]
    return Contention(np.array(weight, np.int32), np.array(kind, np.int32), np.array(shares, np.int32))


def with_timetables(program: Program, where: Machine, rng) -> Program:
    """The program with slow, closed and late links, and visits slowed or stopped on some of the streams."""
    links = {link: _timetable(rng) for link in range(program.links) if rng.random() < 0.4}
    visits: dict[tuple[int, int], Timetable] = {}
    for position, binding in enumerate(program.bindings):
        own = program.programs[binding.program]
        slow = [server for server in range(len(own.server_capacity)) if rng.random() < 0.4]
        computes = np.flatnonzero((own.kind == VisitKind.COMPUTE) & np.isin(own.server, slow))
        kinds = [_timetable(rng), _timetable(rng)]
        visits |= {(position, visit): rng.choice(kinds) for visit in computes.tolist()}
    return with_followed_tails(replace(program, visit_timetables=visits), where, links)


def with_followed_tails(program: Program, where: Machine, timetables: dict[int, Timetable]) -> Program:
    """The program with timetables of its links, and last bytes that are followed over them."""
    routes = Routes(program.route_starts, program.route_links.astype(np.int64))
    hops = program.hops if program.fluid else with_tails(program.hops, where.fabric, where.switching, routes)
    return replace(program, hops=hops, link_timetables=timetables)


def _timetable(rng) -> Timetable:
    """Up to four steps; the last rate is above 0."""
    steps = rng.randint(1, 4)
    times = sorted(rng.sample(range(0, 900_000, 12_500), steps))
    rates = [rng.choice([0, 256, FULL_RATE // 2, FULL_RATE - 1, FULL_RATE]) for _ in range(steps - 1)] + [
        rng.choice([25_000, 777_777, FULL_RATE])
    ]
    lags = [rng.choice([0, 0, 50_000]) for _ in range(steps)]
    return Timetable(np.array(times, np.int64), np.array(rates, np.int64), np.array(lags, np.int64))
