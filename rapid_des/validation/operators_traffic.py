"""HBM traffic topics: predicted bytes against what a profiler counted for cuBLAS GEMMs on an A100.

`operators/traffic/ncu` holds the shapes with M, N, K ≥ 1024, `operators/traffic/ncu-small` the others. The
profiler's locked clock does not change the bytes. The null model is compulsory traffic: each operand once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from rapid_des.device import Gemm
from rapid_des.device.roofline import gemm_bytes
from rapid_des.validation.folder import DataFolder, Record
from rapid_des.validation.hardware import device_for
from rapid_des.validation.scoring import Row, Topic

LARGE = 1024


def topics(data: DataFolder) -> Iterable[Topic]:
    """Yield the two traffic topics where the profiler's file is there."""
    rows = data.read("rapid/ncu_gemm_a100_measured.csv")
    large = [row for row in rows if min(int(row[key]) for key in ("m", "n", "k")) >= LARGE]
    small = [row for row in rows if row not in large]
    for name, chosen in (("ncu", large), ("ncu-small", small)):
        if chosen:
            yield Topic(f"operators/traffic/{name}", partial(_score, chosen), unit="byte")


def _score(rows: Sequence[Record]) -> list[Row]:
    device = device_for("A100-SXM4-80GB", library="cublas", l2="cold")
    scored = []
    for row in rows:
        m, n, k = (int(row[key]) for key in ("m", "n", "k"))
        gemm = Gemm(m, n, k, dtype="fp16")
        counted = float(row["dram_read"]) + float(row["dram_write"])
        predicted = device.operators.estimate(gemm).bytes["hbm"]
        scored.append(Row(f"ncu/{m},{n},{k}", counted, float(predicted), float(gemm_bytes(gemm))))
    return scored
