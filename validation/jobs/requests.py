"""Static batches of requests as job trees, and the null model of inference: weights over bandwidth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from rapid_des.device import load_device
from rapid_des.values import replace
from validation.jobs.cases import Case
from validation.jobs.decoders import Tree, parameters
from validation.jobs.models import Models, shipped
from validation.jobs.origins import SOFTWARE, Profile, place, without_all_reduce
from validation.jobs.rows import Figure, MeasuredJob, first_token_ms, per_token_ms, step_ms
from validation.measurements import PRESETS, UnsupportedRow, dtype_of

Latency: TypeAlias = Literal["first", "next", "all"]
"""Until the first token, per later token, until the last one."""
FIGURES: Mapping[Latency, Figure] = {"first": first_token_ms, "next": per_token_ms, "all": step_ms}
_DECODE_STEPS = 3
"""The first, the middle and the last: a step's time grows about linearly with its keys and values."""


@dataclass(frozen=True)
class Requests:
    """A batch of requests that begin together, and where they are served."""

    model: str
    precision: str
    gpu: str
    tp: int
    batch: int
    prompt: int
    output: int
    custom_all_reduce: bool = True
    alike: bool = False
    """Whether all tokens choose the same experts."""
    software: str = ""
    """A key of `SOFTWARE`; empty: the topic's."""
    models: Models = field(default_factory=shipped)
    """What the model's name may stand for."""


def measured_requests(  # noqa: PLR0913 - a row's columns, by name
    topic: str, case_id: str, time_ms: float, asked: Requests, *, what: Latency, limited: bool = False
) -> MeasuredJob:
    """Return a row of `inference/SET/…`; what the frontend does not express is unsupported."""
    row = MeasuredJob(topic, case_id, time_ms, FIGURES[what])
    try:
        software = SOFTWARE[asked.software or topic.split("/")[1]]
        if not asked.custom_all_reduce:
            software = without_all_reduce(str(software))
        case = serving_case(asked, software, limited=limited)
        basis = bandwidth_bound(asked, what)
    except UnsupportedRow as why:
        return replace(row, unsupported=str(why))
    return replace(row, cases=(case,), basis=basis, alike=f"{asked.gpu} {asked.precision}")


def serving_case(asked: Requests, software: Profile, *, limited: bool = False) -> Case:
    """Return the case of a batch; `UnsupportedRow` for what the frontend does not express."""
    where = place(asked.gpu, asked.tp)
    return Case.of(_tree(asked, software), where, limited=limited)


def _tree(asked: Requests, software: Profile) -> Tree:
    positions = max(asked.prompt + asked.output, 4096)
    inference: Tree = {
        "batch": asked.batch,
        "prompt_length": asked.prompt,
        "output_length": asked.output,
        "decode_steps": min(_DECODE_STEPS, max(asked.output - 1, 1)),
    }
    model = asked.models[asked.model]
    experts = model.size.experts
    routing: Tree = {}
    if asked.alike and experts is not None:
        chosen, others = experts.topk, experts.count - experts.topk
        routing = {"routing": {"load": {"kind": "histogram", "counts": [[1] * chosen + [0] * others]}}}
    return {
        **routing,
        "model": model.tree(positions),
        "phase": "inference",
        "parallelism": {"tp": asked.tp},
        "precision": _precision(asked.precision),
        "software": software,
        "inference": inference,
    }


def _precision(text: str) -> Tree:
    if text == "fp8":
        return {"activations": "fp16", "gemm": "fp8", "weights": "fp8", "kv_cache": "fp8"}
    return {"activations": text}


def bandwidth_bound(asked: Requests, what: Latency) -> float:
    """Return about the milliseconds of a batch from its weights, FLOPs and the datasheet, for null models.

    A GPU without a device file gives 0.
    """
    if asked.gpu.split("(")[0] not in PRESETS:
        return 0.0
    spec = load_device(PRESETS[asked.gpu.split("(")[0]]).spec
    count = parameters(asked.models[asked.model].size, gated=True)
    stored = count * (1 if asked.precision == "fp8" else 2) / asked.tp
    peak = float(spec.tensor_peak.get(dtype_of(asked.precision), spec.tensor_peak["fp16"]))
    token = 1e3 * stored / float(spec.hbm.bandwidth)
    first = max(token, 1e3 * 2 * count * asked.batch * asked.prompt / asked.tp / peak)
    return {"first": first, "next": token, "all": first + (asked.output - 1) * token}[what]
