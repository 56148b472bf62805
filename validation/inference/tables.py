"""Smaller tables of static batches and single requests: NIM, Kundu et al., Koyeb, LMDeploy."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial

from rapid_des.values import replace
from validation.inference import runs
from validation.jobs.cases import Served
from validation.jobs.models import Models, models_of
from validation.jobs.requests import Latency, Requests, measured_requests
from validation.jobs.rows import MeasuredJob, Reader, job_topics, read_rows, tokens_per_s
from validation.measurements import DataFolder, Record
from validation.scoring import Topic

NIM = "inference_e2e/nim_concurrency_sweep.csv"
NIM_TABLES: Mapping[str, tuple[str, int, str]] = {
    "rapid/nvidia_nim_8xa100_bf16_llama33_70b_measured.csv": ("A100-SXM4-80GB", 8, "bf16"),
    "rapid/nvidia_nim_4xh100_fp16_llama33_70b_measured.csv": ("H100-SXM-80GB", 4, "fp16"),
}
"""GPU, tp and precision of NVIDIA's tables of Llama 3.3 70B."""
KUNDU = ("rapid/imec_inference_a100_measured.csv", "rapid/imec_inference_h100_measured.csv")
KOYEB = "rapid/koyeb_a100_llama31_8b_inference_measured.csv"
LMDEPLOY = "inference_e2e/lmdeploy_a100_static.csv"
_GPUS = {"A100": "A100-SXM4-80GB", "H100": "H100-SXM-80GB", "SXM": "A100-SXM4-80GB", "PCIe": "A100-PCIE-80GB"}


def topics(data: DataFolder) -> Iterator[Topic]:
    """Yield the topics of every table, times in milliseconds."""
    models = models_of(data)
    readers: list[tuple[str, Reader, str]] = [(NIM, partial(_nim, models), "nim/itl")]
    readers += [(name, partial(_nim_table, models, name), "nim/itl") for name in NIM_TABLES]
    readers += [(name, partial(_kundu, models), "kundu") for name in KUNDU]
    readers += [
        (KOYEB, partial(_koyeb, models), "koyeb"),
        (LMDEPLOY, partial(_lmdeploy, models), "lmdeploy/tpot"),
    ]
    rows = (
        row
        for name, read, topic in readers
        for row in read_rows(data.read(name), read, partial(_named, topic))
    )
    yield from job_topics(rows, runs(), unit="ms", split=data.split)
    rates = read_rows(data.read(NIM), partial(_throughput, models), partial(_named, "nim/throughput"))
    yield from job_topics(rates, runs(), unit="tokens/s", split=data.split)


def _named(topic: str, record: Record) -> tuple[str, str]:
    return f"inference/{topic}", record.get("case_id", topic)


def _throughput(models: Models, record: Record) -> Iterator[MeasuredJob]:
    """Yield the tokens a second that NIM puts out for several clients, of the run of their latencies."""
    row = next(_nim(models, record))
    _, _, _, *more = row.topic.split("/")
    if more:
        name = "inference/nim/throughput" + "".join(f"/{each}" for each in more if each != "clients")
        measured = record.time("out_tok_per_s")
        yield replace(row, topic=name, measured=measured, figure=tokens_per_s, basis=0.0)


_MOST_CLIENTS = 50
_ROUNDS, _MOST = 6, 300
"""Requests of a closed loop: so many a client, and at most, but three a client."""
_STEADY = 0.01
"""By how much a printed rate may miss Little's law; tables of single clients and of A100 do by 0.2 %."""


def _nim(models: Models, record: Record) -> Iterator[MeasuredJob]:
    columns: Mapping[str, tuple[str, Latency]] = {
        "itl": ("itl_avg_ms", "next"),
        "ttft": ("ttft_avg_ms", "first"),
    }
    asked = _request(models, record, record["precision"])
    clients = record.count("concurrency")
    steady = _is_steady(record, ("out_tok_per_s", "ttft_avg_ms", "itl_avg_ms"), clients, asked.output)
    for topic, (column, what) in columns.items():
        row = measured_requests(
            f"inference/nim/{topic}", record["case_id"], record.time(column), asked, what=what
        )
        yield _shared(row, clients, (asked.prompt, asked.output), steady=steady)


def _nim_table(models: Models, name: str, record: Record) -> Iterator[MeasuredJob]:
    columns: Mapping[str, tuple[str, Latency]] = {"itl": ("ITL (ms)", "next"), "ttft": ("TTFT (ms)", "first")}
    gpu, tp, precision = NIM_TABLES[name]
    prompt, output = record.count("Input Tokens"), record.count("Output Tokens")
    asked = Requests(
        "Llama-3-70B", precision, gpu, tp, 1, prompt, output, software="nim-tables", models=models
    )
    misprint = gpu.startswith("H100") and prompt == output == 2000
    case_id = f"{name.removesuffix('_measured.csv')}/{prompt}/{output}"
    clients = record.count("Concurrency")
    steady = _is_steady(record, ("Throughput (Tokens/s)", "TTFT (ms)", "ITL (ms)"), clients, output)
    for topic, (column, what) in columns.items():
        place = "excluded-prompt-length" if misprint else topic
        row = measured_requests(f"inference/nim/{place}", case_id, record.time(column), asked, what=what)
        yield _shared(row, clients, (prompt, output), steady=steady)


def _request(models: Models, record: Record, precision: str) -> Requests:
    return Requests(
        record["model"], precision, record["gpu"], record.count("tp"), 1,
        record.count("input_len"), record.count("output_len"), models=models,
    )  # fmt: skip


def _is_steady(record: Record, columns: tuple[str, str, str], clients: int, output: int) -> bool:
    """Tell whether a row's rate is that of clients who always wait for an answer (Little's law).

    Where it is not, clients stood idle, or answers were not as long as printed. `columns`: tokens a second,
    milliseconds to the first token and to each further one.
    """
    rate, first, later = (record.time(column) for column in columns)
    busy = 1e3 * clients * output / (first + (output - 1) * later)
    return abs(rate / busy - 1) <= _STEADY


def _shared(row: MeasuredJob, clients: int, lengths: tuple[int, int], *, steady: bool) -> MeasuredJob:
    """Return a row of a server of several clients, each with one request at a time.

    NIM batches in flight and never evicts, TensorRT-LLM's default. Rows of several clients have topics of
    their own, those of more than `_MOST_CLIENTS`, whose runs ended before a steady state, too, and those
    whose rate says that they had none.
    """
    if clients == 1:
        return row
    loop = "clients" if steady else "excluded-unsteady"
    row = replace(row, topic=f"{row.topic}/{loop if clients <= _MOST_CLIENTS else 'overload'}")
    if not row.cases:
        return row
    (case,) = row.cases
    serving = {"policy": "trtllm_guaranteed_no_evict", "max_sequences": 256}
    count = min(_ROUNDS * clients, max(_MOST, 3 * clients))
    prompts, outputs = ((length,) * count for length in lengths)
    served = Served(prompts, outputs, clients=clients)
    job = json.dumps(json.loads(case.job) | {"serving": serving}, sort_keys=True)
    return replace(row, cases=(replace(case, job=job, served=served),))


def _kundu(models: Models, record: Record) -> MeasuredJob:
    """Return 200 tokens in and 200 out, one request: Kundu et al. 2024 (arXiv 2407.14645)."""
    model, gpu, tp = record["model"].replace(" ", "-"), record["device"], record.count("tp")
    return measured_requests(
        f"inference/kundu/{gpu}",
        f"kundu/{gpu}/{model}/tp{tp}",
        1e3 * record.time("latency_s"),
        Requests(model, "fp16", _GPUS.get(gpu, gpu), tp, 1, 200, 200, models=models),
        what="all",
    )


def _koyeb(models: Models, record: Record) -> MeasuredJob:
    """Return a decode rate of Llama 3.1 8B: the latencies leave no time for the prompts."""
    batch, prompt, output = (record.count(name) for name in ("batch", "prefill_tokens", "decode_tokens"))
    gpu = _GPUS.get(record["gpu"], record["gpu"])
    asked = Requests("Llama-3-8B", "bf16", gpu, 1, batch, prompt, output, models=models)
    noisy = "/excluded-noisy" if record["case"].endswith("noisy") else ""
    return measured_requests(
        f"inference/koyeb{noisy}",
        f"koyeb/{record['case']}/{batch}",
        1e3 * batch / record.time("output_tokens_per_s"),
        asked,
        what="next",
    )


def _lmdeploy(models: Models, record: Record) -> Iterator[MeasuredJob]:
    """Yield decode steps of batches whose keys and values fit, and first tokens of one request.

    TurboMind's first token is what a decode step makes of the last one of the prompt, after a prefill of the
    others (LlamaBatch.cc, ContextDecode): as the second one of a prompt that is a token shorter.
    """
    batch = record.count("batch")
    asked = _request(models, record, record["dtype"])
    yield measured_requests(
        "inference/lmdeploy/tpot",
        record["case_id"],
        record.time("tpot_p50_ms"),
        replace(asked, batch=batch),
        what="next",
        limited=True,
    )
    if batch == 1:
        rest = replace(asked, prompt=asked.prompt - 1, output=2)
        what: Latency = "all" if rest.prompt else "first"
        yield measured_requests(
            "inference/lmdeploy/ttft",
            record["case_id"],
            record.time("ttft_min_ms"),
            rest if rest.prompt else asked,
            what=what,
        )
