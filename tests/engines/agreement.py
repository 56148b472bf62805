"""What it means that two runs saw the same."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from rapid_des.engines import compiled
from rapid_des.engines.simpy import engine as simpy_engine
from rapid_des.errors import TraceError
from rapid_des.program.program import Program, Records

ARRAYS = ("start", "finish", "met", "link_bytes", "link_busy", "link_wait")
NUMBERS = ("hops", "sent", "received")
RUN: dict[str, Callable[..., Records]] = {
    "simpy": partial(simpy_engine.run, ties=True),
    "compiled": compiled.run,
}


def assert_same(one: Records, other: Records, *, ties=True, trail=True) -> None:
    """Every field equal to the tick; events count each engine's own work."""
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    np.testing.assert_array_equal(one.link_stopped, other.link_stopped)
    assert (one.rates is None) == (other.rates is None)
    for own, others in zip(one.rates or (), other.rates or (), strict=True):
        np.testing.assert_array_equal(own, others)
    for name in (*NUMBERS, *(["ties"] if ties else [])):
        assert getattr(one, name) == getattr(other, name), name
    if not trail:
        return
    assert (one.trail is None) == (other.trail is None)
    if one.trail is not None:
        np.testing.assert_array_equal(_rows(one.trail), _rows(other.trail))


def _rows(trail):
    columns = (trail.start, trail.link, trail.finish, trail.arrival, trail.visit, trail.task, trail.position)
    rows = np.stack([np.asarray(column, np.int64) for column in columns], 1)
    return rows[np.lexsort(rows.T[::-1])]


def outcome(engine: str, program: Program, **options) -> Any:
    """The records, or what the engine says about members that disagree."""
    try:
        return RUN[engine](program, **options)
    except TraceError as disagreement:
        return str(disagreement)


def assert_engines_agree(program: Program, **options) -> Any:
    """Both engines see the same, hop by hop."""
    one, other = outcome("simpy", program, **options), outcome("compiled", program, **options)
    if isinstance(one, str) or isinstance(other, str):
        assert isinstance(one, str) and isinstance(other, str), (one, other)
        return one
    assert_same(one, other)
    return one
