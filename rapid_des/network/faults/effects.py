"""What faults do to links and GPUs, and the fabric that constant ones leave."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from rapid_des.errors import TopologyError
from rapid_des.network.fabric import Fabric, check_latency
from rapid_des.network.faults.specs import Fault
from rapid_des.network.faults.targets import Hit, hit_by
from rapid_des.units import PS_PER_S

ONE = Fraction(1)
STOPPED = Fraction(0)


@dataclass(frozen=True)
class LinkEffect:
    """What is done to a link: a share of the healthy rate is left (0: down), picoseconds are added.

    Other tenants take the share `load` of what is left.
    """

    rate: Fraction
    latency: int
    load: Fraction = STOPPED

    def combined(self, other: LinkEffect) -> LinkEffect:
        """Return both effects together: shares multiply, latencies and loads add."""
        return LinkEffect(self.rate * other.rate, self.latency + other.latency, self.load + other.load)

    @property
    def left(self) -> Fraction:
        """The share of the healthy rate that serves the job; 0 while others take it all."""
        return self.rate * max(STOPPED, ONE - self.load)


@dataclass(frozen=True)
class GpuFactors:
    """What is left of a GPU: shares of its arithmetic and of its memory bandwidth (both 0: down)."""

    compute: Fraction
    hbm: Fraction

    @classmethod
    def whole(cls) -> GpuFactors:
        """Return those of a healthy GPU."""
        return cls(ONE, ONE)

    def combined(self, other: GpuFactors) -> GpuFactors:
        """Return both together: shares multiply."""
        return GpuFactors(self.compute * other.compute, self.hbm * other.hbm)


def hits(
    fabric: Fabric, faults: Iterable[Fault], gpus_per_node: int | None = None
) -> Iterator[tuple[Fault, Hit]]:
    """Yield each fault with what it hits; `TopologyError` says which fault names what is not there."""
    for index, fault in enumerate(faults):
        try:
            hit = hit_by(fabric, fault, gpus_per_node)
        except TopologyError as error:
            raise TopologyError(f"faults[{index}]: {error}") from None
        yield fault, hit


def require_hits(fabric: Fabric, faults: Iterable[Fault], gpus_per_node: int | None = None) -> None:
    """Raise a `TopologyError` that spells the first of some given faults which names what is not there."""
    for fault in faults:
        try:
            hit_by(fabric, fault, gpus_per_node)
        except TopologyError as error:
            raise TopologyError(f"--fault {fault.words!r}: {error}") from None


def drawn_names(fabric: Fabric, faults: Iterable[Fault], gpus_per_node: int | None = None) -> tuple[str, ...]:
    """Return the names of what `random` faults hit, a fault after the other: GPUs, else links."""
    names = list[str]()
    for fault, hit in hits(fabric, [fault for fault in faults if fault.random is not None], gpus_per_node):
        if fault.random in {"gpus", "nodes"} and len(hit.gpus):
            names += [fabric.node_name(gpu) for gpu in hit.gpus.tolist()]
        else:
            names += [fabric.link_name(link) for link in hit.links.tolist()]
    return tuple(names)


def link_effect(fault: Fault, bandwidth: int, latency: int) -> LinkEffect:
    """Return what a fault, while it lasts, leaves of a link of this bandwidth and latency."""
    if fault.down:
        return LinkEffect(STOPPED, 0)
    steady = STOPPED if fault.load is None or fault.burst is not None else share(fault.load)
    effect = LinkEffect(share(fault.bandwidth), fault.latency or 0, steady)
    return effect.combined(_loss(fault, bandwidth, latency))


def touches_links(fault: Fault) -> bool:
    """Whether a fault does anything to links: one that only slows GPUs does not."""
    stated = (fault.bandwidth, fault.latency, fault.packet, fault.jitter, fault.load)
    return fault.down or any(effect is not None for effect in stated)


def gpu_effect(fault: Fault) -> GpuFactors:
    """Return what a fault, while it lasts, leaves of a GPU that it hits."""
    if fault.down:
        return GpuFactors(STOPPED, STOPPED)
    return GpuFactors(share(fault.compute), share(fault.hbm))


def share(factor: float | None) -> Fraction:
    """Return a factor as its decimal digits say, 1 for none."""
    return ONE if factor is None else Fraction(str(factor))


def _loss(fault: Fault, bandwidth: int, latency: int) -> LinkEffect:
    """Return the mean rate and latency of a link that repeats lost packets.

    With loss p, packet time t and round trip 2·latency + t: selective repeat keeps a share 1 - p of the rate;
    go-back-N also repeats the N = round trip / t packets in flight, share (1 - p) / (1 - p + p·N). A packet
    waits p / (1 - p) round trips on average. Bertsekas and Gallager, Data Networks, section 2.4.
    """
    if fault.packet is None:
        return LinkEffect(ONE, 0)
    p = fault.loss
    packet_time = Fraction(fault.packet * PS_PER_S, bandwidth)
    round_trip = 2 * latency + packet_time
    in_flight = -(-round_trip // packet_time) if fault.retransmission == "go_back_n" else 1
    rate = (1 - p) / (1 - p + p * in_flight) if fault.retransmission == "go_back_n" else 1 - p
    return LinkEffect(rate, -(-(p / (1 - p) * round_trip) // 1))


def apply_static(
    fabric: Fabric, faults: Iterable[Fault], gpus_per_node: int | None = None
) -> tuple[Fabric, frozenset[int]]:
    """Return the fabric that the constant faults leave, and its dead links, which keep their rate."""
    effects: dict[int, LinkEffect] = {}
    for fault, hit in hits(fabric, faults, gpus_per_node):
        if not fault.timed and touches_links(fault):
            for link in hit.links.tolist():
                effect = link_effect(fault, int(fabric.bandwidth[link]), int(fabric.latency[link]))
                effects[link] = effect.combined(effects.get(link, LinkEffect(ONE, 0)))
    bandwidth, latency = fabric.bandwidth.copy(), fabric.latency.copy()
    for link, effect in effects.items():
        check_latency(fabric, int(latency[link]) + effect.latency, f"faults: {fabric.link_name(link)}")
        latency[link] += effect.latency
        if effect.load >= 1:
            taken = f"faults: other tenants take {float(effect.load):.3g} of {fabric.link_name(link)}"
            raise TopologyError(f"{taken}; allowed: below 1 in all")
        if effect.rate:
            bandwidth[link] = max(1, int(bandwidth[link]) * effect.left // 1)
    dead = frozenset(link for link, effect in effects.items() if not effect.rate)
    return replace(fabric, bandwidth=bandwidth, latency=latency), dead


def gpu_factors(
    fabric: Fabric, faults: Iterable[Fault], gpus_per_node: int | None = None
) -> dict[int, GpuFactors]:
    """Return what the constant faults leave of each GPU that they slow or stop, by ascending id."""
    left: dict[int, GpuFactors] = {}
    for fault, hit in hits(fabric, faults, gpus_per_node):
        effect = gpu_effect(fault)
        if not fault.timed and effect != GpuFactors(ONE, ONE):
            for gpu in hit.gpus.tolist():
                left[gpu] = effect.combined(left.get(gpu, GpuFactors(ONE, ONE)))
    return dict(sorted(left.items()))
