"""The goodput of a training run: replications of the run clock around one simulated step."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct, structs

from rapid_des import errors
from rapid_des.bounded_cache import BoundedCache
from rapid_des.errors import InputError
from rapid_des.executors import Executor, Failed, InProcess
from rapid_des.frontend import Job
from rapid_des.machine import Machine
from rapid_des.runs.changes import RunChange, changes_of
from rapid_des.runs.checkpoints import on_machine
from rapid_des.runs.clock import Replication, replicate
from rapid_des.runs.failures import failures
from rapid_des.runs.length import Length
from rapid_des.runs.loading import Reliability, load_reliability
from rapid_des.runs.planned import PlannedRun
from rapid_des.runs.planning import HealthyStep, Subject, planned, require_bounded
from rapid_des.runs.result import GoodputResult
from rapid_des.simulation import FINEST, require_kind

MOST_REPLICATIONS = 10**6
_ROUND = 20
"""The replications between two looks at an interval."""
_UNTIL = re.compile(r"(goodput|tokens_per_day|wall_s)\s*(?:±|\+-|\+/-)\s*(\d{1,4}(?:\.\d{1,9})?)\s*%\Z")


class RunRequest(Struct, frozen=True):
    """A run whose replications are asked for by number."""

    job: Job
    machine: Machine
    reliability: Reliability
    length: Length
    mode: str
    seed: int
    change: str = ""
    """The name of a change that is made (`rapid_des.runs.changes`)."""
    healthy: HealthyStep | None = None
    """The step without failures, so that executors need not simulate it; None: not known."""

    @property
    def step_key(self) -> tuple[Any, ...]:
        """What the durations of steps follow from."""
        return "goodput", self.job, self.machine, self.mode

    @property
    def file(self) -> Reliability:
        """The reliability file, with the machine's storage where it states none."""
        return on_machine(self.reliability, self.machine)

    def subject(self, cache: BoundedCache) -> Subject:
        """Return the job on the machine, with its step."""
        own = (self.job, self.machine, self.mode)
        return cache.get_or_make(self.step_key, lambda: Subject(*own, cache, self.healthy))

    def planned(self, cache: BoundedCache) -> PlannedRun:
        """Return the run as it is played."""
        return cache.get_or_make(("goodput", self), lambda: self._planned(cache))

    def _planned(self, cache: BoundedCache) -> PlannedRun:
        change = changes_of(self.file)[self.change] if self.change else RunChange("none")
        return change.of_run(planned(self.subject(cache), change.of_file(self.file), self.length))


class Replications(Struct, frozen=True):
    """How many replications are played: a number, or until a figure is known to a share of itself."""

    most: int
    figure: str = ""
    share: float = 0.0
    first: int = 0
    """The number of the first one."""

    @classmethod
    def parse(cls, text: int | str, first: int = 0) -> Replications:
        """Return what a text states; `InputError` says what is allowed.

        >>> Replications.parse("goodput ±0.2%").share
        0.002
        """
        matched = _UNTIL.match(str(text).strip())
        if matched is not None and float(matched[2]):
            return cls(MOST_REPLICATIONS, matched[1], float(matched[2]) / 100, first)
        if str(text).isascii() and str(text).isdecimal() and 1 <= int(text) <= MOST_REPLICATIONS:
            return cls(int(text), first=first)
        allowed = f"1 to {MOST_REPLICATIONS:,}, or such as 'goodput ±0.2%'"
        raise InputError(f"replications: {text!r}; allowed: {allowed}")

    def enough(self, result: GoodputResult) -> bool:
        """Whether the figure is known well enough."""
        if not self.figure:
            return False
        estimate = result.figures[self.figure]
        return estimate.high - estimate.mean <= self.share * estimate.mean


class KeptReplications(Protocol):
    """Replications that are kept between runs."""

    @property
    def found(self) -> Mapping[int, Replication]:
        """Those that were played before, by number."""

    def keep(self, replication: Replication) -> None:
        """Keep one more."""


def requested(  # noqa: PLR0913 - options by name
    job: Job,
    machine: Machine,
    reliability: str | Path | Mapping[str, Any] | Reliability,
    *,
    days: float | str | None = None,
    steps: int | None = None,
    tokens: int | str | None = None,
    seed: int = 0,
    mode: str = FINEST,
) -> RunRequest:
    """Return the run that `goodput` plays; `InputError` for what is no run."""
    require_kind(job, Job, "load_job")
    require_kind(machine, Machine, "load_machine")
    if job.spec.phase != "training":
        raise InputError(f"{job.file}: phase: {job.spec.phase!r} has no steps; allowed: training")
    length = Length.parse(job, days=days, steps=steps, tokens=tokens)
    return RunRequest(job, machine, load_reliability(reliability), length, mode, seed)


def goodput(  # noqa: PLR0913 - options by name
    job: Job,
    machine: Machine,
    reliability: str | Path | Mapping[str, Any] | Reliability,
    *,
    days: float | str | None = None,
    steps: int | None = None,
    tokens: int | str | None = None,
    replications: int | str = 100,
    seed: int = 0,
    mode: str = FINEST,
    first: int = 0,
    executor: Executor | None = None,
    cache: BoundedCache | None = None,
    on_progress: Callable[[int, int], None] = lambda *_: None,
) -> GoodputResult:
    """Predict a run of `days`, `steps` or `tokens` in which parts of the machine fail.

    The duration of a step is that of `simulate` in a mode. Replication n draws from the seed and n alone:
    `first=n, replications=1` plays it by itself. Equal seeds have equal failures, whatever else differs.
    `replications` such as "goodput ±0.2%" plays as many as that takes. ^C leaves what is finished.
    Raises `ConfigError` for what does not fit the job or the machine, `CannotFinishError` for a run that
    never progresses.

    >>> from rapid_des.frontend import load_job
    >>> from rapid_des.machine import load_machine
    >>> wanted, loaded = load_job("llama2_7b_train"), load_machine("dgx_a100")
    >>> result = goodput(wanted, loaded, "llama3_h100", days=7, replications=3, mode="analytical")
    >>> all(sum(each.times.values()) == each.wall for each in result.replications)
    True
    """
    wanted = Replications.parse(replications, first)
    run = requested(job, machine, reliability, days=days, steps=steps, tokens=tokens, mode=mode, seed=seed)
    return play(run, wanted, executor=executor, cache=cache, on_progress=on_progress)


def play(  # noqa: PLR0913 - options by name
    request: RunRequest,
    wanted: Replications,
    *,
    executor: Executor | None = None,
    cache: BoundedCache | None = None,
    on_progress: Callable[[int, int], None] = lambda *_: None,
    kept: KeptReplications | None = None,
) -> GoodputResult:
    """Play the replications of a run; those that ^C leaves out are counted in the result.

    Those that are `kept` are not played again.
    """
    cache = BoundedCache() if cache is None else cache
    subject = request.subject(cache)
    request = structs.replace(request, healthy=subject.healthy)
    run = request.planned(cache)
    rounds = _ROUND if wanted.figure else wanted.most
    require_bounded(run.plan, run.parts, rounds)
    found, known = list[Replication](), {} if kept is None else kept.found
    begin = wanted.first

    def result(left: int = 0) -> GoodputResult:
        ordered = tuple(sorted(found, key=lambda each: each.number))
        return GoodputResult(request.job.gpus, request.job.tokens, subject.mfu, run, ordered,
                             request.seed, left)  # fmt: skip

    try:
        with executor or InProcess(cache) as opened:
            while len(found) < wanted.most:
                numbers, begin = range(begin, begin + rounds), begin + rounds
                found += [known[number] for number in numbers if number in known]
                items = [(request, number) for number in numbers if number not in known]
                for each in _outcomes(opened, items):
                    found.append(each)
                    if kept is not None:
                        kept.keep(each)
                    on_progress(len(found), wanted.most if not wanted.figure else len(found) + 1)
                if wanted.enough(result()):
                    break
                require_bounded(run.plan, run.parts, len(found) + _ROUND if wanted.figure else 0)
    except KeyboardInterrupt:
        if not found:
            raise
        return result(left=wanted.most - len(found))
    return result()


def _outcomes(executor: Executor, items: Iterable[tuple[RunRequest, int]]) -> Iterable[Replication]:
    for _, outcome in executor.map(replication, items):
        if isinstance(outcome, Failed):
            kind = getattr(errors, outcome.error, errors.RapidDesError)
            raise kind(outcome.text)
        yield outcome.value


def replication(item: tuple[RunRequest, int], cache: BoundedCache) -> Replication:
    """Play one replication of a run by its number; its incidents are played again where they are wanted."""
    request, number = item
    run = request.planned(cache)
    found = replicate(run.plan, failures(run.parts, seed=request.seed, replication=number), number)
    return structs.replace(found, incidents=())
