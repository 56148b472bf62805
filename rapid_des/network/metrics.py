"""What a fabric looks like in numbers: nodes, links, degrees, diameter, bisection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rapid_des.errors import TopologyError
from rapid_des.network.bisection import Bisection, bisection
from rapid_des.network.fabric import Fabric, Ints
from rapid_des.network.search import UNREACHED, hops_from
from rapid_des.network.specs import AnyDimension

_MOST_HOPS_LOOKED_AT = 2**26
"""Links that the searches for the diameter look at, all together."""


@dataclass(frozen=True)
class Diameter:
    """The most hops on a shortest way between two GPUs; a lower bound where not `exact`."""

    hops: int
    exact: bool
    connected: bool


@dataclass(frozen=True)
class Summary:
    """A fabric's figures; degrees count a GPU's living outgoing links, least and most."""

    gpus: int
    nics: int
    switches: int
    links: int
    dead_links: int
    degree: tuple[int, int]
    diameter: Diameter
    bisection: Bisection


def summary(
    fabric: Fabric,
    dimensions: Sequence[AnyDimension],
    dead: frozenset[int] = frozenset(),
    lost: frozenset[int] = frozenset(),
) -> Summary:
    """Return the figures of a fabric whose `dead` links carry nothing and whose `lost` GPUs are holes."""
    alive = np.ones(len(fabric), bool)
    alive[sorted(dead)] = False
    far = diameter(fabric, dead, lost)
    degrees = np.bincount(fabric.source[alive], minlength=fabric.nodes)[surviving(fabric, lost)]
    return Summary(
        gpus=fabric.gpus,
        nics=fabric.nics,
        switches=fabric.nodes - fabric.gpus - fabric.nics,
        links=len(fabric),
        dead_links=len(dead),
        degree=(int(degrees.min()), int(degrees.max())),
        diameter=far,
        bisection=bisection(fabric, dimensions, dead, lost),
    )


def surviving(fabric: Fabric, lost: frozenset[int]) -> Ints:
    """Return the GPUs that are not lost, ascending."""
    return np.setdiff1d(np.arange(fabric.gpus), sorted(lost))


def diameter(
    fabric: Fabric, dead: frozenset[int] = frozenset(), lost: frozenset[int] = frozenset()
) -> Diameter:
    """Return the diameter; on large fabrics from as many evenly spaced GPUs as a few seconds allow."""
    gpus = surviving(fabric, lost)
    if not len(gpus):
        raise TopologyError(f"{fabric.name}: every GPU is down")
    alive = np.ones(len(fabric), bool)
    alive[sorted(dead)] = False
    sources = spaced(gpus, max(1, _MOST_HOPS_LOOKED_AT // max(len(fabric), 1) // 8)).tolist()
    hops = [hops_from(fabric, source, alive)[gpus] for source in sources]
    connected = not any((row == UNREACHED).any() for row in hops)
    return Diameter(max(int(row.max()) for row in hops), len(sources) == len(gpus), connected)


def spaced(gpus: Ints, most: int) -> Ints:
    """Return the GPUs, or `most` evenly spaced ones of them."""
    places = np.linspace(0, len(gpus) - 1, min(len(gpus), most)).astype(np.int64)
    return gpus[np.unique(places)]
