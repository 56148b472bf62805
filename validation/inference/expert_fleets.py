"""DeepSeek-V3 over many GPUs: published tokens a second beside passes of the job, seconds a pass.

Rows of balanced experts are one topic, those whose experts had loads that are not published the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from rapid_des.frontend import Job, load_job
from rapid_des.machine import Machine, load_machine
from rapid_des.simulation import simulate
from rapid_des.units import PS_PER_S
from validation.measurements import DataFolder, Record
from validation.scoring import Row, Topic

FILE = "expert_fleets/published.csv"
_NODE = 8
_NVLINK = {"H100": "450 GB/s", "H800": "200 GB/s"}
"""A direction of a GPU's NVLink (H800: 400 GB/s in both, DeepSeek-AI 2024, section 3.1)."""


def topics(data: DataFolder) -> Iterator[Topic]:
    """Yield `inference/expert-fleets/balanced|as-served`, in seconds."""
    records = data.read(FILE)
    for name, balanced in (("balanced", "yes"), ("as-served", "no")):
        chosen = [record for record in records if record["balanced"] == balanced]
        if chosen:
            rows = partial(lambda chosen: [_row(record) for record in chosen], chosen)
            yield Topic(f"inference/expert-fleets/{name}", rows, unit="s", split=False)


def _row(record: Record) -> Row:
    tokens = int(record["requests"]) * (int(record["length"]) if record["phase"] == "prefill" else 1)
    measured = tokens * _NODE / float(record["tokens_per_s_node"])
    predicted = simulate(job_of(record), machine_of(record)).step_time / PS_PER_S
    return Row(record["case_id"], measured, predicted)


def job_of(record: Record) -> Job:
    """Return the job of a row: one pass of prompts, or one step of what decodes."""
    count, length, ranks = (int(record[name]) for name in ("requests", "length", "gpus"))
    decodes = record["phase"] == "decode"
    kind = {"count": count, "prompt_length": length + decodes, "cached": length * decodes, "output_length": 1}
    inference: dict[str, object] = {"requests": [kind]}
    if record["two_batches"] == "yes":
        inference["two_batches"] = {"prefill": 2, "decode": 2}
    settings = {
        "software": "deepseek" if record["case_id"].startswith("deepseek/") else "sglang",
        "parallelism": {"dp": ranks, "ep": ranks},
        "routing.redundant": int(record["redundant"]),
        "inference": inference,
    }
    return load_job("deepseek_v3_decode", settings=settings)


def machine_of(record: Record) -> Machine:
    """Return the machine of a row: nodes of eight GPUs with a NIC of 400 Gb/s each."""
    gpu = record["gpu"]
    device = "h800" if gpu == "H800" else "h100_sxm"
    settings = {"device": device, "fabric.0.bandwidth": _NVLINK[gpu]}
    return load_machine("dgx_h100_superpod_32", settings=settings)
