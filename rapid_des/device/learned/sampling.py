"""Measuring operators through PyTorch: on a CUDA GPU with CUDA graphs and events, or on the CPU.

On a GPU each operator is captured into a CUDA graph several times over, so that no Python launch is inside,
and the graph is replayed between two events. `l2="cold"` gives each call other operands in rotation, so many
that L2 holds none of them; `l2="warm"` repeats one call. The median of several replays counts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

from rapid_des.device.learned.samples import shape_of
from rapid_des.device.learned.torch_calls import Call, call_of, operand_bytes
from rapid_des.device.operators import Attention, Gemm, Operator, Vector
from rapid_des.errors import InputError

Backend = Literal["cuda", "cpu"]
L2 = Literal["cold", "warm"]
Phase = Literal["forward", "backward"]

MOST_COPIES = 24
LEAST_WINDOW_US = 300.0
"""A replay lasts at least this long, so that the events' resolution does not show."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How operators are measured."""

    backend: Backend
    l2: L2 = "cold"
    repeats: int = 7
    """Replays, of which the median counts."""


def sample(operators: Iterable[Operator], sampling: Sampling) -> Iterator[dict[str, object]]:
    """Yield a table row for each operator, as soon as it is measured; see `samples.COLUMNS`."""
    torch = _torch(sampling.backend)
    name = torch.cuda.get_device_name() if sampling.backend == "cuda" else "cpu"
    clock = "CUDA graph" if sampling.backend == "cuda" else "wall clock"
    method = f"torch {torch.__version__}, {clock}, {sampling.l2} L2"
    for operator in operators:
        shape = shape_of(operator)
        if shape is None:
            raise InputError(f"{operator} can not be sampled: no table column describes it")
        times = _times(torch, operator, sampling)
        yield {
            "operator": shape.name,
            **{size: int(value) for size, value in zip(shape.names, shape.sizes, strict=True)},
            "time_us": f"{statistics.median(times):.4g}",
            "spread_us": f"{max(times) - min(times):.3g}",
            "device": name,
            "method": method,
        }


def choose(operators: Sequence[Operator], prefixes: Sequence[str]) -> list[Operator]:
    """Return the operators whose sampled name starts with one of the prefixes; all without any."""
    names = {operator: shape.name for operator in operators if (shape := shape_of(operator))}
    known = sorted(set(names.values()))
    for prefix in prefixes:
        if not any(name.startswith(prefix) for name in known):
            raise InputError(f"--only {prefix}: no operator is called so; there are {', '.join(known)}")
    return [operator for operator, name in names.items() if not prefixes or name.startswith(tuple(prefixes))]


def default_operators(*, small: bool = False) -> list[Operator]:
    """Return the standard sweep: shapes of language models (small: a few seconds on a CPU)."""
    return list(_small()) if small else [*_gemms(), *_attentions(), *_vectors()]


def _small() -> Iterator[Operator]:
    for m, n, k in product((1, 8, 32, 64, 128), (64, 128, 256), (64, 256, 1024)):
        yield Gemm(m, n, k, dtype="fp32")
    for rows, columns in product((16, 64, 256, 1024), (64, 256, 512, 1024)):
        yield Vector("rms_norm", rows, columns, "fp32")
    for batch, length in product((1, 2, 4), (16, 32, 64, 128)):
        yield Attention(batch, length, length, 4, 4, 32, dtype="fp32")


def _gemms() -> Iterator[Operator]:
    square, wide, narrow = (4096, 4096), (12288, 4096), (4096, 11008)
    weights = (square, wide, narrow, (28672, 8192), (8192, 28672), (10240, 8192), (1024, 8192))
    for (n, k), m in product(weights, (1, 8, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)):
        yield Gemm(m, n, k)


def _attentions() -> Iterator[Operator]:
    phases: tuple[Phase, Phase] = ("forward", "backward")
    lengths = (256, 512, 1024, 2048, 4096, 8192)
    for phase, heads, length, batch in product(phases, ((32, 32), (32, 8), (8, 8)), lengths, (1, 4, 16)):
        grouped = heads[0] != heads[1]
        if batch * length <= 32768 and not (grouped and phase == "backward"):
            yield Attention(batch, length, length, *heads, 128, phase=phase)
    for batch, keys in product((1, 8, 64), (512, 4096, 32768)):
        yield Attention(batch, 1, keys, 32, 8, 128, causal=False)


def _vectors() -> Iterator[Operator]:
    kinds = ("layer_norm", "rms_norm", "softmax", "gelu", "silu", "residual_add", "copy", "swiglu", "rope")
    for kind, columns, rows in product(kinds, (1024, 4096, 8192, 28672), (16, 256, 2048, 8192)):
        if kind != "rope" or columns <= 8192:
            yield Vector(kind, rows, columns)
    for columns, rows in product((32000, 128256), (256, 4096)):
        yield Vector("cross_entropy", rows, columns)
    yield from (Vector("adamw", 1, count, "bf16") for count in (1 << 20, 1 << 24, 1 << 28))


def _torch(backend: Backend) -> Any:
    try:
        import torch
    except ImportError:
        raise InputError("sampling needs PyTorch: pip install torch (rapid-des's extra 'sample')") from None
    if backend == "cuda" and not torch.cuda.is_available():
        raise InputError("--on cuda: PyTorch sees no CUDA GPU here; --on cpu measures on the CPU")
    return torch


def _times(torch: Any, operator: Operator, sampling: Sampling) -> list[float]:
    if sampling.backend == "cpu":
        return _wall_times(call_of(torch, operator, "cpu"), sampling.repeats)
    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    copies = 1
    if sampling.l2 == "cold":
        copies = min(MOST_COPIES, 1 + int(3 * l2_bytes // max(1, operand_bytes(operator))))
    calls = [call_of(torch, operator, "cuda") for _ in range(copies)]
    return _graph_times(torch, calls, sampling.repeats)


def _wall_times(call: Call, repeats: int) -> list[float]:
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e6)
    return times


def _graph_times(torch: Any, calls: list[Call], repeats: int) -> list[float]:
    """Capture all calls into one graph, as often as fills the window, and time its replays."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls * 2:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    once = _replay_us(torch, _capture(torch, calls)) / len(calls)
    rounds = max(1, min(50, round(LEAST_WINDOW_US / (once * len(calls)))))
    graph = _capture(torch, calls * rounds)
    _replay_us(torch, graph)
    count = rounds * len(calls)
    return [_replay_us(torch, graph) / count for _ in range(repeats)]


def _capture(torch: Any, calls: list[Callable[[], object]]) -> Any:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def _replay_us(torch: Any, graph: Any) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    graph.replay()
    start.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) * 1e3
