"""The page of a result of which only the JSON is there, as `run --json` printed it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from rapid_des.config.documents import Document
from rapid_des.config.specs import decode
from rapid_des.errors import ConfigError, InputError
from rapid_des.report.charts import PageSection
from rapid_des.report.page.run import basis_section, breakdown_section, headline, memory_bars


class _Expected(msgspec.Struct, frozen=True):
    median: float
    low: float
    high: float


class _PricedWith(msgspec.Struct, frozen=True):
    software: str = ""
    device: str = ""
    clock: str = ""
    collectives: dict[str, str] = {}
    validated: list[str] = []


class _Shown(msgspec.Struct):
    """The keys of a result that its page shows."""

    step_time_s: float
    step_time_ps: int
    breakdown_s: dict[str, float]
    bound: str
    critical_rank: int
    mode: str
    switching: str
    engine: str
    hops: int
    notes: list[str]
    attribution_ps: dict[str, dict[str, int]] | None = None
    forecast_s: _Expected | None = None
    priced_with: _PricedWith = _PricedWith()


class _OfJob(msgspec.Struct):
    """The keys that results of jobs have besides."""

    tokens_per_s: float
    tokens_per_s_per_gpu: float
    mfu: float
    memory_bytes: int
    memory_capacity_bytes: Annotated[int, msgspec.Meta(gt=0)]
    memory_fits: bool
    memory_breakdown_bytes: dict[str, int]


class _OfRequests(msgspec.Struct):
    """The keys that results of requests have besides."""

    time_to_first_token_s: float
    time_per_output_token_s: float


def check_saved(plain: Mapping[str, Any], where: str) -> None:
    """Raise `InputError` unless plain data has all that a page shows, as `run --json` prints it."""
    kinds: list[type] = [_Shown]
    kinds += [_OfJob] if "memory_bytes" in plain else []
    kinds += [_OfRequests] if "time_to_first_token_s" in plain else []
    try:
        for kind in kinds:
            decode(Document(Path(where), dict(plain)), kind)
    except ConfigError as error:
        problem = f"{error.key}: {error.message}" if error.key else error.message
        raise InputError(f"{where}: not a result as `run --json` prints it: {problem}") from None
    if not plain["breakdown_s"]:
        raise InputError(f"{where}: not a result as `run --json` prints it: breakdown_s: it is empty")


def saved_run(plain: Mapping[str, Any], where: str) -> list[PageSection]:
    """Return the sections of a saved result; `InputError` if it is none."""
    check_saved(plain, where)
    memory = [memory_bars(plain)] if "memory_bytes" in plain else []
    sections = [headline(plain), breakdown_section(plain), PageSection("Memory", memory)]
    return [*sections, basis_section(plain, [])]
