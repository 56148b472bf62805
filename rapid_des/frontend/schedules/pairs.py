"""Steady states in which each forward runs beside a backward of another micro-batch.

Megatron Core's batch-level overlap (`overlap_moe_expert_parallel_comm`): every stage warms up with one
forward more than its schedule says, so that no backward waits for the forward beside it.
"""

from __future__ import annotations

from rapid_des.frontend.schedules.plan import Order

PAIRABLE = ("1f1b", "interleaved_1f1b")
"""Schedules that warm up and then turn to one forward and one whole backward at a time."""


def pairs_refusal(chosen: object, stages: int, *, ep: int, by_unit: bool) -> str | None:
    """Return why a job can not run forwards beside backwards; None if it can."""
    if chosen not in PAIRABLE:
        other = chosen if isinstance(chosen, str) else "a file's own"
        return f"forwards and backwards are paired in {' and '.join(PAIRABLE)}, not in {other}"
    if chosen == "1f1b" and stages > 1:
        problem = f"pairs of 1f1b would wait for each other's stages (pp {stages})"
        return f"{problem}; interleaved_1f1b warms up far enough"
    if ep == 1:
        return "no tokens travel among experts (ep 1), beside which the other batch could compute"
    return "parameters are gathered unit by unit, of one micro-batch at a time" if by_unit else None


def in_pairs(order: Order) -> Order:
    """Return an order of whole backwards whose steady state runs forward and backward beside each other.

    >>> from rapid_des.frontend.schedules.plan import Item
    >>> order = tuple(Item(phase, index) for index in range(3) for phase in ("forward", "backward"))
    >>> [str(item) + "&" * item.paired for item in in_pairs(order)]
    ['F0', 'F1&', 'B0', 'F2&', 'B1', 'B2']
    """
    forwards = [item for item in order if item.phase == "forward"]
    backwards = [item for item in order if item.phase != "forward"]
    first = next((place for place, item in enumerate(order) if item.phase != "forward"), len(order))
    early = forwards[:first]
    steady = [item._replace(paired=True) for item in forwards[first:]]
    pairs = [item for pair in zip(steady, backwards, strict=False) for item in pair]
    return (*early, *pairs, *backwards[len(steady) :])
