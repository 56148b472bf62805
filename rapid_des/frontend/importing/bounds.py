"""Bounds of the numbers in other tools' files, checked before lists of such lengths are built."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from rapid_des.errors import ConfigError

T = TypeVar("T")

MOST = 10**40
"""The largest absolute value: some files state 10**30 for no limit."""
MOST_LAYERS = 10_000
"""Largest number of layers, as in model files."""
COUNTS_OF_LAYERS = frozenset((
    "decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers", "encoder-num-layers",
    "first_k_dense_replace", "full_attention_interval", "interleave_moe_layer_step", "max_window_layers",
    "mtp-num-layers", "n_layer", "n_layers", "no_rope_layer_interval", "num-layers",
    "num-layers-per-virtual-pipeline-stage", "num-virtual-stages-per-pipeline-rank", "num_decoder_layers",
    "num_hidden_layers", "num_layers", "num_nextn_predict_layers", "pipeline-model-parallel-size",
    "pipeline_parallel_degree", "recompute-num-layers", "sliding_window_pattern",
))  # fmt: skip


def bounded(tree: T, file: Path) -> T:
    """Return a file's tree; a `ConfigError` names a number in it that is out of bounds.

    Larger ones and such as are not finite may stand in lists, as in `time_step_limit: [0, Infinity]`.
    """
    waiting: list[tuple[str, object]] = [("", tree)]
    while waiting:
        place, part = waiting.pop()
        if isinstance(part, Mapping):
            for key, value in part.items():
                here = f"{place}.{key}".removeprefix(".")
                _check(str(key), value, file, here)
                waiting.append((here, value))
        elif isinstance(part, list):
            for value in part:
                _check("", value, file, place)
            waiting += ((place, value) for value in part if isinstance(value, list | Mapping))
    return tree


def _check(key: str, value: object, file: Path, place: str) -> None:
    most = MOST_LAYERS if key in COUNTS_OF_LAYERS else MOST
    if isinstance(value, int) and abs(value) > most:
        shown = str(value) if abs(value) <= MOST else "a number of more than 40 digits"
        raise ConfigError(f"{shown}; allowed: up to {most:,}", file=str(file), key=place[:200])
    if key and isinstance(value, float) and not abs(value) <= MOST:
        raise ConfigError(f"{value}; allowed: numbers up to 10**40", file=str(file), key=place[:200])
