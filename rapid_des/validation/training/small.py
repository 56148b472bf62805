"""Small tables: four A100 PCIe, Megatron's memory formulas, MoE folding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from rapid_des.validation.jobs.cases import Case, Outcome, Place
from rapid_des.validation.jobs.decoders import GPT, LLAMA, Dimensions, decoder, known, training_flops
from rapid_des.validation.jobs.places import place
from rapid_des.validation.jobs.rows import Figure, MeasuredJob, job_topics
from rapid_des.validation.jobs.software import SOFTWARE, lacking
from rapid_des.validation.jobs.training_trees import HALF, Batch, Layout, training_job
from rapid_des.validation.measurements import DataFolder, Record
from rapid_des.validation.scoring import Topic
from rapid_des.validation.training import runs

UCI = "rapid/uci_train_4xa100pcie_llama2_7b_measured.csv"
MEMORY = "training_e2e/memory_korthikanti.csv"
FOLDING = "rapid/megatron_moe_h100_folding_paper_mfu_measured.csv"
_GIB = 1 << 30
_TECHNIQUES: Mapping[str, tuple[bool, str]] = {
    "no recompute, no SP": (False, "none"),
    "SP + selective recompute": (True, "selective"),
    "none": (False, "none"),
    "sequence-parallel": (True, "none"),
    "selective": (False, "selective"),
    "SP+selective": (True, "selective"),
    "full": (False, "full"),
}
"""Whether sequence parallelism, and which recomputation."""
_MEGATRON: Mapping[str, Dimensions] = {
    "22B": Dimensions(48, 6144, 64, 64, 24576, 51200),
    "175B": Dimensions(96, 12288, 96, 96, 49152, 51200),
    "1T": Dimensions(128, 25600, 160, 160, 102400, 51200),
}
"""Korthikanti et al. 2022 (arXiv 2205.05198), Table 3."""


def topics(data: DataFolder) -> Iterator[Topic]:
    """Yield `training/uci`, `training/memory` and `training/folding`."""
    yield from job_topics(_uci(data), runs(), unit="s", split=data.split)
    yield from job_topics(map(_memory, data.read(MEMORY)), runs(), unit="GiB or %", split=data.split)
    yield from job_topics(_folding(data), runs(), unit="s", split=data.split)


def _uci(data: DataFolder) -> Iterator[MeasuredJob]:
    """Yield Llama 2 7B, 128 sequences of 4,096; both readings of whether layers are recomputed."""
    software, size, batch = SOFTWARE["uci"], known("Llama-2-7B"), Batch(128, 1, 4096)
    flops = training_flops(size, gated=True, sequence=batch.length, sequences=batch.sequences)
    for record in data.read(UCI):
        if not record["Avg_Step_Time_s"]:
            continue
        tp, pp, dp, cp = (record.count(axis) for axis in ("TP", "PP", "DP", "CP"))
        layout = Layout(tp=tp, pp=pp, dp=dp, cp=cp)
        missing = lacking(["fsdp"] if record["variant"] == "FSDP" else [])
        where = place("A100-PCIE-80GB", layout.gpus)
        for recompute in ("none", "full"):
            more = {"training": {"recompute": recompute}}
            tree = training_job(decoder(LLAMA, size, positions=4096), layout, batch, software, more)
            yield MeasuredJob(
                "training/uci",
                f"uci/{record['variant']}/tp{layout.tp}pp{layout.pp}cp{layout.cp}dp{layout.dp}",
                record.time("Avg_Step_Time_s"),
                cases=() if missing else (Case.of(tree, where),),
                unsupported=missing,
                basis=flops / layout.gpus,
            )


def _memory(record: Record) -> MeasuredJob:
    """Return a row of the first stage's memory: GiB, or percent of the activations without techniques."""
    case = _memory_case(record, record["technique"])
    figure: Figure = _standing
    if record["quantity"].startswith("activations"):
        figure = _activations
    elif record["quantity"].endswith("% of baseline"):
        figure = partial(_percent, _memory_case(record, "none"))
    return MeasuredJob("training/memory", record["case_id"], record.time("value"), figure, (case,))


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


def _activations(found: Outcome) -> float:
    return found.memory_parts["activations"] / _GIB


def _percent(baseline: Case, found: Outcome) -> float:
    return 100 * _activations(found) / _activations(runs().outcome(baseline))


def _standing(found: Outcome) -> float:
    return sum(found.memory_parts[name] for name in ("weights", "gradients", "optimizer")) / _GIB


def _folding(data: DataFolder) -> Iterator[MeasuredJob]:
    """Yield Megatron's rows of mixtures of experts (Liu et al. 2025, arXiv 2504.14960, Tables 3 and 4)."""
    for record in data.read(FOLDING):
        case_id = f"folding/{record['model']}/{record['num_gpus']}/{record['global_batch_size']}"
        measured = record.time("step_time_s_derived")
        yield MeasuredJob("training/folding", case_id, measured, unsupported=lacking(["moe"]))
