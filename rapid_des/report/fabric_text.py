"""Fabrics, routes and checks as plain data for JSON, and as reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from rapid_des.network.dimensions import AnyDimension
from rapid_des.network.fabric import Fabric
from rapid_des.network.metrics import RouteCheck, Summary
from rapid_des.report.tables import Part, Table, columns, counted, names_text, seconds_text
from rapid_des.units import Bandwidth, seconds
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


def fabric_report(tree: Tree) -> Iterator[Part]:
    """Yield what `shown_fabric` returned."""
    cut, far = tree["bisection"], tree["diameter"]
    low, high = tree["degree"]
    hops = f"{far['hops']} hops" if far["exact"] else f"at least {far['hops']} hops"
    dead = f", {tree['dead_links']:,} of them dead" if tree["dead_links"] else ""
    yield tree["name"]
    yield {
        "nodes": (
            f"{counted(tree['gpus'], 'GPU')}, {counted(tree['nics'], 'NIC')}, "
            f"{tree['switches']:,} switch{'es' * (tree['switches'] != 1)}"
        ),
        "links": f"{tree['links']:,} directed{dead}",
        "degree": f"{low if low == high else f'{low} to {high}'} links out of a GPU",
        "diameter": f"{hops} between GPUs" + ("" if far["connected"] else "; some GPUs are cut off"),
        "bisection": f"{'' if cut['exact'] else 'at most '}{Bandwidth(cut['bandwidth'])} in one direction",
    }
    names = columns(
        "name", "shape", size=("size", lambda size: "x".join(map(str, size))), links=("links", ",")
    )
    names += columns(
        bandwidth=("bandwidth", lambda ends: _span([str(Bandwidth(end)) for end in ends])),
        latency_s=("latency", lambda ends: _span([seconds_text(end) for end in ends])),
    )
    yield Table("dimensions, innermost first", names, tree["dimensions"])


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


def route_report(tree: Tree) -> Iterator[Part]:
    """Yield what `shown_route` returned."""
    if not tree["hops"]:
        yield f"{_place(tree['source'])} is there already: no hops"
        return
    narrowest, delay = Bandwidth(tree["bandwidth"]), seconds_text(tree["latency_s"])
    yield f"{len(tree['hops'])} hops, {delay} of latency, {narrowest} at the narrowest"
    rows = [{**hop, "ends": f"{_place(hop['from'])} > {_place(hop['to'])}"} for hop in tree["hops"]]
    rate = ("bandwidth", lambda rate: str(Bandwidth(rate)))
    link = ("link", "#{}".format)
    yield Table(
        "", columns(link=link, ends="ends", dimension="dimension", bandwidth=rate, latency_s="latency"), rows
    )


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


def check_report(tree: Tree) -> Iterator[Part]:
    """Yield what `shown_check` returned."""
    yield tree["name"]
    facts = {"connected": "every GPU reaches every other"}
    if tree["lost_gpus"]:
        facts["lost"] = names_text([f"gpu{gpu}" for gpu in tree["lost_gpus"]])
    if tree["dead_links"]:
        facts["dead"] = names_text(tree["dead_links"])
    cycle = tree["dependency_cycle"]
    problems = "none can wait in a circle"
    if cycle:
        problems = f"links may wait in a circle of {len(cycle)}: {names_text(cycle)}"
    routes = f"{tree['routes']:,} routes" + ("" if tree["all_routes"] else " between some of the GPUs")
    yield facts | {"deadlock": f"{problems} ({routes})"}
