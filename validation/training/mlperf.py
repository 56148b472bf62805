"""MLPerf Training rows whose layout is known: `training_e2e/mlperf_training.csv`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from validation.jobs.cases import Case
from validation.jobs.decoders import GPT, LLAMA, Style, Tree, decoder, printed, training_flops
from validation.jobs.origins import SOFTWARE, place
from validation.jobs.rows import MeasuredJob, job_topics, read_rows
from validation.jobs.training_trees import MEGATRON_2025_JOB, Batch, Layout, training_job
from validation.measurements import DataFolder, Names, Record, UnsupportedRow
from validation.scoring import Topic
from validation.training import runs

FILE = "training_e2e/mlperf_training.csv"
_MOST_SPREAD = 0.05
"""Relative range of the runs of one submission, beyond which their median says little."""
_STYLES: Mapping[str, Style] = Names(
    "benchmark",
    {
        "gpt3": GPT,
        "llama31_405b": LLAMA,
        "llama31_8b": LLAMA,
        "llama2_70b_lora": LLAMA,
    },
)
_GPUS = {"H100": "H100-SXM-80GB", "H200": "H200-SXM-141GB", "B200": "B200-SXM", "GB200": "GB200-NVL72",
         "GB300": "GB300-NVL72"}  # fmt: skip
_MICRO_BATCH_OF_LORA = 1
"""`MBS=1` in config_common.sh of submissions with NVIDIA's code (training_results_v4.0 and v5.1)."""
_CHUNKS_OF_ROUND = {("v3.1", "gpt3"): (12,)}
"""Where a round's configurations do not print how many chunks a stage has: what their default says
(INTERLEAVED_PIPELINE in conf/custom.yaml of NVIDIA's submission)."""


_LORA = "llama2_70b_lora"
_OVERLAPS_TP = {"gpt3", "llama31_405b"}
_ADAPTERS: Mapping[str, Any] = {"rank": 16, "matrices": ["attention.qkv", "attention.output"]}
"""MLPerf's rules of that benchmark: rank 16, beside the matrices of attention."""
_IN_FP4 = {
    "mlperf/v5.1/NVIDIA/theia_ngpu512_ngc25.09_nemo/llama31_405b",
    "mlperf/v5.1/NVIDIA/tyche_ngpu512_ngc25.09_nemo/llama31_405b",
}
"""Rows that name the fp8 twin of the configuration that their submission's README names."""


def topics(data: DataFolder) -> Iterator[Topic]:
    """Yield `training/mlperf`, its rows of adapters and the rows apart that say little."""
    records = [record for record in data.read(FILE) if record["step_time_s"]]
    return job_topics(read_rows(records, _measured, _named), runs(), unit="s", split=data.split)


def _named(record: Record) -> tuple[str, str]:
    topic = "training/mlperf" + "/lora" * (record["benchmark"] == _LORA)
    if record["step_time_spread"] and record.number("step_time_spread") > _MOST_SPREAD:
        topic += "/excluded-spread"
    return topic, record["case_id"]


def _measured(record: Record) -> Iterator[MeasuredJob]:
    """Yield a row for each reading of what a submission leaves open."""
    if not record["tp"]:
        raise UnsupportedRow("the layout is not printed")
    named, measured, basis = _named(record), record.time("step_time_s"), _basis(record)
    for case in _cases(record):
        yield MeasuredJob(*named, measured, cases=(case,), basis=basis, alike=record["gpu"])


def _cases(record: Record) -> Iterator[Case]:
    lora = record["benchmark"] == _LORA
    if not record["mbs"] and not lora:
        raise UnsupportedRow("the micro-batch is not printed")
    software, gpus = SOFTWARE["mlperf"], record.count("n_gpus")
    where = place(_GPUS.get(record["gpu"], record["gpu"]), gpus)
    model = decoder(_STYLES[record["benchmark"]], printed(record), positions=record.count("seq"))
    micro_batch = record.count("mbs") if record["mbs"] else _MICRO_BATCH_OF_LORA
    batch = Batch(record.count("gbs"), micro_batch, record.count("seq"))
    for layout in _layouts(record, gpus):
        yield Case.of(training_job(model, layout, batch, software, _as_submitted(record)), where)


def _as_submitted(record: Record) -> Tree:
    """Return what submissions in NeMo say besides: number formats, buckets, CUDA graphs of whole iterations.

    mlcommons/training_results_v5.1, NVIDIA: the README of each submission names the configuration that ran,
    pretrain.py says `grad_reduce_in_fp32=False`, config_common.sh `FP8_RECIPE="tensorwise"` and
    FP8_PARAM_GATHER, that of 8B BUCKET_SIZE; TP_COMM_OVERLAP is said by configurations of GPT-3 and of 405B
    in fp8 (those in fp4 say False, and nvfp4 is Transformer Engine's recipe of that format), LAYER_CUDA_GRAPH
    by those of adapters from v4.1 on, whose products are not cut; v3.1, Azure with NVIDIA:
    distributed_fused_adam.yaml says `grad_sync_dtype: bf16`, config_fp8.sh a history of amax, which is
    delayed scaling.
    """
    config, recent = record["config_file"], record["round"].startswith("v5")
    narrow = "fp4" if config.endswith("fp4.sh") or record["case_id"] in _IN_FP4 else "fp8"
    precision = {"gemm": narrow, "gradients": "bf16", "gradient_reduce": "bf16"}
    if narrow == "fp4":
        precision |= {"recipe": "nvfp4"}
    elif recent:
        precision |= {"recipe": "current", "parameter_gather": "fp8"}
    training = dict(MEGATRON_2025_JOB["training"])
    graphs = {"v5.1"}
    if record["benchmark"] == _LORA:
        graphs |= {"v4.1", "v5.0"}
        training |= {"adapters": _ADAPTERS}
    if record["benchmark"] in _OVERLAPS_TP and record.count("tp") > 1 and narrow != "fp4":
        training |= {"overlap_tp": "userbuffers"}
    if record["benchmark"] == "llama31_8b":
        training |= {"bucket_parameters": 768_000_000, "bucket_parameters_per_replica": 0}
    whole = {"host": None} if "_cg" in config or record["round"] in graphs else {}
    return {"precision": precision, "training": training, **whole}


def _layouts(record: Record, gpus: int) -> Iterator[Layout]:
    tp, pp, cp, layers = (record.count(name) for name in ("tp", "pp", "cp", "layers"))
    stated = (
        (record.count("vpp"),)
        if record["vpp"]
        else _CHUNKS_OF_ROUND.get((record["round"], record["benchmark"]), (1,))
    )
    for chunks in stated if pp > 1 else (1,):
        yield Layout(
            tp=tp,
            pp=pp,
            cp=cp,
            dp=gpus // (tp * pp * cp),
            chunks=chunks,
            sequence_parallel=True,
            layers="even" if layers % (pp * chunks) == 0 else "endpoints",
        )


def _basis(record: Record) -> float:
    gated = _STYLES[record["benchmark"]].gated
    sequence, sequences = record.count("seq"), record.count("gbs")
    flops = training_flops(printed(record), gated=gated, sequence=sequence, sequences=sequences)
    return flops / record.count("n_gpus")
