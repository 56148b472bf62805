"""The choices of a plan as keys of a job file, and the values that `--vary` states for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rapid_des.config.texts import parse_text
from rapid_des.errors import ConfigError
from rapid_des.frontend.groups import ZERO_STAGES
from rapid_des.frontend.schedules import SCHEDULES

CHOICES: Mapping[str, str] = {
    "tp": "parallelism.tp",
    "cp": "parallelism.cp",
    "pp": "parallelism.pp",
    "ep": "parallelism.ep",
    "etp": "parallelism.etp",
    "sequence_parallel": "parallelism.sequence_parallel",
    "order": "parallelism.order",
    "chunks": "parallelism.chunks",
    "micro_batch": "training.micro_batch",
    "schedule": "training.schedule",
    "recompute": "training.recompute",
    "zero_stage": "training.zero_stage",
}
"""The key of a job file for each choice; dp follows from the number of GPUs."""
ORDER = ("tp", "cp", "ep", "dp", "pp")
"""The usual order of axes, innermost first."""

_WORDS: Mapping[str, Sequence[Any]] = {
    "sequence_parallel": (True, False),
    "schedule": tuple(SCHEDULES),
    "recompute": ("none", "selective", "full"),
    "zero_stage": tuple(ZERO_STAGES),
}


def choices_of(texts: Iterable[str]) -> dict[str, Sequence[Any] | None]:
    """Return the values of each choice from texts `NAME` (all values: None) and `NAME=value,…`.

    >>> choices_of(["tp=2,4", "order"])
    {'tp': [2, 4], 'order': None}
    """
    choices: dict[str, Sequence[Any] | None] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if name not in CHOICES or name in choices:
            raise ConfigError(f"{name!r} is not one of {', '.join(CHOICES)}, each once", file="--vary")
        choices[name] = _stated(name, values) if equals else None
    return choices


def _stated(name: str, text: str) -> list[Any]:
    parsed = parse_text(f"[{text}]", Path(f"--vary {name}"))
    assert isinstance(parsed, list), "of what stands in brackets"
    values = [tuple(value) if isinstance(value, list) else value for value in parsed]
    for value in values:
        if name == "order":
            legal = isinstance(value, tuple) and sorted(map(str, value)) == sorted(ORDER)
            allowed = "lists of tp, cp, ep, dp and pp, as [tp, cp, ep, pp, dp]"
        elif name in _WORDS:
            legal, allowed = value in _WORDS[name], ", ".join(map(str, _WORDS[name]))
        else:
            legal, allowed = type(value) is int and value > 0, "whole numbers from 1 on"
        if not legal:
            raise ConfigError(f"{value!r}; allowed: {allowed}", file="--vary", key=name)
    if not values:
        raise ConfigError("no values", file="--vary", key=name)
    return values
