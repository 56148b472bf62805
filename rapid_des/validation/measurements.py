"""The folder of measurements, and which device and dtype stand behind the names in its files."""

from __future__ import annotations

import csv
import io
import math
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import cast

from rapid_des.config.documents import read_text
from rapid_des.device import Device, load_device
from rapid_des.device.operators import DTYPE_BITS, Dtype, OperatorModel
from rapid_des.device.pricing import operator_model
from rapid_des.errors import InputError
from rapid_des.inputs import unpack_input


class UnsupportedRow(InputError, ValueError):  # noqa: N818 - no error: such rows are counted
    """A measured row that no model here represents; its text is the reason."""


class Record(dict[str, str]):
    """A row of a file as text by column; a column that is not there is an `InputError`."""

    def __init__(self, columns: Mapping[str, str], where: str) -> None:
        super().__init__(columns)
        self.where = where
        """File and line, for messages."""

    def __missing__(self, column: str) -> str:
        raise InputError(f"{self.where}: no column {column!r}; there are {', '.join(map(str, self))}")

    def number(self, column: str) -> float:
        """Return a finite number; `InputError` names the place of anything else."""
        text = self[column]
        try:
            value = float(text)
        except (TypeError, ValueError):
            value = math.nan
        if not math.isfinite(value):
            raise InputError(f"{self.where}: {column}: {text!r} is no number")
        return value

    def count(self, column: str, *, least: int = 1) -> int:
        """Return a whole number from `least` to 2**53."""
        value = self.number(column)
        if not least <= value <= _MOST or value != int(value):
            raise InputError(f"{self.where}: {column}: {self[column]!r} is no whole number from {least} on")
        return int(value)

    def time(self, column: str) -> float:
        """Return a measured time: above 0, in the unit of its column."""
        value = self.number(column)
        if value <= 0:
            raise InputError(f"{self.where}: {column}: {self[column]!r} is no time above 0")
        return value


CHECKOUT_DATA = Path(__file__).parents[2] / "validation" / "data"
_MOST = 2**53
_MORE = "fields beyond the last column"


@dataclass(frozen=True)
class DataFolder:
    """Measured files below `path`, plain or gzipped; `split` is False (`--data`) where every row is test."""

    path: Path
    split: bool
    absent: list[str] = field(default_factory=list)
    """Names that were asked for and are not there, in order of asking."""

    def find(self, name: str) -> Path | None:
        """Return the file `name` or its `.gz` form; None, and remembered as absent, if neither exists."""
        for candidate in (self.path / name, self.path / f"{name}.gz"):
            if candidate.is_file():
                return candidate
        if name not in self.absent:
            self.absent.append(name)
        return None

    def read(self, name: str) -> list[Record]:
        """Return the rows of a CSV file as text by column; [] when the file is absent."""
        path = self.find(name)
        if path is None:
            return []
        try:
            text = unpack_input(path).decode("utf-8") if path.suffix == ".gz" else read_text(path)
            reader = csv.DictReader(io.StringIO(text, newline=""), restkey=_MORE)
            rows = [Record(row, f"{path}: line {reader.line_num}") for row in reader]
        except (csv.Error, EOFError, UnicodeDecodeError, OSError, zlib.error) as error:
            raise InputError(f"{path}: is no table of measurements: {error}") from None
        for row in rows:
            if _MORE in row:
                raise InputError(
                    f"{row.where}: more fields than the {len(row) - 1} columns of the first line"
                )
            if None in row.values():
                raise InputError(f"{row.where}: ends before its last column")
        return rows


def open_folder(data: Path | None) -> DataFolder:
    """Return the folder that `--data` names, else the checkout's own; an installed wheel has none."""
    if data is not None:
        if not data.is_dir():
            raise InputError(f"--data: {data} is no folder")
        return DataFolder(data, split=False)
    if not CHECKOUT_DATA.is_dir():
        raise InputError(
            "the measured data ships with a checkout, not with the wheel: --data CHECKOUT/validation/data"
        )
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

DTYPES: dict[str, str] = {
    "bfloat16": "bf16",
    "bf16": "bf16",
    "float16": "fp16",
    "fp16": "fp16",
    "half": "fp16",
    "fp16(tensor-core,fp32-acc)": "fp16",
    "fp32": "fp32",
    "float32": "fp32",
    "fp8": "fp8",
    "fp8_block": "fp8",
    "nvfp4": "fp4",
    "fp4": "fp4",
}
"""The dtype of an operator behind the spelling of a data file."""

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


def dtype_of(text: str) -> Dtype:
    """Return the dtype behind a data file's spelling; an unknown one is an `UnsupportedRow`."""
    dtype = DTYPES.get(text, text)
    if dtype not in DTYPE_BITS:
        raise UnsupportedRow(f"dtype {dtype!r} is not one of {', '.join(DTYPE_BITS)}")
    return cast(Dtype, dtype)


def engine_of(framework: str, known: Collection[str] = ENGINES) -> str:
    """Return the engine whose kernels were measured: the first word of the column `framework`."""
    name = framework.split("-", maxsplit=1)[0]
    if name not in known:
        raise UnsupportedRow(f"no kernels of engine {name!r}; there are {', '.join(known)}")
    return name
