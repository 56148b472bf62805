"""Vector kernels against measurements: norms, softmax, activations, pointwise, RoPE, embeddings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from rapid_des.device import Device, Vector
from rapid_des.device.operators import Operator
from rapid_des.device.vector import fused, rms_norm_steps
from validation.measurements import PRESETS, DataFolder, Record, UnsupportedRow, device_for
from validation.operators.attention import Measured, scored
from validation.scoring import Row, Topic

FLOOR_US = 2.0
LLMCOMPASS_LEAST_US = 100.0
"""Below it the wall clock around one call sees the launch from Python, not the kernel."""

VIDUR_OPS = {
    "input_layernorm": "norm",
    "post_attention_layernorm": "norm",
    "mlp_act": "activation",
    "attn_rope": "rope",
    "add": "pointwise",
    "emb": "embedding",
}
NEUSIGHT_OPS: Mapping[str, tuple[str, str]] = {
    "ln": ("norm", "layer_norm"),
    "softmax": ("softmax", "softmax"),
    "relu": ("activation", "relu"),
    "gelu": ("activation", "gelu"),
    "tanh": ("activation", "tanh"),
    "add": ("pointwise", "residual_add"),
    "mul": ("pointwise", "multiply"),
    "div": ("pointwise", "divide"),
    "pow": ("pointwise", "power"),
    "addu": ("pointwise", "scale"),
    "mulu": ("pointwise", "scale"),
    "divu": ("pointwise", "scale"),
    "powu": ("pointwise", "power_scalar"),
}
LLMCOMPASS_OPS = {
    "softmax": ("softmax", "softmax"),
    "layernorm": ("norm", "layer_norm"),
    "gelu": ("activation", "gelu"),
}
TRAINING_OPS: Mapping[str, tuple[str, str]] = {
    "res_add": ("pointwise", "residual_add"),
    "gelu": ("activation", "gelu"),
    "layernorm": ("norm", "layer_norm"),
    "ScaledUpperTriangMaskedSoftmax": ("softmax", "masked_softmax"),
}
SERVING_OPS = {
    "input_layernorm": "norm", "post_layernorm": "norm", "final_layernorm": "norm", "layernorm": "norm",
    "act_fn": "activation", "rope": "rope", "rotary_emb": "rope", "embedding": "embedding", "qk_norm": "norm",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Model:
    """The sizes behind a model's name in the serving profiles (from its published configuration)."""

    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int


MODELS: Mapping[str, Model] = {
    "Llama-3.1-8B": Model(4096, 14336, 32, 8, 128),
    "Llama-3.1-70B": Model(8192, 28672, 64, 8, 128),
    "Qwen3-32B": Model(5120, 25600, 64, 8, 128),
}


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A measured row that the model does not represent, and why."""

    topic: str
    case_id: str
    measured_us: float
    reason: str


def topics(data: DataFolder) -> Iterable[Topic]:
    """Yield `operators/norm|softmax|activation|pointwise|rope|embedding/GPU` and what is excluded."""
    groups: dict[str, list[Measured | Unsupported]] = defaultdict(list)
    for call in measured_calls(data):
        groups[call.topic].append(call)
    for name, calls in groups.items():
        yield Topic(name, partial(_rows, calls, fitted=data.split), floor_us=FLOOR_US)


def measured_calls(data: DataFolder) -> Iterator[Measured | Unsupported]:
    """Yield every measured vector kernel of the five sources."""
    for name, known, read in _SOURCES:
        for record in data.read(name):
            if record["op"] in known:
                yield _call_or_reason(record, known[record["op"]], read)


def _call_or_reason(
    record: Record, kind: str | tuple[str, str], read: Callable[[Record], Measured | Unsupported]
) -> Measured | Unsupported:
    try:
        return read(record)
    except UnsupportedRow as why:
        topic = kind if isinstance(kind, str) else kind[0]
        name = f"operators/{topic}/{record['gpu']}"
        return Unsupported(name, record["case_id"], record.time("time_us"), str(why))


def _rows(calls: list[Measured | Unsupported], *, fitted: bool) -> list[Row]:
    known = [call for call in calls if isinstance(call, Measured)]
    rows = scored(known, fitted=fitted) if known else []
    rest = (call for call in calls if isinstance(call, Unsupported))
    return rows + [Row(call.case_id, call.measured_us, None, unsupported=call.reason) for call in rest]


def _call(record: Record, topic: str, operators: tuple[Operator, ...], device: Device) -> Measured:
    name = f"operators/{topic}/{record['gpu']}"
    return Measured(name, record["case_id"], record.time("time_us"), operators, device)


def _vidur(record: Record) -> Measured:
    """Kernels that a profiler saw inside an early vLLM: scalar loads, one block a token."""
    tokens, tp = record.count("tokens"), record.count("tp")
    hidden, heads = record.count("n_embd"), record.count("n_head")
    kv_heads = max(1, record.count("n_kv_head") // tp)
    gated = "phi-2" not in record["case_id"]
    columns = {
        "norm": hidden,
        "activation": record.count("n_ffn") // tp,
        "rope": (heads // tp + kv_heads) * (hidden // heads),
        "pointwise": hidden,
        "embedding": hidden,
    }
    kinds = {
        "norm": "rms_norm" if gated else "layer_norm",
        "activation": "swiglu" if gated else "gelu",
        "rope": "rope",
        "pointwise": "residual_add",
        "embedding": "embedding",
    }
    topic = VIDUR_OPS[record["op"]]
    device = device_for(record["gpu"], library="vidur", l2="warm")
    # phi-2 adds attention and feed-forward to the residual: two additions.
    times = 2 if topic == "pointwise" and not gated else 1
    return _call(record, topic, (Vector(kinds[topic], tokens, columns[topic], "fp16"),) * times, device)


def _neusight(record: Record) -> Measured:
    """PyTorch kernels in fp32 between CUDA events, the launch from Python included."""
    topic, kind = NEUSIGHT_OPS[record["op"]]
    device = device_for(record["gpu"], library="torch-events", launch="eager", l2="warm")
    rows, columns = record.count("B"), record.count("N")
    return _call(record, topic, (Vector(kind, rows, columns, "fp32"),), device)


def _llmcompass(record: Record) -> Measured:
    """PyTorch kernels in fp16 by the wall clock of one call."""
    topic, kind = LLMCOMPASS_OPS[record["op"]]
    if record.time("time_us") < LLMCOMPASS_LEAST_US:
        topic = f"{topic}/excluded-launch-floor"
    rows = record.count("M")
    columns = record.count("N") if record["N"] else 1
    device = device_for(record["gpu"], library="torch-wall", launch="eager", l2="warm")
    return _call(record, topic, (Vector(kind, rows, columns, "fp16"),), device)


def _training(record: Record) -> Measured | Unsupported:
    """Kernels of GPT-NeoX in fp16 on Perlmutter (A100) and Vista (GH200: a GPU that nothing is fitted on)."""
    topic, kind = TRAINING_OPS[record["op"]]
    name = f"operators/{topic}/{record['gpu']}"
    if record["flag"] or (record["op"], record["phase"]) == ("res_add", "bwd"):
        reason = record["flag"] or "a copy of the forward rows"
        return Unsupported(
            f"operators/{topic}/excluded-flagged/{record['gpu']}",
            record["case_id"],
            record.time("time_us"),
            reason,
        )
    batch, length = record.count("b"), record.count("l")
    rows, columns = batch * length, record.count("dim") if record["dim"] else 0
    if kind == "masked_softmax":
        rows, columns = rows * record.count("h"), length
    if kind == "gelu":
        columns = 4 * columns // record.count("mp")
    phase: Literal["forward", "backward"] = "forward" if record["phase"] == "fwd" else "backward"
    device = device_for(record["gpu"], library="torch")
    operators = (Vector(kind, rows, columns, "fp16", phase),)
    return Measured(name, record["case_id"], record.time("time_us"), operators, device)


def _serving(record: Record) -> Measured | Unsupported:
    """Kernels of a serving engine's profile: version 0 ran eager PyTorch, version 1 vLLM's own kernels."""
    topic, model = SERVING_OPS[record["op"]], MODELS.get(record["model"])
    name = f"operators/{topic}/{record['gpu']}"
    if "TPU" in record["gpu"]:
        name = f"operators/{topic}/excluded-fused-by-compiler/{record['gpu']}"
    if model is None or record["gpu"] not in PRESETS or "TPU" in record["gpu"]:
        reason = "TPU vector kernels are fused away" if "TPU" in record["gpu"] else "model sizes unknown"
        return Unsupported(name, record["case_id"], record.time("time_us"), reason)
    tokens, tp = record.count("tokens"), record.count("tp")
    rope = (model.heads + model.kv_heads) * model.head_dim // tp
    columns = {"norm": model.hidden, "activation": model.ffn // tp, "rope": rope, "embedding": model.hidden}
    kinds = {"norm": "rms_norm", "activation": "swiglu", "rope": "rope", "embedding": "embedding"}
    rows, width = tokens, columns[topic]
    if record["op"] == "qk_norm":
        rows, width = tokens * (model.heads + model.kv_heads) // tp, model.head_dim
    eager = record["prof"] == "v0"
    operators: tuple[Operator, ...] = (Vector(kinds[topic], rows, width),)
    if eager and topic == "rope":
        operators = _eager_rope(model, tokens, tp)
    elif eager:
        operators = _eager(kinds[topic], rows, width)
    device = device_for(record["gpu"], library="torch-eager" if eager else "vllm", l2="warm")
    return _call(record, topic, operators, device)


def _eager(kind: str, rows: int, columns: int) -> tuple[Operator, ...]:
    """Return what eager PyTorch launches; a norm computes in fp32 between its casts."""
    if kind == "rms_norm":
        steps = rms_norm_steps("eager", "bf16", backward=False)
    else:
        steps = tuple((step, "bf16") for step in fused([kind], "eager"))
    return tuple(Vector(step, rows, 1 if step == "row_scalar" else columns, dtype) for step, dtype in steps)


def _eager_rope(model: Model, tokens: int, tp: int) -> tuple[Operator, ...]:
    """Return the model code's steps: look up sine and cosine, then rotate the queries and the keys apart."""
    tables = (Vector("embedding", tokens, model.head_dim),) * 2
    queries = _eager("rope", tokens, model.heads // tp * model.head_dim)
    keys = _eager("rope", tokens, max(1, model.kv_heads // tp) * model.head_dim)
    return tables + queries + keys


_SOURCES: Sequence[
    tuple[str, Mapping[str, str | tuple[str, str]], Callable[[Record], Measured | Unsupported]]
] = (
    ("operators/layer_ops_vidur.csv", VIDUR_OPS, _vidur),
    ("operators/ops_neusight_nvidia.csv", NEUSIGHT_OPS, _neusight),
    ("operators/ops_neusight_amd.csv", NEUSIGHT_OPS, _neusight),
    ("operators/ops_llmcompass.csv", LLMCOMPASS_OPS, _llmcompass),
    ("operators/layer_ops_llmservingsim.csv", SERVING_OPS, _serving),
    ("perlmutter_vista_2509.22832/operator_samples.csv", TRAINING_OPS, _training),
)
"""Files, the operators in them that are vector kernels, and what reads a row."""

VECTOR_FILES: Mapping[str, Mapping[str, object]] = {name: known for name, known, _ in _SOURCES}
"""By file: the operators that are read here."""
