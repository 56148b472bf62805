"""Names in InfraGraph edges: `xpu`, `host[0:2]`, `cx5[1].port[0]`, with Python's slices."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rapid_des.errors import ConfigError
from rapid_des.network.infragraph_specs import Component, Device

_ELEMENT = re.compile(r"([^\[\].]+)(?:\[([^\[\]]*)\])?\Z")
_SLICE = re.compile(r"(-?\d*)(?::(-?\d*))?(?::(-?\d*))?\Z")


def split(element: str) -> tuple[str, str]:
    """Return name and slice of one element; the slice is empty if there is none."""
    found = _ELEMENT.match(element)
    if found is None:
        raise ConfigError(f"{element!r} is no name with a slice; allowed: nic, nic[0], nic[0:4], nic[::2]")
    return found[1], found[2] or ""


def indices(element: str, count: int) -> range:
    """Return which of `count` an element's slice means.

    >>> indices("nic[1:4]", 8), indices("nic", 2), indices("nic[-1]", 8)
    (range(1, 4), range(0, 2), range(7, 8))
    """
    name, written = split(element)
    found = _SLICE.match(written)
    if found is None:
        raise ConfigError(f"{element!r}: {written!r} is no slice; allowed: 0, 0:4, 0:8:2")
    start, stop, step = (int(part) if part else None for part in found.groups())
    single = found[2] is None and start is not None
    outside = [part for part in (start, stop) if part is not None and not -count <= part <= count]
    if step == 0 or outside or (single and start == count):
        raise ConfigError(f"{element!r}: out of range; there are {count} of {name}, {name}[0:{count}] is all")
    chosen = range(count)[start:][:1] if single else range(count)[start:stop:step]
    if not chosen:
        raise ConfigError(f"{element!r}: means none of the {count} of {name}")
    return chosen


def paths(device: Device, name: str, devices: Mapping[str, Device]) -> list[str]:
    """Return what a dotted name means inside a device: `cx5.0.port.1`, the last element counting fastest."""
    found, inside = [""], device
    elements = name.split(".")
    for place, element in enumerate(elements):
        component = component_of(inside, split(element)[0])
        chosen = indices(element, component.count)
        found = [f"{path}.{component.name}.{index}" for path in found for index in chosen]
        nested = component.choice == "device"
        if nested == (place + 1 == len(elements)):
            problem = "is a device: name a component inside it" if nested else "is no device"
            raise ConfigError(f"{name!r}: {component.name} {problem}")
        inside = devices[component.name] if nested else inside
    return [path.removeprefix(".") for path in found]


def component_of(device: Device, name: str) -> Component:
    """Return a component by name."""
    for component in device.components:
        if component.name == name:
            return component
    known = ", ".join(component.name for component in device.components) or "none"
    raise ConfigError(f"device {device.name} has no component {name!r}; it has {known}")
