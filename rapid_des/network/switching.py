"""Which keys of `switching` go together."""

from __future__ import annotations

from collections.abc import Iterator

from rapid_des.network.specs import Switching


def problems(switching: Switching) -> Iterator[tuple[str, str]]:
    """Yield (key, what is wrong with it and what is allowed)."""
    segment, mode = switching.segment, switching.mode
    if mode == "cut_through" and segment is None and switching.protocol is None:
        yield "segment", "missing: cut_through forwards segments, or the packets of a protocol"
    if mode == "fluid" and segment is not None:
        yield "segment", "the fluid mode has no segments; leave it out"
    if segment is not None and segment <= 0:
        yield "segment", f"{segment}; allowed: above 0"
    if switching.parts > 1 and mode != "cut_through":
        yield "parts", f"{switching.parts}; allowed: 1, or more with mode cut_through"
    if switching.spray is not None and mode != "cut_through":
        yield "spray", f"stated with mode {mode}; allowed: mode cut_through"
    elif switching.spray is not None and switching.spray.per == "part" and switching.parts == 1:
        yield "spray.per", "part, but switching.parts is 1; allowed: message, or more parts"
    if switching.congestion is not None and mode != "cut_through":
        yield "congestion", f"stated with mode {mode}; allowed: mode cut_through"
