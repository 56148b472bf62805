"""Serving dumps and request traces: counted, until there is a server to run."""

from __future__ import annotations

from collections.abc import Iterator

from rapid_des.validation.inference import runs
from rapid_des.validation.jobs.rows import MeasuredJob, job_topics
from rapid_des.validation.jobs.software import LACKS
from rapid_des.validation.measurements import DataFolder
from rapid_des.validation.scoring import Topic

SILICON = "inference_e2e/silicon_e2e_serving.csv"
TRACES = "inference_e2e/vllm_request_traces_llmservingsim.csv"


def topics(data: DataFolder) -> Iterator[Topic]:
    """Yield `inference/silicon/ENGINE/GPU/tpot|ttft` and `inference/vllm-traces/ttft|tpot|e2e`."""
    rows = [*_silicon(data), *_traces(data)]
    return job_topics(rows, runs(), unit="ms", split=data.split)


def _silicon(data: DataFolder) -> Iterator[MeasuredJob]:
    for record in data.read(SILICON):
        for figure in ("tpot", "ttft"):
            topic = f"inference/silicon/{record['backend']}/{record['system']}/{figure}"
            measured = record.time(f"{figure}_ms")
            yield MeasuredJob(topic, record["case_id"], measured, unsupported=LACKS["server"])


def _traces(data: DataFolder) -> Iterator[MeasuredJob]:
    for record in data.read(TRACES):
        for figure, scale in (("ttft_s", 1e3), ("tpot_ms", 1.0), ("e2e_s", 1e3)):
            topic = f"inference/vllm-traces/{figure.rpartition('_')[0]}"
            measured = scale * record.time(figure)
            yield MeasuredJob(topic, record["case_id"], measured, unsupported=LACKS["server"])
