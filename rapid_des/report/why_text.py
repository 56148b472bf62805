"""What a step waits for, in plain English: the critical path, and the changes that would shorten it most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from rapid_des.report.colours import COMPUTE, KIND_ORDER
from rapid_des.report.critical_path import CriticalPath
from rapid_des.report.tables import Part, Table, change_text, columns, counted, share_table
from rapid_des.units import Duration

_OPERATORS = 5
_NAMES = {"host": "the host", "queueing": "a place on a stream", "latency": "fixed latencies"}


class SimulatedChange(Protocol):
    """A change with the step time that a simulation gives."""

    @property
    def what(self) -> str:
        """The change in words."""
        ...

    @property
    def step_time(self) -> Duration:
        """The step time with the change."""
        ...

    @property
    def before(self) -> Duration:
        """The step time without it, in the mode that simulated it."""
        ...

    @property
    def mode(self) -> str:
        """The mode that simulated it, where that is not the run's own; else empty."""
        ...

    @property
    def bound(self) -> str:
        """The largest part of the changed step; empty where it is not known."""
        ...


def why_report(
    path: CriticalPath, changes: Sequence[SimulatedChange], beside: Sequence[str], title: str
) -> Iterator[Part]:
    """Yield what a step waits for, the longest operators on its path, what is beside it, and changes."""
    yield f"{title}: why the step takes {path.step_time}"
    shares = [
        f"{time / max(path.step_time, 1):.1%} for {cause_name(cause, path)}"
        for cause, time in path.by_cause.items()
    ]
    yield f"the critical path waits {', '.join(shares)}"
    if path.crossings:
        yield (
            f"it goes on at another rank {counted(path.crossings, 'time')}: a rank waits there for the "
            "other one's work"
        )
    longest = {operator: time for (_, operator), time in [*path.by_operator.items()][:_OPERATORS]}
    yield share_table("longest on the critical path", longest, path.step_time)
    yield from beside
    rows = [
        {
            "what": change.what,
            "step_time": str(change.step_time),
            "change": change_text(change.step_time, change.before),
            "then": f"then {change.bound} is the largest part" if change.bound else "",
        }
        for change in changes
    ]
    named = columns(what="", step_time="", change="", then="")
    yield Table(f"what would help the most, {simulated_text(changes, path.step_time)}", named, rows)
    if not changes:
        yield "no single change of the machine or the job shortens this step"


def simulated_text(changes: Sequence[SimulatedChange], step_time: int) -> str:
    """Return how changes were simulated, and how far a cheaper mode is from the step."""
    cheaper = next((change for change in changes if change.mode), None)
    if cheaper is None:
        return "each simulated"
    away = change_text(cheaper.before, step_time)
    return f"each simulated in mode {cheaper.mode}, where the step takes {cheaper.before} ({away})"


def cause_name(cause: str, path: CriticalPath) -> str:
    """Return the words for what a critical path waits for."""
    if cause == COMPUTE and path.has_blocks:
        return "compute and the messages inside blocks"
    return f"{cause} messages" if cause in KIND_ORDER else _NAMES.get(cause, cause)
