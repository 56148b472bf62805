"""The check of layer kinds: counts, splits and modes agree, in training and while serving."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rapid_des.errors import InputError
from rapid_des.frontend import Job, load_job, memory
from rapid_des.machine import load_machine
from rapid_des.simulation import simulate

_SMALL = {"model.layers": 4, "model.exceptions": "[]", "parallelism.sequence_parallel": False}


def check_layer(stated: Mapping[str, Any], *, half: str = "attention", model: str = "llama2_7b") -> None:
    """Check what a model file states as `attention` or `feed_forward`.

    The operators of all stages hold the parameters that the layer states, also where tp splits it; a layer
    may refuse a split. Steps in the modes `flattened` and `hierarchical` are equally long. Inference runs.

    >>> check_layer({"kind": "attention", "heads": 32, "kv_heads": 8})
    """
    whole = _job("llama2_7b_train", model, half, stated, tp=1)
    layers = whole.model.parameters
    for tp, pp in ((1, 2), (2, 1)):
        try:
            job = _job("llama2_7b_train", model, half, stated, tp=tp, pp=pp)
        except InputError as refusal:
            assert tp > 1, f"refused without a split: {refusal}"
            continue
        assert job.model.parameters == layers, f"tp {tp} changes the number of parameters"
        held = sum(stage.parameters for stage in memory(job).stages)
        fits = held == layers if tp == 1 else held < layers <= tp * held
        assert fits, (
            f"tp {tp}, pp {pp}: operators of a rank of each stage hold {held:,} of {layers:,} parameters"
        )
        _check_modes(job)
    inference = _job("llama2_7b_inference", model, half, stated, tp=1)
    assert simulate(inference, load_machine("dgx_a100")).step_time > 0


def _job(job: str, model: str, half: str, stated: Mapping[str, Any], **split: int) -> Job:
    splits = {f"parallelism.{axis}": split.get(axis, 1) for axis in ("tp", "pp", "dp")}
    return load_job(job, settings={"model": model, f"model.{half}": json.dumps(stated)} | _SMALL | splits)


def _check_modes(job: Job) -> None:
    machine = load_machine("dgx_a100")
    flat, folded = (simulate(job, machine, mode=mode) for mode in ("flattened", "hierarchical"))
    assert flat.step_time == simulate(job, machine, mode="flattened").step_time, "a second run takes longer"
    apart = abs(int(flat.step_time) - int(folded.step_time))
    assert apart <= int(flat.step_time) // 200, f"modes are {apart} ps apart"
