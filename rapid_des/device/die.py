"""Area and cost of the die of a GPU, built or imagined, from its device file (LLMCompass, arXiv 2312.03134).

Counts of transistors, areas of interfaces, densities and prices are those of LLMCompass's paper (section
IV) and public cost model. They come from annotated pictures of the dies of A100 and MI210, open cores,
CACTI, Khan and Mann (AI Chips, 2020: densities, prices of wafers) and DRAMeXchange (October 2023). A die
costs its share of a wafer over the yield; masks, tests, packages and margins are left out. A die with
spare SMs counts as good only without a defect.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec import Struct

from rapid_des.device.spec import DeviceSpec
from rapid_des.errors import InputError


class ProcessNode(Struct, frozen=True):
    """A process of a foundry."""

    density: float
    """Million transistors of logic a mm²."""
    bit_cell: float
    """mm² of a bit of SRAM."""
    wafer: float
    """Price of a wafer of 300 mm, in dollars."""
    defects: float
    """Defects a mm²."""


NODES: Mapping[str, ProcessNode] = {
    "7nm": ProcessNode(density=96.3, bit_cell=1.70e-7, wafer=9346, defects=0.0015),
    "5nm": ProcessNode(density=138.2, bit_cell=1.25e-7, wafer=16988, defects=0.0020),
}
LINKS: Mapping[str, tuple[float, float]] = {"nvlink3": (1.888, 74.632), "nvlink4": (0.965, 86.628)}
"""mm² of a link's interface, which no process shrinks, and million transistors of its controller."""
_HBM = (10.45, 552.743)
"""The same of a stack of HBM2e."""
_FP64, _INT32 = 0.6853, 0.17769
"""Million transistors of a unit of fp64, and of int32; other floating point by the square of its mantissa."""
_MANTISSA = {"fp64": 52, "fp32": 23, "fp16": 10}
_LANES, _CONTROL, _CROSSBAR = 128, 0.9962, 44.3
"""Threads that an SM issues a clock, million transistors of each's control, and of a port of the crossbar."""
_PARTS, _PORTS, _DENSITY_90NM = 4, 4, 1.6
"""Parts of an SM with a register file each, its ports, and the density for which its formula holds."""
_CACHE_SHARE = (0.076, 0.142, 0.247, 0.393, 0.559, 0.704, 0.526, 0.602, 0.561)
"""Share of a cache's area that its bits take: of 4 KiB, and of each power of two after it (CACTI)."""
_LARGEST_CACHE = 2**19
_CLUSTERING, _WAFER_RADIUS, _MEMORY_PRICE = 3, 150, 7.0
"""Clustering of defects, mm of a wafer's radius, and dollars a GB of HBM."""


class DieOptions(Struct, frozen=True):
    """What the die has and the device file does not say."""

    node: str
    """A key of `NODES`."""
    stacks: int
    """Stacks of HBM that the die has interfaces for."""
    links: int
    """Number of its links to other GPUs."""
    link: str
    """A key of `LINKS`."""
    spare_sms: int = 0
    """SMs on the die that are switched off."""


class DieCost(Struct, frozen=True):
    """A die by its parts, and what it costs."""

    parts: dict[str, float]
    """mm² of each part."""
    dies: float
    """Number of whole dies of a wafer."""
    die_yield: float
    """Share of dies without a defect."""
    die_dollars: float
    """Price of a good die."""
    memory_dollars: float
    """Price of the HBM; 0 without stacks of it."""

    @property
    def area(self) -> float:
        """Area of the die in mm²."""
        return sum(self.parts.values())

    @property
    def dollars(self) -> float:
        """Price of the good die and its memory."""
        return self.die_dollars + self.memory_dollars


def die_cost(device: DeviceSpec, options: DieOptions) -> DieCost:
    """Return area and cost of a device's die; an `InputError` names a device for which this says nothing."""
    if device.kind != "gpu" or "fp16" not in device.tensor_peak:
        raise InputError(f"{device.name}: areas are known of the parts of GPUs with fp16 tensor units")
    node = NODES[options.node]
    sms = device.sms + options.spare_sms
    parts = {name: sms * area for name, area in _of_sm(device, node).items()}
    parts["crossbar"] = sms * _CROSSBAR / node.density
    parts["L2"] = _cache(int(device.l2.capacity), node)
    for name, count, (interface, controller) in (
        ("memory", options.stacks, _HBM),
        ("links", options.links, LINKS[options.link]),
    ):
        parts[f"{name}, interfaces"] = count * interface
        parts[f"{name}, controllers"] = count * controller / node.density
    # Only stacks of HBM have a known price; other memory is left out.
    return _priced(parts, node, gigabytes=int(device.hbm.capacity) / 1e9 * (options.stacks > 0))


def _of_sm(device: DeviceSpec, node: ProcessNode) -> dict[str, float]:
    """Return the mm² of an SM's parts."""
    units = {dtype: _units(device, device.vector_peak.get(dtype, 0)) for dtype in ("fp64", "fp32")}
    arithmetic = sum(count * _unit(dtype) for dtype, count in units.items()) + units["fp32"] * _INT32
    tensor = _units(device, device.tensor_peak["fp16"]) * _unit("fp16")
    return {
        "control": _LANES * _CONTROL / node.density,
        "vector units": arithmetic / node.density,
        "tensor units": tensor / node.density,
        "registers": _PARTS * _register_file(int(device.registers.capacity) // _PARTS, node),
        "shared memory": _cache(int(device.shared.capacity), node),
    }


def _units(device: DeviceSpec, peak: int) -> float:
    """Return the units of an SM that each add a product in a clock."""
    return int(peak) / (2 * device.sms * int(device.clock.peak))


def _unit(dtype: str) -> float:
    return _FP64 * (_MANTISSA[dtype] / _MANTISSA["fp64"]) ** 2


def _register_file(capacity: int, node: ProcessNode) -> float:
    """Return the mm² of registers of 32 bits (EMPIRE's formula, square micrometres at 90 nm)."""
    count, width, ports = capacity / 4, 32, _PORTS
    area = 3.29e4 - 1.09e3 * count - 8.83e2 * width - 5.55e3 * ports + 53.5 * count * width
    area += (
        1.5e-2 * count**2 + 1.08e-2 * width**2 + 0.586 * ports**2 + 142 * count * ports + 368 * width * ports
    )
    return area / 1e6 * _DENSITY_90NM / node.density


def _cache(capacity: int, node: ProcessNode) -> float:
    """Return the mm² of a cache, in banks of 512 KiB where it is larger."""
    banks = max(1, math.ceil(capacity / _LARGEST_CACHE))
    bank = min(max(capacity, 4096), _LARGEST_CACHE)
    share = _CACHE_SHARE[math.ceil(math.log2(bank)) - 12]
    return banks * bank * 8 * node.bit_cell / share


def _priced(parts: dict[str, float], node: ProcessNode, *, gigabytes: float) -> DieCost:
    area = sum(parts.values())
    whole = math.pi * _WAFER_RADIUS**2 / area - 2 * math.pi * _WAFER_RADIUS / math.sqrt(2 * area)
    if whole < 1:
        raise InputError(f"a die of {area:,.0f} mm² does not fit on a wafer")
    good = (1 + area * node.defects / _CLUSTERING) ** -_CLUSTERING
    return DieCost(parts, whole, good, node.wafer / whole / good, gigabytes * _MEMORY_PRICE)
