"""A linear layer cut over tensor-parallel GPUs: each GEMM of forward and backward, with its collective.

The weight [K, N] is cut by columns (`col`: every GPU makes N/tp columns of the result from the whole input)
or by rows (`row`: every GPU multiplies K/tp of the input and the partial results are summed). With sequence
parallelism the activations outside the layer are cut along M, which turns an all-reduce into an all-gather
before the layer and a reduce-scatter after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct

from rapid_des.device.operators import Dtype, Estimate, Gemm, width
from rapid_des.device.pricing import operator_model
from rapid_des.errors import InputError
from rapid_des.machine import Machine
from rapid_des.studies.collective_bench import bench
from rapid_des.units import seconds


class ShardedGemm(Struct, frozen=True):
    """A GEMM of [m, k] with a weight [k, n] that is split over `tp` GPUs."""

    m: int
    k: int
    n: int
    tp: int
    axis: Literal["row", "col"]
    sequence_parallel: bool = False
    dtype: Dtype = "bf16"

    def gemms(self) -> dict[str, Gemm]:
        """Return one GPU's GEMM of every phase."""
        n, k = (self.n // self.tp, self.k) if self.axis == "col" else (self.n, self.k // self.tp)
        return {
            "forward": Gemm(self.m, n, k, dtype=self.dtype),
            "backward input": Gemm(self.m, k, n, dtype=self.dtype),
            "backward weight": Gemm(k, n, self.m, dtype=self.dtype),
        }

    def collectives(self) -> dict[str, list[tuple[str, int]]]:
        """Return the collectives of every phase with the bytes of all shards together."""
        size = width(self.dtype)
        inputs, results = int(self.m * self.k * size), int(self.m * self.n * size)
        if self.tp == 1:
            return {}
        if not self.sequence_parallel:
            reduced = ("forward", results) if self.axis == "row" else ("backward input", inputs)
            return {reduced[0]: [("all_reduce", reduced[1])]}
        if self.axis == "row":
            return {
                "forward": [("reduce_scatter", results)],
                "backward input": [("all_gather", results)],
            }
        return {
            "forward": [("all_gather", inputs)],
            "backward input": [("reduce_scatter", inputs)],
            "backward weight": [("all_gather", inputs)],
        }


class ShardedPass(Struct, frozen=True):
    """One GEMM and the collectives that belong to it; times are picoseconds, one after the other."""

    name: str
    gemm: Gemm
    estimate: Estimate
    collectives: tuple[tuple[str, int, int], ...]
    """The name, bytes and picoseconds of each collective."""

    @property
    def duration(self) -> int:
        """The picoseconds of the whole phase without overlap."""
        return self.estimate.duration + sum(time for _, _, time in self.collectives)

    def as_plain(self) -> dict[str, Any]:
        """Return plain data for JSON; times in seconds."""
        return {
            "phase": self.name,
            "gemm": {"m": self.gemm.m, "n": self.gemm.n, "k": self.gemm.k},
            "gemm_s": seconds(self.estimate.duration),
            "bound": self.estimate.bound,
            "collectives": [
                {"name": name, "bytes": size, "time_s": seconds(time)}
                for name, size, time in self.collectives
            ],
            "total_s": seconds(self.duration),
        }


def run_sharded(layer: ShardedGemm, machine: Machine) -> list[ShardedPass]:
    """Return the phases of a layer on the first `tp` GPUs of a machine."""
    cut, name = (layer.n, "N") if layer.axis == "col" else (layer.k, "K")
    if cut % layer.tp:
        raise InputError(f"--tp: {layer.tp} does not divide {name} = {cut}")
    if layer.sequence_parallel and layer.m % layer.tp:
        raise InputError(f"--tp: {layer.tp} does not divide M = {layer.m} (sequence parallel)")
    collectives = layer.collectives()
    operators = operator_model(machine.device)
    return [
        ShardedPass(
            name,
            gemm,
            operators.estimate(gemm),
            _timed(collectives.get(name, []), layer, machine),
        )
        for name, gemm in layer.gemms().items()
    ]


def _timed(
    collectives: Sequence[tuple[str, int]], layer: ShardedGemm, machine: Machine
) -> tuple[tuple[str, int, int], ...]:
    return tuple(
        (name, size, bench(machine, name, [size], gpus=layer.tp)[0].duration) for name, size in collectives
    )
