"""Links with a rate of their own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from rapid_des.errors import TopologyError
from rapid_des.network.fabric import Fabric, frozen
from rapid_des.network.nodes import find_node
from rapid_des.network.specs import LinkOverride


def override_links(fabric: Fabric, overrides: Iterable[LinkOverride]) -> Fabric:
    """Return the fabric with the stated links' rates; later overrides win."""
    bandwidth, latency = fabric.bandwidth.copy(), fabric.latency.copy()
    for index, override in enumerate(overrides):
        try:
            links = _links(fabric, override)
        except TopologyError as error:
            raise TopologyError(f"links[{index}]: {error}") from None
        if override.bandwidth is not None:
            bandwidth[links] = override.bandwidth
        if override.latency is not None:
            latency[links] = override.latency
    return replace(fabric, bandwidth=frozen(bandwidth), latency=frozen(latency))


def _links(fabric: Fabric, override: LinkOverride) -> list[int]:
    if override.bandwidth is None and override.latency is None:
        raise TopologyError("states neither bandwidth nor latency")
    if override.bandwidth == 0:
        raise TopologyError("bandwidth: must be above 0; a link that is down is a fault")
    source, destination = find_node(fabric, override.source), find_node(fabric, override.destination)
    links = [fabric.link(source, destination)]
    return [*links, fabric.link(destination, source)] if override.both_directions else links
