"""Fabrics, routes and checks as plain data for JSON, and as lines of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from rapid_des.network.checks import RouteCheck
from rapid_des.network.fabric import Fabric
from rapid_des.network.metrics import Summary
from rapid_des.network.specs import AnyDimension
from rapid_des.units import PS_PER_S, Bandwidth, Duration, seconds
from rapid_des.values import asdict

Tree: TypeAlias = dict[str, Any]


def shown_fabric(fabric: Fabric, dimensions: Sequence[AnyDimension], figures: Summary) -> Tree:
    """Return a fabric's figures and its dimensions, innermost first."""
    rows = []
    for index, dimension in enumerate(dimensions):
        mine = fabric.dimension == index
        rates, delays = fabric.bandwidth[mine], fabric.latency[mine]
        rows.append({
            "name": dimension.name,
            "shape": str(dimension.__struct_config__.tag),
            "size": list(fabric.extents[index]),
            "links": int(np.count_nonzero(mine)),
            "bandwidth": [int(rates.min()), int(rates.max())] if len(rates) else [0, 0],
            "latency_s": [seconds(int(delays.min())), seconds(int(delays.max()))] if len(rates) else [0, 0],
        })  # fmt: skip
    return {"name": fabric.name, **asdict(figures), "dimensions": rows}


def fabric_lines(tree: Tree) -> list[str]:
    """Return the lines that show `shown_fabric`'s tree."""
    cut, far = tree["bisection"], tree["diameter"]
    low, high = tree["degree"]
    hops = f"{far['hops']} hops" if far["exact"] else f"at least {far['hops']} hops"
    dead = f", {tree['dead_links']:,} of them dead" if tree["dead_links"] else ""
    lines = [
        tree["name"],
        f"  nodes      {tree['gpus']:,} GPUs, {tree['nics']:,} NICs, {tree['switches']:,} switches",
        f"  links      {tree['links']:,} directed{dead}",
        f"  degree     {low if low == high else f'{low} to {high}'} links out of a GPU",
        f"  diameter   {hops} between GPUs" + ("" if far["connected"] else "; some GPUs are cut off"),
        f"  bisection  {'' if cut['exact'] else 'at most '}{Bandwidth(cut['bandwidth'])} one way",
        "  dimensions, innermost first",
    ]
    for row in tree["dimensions"]:
        size = "x".join(str(extent) for extent in row["size"])
        rate = _span([str(Bandwidth(value)) for value in row["bandwidth"]])
        delay = _span([str(_duration(value)) for value in row["latency_s"]])
        lines.append(f"    {row['name']}: {row['shape']} {size}, {row['links']:,} links, {rate}, {delay}")
    return lines


def _duration(value: float) -> Duration:
    return Duration(round(value * PS_PER_S))


def _span(ends: list[str]) -> str:
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def shown_route(fabric: Fabric, links: Sequence[int], source: int) -> Tree:
    """Return a route's hops, its latency and the bandwidth of its narrowest link."""
    hops = [
        {
            "link": link,
            "from": _node(fabric, int(fabric.source[link])),
            "to": _node(fabric, int(fabric.destination[link])),
            "dimension": fabric.dimensions[fabric.dimension[link]] if fabric.dimensions else "",
            "bandwidth": int(fabric.bandwidth[link]),
            "latency_s": seconds(int(fabric.latency[link])),
        }
        for link in links
    ]
    return {
        "name": fabric.name,
        "source": _node(fabric, source),
        "hops": hops,
        "latency_s": seconds(int(fabric.latency[list(links)].sum())) if hops else 0,
        "bandwidth": min((int(fabric.bandwidth[link]) for link in links), default=0),
    }


def route_lines(tree: Tree) -> list[str]:
    """Return the lines that show `shown_route`'s tree."""
    if not tree["hops"]:
        return [f"{_place(tree['source'])} is there already: no hops"]
    narrowest, delay = Bandwidth(tree["bandwidth"]), _duration(tree["latency_s"])
    lines = [f"{len(tree['hops'])} hops, {delay} of latency, {narrowest} at the narrowest"]
    for hop in tree["hops"]:
        rate, latency = Bandwidth(hop["bandwidth"]), _duration(hop["latency_s"])
        ends = f"{_place(hop['from'])} > {_place(hop['to'])}"
        lines.append(f"  #{hop['link']:<8} {ends:<44} {hop['dimension']:<12} {rate}, {latency}")
    return lines


def _node(fabric: Fabric, node: int) -> Tree:
    place = list(fabric.coordinates(node)) if node < fabric.gpus else None
    return {"name": fabric.node_name(node), "coordinates": place}


def _place(node: Tree) -> str:
    place = node["coordinates"]
    name = str(node["name"])
    return name + (f" ({', '.join(map(str, place))})" if place is not None else "")


def shown_check(fabric: Fabric, check: RouteCheck, dead: frozenset[int], lost: frozenset[int]) -> Tree:
    """Return what a check of a fabric with these dead links and lost GPUs found."""
    return {
        "name": fabric.name,
        "connected": True,
        "lost_gpus": sorted(lost),
        "dead_links": [fabric.link_name(link) for link in sorted(dead)],
        "routes": check.routes,
        "all_routes": check.all_routes,
        "dependency_cycle": [fabric.link_name(link) for link in check.dependency_cycle],
    }


def check_lines(tree: Tree) -> list[str]:
    """Return the lines that show `shown_check`'s tree."""
    routes = f"{tree['routes']:,} routes" + ("" if tree["all_routes"] else " between some of the GPUs")
    lines = [tree["name"], "  connected  every GPU reaches every other"]
    if tree["lost_gpus"]:
        lines.append(f"  lost       {_some([f'gpu{gpu}' for gpu in tree['lost_gpus']])}")
    if tree["dead_links"]:
        lines.append(f"  dead       {_some(tree['dead_links'])}")
    cycle = tree["dependency_cycle"]
    problems = (
        f"links may wait in a circle of {len(cycle)}: {_some(cycle)}"
        if cycle
        else "none can wait in a circle"
    )
    return [*lines, f"  deadlock   {problems} ({routes})"]


def _some(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f", … {len(names) - 8} more" if len(names) > 8 else "")
