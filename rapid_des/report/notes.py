"""Notes on a run: what was drawn at random, which faults came late, marks (R14), routes by load (R12)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from rapid_des.machine import Machine
from rapid_des.network.fabric import Fabric
from rapid_des.network.faults import Fault, GpuFactors
from rapid_des.network.jitter import delay_text
from rapid_des.program.program import Program, RateRecords
from rapid_des.program.services import packets
from rapid_des.program.timetable import FULL_RATE
from rapid_des.report.tables import change_text, names_text
from rapid_des.units import Duration, Size

_DRAWN = 12


def drawn_line(names: Sequence[str]) -> str:
    """Return what faults drew at random, the first dozen by name."""
    return f"drawn at random: {names_text(names, _DRAWN)}"


def late_lines(faults: Iterable[Fault], end: Duration) -> Iterator[str]:
    """Yield a line for each fault that begins when a run has ended."""
    for fault in faults:
        if (fault.from_ is not None and fault.from_ >= end) or (fault.from_step or 0) > 0:
            yield f"fault {fault.words}: it begins after the run, which ends at {end}"


def jitter_lines(machine: Machine, gpus: int, step: Duration, even: Duration) -> Iterator[str]:
    """Yield what a machine's jitter drew for the first GPUs, and what a step takes longer than without it."""
    jitter = machine.spec.jitter
    assert jitter is not None, "who asks has looked"
    if jitter.gpu_speed is not None:
        whole = GpuFactors.whole()
        speeds = [machine.slowed.get(gpu, whole).compute for gpu in range(gpus)]
        slow, fast = min(speeds), max(speeds)
        yield (
            f"jitter, seed {jitter.seed}: clocks of GPUs from {float(slow):.4g} (gpu{speeds.index(slow)}) to "
            f"{float(fast):.4g} (gpu{speeds.index(fast)}) of the device's, "
            f"{float(sum(speeds) / gpus):.4g} on average"
        )
    if jitter.message_delay is not None:
        yield f"jitter, seed {jitter.seed}: messages arrive later, {delay_text(jitter.message_delay)}"
    yield f"on the even machine the step takes {even} ({change_text(step, even)} with jitter)"


def unmarked_line(step: Duration, without: Duration) -> str:
    """Return what a step takes longer than on the same machine without `dcqcn`."""
    return f"without dcqcn the step takes {without} ({change_text(step, without)} with it)"


def rate_notes(program: Program, rates: RateRecords, machine: Machine) -> Iterator[str]:
    """Yield how many parts were marked and how rates changed, or that nothing was marked."""
    yield _rates(program, rates, machine.healthy)
    yield from _coarse(program, machine)


def _coarse(program: Program, machine: Machine) -> Iterator[str]:
    """Yield a line if parts are more than a packet, and than what queues mark from."""
    congestion, parts = machine.switching.congestion, program.hops.parts
    assert congestion is not None and congestion.dcqcn is not None and parts is not None, "it marks"
    kmin, largest = congestion.dcqcn.whole().kmin, int(program.hops.bytes[parts.first].max(initial=0))
    if largest > max(kmin or 0, packets(machine.switching).payload):
        yield (
            f"dcqcn: parts of up to {Size(largest)} exceed kmin, {kmin}: two that meet are marked, and "
            "rates react late (switching.parts: as many parts as packets are nearly as exact as packets)"
        )


def _rates(program: Program, rates: RateRecords, fabric: Fabric) -> str:
    marks, cuts = int(rates.marks.sum()), int(rates.cuts.sum())
    if not marks:
        return "dcqcn: nothing was marked"
    link, cut = int(rates.marks.argmax()), rates.cuts > 0
    links, most = np.count_nonzero(rates.marks), int(rates.marks[link])
    line = (
        f"dcqcn: {marks:,} parts marked on {links} links, most ({most:,}) on {fabric.link_name(link)}; "
        f"{cuts:,} cuts of {np.count_nonzero(cut)} rates"
    )
    if not cuts:
        return line
    least, held = int(rates.slowest[cut].min()), int(rates.held.argmax())
    first, last = program.route_starts[held : held + 2].tolist()
    ends = fabric.source[program.route_links[first]], fabric.destination[program.route_links[last - 1]]
    names = " to ".join(fabric.node_name(int(node)) for node in ends)
    return (
        f"{line}, the least to {least / FULL_RATE:.2%} of its first link; parts start "
        f"{Duration(int(rates.held.sum()))} later in all, those from {names} "
        f"{Duration(int(rates.held[held]))}"
    )


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
