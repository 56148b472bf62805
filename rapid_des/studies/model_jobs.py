"""A model as a job: one that trains, a start for `plan`, which chooses the layout; or one that serves."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from pathlib import Path

from rapid_des.config import Document, load_document, resolve
from rapid_des.config.specs import expanded, preset_names
from rapid_des.config.texts import Tree, parse_text
from rapid_des.errors import ConfigError
from rapid_des.extensions import IMPORTERS, find
from rapid_des.frontend import Job, load_job, load_model
from rapid_des.importers import Importer
from rapid_des.machine import Machine

SEQUENCE = 4096
"""Tokens of a sequence where nothing is said, or the most that the model has positions for."""
_TOKENS = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*([kKMG]?)\Z")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(?<!\.yaml)(?<!\.json)\Z")
_AXIS = re.compile(r"(?:job\.)?parallelism\.(tp|pp|cp)=([0-9]{1,6})\Z")
_UNITS = {"": 1, "k": 2**10, "K": 2**10, "M": 2**20, "G": 2**30}


def names_model(reference: str) -> bool:
    """Return whether a name or path is that of a model: a preset, a file, or an id of the hub.

    >>> names_model("llama3_1_8b"), names_model("llama2_7b_train")
    (True, False)
    """
    path = expanded(reference)
    if _is_config(path) or _is_hub_id(reference):
        return True
    if not path.is_file():
        name = Path(reference).name.removesuffix(".yaml")
        return name in preset_names("model") and name not in preset_names("job")
    return {"hidden", "layers"} <= load_document(path).tree.keys()


def job_of(reference: str, tokens: str | None, sequence: str | None) -> str | Document:
    """Return the job that is named, or one that trains the model that is named; `tokens` as `4M`.

    >>> job_of("llama2_7b_train", None, None)
    'llama2_7b_train'
    """
    is_there = _is_there(reference)
    if not names_model(reference) and (is_there or tokens is None):
        if is_there and (tokens is not None or sequence is not None):
            option = "--tokens-per-batch" if tokens is not None else "--sequence"
            raise ConfigError(f"{reference} is not a model; a job states its batch itself", file=option)
        return reference
    if tokens is None:
        problem = "is a model: say how many tokens a training step has, as in --tokens-per-batch 4M"
        raise ConfigError(f"{reference} {problem}")
    length = None if sequence is None else parse_tokens(sequence, "--sequence")
    return training_document(reference, parse_tokens(tokens), length)


def _is_there(reference: str) -> bool:
    """Return whether a reference is a file or names a job; of others, with tokens, a model is meant."""
    return expanded(reference).is_file() or Path(reference).name.removesuffix(".yaml") in preset_names("job")


def training_job(
    model: str, tokens_per_batch: int | str, sequence: int | None = None, **split: object
) -> Job:
    """Return a job that trains a model (a preset, a file or a `config.json`); `split` as in `Job.replace`.

    >>> training_job("llama3_1_8b", "1M", 8192, tp=2, dp=4, zero_stage=2).gpus
    8
    """
    document = training_document(model, parse_tokens(str(tokens_per_batch)), sequence)
    return load_job(document).replace(**split)


def training_document(reference: str, tokens: int, sequence: int | None = None) -> Document:
    """Return a training job of a model, as a job file has it: `tokens` a step, all else by default.

    Without `sequence` a sequence has 4,096 tokens, or as many as the model has positions. A `ConfigError`
    names tokens that are no whole number of sequences.

    >>> training_document("llama3_1_8b", 2**22).tree["training"]
    {'global_batch': 1024, 'micro_batch': 1, 'sequence_length': 4096, 'zero_stage': 1}
    """
    model = _model(reference)
    length = sequence or min(SEQUENCE, load_model(model).spec.max_positions)
    if tokens < length or tokens % length:
        near = max(1, round(tokens / length)) * length
        raise ConfigError(
            f"{tokens:,} tokens are no whole number of sequences of {length:,}; the nearest is {near:,}",
            file="--tokens-per-batch",
        )
    training = {
        "global_batch": tokens // length,
        "micro_batch": 1,
        "sequence_length": length,
        "zero_stage": 1,
    }
    tree = {"model": model, "phase": "training", "training": training}
    return Document(Path(f"{Path(reference).name.removesuffix('.yaml')}.yaml"), tree)


def serving_document(reference: str, machine: Machine, settings: Sequence[str] = ()) -> Document:
    """Return a job that serves a model on a machine with vLLM, as a job file has it.

    A replica has the fewest GPUs of one node (a power of two) whose memory bf16 weights fill at most half, or
    all of them, or as many as `settings` state; replicas take the rest of the machine. A request has 1,024
    tokens and asks for 256, or as many as the model has positions for.

    >>> from rapid_des.machine import load_machine
    >>> serving_document("llama3_1_70b", load_machine("dgx_h100")).tree["parallelism"]
    {'tp': 4, 'dp': 2}
    """
    source = _model(reference)
    stated = {axis[1]: int(axis[2]) for axis in map(_AXIS.match, settings) if axis}
    positions = load_model(source).spec.max_positions
    split = stated or {"tp": _fitting_tp(reference, source, machine)}
    replicas = max(1, machine.fabric.gpus // max(1, prod(split.values())))
    answer = max(1, min(256, positions // 2))
    tree = {
        "model": source,
        "phase": "inference",
        "software": "vllm-0.12",
        # What `settings` state is set later.
        "parallelism": {**({} if stated else split), "dp": replicas},
        "inference": {
            "batch": 16,
            "prompt_length": min(1024, max(1, positions - answer)),
            "output_length": answer,
            "decode_steps": 16,
        },
        "serving": {"policy": "vllm_v1"},
    }
    return Document(Path(f"{Path(reference).name.removesuffix('.yaml')}.yaml"), tree)


def _fitting_tp(reference: str, source: str | Tree, machine: Machine) -> int:
    """Return over how many GPUs of a node a replica is split, of which bf16 weights fill at most half."""
    weights, half = 2 * load_model(source).parameters, int(machine.device.spec.hbm.capacity) // 2
    gpus, tp = machine.fabric.gpus, 1
    node = machine.spec.gpus_per_node or gpus
    while weights > half * tp and node % (2 * tp) == 0:
        tp *= 2
    if weights > 2 * half * tp:
        problem = f"{reference} has {weights / 2**30:,.0f} GiB of weights in bf16, {tp} GPUs of a node"
        raise ConfigError(
            f"{problem} {2 * half * tp / 2**30:,.0f} GiB; state the split, as in "
            "--set parallelism.tp=8 --set parallelism.pp=2"
        )
    return tp


def parse_tokens(text: str, option: str = "--tokens-per-batch") -> int:
    """Return a number of tokens; K, M and G are powers of 1,024, as batches are counted.

    Errors name the `option` that states it.

    >>> parse_tokens("4M"), parse_tokens("8k"), parse_tokens("1000000")
    (4194304, 8192, 1000000)
    """
    match = _TOKENS.match(text.strip())
    tokens = float(match[1]) * _UNITS[match[2]] if match else 0
    if tokens < 1 or tokens != int(tokens):
        problem = f"{text!r} is not a whole number of tokens such as 4M, 8K or 4096"
        raise ConfigError(problem, file=option)
    return int(tokens)


def _model(reference: str) -> str | Tree:
    """Return a model as a job file has it: the path of its file, or what that would hold."""
    path = expanded(reference)
    if _is_config(path) or _is_hub_id(reference):
        (text,) = find(IMPORTERS, "hf", Importer).load(path, ignore=()).files("").values()
        tree = parse_text(text, path)
        assert isinstance(tree, dict), "a model file"
        return tree
    return str(resolve(reference, "model", folder=Path()).absolute())


def _is_config(path: Path) -> bool:
    """Return whether a path is a `config.json` of Hugging Face, or a folder with one."""
    return path.exists() and find(IMPORTERS, "hf", Importer).match(path)


def _is_hub_id(reference: str) -> bool:
    """Return whether a reference looks like ORGANISATION/NAME and is neither a file nor a preset."""
    name = Path(reference).name
    known = (*preset_names("model"), *preset_names("job"))
    there = any(expanded(f"{reference}{suffix}").exists() for suffix in ("", ".yaml"))
    return bool(_HUB_ID.match(reference)) and not there and name.removesuffix(".yaml") not in known
