"""Small tables: four A100 PCIe, Megatron's memory formulas, MoE folding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

from rapid_des.values import replace
from validation.jobs.cases import Case, Outcome, Place
from validation.jobs.decoders import training_flops
from validation.jobs.models import Models, models_of
from validation.jobs.origins import SOFTWARE, place
from validation.jobs.rows import Figure, MeasuredJob, Named, Reader, first_stage, job_topics, read_rows
from validation.jobs.training_trees import HALF, MEGATRON_2025_JOB, Batch, Layout, training_job
from validation.measurements import DataFolder, Names, Record
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


def topics(data: DataFolder) -> Iterator[Topic]:
    """Yield `training/uci`, `training/memory` and `training/folding`."""
    models = models_of(data)
    ran = [record for record in data.read(UCI) if record["Avg_Step_Time_s"]]
    readers: tuple[tuple[Iterable[Record], Reader, Named, str], ...] = (
        (ran, partial(_uci, models), _named_uci, "s"),
        (data.read(MEMORY), partial(_memory, models), _named_memory, "GiB or %"),
        (data.read(FOLDING), partial(_folding, models), _named_folding, "s"),
    )
    for records, read, named, unit in readers:
        yield from job_topics(read_rows(records, read, named), runs(), unit=unit, split=data.split)


def _named_uci(record: Record) -> tuple[str, str]:
    axes = "".join(f"{axis.lower()}{record[axis]}" for axis in ("TP", "PP", "CP", "DP"))
    return "training/uci", f"uci/{record['variant']}/{axes}"


def _uci(models: Models, record: Record) -> MeasuredJob:
    """Yield Llama 2 7B, 128 sequences of 4,096, of which nothing is run again.

    Its authors' own file of these runs says so (RAPID-LLM, a100_80GB_uci.fitted.yaml: `full_recomputation`).
    """
    decoder, batch = models["Llama-2-7B"], Batch(128, 1, 4096)
    flops = training_flops(decoder.size, gated=True, sequence=batch.length, sequences=batch.sequences)
    tp, pp, dp, cp = (record.count(axis) for axis in ("TP", "PP", "DP", "CP"))
    layout = Layout(tp=tp, pp=pp, dp=dp, cp=cp)
    software = SOFTWARE["uci-fsdp" if record["variant"] == "FSDP" else "uci"]
    where = place("A100-PCIE-80GB", layout.gpus)
    measured = record.time("Avg_Step_Time_s")
    more = {"training": {"recompute": "none"}}
    case = Case.of(training_job(decoder.tree(4096), layout, batch, software, more), where)
    return MeasuredJob(*_named_uci(record), measured, cases=(case,), basis=flops / layout.gpus)


def _named_memory(record: Record) -> tuple[str, str]:
    return "training/memory", record["case_id"]


def _memory(models: Models, record: Record) -> MeasuredJob:
    """Return a row of the first stage's memory: GiB, or percent of the activations without techniques."""
    measured, case = record.time("value"), _memory_case(models, record, record["technique"])
    figure: Figure = _standing
    if record["quantity"].startswith("activations"):
        figure = _activations
    elif record["quantity"].endswith("% of baseline"):
        figure = partial(_percent, _memory_case(models, record, "none"))
    return MeasuredJob(*_named_memory(record), measured, figure, (case,))


def _memory_case(models: Models, record: Record, technique: str) -> Case:
    sequence_parallel, recompute = _TECHNIQUES[technique]
    pp, micro_batch = record.count("pp"), record.count("mbs")
    layout = Layout(
        tp=record.count("tp"),
        pp=pp,
        chunks=record.count("vpp") if record["vpp"] else 1,
        sequence_parallel=sequence_parallel,
    )
    model = models[f"Megatron-{record['model']}"].tree(2048)
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


def _named_folding(record: Record) -> tuple[str, str]:
    columns = ("model", "num_gpus", "global_batch_size", "paper_table")
    return "training/folding", "/".join(("folding", *(record[column] for column in columns)))


def _folding(models: Models, record: Record) -> Iterator[MeasuredJob]:
    """Yield a row of Megatron's mixtures of experts (Liu et al. 2025, arXiv 2504.14960, Tables 3 and 4).

    Whether stages interleave is not printed: both readings, a chunk a layer where they do.
    """
    decoder, pp, gpus = models[record["model"]], record.count("pp"), record.count("num_gpus")
    size = decoder.size
    row = MeasuredJob(*_named_folding(record), record.time("step_time_s_derived"))
    sequences, length = record.count("global_batch_size"), record.count("seq_len")
    batch = Batch(sequences, record.count("micro_batch_size"), length)
    flops = training_flops(size, gated=True, sequence=length, sequences=sequences)
    for chunks in (1, size.layers // pp) if pp > 1 else (1,):
        layout = _mixed_layout(record, gpus, chunks)
        tree = training_job(decoder.tree(length), layout, batch, SOFTWARE["folding"], MEGATRON_2025_JOB)
        case = Case.of(tree, place("H100-SXM-80GB", gpus))
        yield replace(row, cases=(case,), basis=flops / gpus)


def _mixed_layout(record: Record, gpus: int, chunks: int) -> Layout:
    tp, pp = record.count("tp"), record.count("pp")
    return Layout(
        tp=tp, pp=pp, dp=gpus // (tp * pp), ep=record.count("ep"), chunks=chunks, sequence_parallel=True
    )
