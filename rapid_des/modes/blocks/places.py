"""Which place of the inner groups the outer graph stands on: one for all, or the one that a fault hits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rapid_des.errors import UnsupportedByEngine
from rapid_des.machine import Machine
from rapid_des.modes.blocks.sharing import Rings
from rapid_des.program.signatures import signatures


def representative(machine: Machine, places: Sequence[Rings]) -> int:
    """Return the place whose data-parallel groups and pipelines the outer graph runs on.

    `places` are, for each place in an inner group, the lines of ranks at that place. Members of a block start
    and end it together, so the slowest place leads: the first one that faults hit, if they hit all hit places
    alike. Raises `UnsupportedByEngine` if they hit places in different ways.
    """
    if not machine.faults:
        return 0
    healthy = replace(machine, fabric=machine.healthy, router=machine.planned, dead=frozenset())
    hit = {}
    for place, lines in enumerate(places):
        now = _kinds(machine, lines)
        if now != _kinds(healthy, lines):
            hit[place] = now
    if len(set(hit.values())) > 1:
        named = ", ".join(map(str, list(hit)[:8]))
        raise UnsupportedByEngine(
            f"{machine.path}: faults hit the pipeline or data-parallel routes of places {named} of the inner "
            "groups in different ways; hierarchical execution follows one place: use --mode flattened"
        )
    return next(iter(hit), 0)


def _kinds(machine: Machine, lines: Rings) -> tuple[bytes, ...]:
    return tuple(key for table in lines for line in table.tolist() for key in signatures(machine, [line]))
