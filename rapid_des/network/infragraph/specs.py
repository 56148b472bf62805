"""The file format of InfraGraph (version 3.1, https://github.com/Keysight/infragraph) as far as graphs go."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta

from rapid_des.config import Spec

Positive: TypeAlias = Annotated[float, Meta(ge=1e-6, le=1e9)]
NotNegative: TypeAlias = Annotated[float, Meta(ge=0, le=1e12)]
Plain: TypeAlias = Annotated[str, Meta(pattern=r"^[^.\[\]]+$")]
"""A name that stands in dotted names and slices."""
Many: TypeAlias = Annotated[int, Meta(ge=1, le=2**24)]
Kind: TypeAlias = Literal["custom", "device", "cpu", "xpu", "nic", "memory", "port", "switch"]


class LinkBandwidth(Spec, frozen=True, kw_only=True):
    """One of three units, of 10⁹ a second."""

    choice: Literal["gigabits_per_second", "gigabytes_per_second", "gigatransfers_per_second"]
    gigabits_per_second: Positive | None = None
    gigabytes_per_second: Positive | None = None
    gigatransfers_per_second: Positive | None = None


class LinkLatency(Spec, frozen=True, kw_only=True):
    """One of three units."""

    choice: Literal["ms", "us", "ns"]
    ms: NotNegative | None = None
    us: NotNegative | None = None
    ns: NotNegative | None = None


class Physical(Spec, frozen=True, kw_only=True):
    """What is known of a link."""

    bandwidth: LinkBandwidth | None = None
    latency: LinkLatency | None = None


class Link(Spec, frozen=True, kw_only=True):
    """A kind of link, named by edges."""

    name: str
    description: str = ""
    physical: Physical | None = None


class Component(Spec, frozen=True, kw_only=True):
    """`count` pieces of a device; of choice `device`, each is the device of the component's name."""

    name: Plain
    count: Many
    choice: Kind
    description: str = ""
    custom: dict[str, Any] | None = None
    device: dict[str, Any] | None = None
    cpu: dict[str, Any] | None = None
    xpu: dict[str, Any] | None = None
    nic: dict[str, Any] | None = None
    memory: dict[str, Any] | None = None
    port: dict[str, Any] | None = None
    switch: dict[str, Any] | None = None


class DeviceEnd(Spec, frozen=True, kw_only=True):
    """Components of a device by name and slice, of a device inside it where that is named."""

    component: str
    device: str | None = None


class InstanceEnd(Spec, frozen=True, kw_only=True):
    """Components of instances, both by name and slice."""

    instance: str
    component: str


class DeviceEdge(Spec, frozen=True, kw_only=True):
    """Edges inside a device, in each of its instances."""

    ep1: DeviceEnd
    ep2: DeviceEnd
    link: str
    scheme: Literal["one2one", "many2many", "ring"]


class InstanceEdge(Spec, frozen=True, kw_only=True):
    """Edges between instances."""

    ep1: InstanceEnd
    ep2: InstanceEnd
    link: str
    scheme: Literal["one2one", "many2many", "ring"]


class Device(Spec, frozen=True, kw_only=True):
    """A graph of components that instances copy."""

    name: str
    description: str = ""
    components: tuple[Component, ...] = ()
    links: tuple[Link, ...] = ()
    edges: tuple[DeviceEdge, ...] = ()


class Instance(Spec, frozen=True, kw_only=True):
    """`count` copies of a device under a name of their own."""

    name: Plain
    device: str
    count: Many
    description: str = ""


class Infrastructure(Spec, frozen=True, kw_only=True):
    """A whole file."""

    name: str = ""
    description: str = ""
    devices: tuple[Device, ...] = ()
    links: tuple[Link, ...] = ()
    instances: tuple[Instance, ...]
    edges: tuple[InstanceEdge, ...] = ()
    annotations: Any = None
    """Not read."""
