"""Checking laws on cases one after the other, and counting how each went."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import rapid_des as rd
from validation.laws.checks import LAWS
from validation.laws.draws import Case, draw
from validation.laws.trial import DoesNotApplyError, Trial

Counts = Counter[tuple[str, str]]
HELD, BROKEN = "held", "broken"


@dataclass(frozen=True)
class Found:
    """A law that a case breaks."""

    law: str
    case: Case
    problem: str


def campaign(draws: int, seed: int, laws: Sequence[str], counts: Counts) -> Iterator[Found]:
    """Yield every broken law of so many cases that run, from a seed on, and count all."""
    ran = 0
    while ran < draws:
        trial = attempt(draw(seed), counts)
        seed += 1
        if trial is None:
            continue
        ran += 1
        for law in laws:
            found = check(law, trial, counts)
            if found is not None:
                print(f"{found.law}, seed {found.case.seed}: {found.problem}", file=sys.stderr, flush=True)
                yield found


def attempt(case: Case, counts: Counts) -> Trial | None:
    """Return a case that was built and run; None, and its reason counted, where it is refused."""
    try:
        trial = Trial(case, rd.load_job(case.job), rd.load_machine(case.machine))
        _ = trial.healthy
    except rd.RapidDesError as refusal:
        counts["(drawn)", f"refused: {getattr(refusal, 'key', '') or str(refusal)[:80]}"] += 1
        return None
    counts["(drawn)", "ran"] += 1
    return trial


def check(law: str, trial: Trial, counts: Counts) -> Found | None:
    """Check one law on one case and count how that went; return what is wrong, if anything."""
    try:
        problem = LAWS[law](trial)
    except DoesNotApplyError as why:
        counts[law, f"does not apply: {why}"] += 1
        return None
    except rd.RapidDesError as refusal:
        counts[law, f"refused: {getattr(refusal, 'key', '') or str(refusal)[:80]}"] += 1
        return None
    counts[law, BROKEN if problem else HELD] += 1
    return Found(law, trial.case, problem) if problem else None
