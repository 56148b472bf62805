"""The difference of two results: which operators, collectives and waits add to the step time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from rapid_des.config.documents import Document
from rapid_des.config.specs import decode
from rapid_des.errors import ConfigError, InputError
from rapid_des.report.evidence import unmeasured_in
from rapid_des.report.result import Result
from rapid_des.report.tables import Part, Report
from rapid_des.units import PS_PER_S, seconds

_OTHER = "other"
_FIGURES = ("gpus", "tokens_per_s", "mfu", "memory_bytes", "bound", "critical_rank", "mode")


class _Priced(msgspec.Struct):
    device: str = ""
    validated: list[str] = []


class _Result(msgspec.Struct):
    """The keys of a result as JSON that a comparison reads."""

    step_time_ps: int
    breakdown_s: dict[str, float]
    attribution_ps: dict[str, dict[str, int]] | None = None
    gpus: int | None = None
    tokens_per_s: float | None = None
    mfu: float | None = None
    memory_bytes: int | None = None
    forecast_s: dict[str, float] | None = None
    bound: str | None = None
    critical_rank: int | None = None
    mode: str | None = None
    priced_with: _Priced | None = None


def check_result(plain: Any, where: str) -> None:
    """Raise `InputError` unless plain data is a result as `run --json` prints it."""
    if isinstance(plain, Mapping) and "step_time_ps" not in plain:
        why = "it has no 'step_time_ps'; pages of other commands are written by their --report OUT.html"
        raise InputError(f"{where}: not a result as `run --json` prints it: {why}")
    try:
        decode(Document(Path(where), plain), _Result)
    except ConfigError as error:
        problem = f"{error.key}: {error.message}" if error.key else error.message
        raise InputError(f"{where}: not a result as `run --json` prints it: {problem}") from None


class Term(Struct, frozen=True):
    """The picoseconds of one operator, collective or wait in both results, within a part of the time."""

    part: str
    name: str
    before: int
    after: int

    @property
    def added(self) -> int:
        """The picoseconds that the second result spends on it beyond the first."""
        return self.after - self.before


class Difference(Report, Struct, frozen=True):
    """The time that the second of two steps spends more or less than the first, by name.

    Attributes:
        before: the step time of the first, in picoseconds.
        after: the step time of the second, in picoseconds.
        terms: a term for every name, the largest change first; they add up to `after - before` exactly.
        figures: the values of the first and the second, by the name of the figure.

    >>> Difference(5, 8, (Term("tp", "reduce", 2, 5),), {}).parts()
    {'tp': 3}
    """

    before: int
    after: int
    terms: tuple[Term, ...]
    figures: Mapping[str, tuple[Any, Any]]
    not_validated: tuple[str, ...] = ()
    """The devices of both results for which there are no measurements as they were stated."""
    forecasts: tuple[Mapping[str, float] | None, Mapping[str, float] | None] = (None, None)
    """Where measurements of both steps are expected, in seconds."""

    def parts(self) -> dict[str, int]:
        """Return the picoseconds that each part of the breakdown adds."""
        parts: dict[str, int] = {}
        for term in self.terms:
            parts[term.part] = parts.get(term.part, 0) + term.added
        return parts

    def report(self) -> Iterator[Part]:
        """Yield the report that `rapid-des compare` prints."""
        from rapid_des.report.sweep_text import difference_report

        return difference_report(self.as_json(), ("first", "second"))

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON; times in seconds."""
        return {
            "before_s": seconds(self.before),
            "after_s": seconds(self.after),
            "added_s": seconds(self.after - self.before),
            "added_ps": self.after - self.before,
            "forecast_s": dict(zip(("before", "after"), self.forecasts, strict=True)),
            "figures": {name: {"before": one, "after": two} for name, (one, two) in self.figures.items()},
            "not_validated": list(self.not_validated),
            "parts": [{"part": part, "added_ps": added} for part, added in self.parts().items()],
            "terms": [
                {
                    "part": term.part,
                    "name": term.name,
                    "before_s": seconds(term.before),
                    "after_s": seconds(term.after),
                    "added_ps": term.added,
                }
                for term in self.terms
            ],
        }


def difference(one: Result | Mapping[str, Any], two: Result | Mapping[str, Any]) -> Difference:
    """Return the terms that make the second of two results slower or faster than the first.

    Each is a result, or the data that `run --json` prints. Times are those of the critical rank of each
    result: they add up to its step.

    >>> from rapid_des.frontend import load_job
    >>> from rapid_des.machine import load_machine
    >>> from rapid_des.simulation import simulate
    >>> job, machine = load_job("llama2_7b_train"), load_machine("dgx_a100")
    >>> slow = load_machine(machine, settings={"fabric.0.bandwidth": "0.5x"})
    >>> found = difference(*(simulate(job, each, mode="analytical") for each in (machine, slow)))
    >>> sum(term.added for term in found.terms) == found.after - found.before > 0, found.terms[0].part
    (True, 'tp')
    """
    sides = [each.as_json() if isinstance(each, Result) else each for each in (one, two)]
    for side in sides:
        check_result(side, "a result to compare")
    before, after = (_named(side) for side in sides)
    terms = [Term(*key, before.get(key, 0), after.get(key, 0)) for key in {**before, **after}]
    return Difference(
        before=int(sides[0]["step_time_ps"]),
        after=int(sides[1]["step_time_ps"]),
        terms=tuple(sorted(terms, key=lambda term: (-abs(term.added), term.part, term.name))),
        figures={name: (sides[0].get(name), sides[1].get(name)) for name in _FIGURES},
        not_validated=tuple(dict.fromkeys(name for side in sides for name in unmeasured_in(side))),
        forecasts=(sides[0].get("forecast_s"), sides[1].get("forecast_s")),
    )


def _named(side: Mapping[str, Any]) -> dict[tuple[str, str], int]:
    """Return the picoseconds of every part and name of a result as JSON; they add up to its step."""
    stated = side.get("attribution_ps") or {
        part: {_OTHER: round(spent * PS_PER_S)} for part, spent in side["breakdown_s"].items()
    }
    named = {(part, name): int(spent) for part, names in stated.items() for name, spent in names.items()}
    missing = int(side["step_time_ps"]) - sum(named.values())
    if missing:
        named["idle", _OTHER] = named.get(("idle", _OTHER), 0) + missing
    return named
