"""The class of a GPU kernel, by its name and by the PyTorch operator that launched it.

The first pattern that a name has rules. Names are those of CUDA, ROCm and Triton kernels as profilers print
them. What no pattern knows is classed by the operator, and is else unknown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

_BY_NAME = (
    ("communication", r"nccl|rccl|cross_device_reduce|nvshmem|deep_?ep|multimem|two_?shot|one_?shot_all"
                      r"|allreduce|all_gather"),
    ("copy", r"memcpy|^copy(buffer|image)|amd_rocclr_copy"),
    ("fill", r"memset|amd_rocclr_fill"),
    ("elementwise", r"^triton_poi_|rotary"),
    ("gemm", r"^bmm_"),
    ("attention", r"flash|fmha|attention|attn|\bmha\b|sdpa|paged|mla_|efficient_?att|sage_(fwd|bwd)"
                  r"|store_kv_?cache|reshape_and_cache"),
    ("optimizer", r"adam|multi_tensor|lamb|\bsgd|foreach|fused_optim|l2norm|scale_functor"),
    ("embedding", r"embedding|pooled_embs|bounds_check_indices|jagged|linearize_index|compute_grad_weight"),
    ("pooling", r"pool"),
    ("convolution", r"conv(?!ert)|winograd|fprop|dgrad|wgrad|implicit_gemm|scudnn|nhwc|nchw|im2col|col2im"
                    r"|fft[12]d|flip_filter|cgemm|compute[ab]?offsets"),
    ("dropout", r"dropout|philox|distribution_|random"),
    ("sort_and_index", r"routing|moe::dev::finalize|bitmatrix|token_ids|compute_position"),
    ("norm", r"norm|_bn_|bn_(fw|bw)|rowwisemoments|gammabeta|rms|rsqrt_|welford|fusedparams"
             r"|internalgradients"),
    ("softmax", r"softmax|cross_entropy|nll_loss|nllcriterion|log_?sum|_loss"),
    ("gemm", r"gemm|gemv|cutlass|cublas|splitk|xmma|matmul|\bmm_|tensile|^cijk_|nvjet|wmma|cutedsl|magma"
             r"|dot_kernel|hipblas|_mm\b"),
    ("sort_and_index", r"sort|scan|cub::|index|gather|scatter|topk|unique|permute|reducebykey|select"
                       r"|(?<![a-z])(where|a?range)|masked|bincount|histogram|nonzero|triu|tril|moe_align|expand"),
    ("reduction", r"reduce|reduction|cumsum|argmax|\bsum_|\bmean_"),
    ("quantise", r"quant|fp8|fp4|int8|cast|convert|dequant"),
    ("elementwise", r"elementwise|silu|gelu|relu|swiglu|sigmoid|tanh|rope|rotary|add|mul|copy|fill|pointwise"
                    r"|_poi_|transpose|catarray|concat|stack|bias|vectorized|unrolled|clamp|activation|tensor_apply|lerp"
                    r"|epilogue|scalepacked|compute_cuda_kernel|to_dense|spin_kernel|subtensorop"),
    ("triton", r"triton"),
)  # fmt: skip
_BY_OPERATOR = (
    ("attention", r"attention|sdpa"),
    ("convolution", r"conv"),
    ("gemm", r"mm$|mm_|linear|matmul|bmm|einsum|dot$"),
    ("norm", r"norm"),
    ("softmax", r"softmax|cross_entropy|nll_loss"),
    ("embedding", r"embedding"),
    ("optimizer", r"optimizer|_foreach|fused_adam"),
    ("communication", r"c10d|nccl|all_reduce|all_gather|reduce_scatter"),
    ("reduction", r"sum|mean|max|min|norm$"),
    ("sort_and_index", r"sort|index|gather|scatter|topk|unique|cumsum|nonzero|arange|select"),
    ("elementwise", r"^aten::(add|mul|div|sub|copy_|fill_|zero_|cat|relu|gelu|silu|tanh|exp|pow|where"
                    r"|clamp|_to_copy)"),
)  # fmt: skip
CLASSES = tuple(dict.fromkeys(kind for kind, _ in (*_BY_NAME, *_BY_OPERATOR)))
_NAMES, _OPERATORS = (
    [(kind, re.compile(pattern)) for kind, pattern in table] for table in (_BY_NAME, _BY_OPERATOR)
)
_LONGEST = 400
"""Letters of a name that are looked at: template arguments of some kernels are thousands long."""


@cache
def class_of(kernel: str, operator: str = "") -> str:
    """Return the class of a kernel; empty if neither its name nor its operator is known.

    >>> class_of("ncclDevKernel_AllReduce_Sum_bf16_RING_LL"), class_of("ampere_bf16_s16816gemm_bf16_128x128")
    ('communication', 'gemm')
    >>> class_of("mystery", "aten::mm"), class_of("mystery")
    ('gemm', '')
    """
    name = kernel.lower().replace("(anonymous namespace)::", "")
    base = _first(_NAMES, name.partition("<")[0][:_LONGEST])
    if base and base != "gemm":
        return base
    # what CUTLASS computes, and what wrappers wrap, stands in the template's arguments
    return _first(_NAMES, name[:_LONGEST]) or _first(_OPERATORS, operator.lower())


def _first(table: Sequence[tuple[str, re.Pattern[str]]], text: str) -> str:
    return next((kind for kind, pattern in table if pattern.search(text)), "")
