"""TensorRT-LLM 0.9, static batches: `inference_e2e/trtllm090_static_sweep.csv`.

Its benchmark (`gptSessionBenchmark.cpp`) fills every prompt with one padding token, so that all tokens of all
requests choose the same experts: steps of Mixtral take less time than all its weights need from memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import itemgetter

from rapid_des.values import replace
from validation.inference import runs
from validation.jobs.models import Models, models_of
from validation.jobs.requests import Latency, Requests, measured_requests
from validation.jobs.rows import MeasuredJob, job_topics, memory_gb, read_rows, slope_topic
from validation.measurements import DataFolder, Record, UnsupportedRow
from validation.scoring import Topic

FILE = "inference_e2e/trtllm090_static_sweep.csv"
PUBLISHED = "inference_e2e/trtllm_published_static.csv"
_TOPIC = "inference/trtllm-static"
_TIMES: Mapping[str, tuple[str, Latency]] = {
    "tpot": ("tpot_ms", "next"),
    "ttft": ("ttft_ms", "first"),
    "e2e": ("latency_ms", "all"),
}


def topics(data: DataFolder) -> Iterator[Topic]:
    """Yield `inference/trtllm-static/tpot|ttft|e2e|memory|tp-slope`, `inference/trtllm-published/…`."""
    records = data.read(FILE)
    models = models_of(data)
    times = read_rows(records, partial(times_of, models), _named)
    yield from job_topics(times, runs(), unit="ms", split=data.split)
    named = partial(_named, topic="inference/trtllm-published/e2e")
    tables = read_rows(data.read(PUBLISHED), partial(_published, models), named)
    yield from job_topics(tables, runs(), unit="ms", split=data.split)
    ladders = _ladders(models, records)
    if ladders:
        yield slope_topic(f"{_TOPIC}/tp-slope", ladders, runs())
    printed = [record for record in records if record["peak_mem_gb_per_gpu"]]
    memory = read_rows(printed, partial(_memory, models), partial(_named, topic=f"{_TOPIC}/memory"))
    yield from job_topics(memory, runs(), unit="GB", split=data.split)


def _named(record: Record, topic: str = f"{_TOPIC}/e2e") -> tuple[str, str]:
    return topic, record["case_id"]


def times_of(models: Models, record: Record) -> Iterator[MeasuredJob]:
    """Yield a run's times: a token after the first, the first one, the whole request."""
    for topic, (column, what) in _TIMES.items():
        yield measured_requests(
            f"{_TOPIC}/{topic}", record["case_id"], record.time(column), _asked(models, record), what=what
        )


_SAME = ("gpu", "model", "precision", "custom_allreduce", "batch", "input_len", "output_len")


def _ladders(models: Models, records: Sequence[Record]) -> list[list[tuple[float, MeasuredJob]]]:
    """Return the times a token of like batches on ever more GPUs; the null model's share is 1 / tp."""
    alike: dict[tuple[str, ...], list[tuple[int, MeasuredJob]]] = defaultdict(list)
    for record in records:
        with suppress(UnsupportedRow):
            row = next(times_of(models, record))
            if not row.unsupported:
                alike[tuple(record[name] for name in _SAME)].append((record.count("tp"), row))
    ladders = []
    for members in alike.values():
        ascending = sorted(members, key=itemgetter(0))
        ladders.append([(ascending[0][0] / tp, row) for tp, row in ascending])
    return [ladder for ladder in ladders if len(ladder) > 1]


def _published(models: Models, record: Record) -> Iterator[MeasuredJob]:
    """Yield a row of NVIDIA's own tables (TensorRT-LLM 0.5 and 0.6.1): first tokens, or a batch's rate."""
    if "?" in record["unit"]:
        return
    batch, tp = record.count("batch"), record.count("tp")
    first = record["metric"] == "first_token_latency"
    value = record.time("value")
    if not first:
        gpus = tp if record["unit"].endswith("/GPU") else 1
        value = 1e3 * batch * record.count("output_len") / (value * gpus)
    prompt, output = record.count("input_len"), record.count("output_len")
    asked = Requests(
        record["model"], record["dtype"], record["gpu"], tp, batch, prompt, output, alike=True, models=models
    )
    topic = "ttft" if first else "e2e"
    what: Latency = "first" if first else "all"
    yield measured_requests(
        f"inference/trtllm-published/{topic}", record["case_id"], value, asked, what=what, limited=True
    )


def _memory(models: Models, record: Record) -> MeasuredJob:
    measured = record.time("peak_mem_gb_per_gpu")
    row = measured_requests(
        f"{_TOPIC}/memory", record["case_id"], measured, _asked(models, record), what="all"
    )
    return replace(row, figure=memory_gb, basis=0.0)


def _asked(models: Models, record: Record) -> Requests:
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
        models=models,
    )
