"""Measuring operators through PyTorch: on a CUDA GPU with CUDA graphs and events, or on the CPU.

Each operator stands for one call of PyTorch on random operands (`call_of`). On a GPU it is captured into a
CUDA graph several times over, so that no Python launch is inside, and the graph is replayed between two
events. `l2="cold"` gives each call other operands in rotation, enough that L2 holds none of them;
`l2="warm"` repeats one call. The median of several replays counts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Literal

from msgspec import Struct

from rapid_des.device.operators import DTYPE_BITS, Attention, Gemm, Operator, Vector
from rapid_des.device.vector import vector_bytes
from rapid_des.errors import InputError
from rapid_des.learned import shape_of

Backend = Literal["cuda", "cpu"]
L2 = Literal["cold", "warm"]
Direction = Literal["forward", "backward"]
Call = Callable[[], object]

MOST_COPIES = 24
LEAST_WINDOW_US = 300.0
"""The least duration of a replay in microseconds, so that the resolution of the events does not matter."""

DTYPES: Mapping[str, str] = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}


class Sampling(Struct, frozen=True):
    """How operators are measured."""

    backend: Backend
    l2: L2 = "cold"
    repeats: int = 7
    """The number of replays; the result is their median."""


def sample(operators: Iterable[Operator], sampling: Sampling) -> Iterator[dict[str, object]]:
    """Yield a table row for each operator, as soon as it is measured; see `samples.COLUMNS`."""
    torch = _torch(sampling.backend)
    name = torch.cuda.get_device_name() if sampling.backend == "cuda" else "cpu"
    clock = "CUDA graph" if sampling.backend == "cuda" else "wall clock"
    method = f"torch {torch.__version__}, {clock}, {sampling.l2} L2"
    for operator in operators:
        shape = shape_of(operator)
        if shape is None:
            raise InputError(f"{operator} cannot be sampled: no table column describes it")
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
    phases: tuple[Direction, Direction] = ("forward", "backward")
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


def call_of(torch: Any, operator: Operator, backend: str) -> Call:
    """Return a call of the operator on fresh random operands; an operator without one is an `InputError`."""
    if isinstance(operator, Gemm):
        return _gemm_call(torch, operator, backend)
    if isinstance(operator, Attention):
        return _attention_call(torch, operator, backend)
    if isinstance(operator, Vector):
        if operator.kind not in VECTORS:
            raise InputError(f"vector kernel {operator.kind!r} is not sampled; sampled: {', '.join(VECTORS)}")
        return VECTORS[operator.kind](torch, operator, backend)
    raise InputError(f"{type(operator).__name__} is not sampled")


def operand_bytes(operator: Operator) -> float:
    """Return the bytes that a call touches."""
    if isinstance(operator, Gemm):
        m, n, k = operator.m, operator.n, operator.k
        return operator.batch * (m * k + n * k + m * n) * DTYPE_BITS[operator.dtype] / 8
    if isinstance(operator, Attention):
        return operator.sizes.operands
    assert isinstance(operator, Vector)
    return vector_bytes(operator)


def _random(torch: Any, backend: str, dtype: str, *shape: int) -> Any:
    if dtype not in DTYPES:
        raise InputError(f"dtype {dtype} is not sampled; sampled: {', '.join(DTYPES)}")
    return torch.randn(shape, device=backend, dtype=getattr(torch, DTYPES[dtype]))


def _matrix(torch: Any, vector: Vector, backend: str) -> Any:
    return _random(torch, backend, vector.dtype, vector.rows, vector.columns)


def _gemm_call(torch: Any, gemm: Gemm, backend: str) -> Call:
    batch = () if gemm.batch == 1 else (gemm.batch,)
    left = _random(torch, backend, gemm.dtype, *batch, gemm.m, gemm.k)
    # The second operand as a linear layer stores it: [n, k].
    right = _random(torch, backend, gemm.dtype, *batch, gemm.n, gemm.k).transpose(-1, -2)
    return lambda: torch.matmul(left, right)


def _attention_call(torch: Any, attention: Attention, backend: str) -> Call:
    def operand(length: int, heads: int) -> Any:
        made = _random(torch, backend, attention.dtype, attention.batch, heads, length, attention.head_dim)
        return made.requires_grad_(attention.phase == "backward")

    query = operand(attention.query_length, attention.heads)
    key, value = (operand(attention.key_length, attention.kv_heads) for _ in range(2))
    run = torch.nn.functional.scaled_dot_product_attention
    grouped = {"enable_gqa": True} if attention.heads != attention.kv_heads else {}

    def forward() -> Any:
        return run(query, key, value, is_causal=attention.causal and attention.query_length > 1, **grouped)

    if attention.phase == "forward":
        return forward
    if backend == "cuda":
        return _flash_backward(torch, attention, (query, key, value))
    output = forward()
    gradient = torch.randn_like(output)
    return lambda: torch.autograd.grad(output, (query, key, value), gradient, retain_graph=True)


def _flash_backward(torch: Any, attention: Attention, operands: tuple[Any, Any, Any]) -> Call:
    """Call FlashAttention's backward kernels directly: a CUDA graph cannot capture the autograd engine."""
    aten = torch.ops.aten
    if attention.heads != attention.kv_heads:
        raise InputError("attention backward is sampled with as many KV heads as heads")
    query, key, value = (operand.detach() for operand in operands)
    made = aten._scaled_dot_product_flash_attention(query, key, value, 0.0, attention.causal)  # noqa: SLF001
    output, sums, query_ends, key_ends, queries, keys, seed, offset = made[:8]
    gradient = torch.randn_like(output)
    return lambda: aten._scaled_dot_product_flash_attention_backward(  # noqa: SLF001
        gradient, query, key, value, output, sums, query_ends, key_ends, queries, keys, 0.0,
        attention.causal, seed, offset,
    )  # fmt: skip


def _unary(name: str, **options: Any) -> Callable[[Any, Vector, str], Call]:
    def make(torch: Any, vector: Vector, backend: str) -> Call:
        operand = _matrix(torch, vector, backend)
        function = getattr(torch.nn.functional, name)
        return lambda: function(operand, **options)

    return make


def _norm(name: str) -> Callable[[Any, Vector, str], Call]:
    def make(torch: Any, vector: Vector, backend: str) -> Call:
        operand = _matrix(torch, vector, backend)
        weight = _random(torch, backend, vector.dtype, vector.columns)
        function = getattr(torch.nn.functional, name)
        return lambda: function(operand, (vector.columns,), weight)

    return make


def _add(torch: Any, vector: Vector, backend: str) -> Call:
    left, right = (_matrix(torch, vector, backend) for _ in range(2))
    return lambda: left + right


def _copy(torch: Any, vector: Vector, backend: str) -> Call:
    source = _matrix(torch, vector, backend)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def _swiglu(torch: Any, vector: Vector, backend: str) -> Call:
    """SiLU and product in one kernel, as a compiler makes it; on the CPU the two calls."""
    both = _random(torch, backend, vector.dtype, vector.rows, 2 * vector.columns)

    def run(both: Any) -> Any:
        gate, up = both.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up

    kernel = torch.compile(run, dynamic=True) if backend == "cuda" else run
    return lambda: kernel(both)


def _rope(torch: Any, vector: Vector, backend: str) -> Call:
    """Rotation of the halves of each head of 128, in one kernel on a GPU."""
    width = min(128, vector.columns)
    states = _random(torch, backend, vector.dtype, vector.rows, vector.columns // width, width)
    cosine, sine = (_random(torch, backend, vector.dtype, vector.rows, 1, width) for _ in range(2))

    def run(states: Any, cosine: Any, sine: Any) -> Any:
        low, high = states.chunk(2, dim=-1)
        return states * cosine + torch.cat((-high, low), dim=-1) * sine

    kernel = torch.compile(run, dynamic=True) if backend == "cuda" else run
    return lambda: kernel(states, cosine, sine)


def _cross_entropy(torch: Any, vector: Vector, backend: str) -> Call:
    logits = _matrix(torch, vector, backend)
    labels = torch.randint(vector.columns, (vector.rows,), device=backend)
    return lambda: torch.nn.functional.cross_entropy(logits, labels)


def _adamw(torch: Any, vector: Vector, backend: str) -> Call:
    """One fused step over fp32 weights; the gradient is fp32, as PyTorch's fused kernel wants it."""
    weight = torch.nn.Parameter(_random(torch, backend, "fp32", vector.rows, vector.columns))
    weight.grad = torch.randn_like(weight)
    optimizer = torch.optim.AdamW([weight], lr=1e-4, fused=True, capturable=backend == "cuda")
    step: Call = optimizer.step
    return step


VECTORS: Mapping[str, Callable[[Any, Vector, str], Call]] = {
    "layer_norm": _norm("layer_norm"),
    "rms_norm": _norm("rms_norm"),
    "softmax": _unary("softmax", dim=-1),
    "relu": _unary("relu"),
    "gelu": _unary("gelu", approximate="tanh"),
    "silu": _unary("silu"),
    "residual_add": _add,
    "copy": _copy,
    "swiglu": _swiglu,
    "rope": _rope,
    "cross_entropy": _cross_entropy,
    "adamw": _adamw,
}
"""The vector kernels for which PyTorch has a call."""
