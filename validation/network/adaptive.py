"""Routes that are chosen by load, on a dragonfly where all messages of a group go to the next group.

The dragonfly is balanced (a = 2p = 2h: 19 groups of 6 routers, 3 GPUs and 3 global links each). What is
published of it, as a share of what GPUs can send: minimal routes 1 / (a p), as all share one global link;
Valiant's, and UGAL with all queues known, 0.5 (Kim, Dally, Scott and Abts, Technology-Driven, Highly-Scalable
Dragonfly Topology, ISCA 2008, Section 4). In the place of a measurement stands the time of 16 MiB from every
GPU at that share. A burst's prediction includes its begin, when all choose at once, and its end, where links
idle; `steady` leaves both out, as saturation throughput does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from rapid_des.machine import Machine, load_machine
from rapid_des.simulation import replay
from rapid_des.studies.traffic import shift
from validation.measurements import DataFolder
from validation.scoring import Row, Topic

HOSTS, ROUTERS, GLOBAL_LINKS = 3, 6, 3
GROUPS = GLOBAL_LINKS * ROUTERS + 1
SIZE = 1 << 24
BANDWIDTH = 25 * 10**9
PUBLISHED, MINIMAL = 0.5, 1 / (HOSTS * ROUTERS)
"""Of what GPUs can send."""
CHOSEN: Mapping[str, tuple[int, str]] = MappingProxyType(
    {"messages": (1, "message"), "12-parts": (12, "part"), "256-parts": (256, "part")}
)
"""Topic to parts of a message, and what chooses."""


def adaptive_topics(data: DataFolder) -> Iterator[Topic]:
    """Yield `network/adaptive/minimal|messages|…-parts|steady`; they read no file."""
    del data
    yield Topic("network/adaptive/minimal", partial(_rows, 12, None), split=False)
    for name, (parts, per) in CHOSEN.items():
        yield Topic(f"network/adaptive/{name}", partial(_rows, parts, per), split=False)
    yield Topic("network/adaptive/steady", _steady, split=False)


def dragonfly(parts: int, per: str | None) -> Machine:
    """Return the machine; `per` is what chooses its route, if anything does."""
    link = {"bandwidth": f"{BANDWIDTH} B/s", "latency": "100 ns"}
    switching: dict[str, Any] = {"mode": "cut_through", "parts": parts, "segment": "4 KiB"}
    if per is not None:
        how = {"ways": 1, "per": per, "choose": "least_loaded", "detours": 16, "bias": "0 ns"}
        switching["spray"] = how
    dimension = {
        "name": "dragonfly",
        "shape": "dragonfly",
        "size": HOSTS * ROUTERS * GROUPS,
        "hosts": HOSTS,
        "routers": ROUTERS,
        "global_links": GLOBAL_LINKS,
        "local_link": link,
        "global_link": link,
        **link,
    }
    return load_machine(
        {
            "name": "balanced dragonfly",
            "device": "a100_sxm_80gb",
            "fabric": [dimension],
            "routing": {"order": "innermost_first", "tie": "positive"},
            "switching": switching,
        }
    )


def _rows(parts: int, per: str | None) -> list[Row]:
    minimal = _sent(SIZE) / MINIMAL
    measured = minimal if per is None else _sent(SIZE) / PUBLISHED
    return [Row(f"shift/{SIZE}", measured, _lasts(SIZE, parts, per), null=minimal)]


def _steady() -> list[Row]:
    """Return what another message of the same size adds to a burst: its begin and end are left out."""
    rows = []
    for parts in (12, 64):
        more = _lasts(2 * SIZE, 2 * parts, "part") - _lasts(SIZE, parts, "part")
        measured, null = _sent(SIZE) / PUBLISHED, _sent(SIZE) / MINIMAL
        rows.append(Row(f"shift/{SIZE} more/{parts} parts", measured, more, null=null))
    return rows


def _sent(size: int) -> float:
    """Return the microseconds in which a GPU can send so many bytes."""
    return size / BANDWIDTH * 1e6


def _lasts(size: int, parts: int, per: str | None) -> float:
    machine = dragonfly(parts, per)
    to_next = shift(machine.fabric.gpus, HOSTS * ROUTERS, size)
    return int(replay(to_next, machine, engine="compiled").step_time) / 1e6
