"""The first lines of pages of studies, plans, servers, fleets, fault draws and runs with failures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rapid_des.report.charts import Tile, Tiles
from rapid_des.report.plan_text import differing_text
from rapid_des.report.serve_text import token_rates
from rapid_des.report.tables import Plain, change_text, heading, seconds_text, shown

_GIB = 2**30


def plan_tiles(plan: Plain) -> Tiles:
    """Return the best layout, whether it fits, and what to change."""
    rows = plan["rows"]
    if not rows:
        return Tiles([Tile("Best layout", "none", "no layout fits")])
    best = rows[0]
    alike = sum(row["told_apart"] is False for row in rows[1:])
    ties = f"measurements would not distinguish {alike} of the other {len(rows) - 1} rows from it"
    tiles = [
        Tile("Best layout", seconds_text(best["step_time_s"]), differing_text(rows, best) or "the only row"),
        Tile("Does it fit", "yes", f"{best['memory_bytes'] / _GIB:.1f} GiB on the fullest GPU"),
        Tile("What bounds it", str(best["bound"]), f"MFU {best['mfu']:.1%}"),
        Tile("How sure", "first alone" if not alike else f"{alike + 1} alike", ties),
    ]
    leanings = [each for each in plan.get("leanings") or () if each.get("change") is not None]
    if leanings:
        most = min(leanings, key=lambda each: float(each["change"]))
        tiles.append(
            Tile(
                "What to change",
                str(most["part"]),
                f"10 % faster: {most['change']:+.1%} of the step; nothing else gives more",
            )
        )
    return Tiles(tiles)


def sweep_tiles(plain: Plain) -> Tiles:
    """Return the best point of a study, what matters most, and how many points ran."""
    objective, best = plain["objective"], plain["best"]
    tiles = [Tile("Points", f"{plain['succeeded']:,} ran", f"{len(plain['failed']):,} failed")]
    if best:
        axes = [each["axis"] for each in plain["main_effects"]]
        where = ", ".join(f"{axis} {best[0][axis]}" for axis in axes if axis in best[0])
        name = f"Best {heading(objective)}"
        tiles.insert(0, Tile(name, shown(objective, best[0][objective]), f"point {best[0]['id']}: {where}"))
        tiles += _bounds(best[0])
        alike = sum(row.get("told_apart") is False for row in best[1:])
        if alike:
            tiles.append(Tile("How sure", f"{alike + 1} alike", "measurements would not distinguish them"))
    if plain["main_effects"]:
        most = plain["main_effects"][0]
        share = f"it makes {most['share']:.0%} of the differences between points"
        tiles.append(Tile("What to change", str(most["axis"]), share))
    return Tiles(tiles)


def _bounds(row: Mapping[str, Any]) -> Iterator[Tile]:
    """Yield what bounds a point, and how much memory it needs."""
    parts = row.get("breakdown_s") or {}
    if row.get("bound") and parts:
        largest = max(parts, key=lambda part: parts[part])
        share = parts[largest] / max(row["step_time_s"], 1e-12)
        yield Tile("What bounds the best", str(row["bound"]), f"{largest}: {share:.1%} of its step")
    if row.get("memory_bytes"):
        yield Tile("Does it fit", "yes", f"{row['memory_bytes'] / _GIB:.1f} GiB on the fullest GPU")


def served_tiles(plain: Plain, limits: Mapping[str, float]) -> Tiles:
    """Return whether a server keeps its limits, what users wait for, and how full it is."""
    tiles = []
    kept = plain.get("goodput")
    if kept is not None:
        every = kept["attained"]["all"] or 0.0
        tiles.append(Tile("Keeps the limits", f"{every:.1%}", f"of requests within {kept['slo']}"))
    first = "First token, p99" if plain["task"] == "generate" else "Answer, p99"
    for name, label in (("ttft", first), ("tpot", "Per output token, p99")):
        found = plain.get(f"{name}_s")
        if found and found.get("p99") is not None:
            limit = f"limit {seconds_text(limits[name])}; " if name in limits else ""
            tiles.append(
                Tile(label, seconds_text(found["p99"]), f"{limit}median {seconds_text(found['p50'])}")
            )
    tiles += _spent(plain)
    rate, queue = plain["throughput"], plain.get("queue_s") or {}
    tokens, _, end = token_rates(plain)
    tiles.append(
        Tile("How much it does", f"{rate['requests_per_s']:.3g} requests/s", f"{tokens:,.0f} tokens/s {end}")
    )
    if plain.get("kv_occupancy"):
        held = plain["kv_occupancy"]
        waits = f"; p99 of waits in the queue {seconds_text(queue['p99'])}" if queue.get("p99") else ""
        tiles.append(
            Tile(
                "Does it fit",
                f"{held['max']:.1%} of the KV cache at most",
                f"{held['mean']:.1%} on average{waits}",
            )
        )
    return Tiles(tiles)


_SHORTENS = {
    "waiting in the queue": "more replicas, or more room for the KV cache",
    "prefill": "a prefix cache, more tp, or GPUs for prompts alone",
    "decoding": "lower precision, speculative decoding, or more tp",
}
"""What usually shortens a part of requests; no simulation stands behind it."""


def _spent(plain: Plain) -> Iterator[Tile]:
    """Yield what requests spend their time on, and what shortens that."""
    queue, prefill, whole = (
        (plain.get(f"{name}_s") or {}).get("mean") for name in ("queue", "prefill", "e2e")
    )
    if not whole or queue is None or prefill is None:
        return
    parts = dict(zip(_SHORTENS, (queue, prefill, max(whole - queue - prefill, 0.0)), strict=True))
    most = max(parts, key=lambda part: parts[part])
    yield Tile(
        "What bounds it", most, f"{parts[most] / whole:.1%} of the mean request of {seconds_text(whole)}"
    )
    yield Tile("What to change", most, f"{_SHORTENS[most]}; capacity and sweep say by how much")


def sample_tiles(sample: Plain) -> Tiles:
    """Return what faults cost each configuration."""
    found = []
    for each in [each for each in sample["configurations"] if each["rows"]][:4]:
        mean, healthy = each["step_time_s"]["mean"], each["healthy_s"]
        note = f"mean of the draws {seconds_text(mean)}, healthy {seconds_text(healthy)}"
        found.append(Tile(str(each["configuration"]), change_text(mean, healthy), note))
    rows = [row for each in sample["configurations"] for row in each["rows"] if row.get("slowdown")]
    if rows:
        worst = max(rows, key=lambda row: float(row["slowdown"]))
        slower = change_text(worst["slowdown"], 1)
        found.append(Tile("What to mend first", ", ".join(worst["faults"]), f"the worst draw: {slower}"))
    return Tiles(found)


_LESS = {
    "checkpoints": "write them to a nearer place, or less often",
    "rework": "checkpoint more often",
    "detection": "notice failures sooner",
    "diagnosis": "find the failed part sooner",
    "spare_wait": "hold more spares",
    "restart_start": "start the job again in less time",
    "restart_load": "load checkpoints from a nearer place",
}
"""What makes a part of a run's lost time shorter."""


def goodput_tiles(plain: Plain) -> Tiles:
    """Return the goodput of a run, what costs most of it, and how often it stops."""
    good, lost = plain["goodput"], {name: time for name, time in plain["time_s"].items() if name != "steps"}
    tiles = [Tile("Goodput", f"{good['mean']:.2%}", f"95% between {good['low']:.2%} and {good['high']:.2%}")]
    if any(lost.values()):
        worst = max(lost, key=lambda name: lost[name])
        share = f"{lost[worst] / plain['wall_s']:.2%} of the wall time"
        tiles.append(Tile("What costs most", worst.replace("_", " "), share))
        half = f"half of that time is {lost[worst] / plain['wall_s'] / 2:.2%} more goodput at most"
        tiles.append(Tile("What to change", _LESS.get(worst, worst.replace("_", " ")), half))
    incidents = plain["incidents"]
    if incidents and any(incidents.values()):
        often = max(incidents, key=lambda name: incidents[name])
        total = f"{plain['incidents_total']['mean']:.1f}"
        tiles.append(Tile("Incidents", total, f"most often {often}: {incidents[often]:.1f}"))
    return Tiles(tiles)


def capacity_tiles(plain: Plain) -> Tiles:
    """Return the best layout and its highest rate; another one may serve more, on more GPUs."""
    rows = plain.get("rows") or ()
    if not rows:
        return Tiles([Tile("Highest rate", "none", "no layout can serve")])
    best = rows[0]
    low, high = best["rate_interval_per_s"]
    alike = sum(bool(row["as_good_as_first"]) for row in rows[1:])
    return Tiles(
        [
            Tile(
                "Best layout",
                layout_name(best),
                f"{best['output_tokens_per_s_per_gpu']:,.0f} tokens/s a GPU",
            ),
            Tile(
                "Its highest rate within the limits",
                f"{best['rate_per_s']:.3g} requests/s",
                f"95% between {low:.3g} and {high:.3g}",
            ),
            *_limit(best.get("broken_above") or ""),
            Tile("How sure", f"{alike + 1} alike" if alike else "first alone", f"of {len(rows)} layouts"),
        ]
    )


def _limit(broken: str) -> Iterator[Tile]:
    """Yield which limit breaks first at a higher rate, and what usually keeps it."""
    if not broken:
        yield Tile("What bounds it", "throughput", "it serves no higher rate, however late")
        return
    yield Tile("What bounds it", broken, "the first limit that breaks at a higher rate")
    part = "decoding" if broken.startswith("tpot") else "prefill"
    yield Tile("What to change", part, f"{_SHORTENS[part]}; other layouts say by how much")


def layout_name(row: Mapping[str, Any]) -> str:
    """Return the settings of a layout in short.

    >>> layout_name({"layout": {"parallelism.tp": 8}, "gpus": 8})
    'tp 8'
    """
    settings = [f"{key.rpartition('.')[2]} {value}" for key, value in row["layout"].items()]
    return ", ".join(settings) or f"{row['gpus']} GPUs"
