"""Training jobs as trees: layouts and batches as published rows print them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from validation.jobs.decoders import Tree
from validation.jobs.origins import Profile
from validation.measurements import Record, UnsupportedRow


@dataclass(frozen=True)
class Layout:
    """How a row splits its job."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 0
    """Ways that each expert is split; 0: as tp."""
    chunks: int = 1
    sequence_parallel: bool = False
    layers: str | tuple[int, ...] = "even"

    @property
    def gpus(self) -> int:
        """GPUs of the job."""
        return self.tp * self.pp * self.dp * self.cp

    @classmethod
    def of_record(cls, record: Record, layers: int, *, chunks: int, etp: int) -> Layout:
        """Return Megatron's with what a row's columns say; ends count as layers where these do not divide."""
        pp = record.count("pp")
        return cls(
            tp=record.count("tp"),
            pp=pp,
            dp=record.count("dp"),
            cp=record.count("cp"),
            ep=record.count("ep") if record["ep"] else 1,
            etp=etp,
            chunks=chunks,
            sequence_parallel=True,
            layers="even" if layers % (pp * chunks) == 0 else "endpoints",
        )

    def tree(self) -> Tree:
        """Return a job's section `parallelism`."""
        experts = {"ep": self.ep} | ({"etp": self.etp} if self.etp else {})
        return {
            **experts,
            "tp": self.tp,
            "pp": self.pp,
            "dp": self.dp,
            "cp": self.cp,
            "chunks": self.chunks,
            "sequence_parallel": self.sequence_parallel and self.tp > 1,
            "layers": self.layers if isinstance(self.layers, str) else list(self.layers),
        }


@dataclass(frozen=True)
class Batch:
    """What a step trains on: sequences, and tokens of one."""

    sequences: int
    micro_batch: int
    length: int


def training_job(
    model: Tree, layout: Layout, batch: Batch, software: Profile, more: Mapping[str, Any]
) -> Tree:
    """Return a job's tree; `more` holds further keys, those of its sections by section.

    The schedule is the interleaved one where a stage has several chunks of the model.
    """
    training = {
        "global_batch": batch.sequences,
        "micro_batch": batch.micro_batch,
        "sequence_length": batch.length,
        "schedule": "interleaved_1f1b" if layout.chunks > 1 else "1f1b",
    }
    rest = {key: value for key, value in more.items() if key not in ("training", "parallelism")}
    return {
        "model": model,
        "phase": "training",
        "parallelism": {**layout.tree(), **more.get("parallelism", {})},
        "training": {**training, **more.get("training", {})},
        "vocabulary_multiple": 128,
        "software": software,
        **rest,
    }


HALF: Mapping[str, Any] = {"precision": {"activations": "fp16"}}
"""Training in fp16, as Megatron-LM did on A100."""
MEGATRON_2025_JOB: Mapping[str, Any] = {
    "training": {"zero_stage": 1, "overlap_parameters": True},
}
"""Megatron Core's distributed optimizer, its gathers overlapped: defaults of NeMo's recipes."""


def with_facts(job: Mapping[str, Any], facts: Mapping[str, Any]) -> Tree:
    """Return a job's keys with further ones in its sections.

    >>> with_facts({"training": {"zero_stage": 1}}, {"training": {"dropout": True}})
    {'training': {'zero_stage': 1, 'dropout': True}}
    """
    return {section: {**job.get(section, {}), **facts.get(section, {})} for section in {**job, **facts}}


def precision(text: str, job: Mapping[str, Any]) -> Tree:
    """Return a job's section `precision` for a row's spelling, over what the job says already."""
    stated = dict(job.get("precision", {}))
    dtype = next((dtype for dtype in ("fp4", "fp8") if dtype in text.lower()), None)
    if dtype is not None:
        return {**stated, "gemm": dtype}
    if not text:
        raise UnsupportedRow("the precision is not printed")
    if "16" not in text:
        raise UnsupportedRow(f"number format {text[:60]!r}")
    return stated
