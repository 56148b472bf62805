"""Notes on routes that are chosen by load (R12)."""

from __future__ import annotations

from collections.abc import Iterator

from rapid_des.machine import Machine
from rapid_des.program.program import Program
from rapid_des.program.services import packets
from rapid_des.units import Size

_MANY = 256
"""Parts of a message with which a burst takes as long as published throughput says, within 15 %."""


def choice_notes(program: Program, machine: Machine) -> Iterator[str]:
    """Yield a line if routes are chosen by load, but for more than a packet at a time."""
    spray, parts = program.spray, program.hops.parts
    if spray is None or spray.load is None:
        return
    largest, times = int(program.hops.bytes.max(initial=0)), 1
    if not spray.per_message and parts is not None:
        largest = int(program.hops.bytes[parts.first].max(initial=0))
        times = int(parts.count.max(initial=1))
    if largest <= _payload(machine) or times >= _MANY:
        return
    what = "whole messages" if times == 1 else f"parts, {times} of a message at most"
    yield (
        f"routes are chosen by load for {what}, of up to {Size(largest)}, not for packets: messages "
        "that start at one instant do not see each other, so short bursts take longer than with switches "
        "that choose packet by packet (finer: spray.per part, more switching.parts; figures: validate "
        "network/adaptive)"
    )


def _payload(machine: Machine) -> int:
    """Return the bytes of a packet; where links take whole segments, of these."""
    switching = machine.switching
    if switching.mode == "cut_through":
        return int(packets(switching).payload)
    return int(switching.segment or 0)
