"""Fit the decode attention of TensorRT-LLM 0.9 to the calibration half of its static sweep.

    python -m validation.fit_static DATA_FOLDER [FAMILY]

needs scipy; takes two minutes. Two runs of one batch whose lengths differ spend equal times on all but
attention: the difference of their tokens is what the further keys take in its kernel, and no sum, product,
launch or host is in it. Fitted are what a block computes or draws, how that and the memory's time add up,
and what a full SM gains over a lone block; geometry is the kernels' own (`topologies/devices/families`).
Printed are the constants, and the mean error of the differences of both halves, as is and fitted.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
from msgspec import structs
from scipy.optimize import least_squares

from rapid_des.device import Attention, Device, load_device
from rapid_des.device.attention.decode import shares_keys
from rapid_des.device.pricing import operator_model
from rapid_des.device.spec import DecodePolicy
from rapid_des.values import replace
from validation import DataFolder, is_calibration
from validation.inference.trtllm import FILE
from validation.jobs.decoders import Dimensions
from validation.jobs.models import shipped
from validation.jobs.origins import place
from validation.measurements import Record

LIBRARY = "trtllm-0.9"
POLICY = DecodePolicy(groups=(8,), head_dims=(128,), blocks_per_sm=0.25, split=False)
"""As `workloads/software/trtllm-0.9.yaml`."""
DEVICES = {
    "dgx_a100": "a100_sxm_80gb",
    "dgx_h100": "h100_sxm",
    "h100_nvl_x8": "h100_nvl",
    "gh200_alps_x16": "gh200",
    "l40s_switched_x8": "l40s",
}
"""Of machine files."""
LEAST_US = 5.0
"""Differences of less a layer are noise."""
POSITIONS = 8
"""At which a run's tokens are priced: keys grow as it goes."""
RATES = {"tensor_utilisation": (0.001, 0.97), "stream_gbps": (5.0, 400.0)}
"""What binds a block: its instructions, or what it draws."""
OTHERS = {"norm": (1.0, 8.0), "gain": (1.0, 2.0)}
STARTS = {"tensor_utilisation": (0.008, 0.03, 0.1), "stream_gbps": (60.0,), "norm": (2.5,), "gain": (1.1,)}
INSTRUCTIONS = ("tensor_utilisation", "norm")
FITTED: Mapping[tuple[str, str], Sequence[str]] = {
    ("decode", "fp8"): (*INSTRUCTIONS, "gain"),
    ("decode", "fp16"): ("stream_gbps", "norm"),
    ("decode_mha", "fp8"): INSTRUCTIONS,
    ("decode_mha", "fp16"): INSTRUCTIONS,
}


@dataclass(frozen=True)
class Difference:
    """What one layer's attention takes more in a run than in the shortest one of its batch."""

    device: Device
    calibration: bool
    section: str
    dtype: str
    shorter: Sequence[Attention]
    longer: Sequence[Attention]
    measured_us: float

    def predicted_us(self, device: Device) -> float:
        """Return what the model says."""
        model = operator_model(device)
        longer, shorter = (
            fmean(model.estimate(one).duration for one in run) for run in (self.longer, self.shorter)
        )
        return 1e-6 * (longer - shorter)


def differences(data: DataFolder) -> Iterator[Difference]:
    """Yield the differences that the sweep holds."""
    alike: dict[tuple[str, int], list[Record]] = defaultdict(list)
    for record in data.read(FILE):
        if not beyond_window(record):
            alike[record["case_id"], record.count("batch")].append(record)
    for (case, _), runs in alike.items():
        shortest, *others = sorted(runs, key=length)
        size = shipped()[shortest["model"]].size
        device = device_of(shortest)
        low = calls(size, shortest)
        section = "decode" if shares_keys(low[0], device) else "decode_mha"
        for other in others:
            more = 1e3 * (other.time("tpot_ms") - shortest.time("tpot_ms")) / size.layers
            if more >= LEAST_US:
                high = calls(size, other)
                yield Difference(device, is_calibration(case), section, high[0].cache_dtype, low, high, more)


def length(run: Record) -> int:
    """Return the positions of a run's last token."""
    return run.count("input_len") + run.count("output_len")


def beyond_window(run: Record) -> bool:
    """Tell whether a run is longer than its model's attention reaches back."""
    window = shipped()[run["model"]].style.window
    return window is not None and length(run) > window


def device_of(run: Record) -> Device:
    """Return a run's GPU as the engine runs decode steps on it."""
    where = place(run["gpu"], run.count("tp"))
    name = dict(where.settings).get("device") or DEVICES[where.machine]
    return load_device(name).under(library=LIBRARY, launch="graph", clock="boost", decode=POLICY)


def calls(size: Dimensions, run: Record) -> list[Attention]:
    """Return a rank's attention at some of a run's tokens."""
    tp, batch = run.count("tp"), run.count("batch")
    heads, kv_heads = size.heads // tp, max(1, size.kv_heads // tp)
    width = size.head_dim or size.hidden // size.heads
    stored = "fp8" if run["precision"] == "fp8" else "fp16"
    return [
        Attention(batch, 1, int(keys), heads, kv_heads, width, dtype="fp16", kv_dtype=stored)  # type: ignore[arg-type]
        for keys in np.linspace(run.count("input_len") + 1, length(run), POSITIONS)
    ]


def with_constants(device: Device, section: str, scope: str, values: Mapping[str, float]) -> Device:
    """Return a device with other constants of one scope."""
    here = device.family.constants.get(section, {})
    changed = {**here, scope: {**here.get(scope, {}), **values}}
    constants = {**device.family.constants, section: changed}
    return replace(device, family=structs.replace(device.family, constants=constants))


def ratios(rows: Sequence[Difference], scope: str, values: Mapping[str, float]) -> list[float]:
    """Return predicted over measured differences under these constants."""
    devices = {row.device: with_constants(row.device, row.section, scope, values) for row in rows}
    return [max(row.predicted_us(devices[row.device]), 0.1) / row.measured_us for row in rows]


def fitted(rows: Sequence[Difference], scope: str) -> dict[str, float]:
    """Return the constants of calibration rows, from the best of several starts."""
    names = FITTED[rows[0].section, rows[0].dtype]
    bounds = RATES | OTHERS

    def errors(logs: Sequence[float]) -> list[float]:
        values = dict(zip(names, map(math.exp, logs), strict=True))
        return [math.log(ratio) for ratio in ratios(rows, scope, values)]

    low, high = ([math.log(bounds[name][side]) for name in names] for side in (0, 1))
    rest = [math.log(STARTS[name][0]) for name in names[1:]]
    found = [
        least_squares(
            errors,
            [math.log(first), *rest],
            bounds=(low, high),
            loss="soft_l1",
            f_scale=0.1,
            diff_step=0.02,
        )
        for first in STARTS[names[0]]
    ]
    best = min(found, key=lambda one: one.cost)
    return {name: float(f"{math.exp(log):.3g}") for name, log in zip(names, best.x, strict=True)}


def main(folder: str, family: str = "") -> None:
    """Print constants and errors, a family's kernel each."""
    data = DataFolder(Path(folder), split=True)
    groups: dict[tuple[str, str, str], list[Difference]] = defaultdict(list)
    for row in differences(data):
        if family in {"", row.device.family.name}:
            groups[row.device.family.name, row.section, row.dtype].append(row)
    for (name, section, dtype), rows in sorted(groups.items()):
        scope = f"{LIBRARY}/fp8" if dtype == "fp8" else LIBRARY
        halves = {half: [row for row in rows if row.calibration is half] for half in (True, False)}
        values = fitted(halves[True], scope) if halves[True] else {}
        print(f"{name} {section} {scope}: {values}")
        for half, chosen in halves.items():
            for label, constants in (("as is", {}), ("fitted", values)):
                off = [100 * (ratio - 1) for ratio in ratios(chosen, scope, constants)]
                if off:
                    errors = f"{fmean(map(abs, off)):.1f} % ({fmean(off):+.1f})"
                    print(f"  {'calibration' if half else 'test'}, {len(off)} rows, {label}: {errors}")


if __name__ == "__main__":
    main(*sys.argv[1:])
