"""Closed forms of one collective against its simulation on an idle fabric, over drawn machines."""

from __future__ import annotations

from random import Random

import pytest

from rapid_des.chakra.trace import CollectiveType, one_collective
from rapid_des.errors import InputError
from rapid_des.modes.execution import EngineChoice, execute
from rapid_des.program.lowering import lower
from rapid_des.studies.traffic import shift
from tests.program.machines import dimension, machine, switch

C = CollectiveType
PACKETS = {"payload": "4 KiB", "header": "64 B", "acknowledgement": "0 B", "packets_per_acknowledgement": 1}
SWITCHINGS = (
    {"mode": "store_and_forward"},
    {"mode": "store_and_forward", "segment": "64 KiB"},
    {"mode": "store_and_forward", "segment": "30 KiB"},
    {"mode": "store_and_forward", "segment": "64 KiB", "protocol": PACKETS | {"packet_time": "exact"}},
    {"mode": "store_and_forward", "segment": "64 KiB", "protocol": PACKETS | {"packet_time": "whole_ns"}},
    {"mode": "cut_through", "segment": "4 KiB"},
    {"mode": "cut_through", "segment": "4 KiB", "parts": 4},
    {"mode": "cut_through", "protocol": PACKETS | {"packet_time": "exact"}, "parts": 12},
    {"mode": "fluid"},
)
SHAPES = {
    "ring": (4, 5, 8),
    "mesh": (4, [2, 4], [3, 3]),
    "torus": ([4, 4], [3, 4], 8),
    "switch": (4, 6),
    "fully_connected": (4, 5),
    "hypercube": (8,),
    "king_mesh": ([3, 3], [2, 4]),
    "fat_tree": (8,),
}
ALGORITHMS = (
    "ring", "bidirectional_ring", "direct", "halving_doubling", "auto", "double_binary_tree", "torus",
    "mesh_bucket", "one_shot", "hypercube", "mesh_tree",
)  # fmt: skip
OPERATIONS = (C.ALL_REDUCE, C.ALL_GATHER, C.REDUCE_SCATTER, C.ALL_TO_ALL, C.BROADCAST, C.REDUCE)


def drawn_dimension(chance):
    shape = chance.choice(list(SHAPES))
    rate = {"bandwidth": chance.choice(["10 GB/s", "100 GB/s"]), "latency": chance.choice(["100 ns", "2 us"])}
    keys = {"levels": 2, "radix": 4, "oversubscription": 1, "uplink": rate} if shape == "fat_tree" else {}
    return dimension(shape, chance.choice(SHAPES[shape]), **rate, **keys)


def both(traces, fabric):
    """Return the picoseconds of traces by closed forms, and simulated."""
    priced, simulated = (lower(traces, fabric, analytic=analytic) for analytic in (True, False))
    return tuple(execute(each.program, EngineChoice()).records.makespan for each in (priced, simulated))


def test_segments_pass_one_behind_the_other_in_closed_forms_too():
    """A job on one switch of 10 GB/s in 64 KiB segments took 1.9 times as long by closed forms."""
    # The ring of four sends 1 MiB in six steps of 256 KiB, each four segments of 6.5536 us, and one more for
    # the second hop, with 100 ns a hop: 6 * (5 * 6.5536 us + 0.2 us).
    fabric = machine(
        switch(4, bandwidth="10 GB/s"), switching={"mode": "store_and_forward", "segment": "64 KiB"}
    )
    times = both(one_collective(range(4), C.ALL_REDUCE, 2**20, stream="dp"), fabric)
    assert times == (197_808_000, 197_808_000)


@pytest.mark.parametrize("seed", range(1, 4))
def test_a_closed_form_is_never_above_the_collective_alone(seed):
    chance, ran = Random(seed), 0
    while ran < 3:
        dimensions = [drawn_dimension(chance) for _ in range(chance.choice([1, 1, 1, 2]))]
        switching, algorithm = chance.choice(SWITCHINGS), chance.choice(ALGORITHMS)
        fabric = machine(*dimensions, switching=switching, collectives={"default": algorithm})
        asked = chance.choice(OPERATIONS), chance.choice([1000, 2**16, 2**18])
        try:
            priced, simulated = both(one_collective(range(fabric.fabric.gpus), *asked, stream="dp"), fabric)
        except InputError:  # a hypercube algorithm among other numbers than powers of two
            continue
        # One picosecond a hop is what fluid rates round.
        assert priced <= simulated * 1.000_001 + 100, (dimensions, switching, algorithm, asked)
        ran += 1


@pytest.mark.parametrize("switching", SWITCHINGS, ids=str)
@pytest.mark.parametrize("shape", ["ring", "switch", "fully_connected"])
def test_rings_and_messages_take_their_closed_form(shape, switching):
    """Where no link has two messages at a time, nothing waits: both are equal, but for rounding of rates."""
    rate = {"bandwidth": "10 GB/s", "latency": "2 us"}
    fabric = machine(dimension(shape, 5, **rate), switching=switching)
    for size in (1000, 2**20 + 1):
        for kind in (C.ALL_REDUCE, C.ALL_GATHER, C.REDUCE_SCATTER):
            priced, simulated = both(one_collective(range(5), kind, size, stream="dp"), fabric)
            assert priced == pytest.approx(simulated, rel=1e-6)
        priced, simulated = both(shift(5, 1, size), fabric)
        assert priced == pytest.approx(simulated, rel=1e-6)
