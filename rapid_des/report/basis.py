"""What a run was priced with, as reports say it: device, clock, software, host, measurements behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from msgspec import structs

from rapid_des.chakra.trace import CollectiveType
from rapid_des.device.device import Device, load_device
from rapid_des.device.spec import Clock
from rapid_des.frontend.software import TIMES, HostSpec
from rapid_des.program.plans import PLAIN, SCALAR, SEND, Served
from rapid_des.units import seconds

MEASURED: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "A100-SXM4-80GB": ("a100_sxm_80gb", ("attention", "collectives", "experts", "gemm", "layers")),
    "A40": ("a40", ("collectives", "layers")),
    "A6000": ("a6000", ("layers",)),
    "B200-SXM-180GB": ("b200", ("attention", "collectives", "experts", "gemm")),
    "B300-SXM-270GB": ("b300", ("collectives",)),
    "GB200": ("gb200", ("attention", "collectives", "experts", "gemm")),
    "GB300": ("gb300", ("collectives",)),
    "GH200-96GB": ("gh200", ("layers",)),
    "H100-SXM-80GB": ("h100_sxm", ("attention", "collectives", "experts", "gemm", "layers")),
    "H200-SXM-141GB": ("h200", ("collectives",)),
    "L40S": ("l40s", ("collectives", "gemm")),
    "MI210": ("mi210", ("layers",)),
    "P100-PCIE-16GB": ("p100_pcie", ("gemm",)),
    "RTX3090": ("rtx_3090", ("layers",)),
    "RTX4090": ("rtx_4090", ("layers",)),
    "RTXPRO6000": ("rtx_pro_6000", ("layers",)),
    "T4": ("t4", ("gemm",)),
    "TPU-v6e-1": ("tpu_v6e", ("layers",)),
    "V100-SXM2-16GB": ("v100_sxm2", ("gemm",)),
}
"""Devices that `validation/data` holds measurements of: name, preset, and of what."""


GEMM_DTYPES: Mapping[str, tuple[str, ...]] = {
    "A100-SXM4-80GB": ("bf16", "fp16"),
    "B200-SXM-180GB": ("fp4", "fp8"),
    "GB200": ("bf16", "fp4", "fp8"),
    "H100-SXM-80GB": ("bf16", "fp16", "fp8"),
    "L40S": ("bf16", "fp8"),
    "P100-PCIE-16GB": ("fp16", "fp32"),
    "T4": ("fp16", "fp32"),
    "V100-SXM2-16GB": ("fp16", "fp32"),
}
"""In which dtypes `validation/data` holds GEMMs of those devices."""


JOBS: Mapping[str, tuple[str, ...]] = {
    "DeepSpeed 2021": ("A100-SXM4-80GB",),
    "LLM Foundry 2023": ("A100-SXM4-40GB", "A100-SXM4-80GB", "H100-SXM-80GB"),
    "Megatron-DeepSpeed 2021": ("A100-SXM4-80GB",),
    "Megatron-LM 2021": ("A100-SXM4-80GB",),
    "Megatron-LM 2022": ("A100-SXM4-80GB",),
    "Megatron-LM 2025": (
        "B200-SXM-180GB", "B300-SXM-270GB", "GB200", "GB300", "H100-SXM-80GB", "H200-SXM-141GB",
    ),
    "NIM 1.x": ("A100-SXM4-80GB", "H100-SXM-80GB"),
    "PyTorch FSDP": ("A100-PCIE-80GB",),
    "PyTorch eager": ("A100-PCIE-80GB",),
    "TensorRT-LLM 0.9": ("A100-SXM4-80GB", "H100-SXM-80GB"),
    "nanotron": ("H100-SXM-80GB",),
    "vLLM 0.x": ("A100-PCIE-80GB", "A100-SXM4-80GB"),
}  # fmt: skip
"""On which devices `validation/data` holds whole jobs of a software profile, by its name."""


def measured_topics(device: Device, dtype: str) -> tuple[str, ...]:
    """Return of what a device was measured: nothing if its numbers are not those of that preset.

    GEMMs count in the `dtype` of the matrices alone.
    """
    preset, topics = MEASURED.get(device.spec.name, ("", ()))
    if not topics:
        return ()
    stated = structs.replace(load_device(preset).spec, conditions=device.conditions)
    if stated != device.spec:
        return ()
    absent = () if dtype in GEMM_DTYPES.get(device.spec.name, ()) else ("gemm",)
    return tuple(topic for topic in topics if topic not in absent)


def jobs_text(software: str, device: str) -> str:
    """Return what a report says where no whole job of this software was measured on this device; else "".

    >>> jobs_text("nanotron", "A100-SXM4-80GB")
    '; jobs of nanotron are not validated on A100-SXM4-80GB'
    """
    measured = device in JOBS.get(software, ())
    return "" if measured or not software else f"; jobs of {software} are not validated on {device}"


def validation_text(topics: Sequence[str], dtype: str) -> str:
    """Return what a report says of measurements behind its prices.

    >>> validation_text((), "bf16")
    'not validated: there are no measurements of this device as it is stated here'
    """
    if not topics:
        return "not validated: there are no measurements of this device as it is stated here"
    missing = "" if "gemm" in topics else f"; matrix products in {dtype} are not validated"
    return f"validated against measurements of {', '.join(topics)}{missing}"


_SERVED = tuple(field.name for field in fields(Served))


@dataclass(frozen=True)
class Basis:
    """What a run was priced with; of foreign traces, whose durations are stated, the collectives alone."""

    collectives: Mapping[str, str]
    """The algorithm by collective that the machine file asks for, `default` for those that it leaves open."""
    served: tuple[Served, ...] = ()
    """What the run's collectives got."""
    device: Device | None = None
    """At the clock, and with the launches, that the job runs at."""
    decode_device: Device | None = None
    """The same for decode steps; None in training."""
    validated: tuple[str, ...] = ()
    """Of what there are measurements of this device."""
    matrix_dtype: str = ""
    """Of the job's matrix products."""
    software: str = ""
    """The job's framework or engine."""
    host: HostSpec | None = None
    """What issuing its work takes; None: launches are in the kernels' times."""

    @property
    def launch(self) -> str:
        """How kernels are launched."""
        stated = "" if self.device is None else self.device.conditions.launch
        decode = stated if self.decode_device is None else self.decode_device.conditions.launch
        return f"{stated}, decode {decode}" if decode != stated else stated

    @property
    def apart(self) -> tuple[Served, ...]:
        """What collectives got where the machine file leaves that open, as a list of algorithms does."""
        return tuple(
            library_row
            for library_row in self.served
            if library_row.operation != SEND and self._is_apart(library_row)
        )

    def _is_apart(self, served: Served) -> bool:
        asked = self.collectives.get(served.operation, self.collectives["default"]).split("/")
        plain = {SCALAR, PLAIN[CollectiveType.BARRIER]}
        return len(set(asked)) > 1 or not {name.split()[0] for name in served.algorithm.split("/")} <= {
            *asked,
            *plain,
        }

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON; the clock in Hz."""
        plain: dict[str, Any] = {
            "collectives": dict(self.collectives),
            "served": [{name: getattr(library_row, name) for name in _SERVED} for library_row in self.served],
        }
        if self.device is None:
            return plain
        spec, used = self.device.spec, self.device.conditions
        return plain | {
            "device": spec.name,
            "clock": used.clock,
            "clock_hz": int(getattr(spec.clock, used.clock)),
            **_sustained_as_json(self.device),
            **_decode_as_json(self.decode_device),
            "launch": self.launch,
            "l2": used.l2,
            "software": self.software,
            "host": None if self.host is None else host_json(self.host),
            "library": used.library,
            "attention": used.attention or used.library,
            "operators": spec.operators,
            "validated": list(self.validated),
            "jobs_validated": not jobs_text(self.software, spec.name),
        }


def _decode_as_json(device: Device | None) -> dict[str, Any]:
    if device is None:
        return {}
    clock = device.conditions.clock
    return {"decode_clock": clock, "decode_clock_hz": int(getattr(device.spec.clock, clock))}


def _sustained_as_json(device: Device) -> dict[str, Any]:
    """Return where the sustained clock is from and those of other dtypes; nothing at the boost clock."""
    clock = device.spec.clock
    if device.conditions.clock == "boost":
        return {}
    return {
        "clock_hz_by_dtype": {dtype: int(rate) for dtype, rate in clock.sustained_by_dtype.items()},
        "clock_from": clock.sustained_from,
        "clock_within": clock.sustained_within,
    }


def clock_text(device: Device) -> str:
    """Return the clock in use as reports name it, the sustained one with where it is from.

    >>> from rapid_des.device import load_device
    >>> clock_text(load_device("h100_sxm").under(clock="sustained"))
    'sustained clock 1.36 GHz (measured, within 3%; fp8 1.28 GHz)'
    """
    clock = device.spec.clock
    if device.conditions.clock == "boost":
        return f"boost clock {clock.boost}"
    return f"sustained clock {sustained_text(clock)}"


def sustained_text(clock: Clock) -> str:
    """Return a sustained clock, where it is from, how far off it may be, and those of other dtypes."""
    within = "" if clock.sustained_within is None else f", within {clock.sustained_within:.0%}"
    by_dtype = "".join(f"; {dtype} {rate}" for dtype, rate in clock.sustained_by_dtype.items())
    return f"{clock.sustained} ({clock.sustained_from}{within}{by_dtype})"


def host_json(host: HostSpec) -> dict[str, Any]:
    """Return plain data for JSON; times in seconds."""
    times = {name: getattr(host, name) for name in TIMES}
    plain = {f"{name}_s": None if time is None else seconds(time) for name, time in times.items()}
    return plain | {"captured": host.captured, "waits": list(host.waits)}


def host_line(host: HostSpec) -> str:
    """Return what the host needs to issue work."""
    graph = {"nothing": "no graphs", "decode": "decode as a graph", "passes": "passes as graphs"}
    fixed = f", {host.step} a step" if host.step else ""
    tensor = f" ({host.tensor_rank} more over tp)" if host.tensor_rank else ""
    each = f"{host.kernel} a kernel, {host.collective} a collective{tensor}"
    return f"host: {each}{fixed}, {graph[host.captured]}"
