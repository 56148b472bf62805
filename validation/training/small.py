"""Small tables: four A100 PCIe, Megatron's memory formulas, MoE folding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from rapid_des.values import replace
from validation.jobs.cases import Case, Outcome, Place
from validation.jobs.decoders import GPT, LLAMA, Dimensions, Experts, decoder, known, training_flops
from validation.jobs.origins import SOFTWARE, place
from validation.jobs.rows import Figure, MeasuredJob, first_stage, job_topics
from validation.jobs.training_trees import HALF, MEGATRON_2025_JOB, Batch, Layout, training_job
from validation.measurements import DataFolder, Names, Record, UnsupportedRow
from validation.scoring import Topic
from validation.training import runs

UCI = "rapid/uci_train_4xa100pcie_llama2_7b_measured.csv"
MEMORY = "training_e2e/memory_korthikanti.csv"
FOLDING = "rapid/megatron_moe_h100_folding_paper_mfu_measured.csv"
_GIB = 1 << 30
_TECHNIQUES: Mapping[str, tuple[bool, str]] = Names(
    "technique",
    {
        "no recompute, no SP": (False, "none"),
        "SP + selective recompute": (True, "selective"),
        "none": (False, "none"),
        "sequence-parallel": (True, "none"),
        "selective": (False, "selective"),
        "SP+selective": (True, "selective"),
        "full": (False, "full"),
    },
)
"""Whether sequence parallelism, and which recomputation."""
_MEGATRON: Mapping[str, Dimensions] = Names(
    "model",
    {
        "22B": Dimensions(48, 6144, 64, 64, 24576, 51200),
        "175B": Dimensions(96, 12288, 96, 96, 49152, 51200),
        "1T": Dimensions(128, 25600, 160, 160, 102400, 51200),
    },
)
"""Korthikanti et al. 2022 (arXiv 2205.05198), Table 3."""

_MIXTURES: Mapping[str, Dimensions] = Names(
    "model",
    {
        "mixtral8x22b": Dimensions(56, 6144, 48, 8, 16384, 32000, experts=Experts(8, 2, 16384)),
        "mixtral8x22b_g8t8": Dimensions(56, 6144, 48, 8, 16384, 32000, experts=Experts(64, 8, 2048)),
        "qwen2_57b_a14b": Dimensions(28, 3584, 28, 4, 20480, 151936, experts=Experts(64, 8, 2560, 20480)),
        "llama3_8x70b": Dimensions(80, 8192, 64, 8, 28672, 128256, experts=Experts(8, 2, 28672)),
    },
)
"""Liu et al. 2025, Table 1 and the models' cards; that two experts of Llama 3 8x70B are active is assumed."""


def topics(data: DataFolder) -> Iterator[Topic]:
    """Yield `training/uci`, `training/memory` and `training/folding`."""
    yield from job_topics(_uci(data), runs(), unit="s", split=data.split)
    yield from job_topics(map(_memory, data.read(MEMORY)), runs(), unit="GiB or %", split=data.split)
    yield from job_topics(_folding(data), runs(), unit="s", split=data.split)


def _uci(data: DataFolder) -> Iterator[MeasuredJob]:
    """Yield Llama 2 7B, 128 sequences of 4,096; both readings of whether layers are recomputed."""
    size, batch = known("Llama-2-7B"), Batch(128, 1, 4096)
    flops = training_flops(size, gated=True, sequence=batch.length, sequences=batch.sequences)
    for record in data.read(UCI):
        if not record["Avg_Step_Time_s"]:
            continue
        tp, pp, dp, cp = (record.count(axis) for axis in ("TP", "PP", "DP", "CP"))
        layout = Layout(tp=tp, pp=pp, dp=dp, cp=cp)
        software = SOFTWARE["uci-fsdp" if record["variant"] == "FSDP" else "uci"]
        where = place("A100-PCIE-80GB", layout.gpus)
        for recompute in ("none", "full"):
            more = {"training": {"recompute": recompute}}
            tree = training_job(decoder(LLAMA, size, positions=4096), layout, batch, software, more)
            yield MeasuredJob(
                "training/uci",
                f"uci/{record['variant']}/tp{layout.tp}pp{layout.pp}cp{layout.cp}dp{layout.dp}",
                record.time("Avg_Step_Time_s"),
                cases=(Case.of(tree, where),),
                basis=flops / layout.gpus,
            )


def _memory(record: Record) -> MeasuredJob:
    """Return a row of the first stage's memory: GiB, or percent of the activations without techniques."""
    topic, case_id, measured = "training/memory", record["case_id"], record.time("value")
    try:
        case = _memory_case(record, record["technique"])
    except UnsupportedRow as why:
        return MeasuredJob(topic, case_id, measured, unsupported=str(why))
    figure: Figure = _standing
    if record["quantity"].startswith("activations"):
        figure = _activations
    elif record["quantity"].endswith("% of baseline"):
        figure = partial(_percent, _memory_case(record, "none"))
    return MeasuredJob(topic, case_id, measured, figure, (case,))


def _memory_case(record: Record, technique: str) -> Case:
    sequence_parallel, recompute = _TECHNIQUES[technique]
    pp, micro_batch = record.count("pp"), record.count("mbs")
    layout = Layout(
        tp=record.count("tp"),
        pp=pp,
        chunks=record.count("vpp") if record["vpp"] else 1,
        sequence_parallel=sequence_parallel,
    )
    model = decoder(GPT, _MEGATRON[record["model"]], positions=2048)
    batch = Batch(2 * pp * micro_batch, micro_batch, 2048)
    tree = training_job(
        model, layout, batch, SOFTWARE["memory"], {**HALF, "training": {"recompute": recompute}}
    )
    return Case.of(tree, Place("dgx_a100"), only_memory=True)


def _activations(scored: Outcome) -> float:
    return first_stage(scored).activations / _GIB


def _percent(baseline: Case, scored: Outcome) -> float:
    return 100 * _activations(scored) / _activations(runs().outcome(baseline))


def _standing(scored: Outcome) -> float:
    categories = first_stage(scored).categories
    return sum(categories[name] for name in ("weights", "gradients", "optimizer")) / _GIB


def _folding(data: DataFolder) -> Iterator[MeasuredJob]:
    """Yield Megatron's rows of mixtures of experts (Liu et al. 2025, arXiv 2504.14960, Tables 3 and 4).

    Whether stages interleave is not printed: both readings, a chunk a layer where they do.
    """
    for record in data.read(FOLDING):
        gpus, sequences = record.count("num_gpus"), record.count("global_batch_size")
        case_id = f"folding/{record['model']}/{gpus}/{sequences}/{record['paper_table']}"
        row = MeasuredJob("training/folding", case_id, record.time("step_time_s_derived"))
        try:
            yield from _readings(record, row)
        except UnsupportedRow as why:
            yield replace(row, unsupported=str(why))


def _readings(record: Record, row: MeasuredJob) -> Iterator[MeasuredJob]:
    """Yield a row of a mixture for each reading of its schedule."""
    size, pp, gpus = _MIXTURES[record["model"]], record.count("pp"), record.count("num_gpus")
    sequences, length = record.count("global_batch_size"), record.count("seq_len")
    batch = Batch(sequences, record.count("micro_batch_size"), length)
    flops = training_flops(size, gated=True, sequence=length, sequences=sequences)
    for chunks in (1, size.layers // pp) if pp > 1 else (1,):
        model, layout = decoder(LLAMA, size, positions=length), _mixed_layout(record, gpus, chunks)
        tree = training_job(model, layout, batch, SOFTWARE["folding"], MEGATRON_2025_JOB)
        case = Case.of(tree, place("H100-SXM-80GB", gpus))
        yield replace(row, cases=(case,), basis=flops / gpus)


def _mixed_layout(record: Record, gpus: int, chunks: int) -> Layout:
    tp, pp = record.count("tp"), record.count("pp")
    return Layout(
        tp=tp, pp=pp, dp=gpus // (tp * pp), ep=record.count("ep"), chunks=chunks, sequence_parallel=True
    )
