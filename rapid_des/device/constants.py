"""The constants of operator models: what sections there are, what stands in each, and in which range.

A section holds scopes (`default`, a dtype, a library or `library/dtype`), a scope holds constants. In section
`vector` a name may have a kernel's name before it: `rope_row_us` holds for `rope` alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rapid_des.device.operators import DTYPE_BITS

Constants = dict[str, dict[str, dict[str, float]]]
"""Fitted constants: section (`gemm`, …), scope (`default`, a dtype, a library or `library/dtype`), name."""


@dataclass(frozen=True)
class Range:
    """The least and the greatest value of a constant, and whether it counts something."""

    low: float
    high: float
    whole: bool = False

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high and (not self.whole or value == int(value))

    def __str__(self) -> str:
        return f"{'whole numbers ' if self.whole else ''}{self.low:.10g} to {self.high:.10g}"


_TIME = Range(0, 1e6)
"""Microseconds (of a row or an element: nanoseconds)."""
_SHARE = Range(0, 1)
_DIVISOR = Range(1e-4, 1)
"""A utilisation: a share that something is divided by."""
_FACTOR = Range(0, 1e4)
_NORM = Range(1, 1000)
"""An exponent that joins times: 1 adds them, a large one takes the longest."""
_FLAG = Range(0, 1, whole=True)
_COUNT = Range(1, 2**16, whole=True)

_GEMM = {
    **dict.fromkeys(
        ("start_us", "gemv_start_us", "prologue_us", "epilogue_us", "step_us", "split_us", "throttle_us",
         "quantise_row_us", "quantise_element_ns"),
        _TIME,
    ),
    **dict.fromkeys(("tensor", "vector", "shared", "l2", "hbm", "throttled"), _DIVISOR),
    **dict.fromkeys(("store", "multicast", "stream_k", "power_load"), _SHARE),
    "overlap": _NORM,
}  # fmt: skip
_KERNEL = {
    "tile_q": _COUNT, "tile_kv": _COUNT, "resident": _COUNT, "products_in_kv_dtype": _FLAG,
    "tensor_utilisation": _DIVISOR, "cta_us": _TIME, "kernel_us": _TIME, "norm": _NORM,
}  # fmt: skip
_FLASH = _KERNEL | {
    "longest_first": _FLAG, "pack_heads": _FLAG, "softmax_ops": _FACTOR, "overlap": _SHARE,
    "input_passes": _FACTOR,
}  # fmt: skip
_DECODE = _KERNEL | {
    "group_heads": _FLAG, "split": Range(0, 2, whole=True), "max_splits": _COUNT, "gain": Range(0.01, 100),
    "stream_gbps": Range(0.1, 1e5), "combine_us": _TIME, "combine_split_us": _TIME, "regroup_us": _TIME,
    "row_passes": _FACTOR,
}  # fmt: skip
_VECTOR = {
    "sm_threads": _COUNT, "block_threads": _COUNT, "access_bytes": _COUNT, "step_us": _TIME,
    "row_us": _TIME, "kernel_us": _TIME, "vector_utilisation": _DIVISOR, "norm": _NORM,
}  # fmt: skip

RANGES: Mapping[str, Mapping[str, Range]] = {
    "gemm": _GEMM,
    "grouped_gemm": _GEMM,
    "moe": {"route_us": _TIME, "row_ns": _TIME, "move": _DIVISOR},
    "memory": {"l2_share": _DIVISOR, "l2_utilisation": _DIVISOR, "hbm_utilisation": _DIVISOR},
    "attention": _FLASH,
    "attention_backward": _FLASH,
    "mla_prefill": _FLASH,
    "decode": _DECODE,
    "decode_mha": _DECODE,
    "mla_decode": _DECODE,
    "vector": _VECTOR,
}
"""The range of every constant, by section."""

LIBRARIES = frozenset(
    ("cublas", "cudnn", "rocblas", "xla", "vllm", "sglang", "trtllm", "trtllm_min_latency", "deepgemm",
     "vidur", "torch-eager", "torch-events", "torch-wall")
)  # fmt: skip
"""Kernel libraries that a device may run without constants of their own; others need some."""


def check_constants(constants: Constants) -> None:
    """Raise `ValueError`, which names section, scope, constant and what is allowed, for what is wrong."""
    for section, scopes in constants.items():
        if section not in RANGES:
            raise ValueError(f"constants.{section} is not one of {', '.join(RANGES)}")
        for scope, values in scopes.items():
            for name, value in values.items():
                check_constant(section, name, value, where=f"constants.{section}.{scope}.{name}")


def check_constant(section: str, name: str, value: float, *, where: str) -> None:
    """Raise `ValueError` naming `where` for an unknown name or a value outside its range."""
    ranges = RANGES[section]
    span = ranges.get(name) or (ranges.get(split_kernel(name)[1]) if section == "vector" else None)
    if span is None:
        kernels = ", or KERNEL_NAME for one kernel" if section == "vector" else ""
        raise ValueError(f"{where}: unknown {name!r}; allowed: {', '.join(ranges)}{kernels}")
    if not math.isfinite(value) or value not in span:
        raise ValueError(f"{where}: {value!r} is out of range; allowed: {span}")


def split_kernel(name: str) -> tuple[str, str]:
    """Return the kernel and the constant that a name of section `vector` speaks of; no kernel: all.

    >>> split_kernel("rope_row_us"), split_kernel("row_us")
    (('rope', 'row_us'), ('', 'row_us'))
    """
    ends = (known for known in _VECTOR if name.endswith(f"_{known}") and name not in _VECTOR)
    constant = next(ends, name)
    return name.removesuffix(constant).removesuffix("_"), constant


def libraries_of(scopes: set[str]) -> set[str]:
    """Return the libraries that names of scopes speak of.

    >>> sorted(libraries_of({"default", "fp8", "mine", "vllm/fp8"}))
    ['mine', 'vllm']
    """
    return {scope.split("/")[0] for scope in scopes} - {"default", "grouped", *DTYPE_BITS}
