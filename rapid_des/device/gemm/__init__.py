"""GEMMs priced: the fastest kernel's time, and why it takes that long: bound, waves, bytes, energy."""

from __future__ import annotations

from collections.abc import Mapping

from rapid_des.arrays import Floats
from rapid_des.device.device import Device
from rapid_des.device.gemm.kernels import GemmModel, Priced, gemm_work, grouped_work
from rapid_des.device.gemm.timing import Work
from rapid_des.device.operators import Bound, Dtype, Estimate, Gemm, GroupedGemm
from rapid_des.units import PS_PER_US


def price_gemm(gemm: Gemm, model: GemmModel, device: Device) -> Estimate:
    """Price one GEMM by the device's kernels for its types (`gemm_model`)."""
    work = gemm_work([gemm])
    return _explained(model.price(work), work, model, device=device, name="gemm")


def price_grouped_gemm(gemm: GroupedGemm, model: GemmModel, device: Device) -> Estimate:
    """Price one kernel over several experts (`grouped_model`); without any row it is an empty launch."""
    if not any(gemm.rows):
        return Estimate(device.launch_overhead, "launch", 0, model="grouped")
    work = grouped_work([gemm], model.tiles)
    return _explained(model.price(work), work, model, device=device, name="grouped")


def _explained(priced: Priced, work: Work, model: GemmModel, *, device: Device, name: str) -> Estimate:
    """Return the estimate of the only GEMM of `work`; `name` is the operator model's."""
    chosen, launch = int(priced.chosen[0]), device.launch_overhead
    kernel = round(float(priced.kernel_us[0]) * PS_PER_US)
    moved = _bytes(priced, work, chosen)
    flops = int(work.flops[0, 0])
    detail = _kernel(priced, model, chosen) | {
        "launch_ps": launch,
        "clock": round(1.0 / float(priced.throttle[0]), 3),
        "energy_pj": _energy(device, model.dtype, flops, moved),
    }
    return Estimate(kernel + launch, _bound(priced, model, chosen, launch), flops, moved, detail, name)


def _bytes(priced: Priced, work: Work, chosen: int) -> dict[str, int]:
    compulsory = float(work.a_bytes[0, 0] + work.b_bytes[0, 0] + work.c_bytes[0, 0])
    if priced.gemv[0]:
        return {"hbm": int(compulsory), "l2": int(compulsory), "shared": 0}
    timing, stored = priced.timing, float(work.c_bytes[0, 0])
    l2 = float(timing.l2_read[0, chosen])
    read = _entry(timing.hbm_read, chosen)
    return {"hbm": int(read + stored), "l2": int(l2 + stored), "shared": int(2 * l2)}


def _entry(values: Floats, chosen: int) -> float:
    """Return a candidate's entry of the only GEMM; one column stands for all candidates."""
    return float(values[0, min(chosen, values.shape[1] - 1)])


def _kernel(priced: Priced, model: GemmModel, chosen: int) -> dict[str, object]:
    if priced.gemv[0]:
        return {"model": "gemm", "kernel": "gemv"}
    tiles, ctas = model.tiles, float(priced.timing.ctas[0, chosen])
    slots = model.rates.sms * float(tiles.residency[chosen])
    return {
        "model": "gemm",
        "kernel": "tiled",
        "tile": [int(tiles.tile_m[chosen]), int(tiles.tile_n[chosen]), int(tiles.step_k)],
        "split_k": int(tiles.split[chosen]),
        "stream_k": model.fit.stream_k,
        "ctas": int(ctas),
        "ctas_per_sm": int(tiles.residency[chosen]),
        "waves": round(ctas / slots, 3),
        "sm_occupancy": round(min(1.0, ctas / model.rates.sms), 3),
    }


def _bound(priced: Priced, model: GemmModel, chosen: int, launch: int) -> Bound:
    if priced.gemv[0]:
        return "hbm" if priced.kernel_us[0] > 2 * model.fit.gemv_start_us else "launch"
    timing, tiles = priced.timing, model.tiles
    units = float(timing.units_us[0, chosen])
    step = float(tiles.step_us[chosen])
    l2, sm = float(timing.l2_us[0, chosen]), float(timing.sm[0, chosen])
    parts: dict[Bound, float] = {
        "tensor": units * float(tiles.math_us[chosen]) / step,
        "shared": units * float(tiles.shared_us[chosen]) / step,
        "l2": max(l2, units * float(tiles.port_us[chosen]) / step),
        "hbm": _entry(timing.hbm, chosen),
        "latency": sm - max(units, l2),
        "launch": launch / PS_PER_US + model.fit.start_us,
    }
    return max(parts, key=lambda name: parts[name])


def _energy(device: Device, dtype: Dtype, flops: int, moved: Mapping[str, int]) -> int | None:
    """Return picojoules of arithmetic and movement; None where the device file does not give them."""
    table = device.spec.energy
    if table is None:
        return None
    if dtype not in table.flop_pj:
        return None
    levels = {"shared": table.shared_pj_per_byte, "l2": table.l2_pj_per_byte, "hbm": table.hbm_pj_per_byte}
    return round(flops * table.flop_pj[dtype] + sum(count * levels[level] for level, count in moved.items()))
