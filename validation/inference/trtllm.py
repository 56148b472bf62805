"""TensorRT-LLM 0.9, static batches: `inference_e2e/trtllm090_static_sweep.csv`.

Its benchmark (`gptSessionBenchmark.cpp`) fills every prompt with one padding token, so that all tokens of all
requests choose the same experts: steps of Mixtral take less time than all its weights need from memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from rapid_des.values import replace
from validation.inference import runs
from validation.jobs.requests import Latency, Requests, measured_requests
from validation.jobs.rows import MeasuredJob, job_topics, memory_gb, slope_topic
from validation.measurements import DataFolder, Record
from validation.scoring import Topic

FILE = "inference_e2e/trtllm090_static_sweep.csv"
PUBLISHED = "inference_e2e/trtllm_published_static.csv"
_PUBLISHED_MODELS = {"LLaMA-7B": "Llama-2-7B", "LLaMA-70B": "Llama-2-70B"}
_TOPIC = "inference/trtllm-static"
_TIMES: Mapping[str, tuple[str, Latency]] = {
    "tpot": ("tpot_ms", "next"),
    "ttft": ("ttft_ms", "first"),
    "e2e": ("latency_ms", "all"),
}


def topics(data: DataFolder) -> Iterator[Topic]:
    """Yield `inference/trtllm-static/tpot|ttft|e2e|memory|tp-slope`, `inference/trtllm-published/…`."""
    records = data.read(FILE)
    times = (row for record in records for row in times_of(record))
    yield from job_topics(times, runs(), unit="ms", split=data.split)
    tables = (row for record in data.read(PUBLISHED) for row in _published(record))
    yield from job_topics(tables, runs(), unit="ms", split=data.split)
    ladders = _ladders(records)
    if ladders:
        yield slope_topic(f"{_TOPIC}/tp-slope", ladders, runs())
    memory = (_memory(record) for record in records if record["peak_mem_gb_per_gpu"])
    yield from job_topics(memory, runs(), unit="GB", split=data.split)


def times_of(record: Record) -> Iterator[MeasuredJob]:
    """Yield a run's times: a token after the first, the first one, the whole request."""
    for topic, (column, what) in _TIMES.items():
        yield measured_requests(
            f"{_TOPIC}/{topic}", record["case_id"], record.time(column), _asked(record), what=what
        )


_SAME = ("gpu", "model", "precision", "custom_allreduce", "batch", "input_len", "output_len")


def _ladders(records: Sequence[Record]) -> list[list[tuple[float, MeasuredJob]]]:
    """Return the times a token of like batches on ever more GPUs; the null model's share is 1 / tp."""
    alike: dict[tuple[str, ...], list[Record]] = defaultdict(list)
    for record in records:
        alike[tuple(record[name] for name in _SAME)].append(record)
    ladders = []
    for members in alike.values():
        ascending = sorted(members, key=lambda record: record.count("tp"))
        first = ascending[0].count("tp")
        rungs = [(first / record.count("tp"), next(times_of(record))) for record in ascending]
        ladders.append([(share, row) for share, row in rungs if not row.unsupported])
    return [ladder for ladder in ladders if len(ladder) > 1]


def _published(record: Record) -> Iterator[MeasuredJob]:
    """Yield a row of NVIDIA's own tables (TensorRT-LLM 0.5 and 0.6.1): first tokens, or a batch's rate."""
    if "?" in record["unit"]:
        return
    model = _PUBLISHED_MODELS.get(record["model"], record["model"])
    batch, tp = record.count("batch"), record.count("tp")
    first = record["metric"] == "first_token_latency"
    value = record.time("value")
    if not first:
        gpus = tp if record["unit"].endswith("/GPU") else 1
        value = 1e3 * batch * record.count("output_len") / (value * gpus)
    prompt, output = record.count("input_len"), record.count("output_len")
    asked = Requests(model, record["dtype"], record["gpu"], tp, batch, prompt, output, alike=True)
    topic = "ttft" if first else "e2e"
    what: Latency = "first" if first else "all"
    yield measured_requests(
        f"inference/trtllm-published/{topic}", record["case_id"], value, asked, what=what, limited=True
    )


def _memory(record: Record) -> MeasuredJob:
    measured = record.time("peak_mem_gb_per_gpu")
    row = measured_requests(f"{_TOPIC}/memory", record["case_id"], measured, _asked(record), what="all")
    return replace(row, figure=memory_gb, basis=0.0)


def _asked(record: Record) -> Requests:
    return Requests(
        model=record["model"],
        precision=record["precision"],
        gpu=record["gpu"],
        tp=record.count("tp"),
        batch=record.count("batch"),
        prompt=record.count("input_len"),
        output=record.count("output_len"),
        custom_all_reduce=record["custom_allreduce"] == "Yes",
        alike=True,
    )
