"""Which requests come, and when: texts such as `poisson rate=4/s`, drawn with a seed.

A text is a kind and its keys, in the words of faults. Every stream of numbers (arrivals, prompts, outputs)
has a generator of its own, so that to change one leaves the others, and more requests leave the first ones.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypeAlias, TypeVar

import msgspec
import numpy as np
from msgspec import Struct, field
from numpy.random import Generator, default_rng

from rapid_des.arrays import Floats, Int64s
from rapid_des.config import Document, Spec, decode
from rapid_des.errors import ConfigError
from rapid_des.serving.agents import Agents, Precedence, tasks_of
from rapid_des.serving.contents import HashedBlocks
from rapid_des.serving.hashed_traces import is_hashed, read_hashed
from rapid_des.serving.requests import NEVER, Request, earlier_alike, with_history
from rapid_des.serving.trace_files import MARKS, read_lengths, read_trace
from rapid_des.units import PS_PER_S, Duration, EventRate, whole_number
from rapid_des.values import replace

Tokens: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=10**7)]
Positive: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=1e6)]
Faster: TypeAlias = Annotated[float, msgspec.Meta(ge=1e-6, le=1e6)]
Burstiness: TypeAlias = Annotated[float, msgspec.Meta(ge=1e-3, le=100)]
"""A coefficient of variation. Below the least, times are constant; above the most, nearly all are zero."""
Share: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1)]
LATEST_S = 8_640_000
LATEST_PS = LATEST_S * PS_PER_S
"""The latest time of a server's clock, 100 days, in picoseconds."""


class _Rated(Spec, frozen=True):
    rate: EventRate

    def __post_init__(self) -> None:
        if not self.rate:
            raise ValueError("rate 0/s: nobody would ever come; state one above 0")


class Poisson(_Rated, frozen=True, tag_field="kind", tag="poisson"):
    """Independent requests, with exponential times between them."""

    def times(self, count: int, random: Generator) -> Int64s:
        """Return the arrival times."""
        return _summed(random.exponential(1 / self.rate.per_second, count))


class Gamma(_Rated, frozen=True, tag_field="kind", tag="gamma"):
    """Gamma times between requests; a coefficient of variation above 1 makes bursts."""

    cv: Burstiness

    def times(self, count: int, random: Generator) -> Int64s:
        """Return the arrival times."""
        shape = self.cv**-2
        return _summed(random.gamma(shape, 1 / (shape * self.rate.per_second), count))


class Constant(_Rated, frozen=True, tag_field="kind", tag="constant"):
    """Requests at equal distances."""

    def times(self, count: int, random: Generator) -> Int64s:
        """Return the arrival times: the first after one interval."""
        del random
        return _summed(np.full(count, 1 / self.rate.per_second))


class Clients(Spec, frozen=True, tag_field="kind", tag="clients"):
    """A closed loop: a number of clients, each with one request at a time."""

    count: Annotated[int, msgspec.Meta(ge=1, le=10**6)]
    """Number of clients, which all start at 0."""
    think: Duration | None = None
    """Time between an answer and the client's next request; unset: none."""


class Diurnal(_Rated, frozen=True, tag_field="kind", tag="diurnal"):
    """Poisson at a mean rate that follows the day: rate · (1 + swing · sin(2π · time / period))."""

    swing: Share
    """Amplitude of the rate, as a share of the mean."""
    period: Duration

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.period:
            raise ValueError("period 0 s: state one above 0")

    def times(self, count: int, random: Generator) -> Int64s:
        """Return the arrival times: unit-rate ones at the inverse of the rate's integral."""
        rate, period = self.rate.per_second, self.period / PS_PER_S
        wanted = np.cumsum(random.exponential(1.0, count))
        omega = 2 * np.pi / period
        # The integral has no inverse in closed form. It is at least rate · time and at most
        # rate · (1 + swing) · time, which bounds each time; 60 halvings reach double precision.
        low, high = (wanted / (rate * (1 + self.swing)), wanted / rate + period)
        for _ in range(60):
            middle = (low + high) / 2
            passed = rate * (middle + self.swing / omega * (1 - np.cos(omega * middle)))
            low, high = np.where(passed < wanted, middle, low), np.where(passed < wanted, high, middle)
        return _picoseconds(high)


class Trace(Spec, frozen=True, tag_field="kind", tag="trace"):
    """Requests of a CSV file: columns `arrival_s`, `prompt_tokens` and `output_tokens`, or a public trace.

    Columns `session`, `user`, `adapter`, `priority` and `prefix_tokens` may be there too: whole numbers
    (`rapid_des.serving.trace_files`). Files of Mooncake's form, a JSON object a line with `timestamp`,
    `input_length`, `output_length` and `hash_ids`, say which blocks of prompts are alike.
    """

    file: str
    faster: Faster = 1.0
    """Factor by which arrivals are sped up."""
    block: Tokens = 512
    """Tokens of a block of `hash_ids`."""


Open: TypeAlias = Poisson | Gamma | Constant | Diurnal
Arrivals: TypeAlias = Open | Clients | Trace


class Fixed(Spec, frozen=True, tag_field="kind", tag="fixed"):
    """All lengths equal."""

    tokens: Tokens

    def lengths(self, count: int, random: Generator) -> Int64s:
        """Return this many lengths."""
        del random
        return np.full(count, self.tokens, np.int64)


class Uniform(Spec, frozen=True, tag_field="kind", tag="uniform"):
    """Any length from `low` to `high`, both included."""

    low: Tokens
    high: Tokens

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low {self.low} is above high {self.high}")

    def lengths(self, count: int, random: Generator) -> Int64s:
        """Return this many lengths."""
        return random.integers(self.low, self.high, count, endpoint=True)


class Lognormal(Spec, frozen=True, tag_field="kind", tag="lognormal"):
    """Lognormal with this mean and coefficient of variation, rounded up and cut off at `most`."""

    mean: Positive
    cv: Positive
    most: Tokens | None = None

    def lengths(self, count: int, random: Generator) -> Int64s:
        """Return this many lengths."""
        variance = np.log1p(self.cv**2)  # of the logarithm; its mean follows from that of the lengths
        drawn = np.ceil(random.lognormal(np.log(self.mean) - variance / 2, variance**0.5, count))
        return np.clip(drawn, 1, self.most or 10**7).astype(np.int64)


class Quantiles(Spec, frozen=True, tag_field="kind", tag="quantiles"):
    """Lengths with these quantiles, interpolated geometrically; none is longer than the last."""

    p50: Tokens
    p90: Tokens
    p99: Tokens
    low: Tokens = 1
    """The shortest length."""

    def __post_init__(self) -> None:
        if not self.low <= self.p50 <= self.p90 <= self.p99:
            raise ValueError(f"not ascending: {self.low}, {self.p50}, {self.p90}, {self.p99}")

    def lengths(self, count: int, random: Generator) -> Int64s:
        """Return this many lengths."""
        knots = np.log([self.low, self.p50, self.p90, self.p99, self.p99])
        drawn = np.exp(np.interp(random.random(count), [0, 0.5, 0.9, 0.99, 1], knots))
        return np.rint(drawn).astype(np.int64)


class SampledLengths(Spec, frozen=True, tag_field="kind", tag="sampled"):
    """Lengths drawn with replacement from a column of a CSV file."""

    file: str
    column: str

    def lengths(self, count: int, random: Generator) -> Int64s:
        """Return this many lengths."""
        return random.choice(read_lengths(self.file, self.column), count)


Lengths: TypeAlias = Fixed | Uniform | Lognormal | Quantiles | SampledLengths


class _AnyArrivals(Spec, frozen=True):
    stated: Arrivals


class _AnyLengths(Spec, frozen=True):
    stated: Lengths


def parse_arrivals(text: str) -> Arrivals:
    """Return what a text such as `poisson rate=4/s` states; `ConfigError` says what is allowed.

    >>> parse_arrivals("gamma rate=4/s cv=2").cv
    2.0
    """
    return _decoded(text, "--arrivals", _AnyArrivals).stated


def parse_lengths(text: str, option: str) -> Lengths:
    """Return what a text such as `lognormal mean=1024 cv=0.8`, or a bare number, states.

    >>> parse_lengths("256", "--output")
    Fixed(tokens=256)
    """
    return _decoded(f"fixed tokens={text}" if text.strip().isdigit() else text, option, _AnyLengths).stated


_Holder = TypeVar("_Holder", _AnyArrivals, _AnyLengths)
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\Z")


def _decoded(text: str, option: str, holder: type[_Holder]) -> _Holder:
    file = f"{option} {text!r}"
    try:
        first, *words = shlex.split(text) or [""]
    except ValueError as error:
        raise ConfigError(f"not words of key=value: {error}", file=file) from None
    tree: dict[str, object] = {"kind": first}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key or key in tree:
            problem = f"{key!r} stands twice" if key in tree else f"{word!r} is not key=value"
            raise ConfigError(problem, file=file)
        tree[key] = _value(value)
    try:
        return decode(Document(Path(file), {"stated": tree}), holder)
    except ConfigError as error:
        key = error.key.removeprefix("stated").lstrip(".")
        raise ConfigError(error.message, file=file, key=key) from None


def _value(text: str) -> object:
    try:
        return whole_number(text, least=-(2**63))
    except ValueError:
        return float(text) if _DECIMAL.match(text) else text


class Workload(Struct, frozen=True):
    """Requests in order of arrival."""

    prompt: Int64s
    """Number of tokens of each prompt."""
    output: Int64s
    arrival: Int64s | None
    """Arrival times in picoseconds, ascending; None: clients send the next request after an answer."""
    clients: int = 0
    think: int = 0
    """Think time of clients, in picoseconds."""
    marks: Mapping[str, Int64s] = field(default_factory=dict)
    """Optional columns: `session`, `user`, `adapter`, `priority`, `prefix`."""
    session_think: int = 0
    """Least time between an answer and its session's next request, in picoseconds."""
    blocks: HashedBlocks | None = None
    """The content of prompts, where a trace states it."""
    seed: int = 0
    """Seed of draws during serving: which drafted tokens are kept."""
    after: Precedence | None = None
    """The requests that each request waits for; None: for none."""

    def request(self, number: int, now: int) -> Request:
        """Return one request, sent now."""
        request = Request(number, now, int(self.prompt[number]), int(self.output[number]), turn=number)
        for name, column in self.marks.items():
            setattr(request, name, int(column[number]))
        return request

    @property
    def has_kinds(self) -> bool:
        """Whether requests are of several classes."""
        return "kind" in self.marks

    def of_kinds(self, kinds: tuple[int, ...]) -> Workload:
        """Return the requests of some classes, without their contents; all if there are no classes."""
        if not self.has_kinds:
            return self
        chosen = np.isin(self.marks["kind"], kinds)
        if not chosen.any():  # so few requests that none is of these classes
            return self
        marks = {name: column[chosen] for name, column in self.marks.items()}
        arrival = None if self.arrival is None else self.arrival[chosen]
        return replace(
            self,
            prompt=self.prompt[chosen],
            output=self.output[chosen],
            arrival=arrival,
            marks=marks,
            blocks=None,
        )

    def session(self, number: int) -> int:
        """Return the session of a request."""
        return int(self.marks["session"][number]) if "session" in self.marks else NEVER

    def __len__(self) -> int:
        return len(self.prompt)


class ClassDraw(Struct, frozen=True):
    """How the requests of one class are drawn."""

    share: float = 1.0
    """Their number, in proportion to that of other classes."""
    prompt: Lengths | None = None
    """The lengths of its prompts; None: those of all requests."""
    output: Lengths | None = None
    """The lengths of its answers; None: those of all requests."""
    priority: int = 0


class Marks(Struct, frozen=True):
    """The optional columns that are drawn for requests."""

    prefix: Lengths | None = None
    sessions: int | None = None
    think: int = 0
    """Least time between an answer and its session's next request, in picoseconds."""
    most: int | None = None
    """Most tokens of a session; None: any number."""
    users: int = 1
    adapters: tuple[int, float] | None = None
    """Number of adapters, and the Zipf exponent of their popularity."""
    kinds: tuple[ClassDraw, ...] = ()
    """The classes of requests; empty: all are alike."""
    agents: Agents | None = None
    """The tasks that come; None: requests come one by one."""
    documents: Lengths | None = None
    """Number of prompts that come together, as one task; None: each comes alone."""

    def drawn(self, count: int, seed: int) -> dict[str, Int64s]:
        """Return the columns."""
        columns = {}
        if self.prefix is not None:
            columns["prefix"] = self.prefix.lengths(count, default_rng([seed, 3]))
        if self.sessions is not None:
            columns["session"] = default_rng([seed, 4]).integers(0, self.sessions, count)
        if self.users > 1:
            columns["user"] = default_rng([seed, 5]).integers(0, self.users, count)
        if self.adapters is not None:
            number, exponent = self.adapters
            weights = np.arange(1, number + 1) ** -exponent
            columns["adapter"] = default_rng([seed, 6]).choice(number, count, p=weights / weights.sum())
        if self.kinds:
            shares = np.array([kind.share for kind in self.kinds])
            columns["kind"] = default_rng([seed, 7]).choice(len(shares), count, p=shares / shares.sum())
        return columns

    def lengths(
        self, usual: tuple[Lengths, Lengths], kinds: Int64s | None, seed: int, count: int
    ) -> list[Int64s]:
        """Return the lengths of prompts and outputs, `usual` but for classes that have their own."""
        columns = []
        for stream, (name, every) in enumerate(zip(("prompt", "output"), usual, strict=True), start=1):
            column = every.lengths(count, default_rng([seed, stream]))
            for number, kind in enumerate(self.kinds):
                own = getattr(kind, name)
                if own is not None:
                    drawn = own.lengths(count, default_rng([seed, stream, number + 1]))
                    column = np.where(kinds == number, drawn, column)
            columns.append(column)
        return columns

    def ranked(self, columns: dict[str, Int64s], file: str = "") -> dict[str, Int64s]:
        """Return columns with the priorities of the requests' classes; `file`: the trace that has them."""
        if not self.kinds:
            columns.pop("kind", None)
        elif (last := int(columns["kind"].max(initial=0))) >= len(self.kinds):
            problem = f"class {last}; the job states {len(self.kinds)}, from 0 on"
            raise ConfigError(problem, file=file, key="class")
        if self.kinds:
            columns["turn"] = earlier_alike(columns["kind"], len(self.kinds))
        if not any(kind.priority for kind in self.kinds):
            return columns
        priorities = np.array([kind.priority for kind in self.kinds], np.int64)
        return columns | {"priority": priorities[columns["kind"]]}


def draw(
    arrivals: Arrivals, lengths: tuple[Lengths, Lengths], count: int, seed: int, marks: Marks | None = None
) -> Workload:
    """Return this many requests; a trace has its own lengths, and limits their number."""
    marks = marks or Marks()
    drawn = marks.drawn(count, seed)
    together = "tasks of agents" if marks.agents is not None else "documents" if marks.documents else ""
    if together and not isinstance(arrivals, Open):
        problem = f"{together} come at a rate: poisson, gamma, constant or diurnal"
        raise ConfigError(problem, file="--arrivals")
    if isinstance(arrivals, Trace):
        traced = _traced(arrivals, count)
        columns = {name: column[: len(traced)] for name, column in drawn.items()}
        every = marks.ranked(columns | dict(traced.marks), arrivals.file)
        return replace(traced, marks=every, session_think=marks.think, seed=seed)
    prompt, output = marks.lengths(lengths, drawn.get("kind"), seed, count)
    drawn = marks.ranked(drawn)
    if marks.agents is not None and not isinstance(arrivals, Clients):
        tasks = marks.agents.drawn((prompt, output), marks.most, seed)
        times = arrivals.times(tasks.task[-1] + 1, default_rng([seed, 0]))
        return Workload(
            np.array(tasks.prompt, np.int64),
            np.array(tasks.output, np.int64),
            times[tasks.task],
            marks=drawn | tasks.columns,
            session_think=marks.think,
            seed=seed,
            after=tasks.precedence,
        )
    if "session" in drawn:
        prompt, drawn["session"] = with_history(prompt, output, drawn["session"], marks.most)
    if marks.documents is not None and isinstance(arrivals, Open):
        task = tasks_of(marks.documents, count, seed)
        times = arrivals.times(int(task[-1]) + 1, default_rng([seed, 0]))
        return Workload(prompt, output, times[task], marks=drawn | {"task": task}, seed=seed)
    work = Workload(prompt, output, None, marks=drawn, session_think=marks.think, seed=seed)
    if isinstance(arrivals, Clients):
        return replace(work, clients=arrivals.count, think=int(arrivals.think or 0))
    return replace(work, arrival=arrivals.times(count, default_rng([seed, 0])))


def _traced(trace: Trace, count: int) -> Workload:
    if is_hashed(trace.file):
        return _hashed(trace, count)
    table = read_trace(trace.file)
    order, times = _arrivals_of(trace, table["arrival_s"], count)
    prompt, output = (table[name][order].astype(np.int64) for name in ("prompt_tokens", "output_tokens"))
    marks = {mark: table[name][order].astype(np.int64) for name, mark in MARKS.items() if name in table}
    return Workload(prompt, output, times, marks=marks)


def _hashed(trace: Trace, count: int) -> Workload:
    read = read_hashed(trace.file, trace.block)
    order, times = _arrivals_of(trace, np.array(read.arrival_s), count)
    prompt, output = (np.array(column, np.int64)[order] for column in (read.prompt, read.output))
    return Workload(prompt, output, times, blocks=read.blocks(order, trace.block))


def _arrivals_of(trace: Trace, arrival: Floats, count: int) -> tuple[Int64s, Int64s]:
    """Return the first requests by arrival, and their times."""
    order = np.argsort(arrival, kind="stable")[:count]
    return order, _picoseconds((arrival[order] - arrival[order[0]]) / trace.faster)


def _summed(between: Floats) -> Int64s:
    return _picoseconds(np.cumsum(between))


def _picoseconds(seconds: Floats) -> Int64s:
    if len(seconds) and seconds[-1] > LATEST_S:
        problem = f"the last request comes after {seconds[-1] / 86400:,.0f} days"
        raise ConfigError(
            f"{problem}; a clock of picoseconds lasts {LATEST_S / 86400:.0f}", file="--arrivals"
        )
    return np.ceil(seconds * PS_PER_S).astype(np.int64)
