"""What PyTorch runs for each operator: a function that makes one call on random operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rapid_des.device.operators import DTYPE_BITS, Attention, Gemm, Operator, Vector
from rapid_des.device.vector import vector_bytes
from rapid_des.errors import InputError

Call = Callable[[], object]

DTYPES: Mapping[str, str] = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}


def call_of(torch: Any, operator: Operator, backend: str) -> Call:
    """Return a call of the operator on fresh random operands; an operator without one is an `InputError`."""
    if isinstance(operator, Gemm):
        return _gemm(torch, operator, backend)
    if isinstance(operator, Attention):
        return _attention(torch, operator, backend)
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


def _gemm(torch: Any, gemm: Gemm, backend: str) -> Call:
    batch = () if gemm.batch == 1 else (gemm.batch,)
    left = _random(torch, backend, gemm.dtype, *batch, gemm.m, gemm.k)
    # The second operand as a linear layer stores it: [n, k].
    right = _random(torch, backend, gemm.dtype, *batch, gemm.n, gemm.k).transpose(-1, -2)
    return lambda: torch.matmul(left, right)


def _attention(torch: Any, attention: Attention, backend: str) -> Call:
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
    """Call FlashAttention's backward kernels directly: a CUDA graph can not capture the autograd engine."""
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
"""The vector kernels that PyTorch has a call for."""
