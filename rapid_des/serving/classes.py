"""Classes of requests: their limits, which replicas may take them, and what became of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from rapid_des.arrays import Int64s
from rapid_des.errors import ConfigError
from rapid_des.frontend import Job
from rapid_des.frontend.servers import Count, RequestClassSpec, ServingSpec
from rapid_des.serving.sampling import spread
from rapid_des.serving.slo import Latencies, Slo
from rapid_des.serving.workload import ClassDraw, Lengths, parse_lengths


class RequestClass(Struct, frozen=True):
    """A class of requests, as a fleet treats it."""

    name: str
    model: str
    """Name of the model that answers."""
    slo: Slo | None = None
    max_queued: int | None = None
    """Most requests that wait at each of its replicas while one of it is admitted; None: any number."""


def classes_of(job: Job) -> tuple[RequestClass, ...]:
    """Return the classes of a job's requests: one without a name if the job states none."""
    spec = job.spec.serving or ServingSpec()
    if not spec.classes:
        return (RequestClass("", job.model.name, max_queued=spec.max_queued),)
    return tuple(
        RequestClass(
            each.name,
            each.model or job.model.name,
            None if each.slo is None else _limits(each.slo, _key(place, "slo"), embeds=spec.task == "embed"),
            each.max_queued or spec.max_queued,
        )
        for place, each in enumerate(spec.classes)
    )


def _limits(text: str, stated: str, *, embeds: bool) -> Slo:
    return Slo.parse(text, stated).of_requests(embeds=embeds, stated=stated)


def kinds_of(specs: Sequence[RequestClassSpec]) -> tuple[ClassDraw, ...]:
    """Return how the requests of each class are drawn."""
    return tuple(
        ClassDraw(
            each.share,
            _lengths(each.prompt, _key(place, "prompt")),
            _lengths(each.output, _key(place, "output")),
            each.priority,
        )
        for place, each in enumerate(specs)
    )


def _key(place: int, name: str) -> str:
    return f"serving.classes[{place}].{name}"


def _lengths(text: str | Count | None, key: str) -> Lengths | None:
    return None if text is None else parse_lengths(str(text), key)


def takers(classes: Sequence[RequestClass], models: Sequence[str], file: str) -> list[tuple[int, ...]]:
    """Return the numbers of the classes that replicas of each model take.

    `ConfigError` for a class without a model, and for a model without a class.
    """
    for place, each in enumerate(classes):
        if each.model not in models:
            allowed = ", ".join(dict.fromkeys(models))
            problem = f"{each.model!r} is the model of no replicas; these are of {allowed}"
            raise ConfigError(problem, file=file, key=_key(place, "model"))
    taken = [tuple(n for n, each in enumerate(classes) if each.model == model) for model in models]
    for place, numbers in enumerate(taken):
        if not numbers:
            problem = f"no class of requests has the model {models[place]}: state one in serving.classes"
            raise ConfigError(problem, file=file, key=f"serving.beside[{place - 1}]" if place else "model")
    return taken


class Unanswered(NamedTuple):
    """Requests of a class that were never answered."""

    lost: int
    """Number of requests that a stopped replica held."""
    shed: int
    """Number of requests that were turned away."""


class _OfClass(Struct, frozen=True):
    """The latencies of the requests of one class (`slo.Latencies`)."""

    requests: Mapping[str, Int64s]
    ttft: Int64s
    e2e: Int64s


def class_rows(
    classes: Sequence[RequestClass], result: Latencies, unanswered: Sequence[Unanswered]
) -> Iterator[dict[str, Any]]:
    """Yield what became of the requests of each class; times are seconds."""
    for number, each in enumerate(classes):
        chosen = result.requests["kind"] == number
        mine = _OfClass(
            {name: column[chosen] for name, column in result.requests.items()},
            result.ttft[chosen],
            result.e2e[chosen],
        )
        later = mine.requests["output"] - 1
        tpot = ((mine.e2e - mine.ttft) / later.clip(1))[later > 0]
        yield {
            "name": each.name,
            "model": each.model,
            "requests": int(chosen.sum()),
            **unanswered[number]._asdict(),
            "slo": each.slo and each.slo.text,
            "attained": _attained(each.slo, mine, sum(unanswered[number])),
            "ttft_s": spread(mine.ttft),
            "tpot_s": spread(tpot),
            "e2e_s": spread(mine.e2e),
        }


def _attained(slo: Slo | None, answers: _OfClass, unanswered: int) -> float | None:
    """Return the share of requests that kept the limits; unanswered ones keep none."""
    count = len(answers.ttft) + unanswered
    if slo is None or not count:
        return None
    return float(slo.met_by(answers).sum()) / count if len(answers.ttft) else 0.0
