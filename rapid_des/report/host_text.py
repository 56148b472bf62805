"""What a report says of the host that issues a job's work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rapid_des.frontend.host import TIMES, HostSpec
from rapid_des.report.breakdown import HOST
from rapid_des.units import Duration, seconds

_BOUND = 0.2
"""Share of a step that the GPU waits for its host from which on a report explains it."""


def host_notes(parts: Mapping[str, int], busy: int) -> Iterator[str]:
    """Yield a line if a GPU often waits for its host; `parts` are where its time goes, picoseconds.

    >>> list(host_notes({"compute": 10**9, "host": 10**9}, 15 * 10**8))[0].partition(":")[0]
    'host-bound'
    """
    waits, whole = parts.get(HOST, 0), max(sum(parts.values()), 1)
    if waits < _BOUND * whole:
        return
    yield (
        f"host-bound: for {waits / whole:.1%} of the time the GPU waits for its host, which issues for "
        f"{Duration(busy)} of {Duration(whole)}: larger kernels cost less than they add, fewer kernels "
        "(fusion, CUDA graphs) or a quicker host save time"
    )


def host_json(host: HostSpec) -> dict[str, Any]:
    """Return plain data for JSON; times in seconds."""
    times = {name: getattr(host, name) for name in TIMES}
    plain = {f"{name}_s": None if time is None else seconds(time) for name, time in times.items()}
    return plain | {"captured": host.captured, "waits": list(host.waits)}


def host_line(host: HostSpec) -> str:
    """Return what the host needs to issue work."""
    graph = {"nothing": "no graphs", "decode": "decode as a graph", "passes": "passes as graphs"}
    fixed = f", {host.step} a step" if host.step else ""
    return f"host: {host.kernel} a kernel, {host.collective} a collective{fixed}, {graph[host.captured]}"
