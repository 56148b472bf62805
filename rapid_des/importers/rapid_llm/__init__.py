"""The two files of a RAPID-LLM run, hardware and model, to a job, a machine and a device file.

Keys are those of its `configs/` of 2026 (`network.dimensions`). Its sizes count in powers of 1,024. Shares
that it multiplies kernels by (`util`, `overlap`) are ignored and named: they fall out of the simulation.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from rapid_des.config import (
    Document,
    Settings,
    apply_overrides,
    as_pairs,
    load_document,
    settings_named,
    to_yaml,
)
from rapid_des.device.device import load_device
from rapid_des.errors import ConfigError, TopologyError
from rapid_des.importers import Importer, Option
from rapid_des.importers.keys import (
    Ignored,
    ImportedJob,
    Outcomes,
    Tree,
    bounded,
    by_reason,
    commented,
    imported,
)
from rapid_des.importers.rapid_llm.device import BUDGETS, NOT_READ, Section, device_of
from rapid_des.importers.rapid_llm.job import degrees_of, job_of
from rapid_des.importers.rapid_llm.network import machine_of, split_of
from rapid_des.machine import load_machine

_OF_MODEL = ("model_param", "inference_param")
_SIMULATED = "`rapid-des run` chooses mode and engine"
_MESSAGES = "links and their parts (switching) say how messages take turns"


class ImportedFiles(Struct, frozen=True):
    """The job, machine and device file of a RAPID-LLM run."""

    job: ImportedJob
    machine: Tree
    device: Tree
    source: str

    @property
    def notes(self) -> tuple[str, ...]:
        """The assumptions that fill what the files leave open."""
        return self.job.notes

    @property
    def ignored(self) -> tuple[Ignored, ...]:
        """The keys that change nothing, each with the reason."""
        return self.job.ignored

    @property
    def summary(self) -> str:
        """The job's GPUs and parameters."""
        return self.job.summary

    def as_json(self) -> Tree:
        """Return the job's GPUs as plain data."""
        return {"gpus": self.job.job.gpus}

    def files(self, name: str) -> dict[str, str]:
        """Return the texts of the three files by their names, which begin with `name`."""
        machine = self.machine | {"device": f"{name}_device.yaml"}
        head = commented((f"from {self.source}", *self.notes, *by_reason(self.ignored)))
        return {
            f"{name}_job.yaml": self.job.as_yaml(),
            f"{name}_machine.yaml": head + to_yaml(machine),
            f"{name}_device.yaml": head + to_yaml(self.device),
        }


def import_rapid_llm(
    hardware: str | Path, model: str | Path, *, settings: Settings = (), ignore: Iterable[str] = ()
) -> ImportedFiles:
    """Return what the two files describe; a `ConfigError` names what is missing, unknown or does not fit.

    `settings` are set over the files before they are read (`parallelism.tp`, `model_param.seq_len`); keys to
    `ignore` change nothing, as whoever names them knows.
    """
    outcomes = Outcomes(asked=frozenset(ignore))
    of_hardware, of_model = _documents(Path(hardware), Path(model), settings)
    with settings_named(of_hardware), settings_named(of_model):
        hard = Section(of_hardware.tree, str(of_hardware.path), outcomes=outcomes)
        soft = Section(of_model.tree, str(of_model.path), outcomes=outcomes)
        soft.section("model_param")
        split = split_of(hard.section("network"), degrees_of(hard, soft))
        job = job_of(hard, soft, split)
        device, machine = device_of(hard), machine_of(hard, split)
        _ignore(hard, soft)
        hard.finish()
        soft.finish()
        whole = imported(job, Path(model), "RAPID-LLM", outcomes)
        _check(machine, device, hard.file)
    return ImportedFiles(whole, machine, device, Path(hardware).name)


def _check(machine: Tree, device: Tree, file: str) -> None:
    """Refuse a machine or device that cannot be built, and name the key of the file that does not fit."""
    kind = "device"
    try:
        load_device(device)
        kind = "machine"
        load_machine(machine | {"device": device["base"]})
    except ConfigError as error:
        raise ConfigError(f"as a {kind} file: {error.key}: {error.message}", file=file) from None
    except TopologyError as error:
        raise ConfigError(f"as a {kind} file: {error}", file=file) from None


def _documents(hardware: Path, model: Path, settings: Settings) -> tuple[Document, Document]:
    """Read both files; a setting goes to the one that has its section."""
    chosen = as_pairs(settings)
    of_model = [pair for pair in chosen if pair[0].split(".")[0] in _OF_MODEL]
    of_hardware = [pair for pair in chosen if pair not in of_model]
    return (
        _bounded(apply_overrides(load_document(hardware), of_hardware)),
        _bounded(apply_overrides(load_document(model), of_model)),
    )


def _bounded(document: Document) -> Document:
    with settings_named(document):
        bounded(document.tree, document.path)
    return document


def _ignore(hard: Section, soft: Section) -> None:
    """Record why keys without counterpart in a job, machine or device have no effect."""
    hard.ignore(BUDGETS, "power_breakdown", "area_breakdown", "perimeter_breakdown")
    for keys in (hard, soft):
        keys.ignore("it says where a file comes from", "metadata")
    hard.section("parallelism").ignore(NOT_READ, "auto")
    backend = hard.section("execution_backend", optional=True)
    backend.ignore(_SIMULATED, "model")
    astra = backend.section("astra", optional=True)
    astra.ignore(_SIMULATED, "backend", "mode")
    options = ("endpoint_delay", "active_chunks_per_dimension", "preferred_dataset_splits",
               "collective_arbitration")  # fmt: skip
    astra.section("sys_options", optional=True).ignore(_MESSAGES, *options)
    hard.section("inference", optional=True).choice("kvcache_type", {"hbm_only": None}, "hbm_only")


IMPORTER = Importer(
    "Read the hardware and the model file of a RAPID-LLM run: a job, a machine and a device file.",
    match=lambda path: path.suffix in (".yaml", ".yml"),
    load=import_rapid_llm,
    writes="folder",
    paths=("hardware", "model"),
    options=(
        Option(
            "settings",
            "Set a key of either file before it is read, as in parallelism.tp=8. Repeatable.",
            flag="set",
            kind="pairs",
            metavar="KEY=VALUE",
        ),
    ),
)
