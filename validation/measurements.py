"""The measurements that ship with a checkout, and the devices behind the names in their files."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import TypeVar

from rapid_des.device import Device, load_device
from rapid_des.device.calibration import DTYPES, DataFolder, Record, UnsupportedRow, dtype_of
from rapid_des.device.operators import OperatorModel
from rapid_des.device.pricing import operator_model
from rapid_des.errors import InputError

__all__ = [
    "DTYPES",
    "DataFolder",
    "Names",
    "Record",
    "UnsupportedRow",
    "device_for",
    "dtype_of",
    "engine_of",
    "open_folder",
    "prices_on",
]

CHECKOUT_DATA = Path(__file__).with_name("data")
Value = TypeVar("Value")


class Names(dict[str, Value]):
    """What names in a file stand for; a name that nothing here knows is an `UnsupportedRow`.

    >>> Names("model", {"7B": 7})["8B"]
    Traceback (most recent call last):
    rapid_des.device.calibration.UnsupportedRow: no model '8B' is known here
    """

    def __init__(self, what: str, known: Mapping[str, Value]) -> None:
        super().__init__(known)
        self.what = what

    def __missing__(self, name: str) -> Value:
        raise UnsupportedRow(f"no {self.what} {name[:60]!r} is known here")


def open_folder(data: Path | None) -> DataFolder:
    """Return the folder that `--data` names, else the checkout's own."""
    if data is not None:
        if not data.is_dir():
            raise InputError(f"--data: {data} is no folder")
        return DataFolder(data, split=False)
    return DataFolder(CHECKOUT_DATA, split=True)


PRESETS: dict[str, str] = {
    "A100": "a100_sxm_80gb",
    "A100-SXM4-80GB": "a100_sxm_80gb",
    "A100-80GB (LLMCompass node)": "a100_sxm_80gb",
    "A100-SXM4-40GB": "a100_sxm_40gb",
    "A100-PCIE-40GB": "a100_pcie_40gb",
    "A100-PCIE-80GB": "a100_pcie_80gb",
    "A40": "a40",
    "A6000": "a6000",
    "RTX3090": "rtx_3090",
    "H100": "h100_sxm",
    "H100-SXM-80GB": "h100_sxm",
    "H100-NVL-94GB": "h100_nvl",
    "H100-PCIE-80GB": "h100_pcie",
    "H200": "h200",
    "H200-SXM-141GB": "h200",
    "H800": "h800",
    "GH200": "gh200",
    "GH200-120GB": "gh200",
    "B200": "b200",
    "B200-SXM-180GB": "b200",
    "B200-SXM": "b200",
    "GB200": "gb200",
    "B300-SXM": "b300",
    "B300-SXM-270GB": "b300",
    "GB300": "gb300",
    "L40S": "l40s",
    "L40": "l40",
    "L4": "l4",
    "RTX4090": "rtx_4090",
    "RTXPRO6000": "rtx_pro_6000",
    "RTX-PRO-6000-SE": "rtx_pro_6000",
    "V100-SXM2 (DGX-1)": "v100_sxm2",
    "V100-SXM2-16GB": "v100_sxm2",
    "V100-PCIE-32GB": "v100_pcie_32gb",
    "P100-PCIe": "p100_pcie",
    "P100-PCIE-16GB": "p100_pcie",
    "P4": "p4",
    "T4": "t4",
    "MI100": "mi100",
    "MI210": "mi210",
    "MI300X": "mi300x",
    "TPU-v4": "tpu_v4",
    "TPU-v5e": "tpu_v5e",
    "TPU-v5p": "tpu_v5p",
    "TPU-v6e-1": "tpu_v6e",
    "TPU-v6e": "tpu_v6e",
}

ENGINES = ("vllm", "trtllm", "sglang")
"""Engines whose kernels the models know, with constants of their own or without."""


@cache
def device_for(gpu: str, **conditions: str) -> Device:
    """Return the device behind a data file's GPU name, under the conditions that the file states."""
    if gpu not in PRESETS:
        raise UnsupportedRow(f"no device file for {gpu}")
    return load_device(PRESETS[gpu]).under(**conditions)


@cache
def prices_on(device: Device) -> OperatorModel:
    """Return what prices operators on a device."""
    return operator_model(device)


def engine_of(framework: str, known: Collection[str] = ENGINES) -> str:
    """Return the engine whose kernels were measured: the first word of the column `framework`."""
    name = framework.split("-", maxsplit=1)[0]
    if name not in known:
        raise UnsupportedRow(f"no kernels of engine {name!r}; there are {', '.join(known)}")
    return name
