"""Faults: the same keys in `faults:` of a machine file and as `key=value` words after `--fault`."""

from __future__ import annotations

import re
import shlex
from fractions import Fraction
from functools import cache
from math import expm1, log1p
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from rapid_des.config import Document, Spec, decode
from rapid_des.errors import ConfigError
from rapid_des.network.dimensions import Count
from rapid_des.network.faults.distributions import is_distribution
from rapid_des.units import Duration, Quantity, Size, whole_number

Factor: TypeAlias = Annotated[float, Meta(gt=0, le=1)]
Probability: TypeAlias = Annotated[float, Meta(ge=0, lt=1)]
Load: TypeAlias = Annotated[float, Meta(gt=0, lt=1)]
Progress: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Natural: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Named: TypeAlias = int | str
Kind: TypeAlias = Literal["links", "directions", "gpus", "nics", "switches", "nodes", "rails", "dimensions"]

TARGETS = ("link", "flow", "dimension", "rail", "gpu", "nic", "switch", "node", "all", "random")
LINK_EFFECTS = (
    "bandwidth",
    "latency",
    "latency_factor",
    "packet_loss",
    "bit_error_rate",
    "down",
    "jitter",
    "load",
)
GPU_EFFECTS = ("compute", "hbm")
_SPANS = (("from_", "until"), ("from_step", "until_step"), ("from_progress", "until_progress"))
"""The keys of begin and end in time, in steps, and in progress."""


_DECIMAL = re.compile(
    r"[+-]?(?=[0-9.]*[.eE])(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,2})?\Z"
)


class Fault(Spec, frozen=True, kw_only=True):
    """One fault: exactly one target, at least one effect, and when; without a time it is always there.

    >>> Fault(link="0-1", bandwidth=0.5).timed
    False
    """

    link: str | None = None
    """A link: A-B for both directions, A>B for one, #17 for a link id. Ends are gpu5 or 5, nic0, switch2, or
    coordinates (1, 0).
    """
    flow: str | None = None
    """The links of a flow's route: A>B from one GPU to another, A-B in both directions; several flows with
    `;` between them. The effect on a link is applied once for each of these routes that uses it: loads add
    up.
    """
    dimension: str | None = None
    """All links of the dimension of this name."""
    rail: Natural | None = None
    """A rail: all links of the NICs at this position in every server, from 0. Without NICs: the links that
    leave servers from the GPU at this position (needs `gpus_per_node`).
    """
    gpu: Named | None = None
    """A GPU by id or coordinates: its links, or its own speed with `compute` and `hbm`; in words `speed=0.8`
    states both.
    """
    nic: Named | None = None
    """A NIC by number or name (nic3): all its links."""
    switch: Named | None = None
    """A switch by number or name (switch2): all its links."""
    node: Natural | None = None
    """A server: its GPUs and NICs and the switches that serve only them (needs `gpus_per_node`)."""
    all: Kind | None = None
    """All parts of a kind that meet `where`."""
    random: Kind | None = None
    """A kind of part: `count` of those that meet `where` are drawn with `seed`."""
    count: Count | None = None
    """With `random`: the number of parts that are drawn."""
    seed: Natural | None = None
    """With `random`, `jitter`, `burst` and `timeout`: the seed of the draw."""
    where: str | None = None
    """Conditions joined by `and`, as in: dimension = rail and source.a0 < 4."""

    bandwidth: Factor | None = None
    """The share of each link's bandwidth that is left."""
    latency: Duration | None = None
    """The latency added to each link's own; in words `latency=100x` states `latency_factor`."""
    latency_factor: Annotated[float, Meta(ge=1, le=1e6)] | None = None
    """The factor by which each link's own latency is longer; what several faults add adds up."""
    packet_loss: Probability | None = None
    """The probability that a packet is lost and sent again."""
    bit_error_rate: Probability | None = None
    """The probability that a bit is wrong, which loses its packet."""
    packet: Size | None = None
    """The bytes on the wire that one loss or bit error costs."""
    retransmission: Literal["selective_repeat", "go_back_n"] | None = None
    """The packets that are sent again after a loss: the lost packet, or all in flight since."""
    timeout: Duration | None = None
    """With losses: the time after which the sender detects a lost packet.

    Each message then draws with `seed` how many times it waits, and arrives that much later; without it all
    messages are late by the mean number of retries of one round trip each.
    """
    backoff: Annotated[float, Meta(ge=1, le=16)] | None = None
    """With `timeout` and selective_repeat: the factor by which a packet's next timeout is longer; unset: 1.
    """
    down: bool = False
    """Whether nothing passes; a GPU that is down does not compute either."""
    jitter: Duration | None = None
    """The largest added latency: every `jitter_every`, links draw one between 0 and this with `seed`."""
    jitter_every: Duration | None = None
    """With `jitter`: the time for which a drawn latency holds."""
    load: Load | None = None
    """The average share of each link's rate that other tenants use; shares of several faults add up.

    Steady unless `burst` is stated. The rest serves the job; waits behind single foreign packets, well below
    a microsecond, are not included.
    """
    burst: Duration | None = None
    """With `load`: the mean length of the bursts in which other tenants' traffic comes, drawn with `seed` for
    each link.

    Bursts and the gaps between them are exponentially distributed (an interrupted Poisson source).
    """
    peak: Factor | None = None
    """With `burst`: the share of the rate that a burst uses, at least `load`; 0.5 is one flow's fair share.
    """
    compute: Factor | None = None
    """The share of a GPU's clock that is left."""
    hbm: Factor | None = None
    """The share of a GPU's memory bandwidth that is left."""

    from_: Duration | None = msgspec.field(name="from", default=None)
    """The time at which the fault begins; unset: it is always there."""
    until: Duration | None = None
    """The time at which the fault ends; unset: never."""
    every: Duration | None = None
    """The period of flapping: the fault is there for `for` at the beginning of each period, from `from` on.
    """
    for_: Duration | None = msgspec.field(name="for", default=None)
    """With `every`: the time for which the fault is there in each period."""
    from_step: Natural | None = None
    """The step at whose start the fault begins, from 0; a run is one step."""
    until_step: Natural | None = None
    """The step at whose start the fault ends."""
    from_progress: Progress | None = None
    """The share of the healthy step at which the fault begins."""
    until_progress: Progress | None = None
    """The share of the healthy step at which the fault ends."""

    policy: Literal["wait", "reroute", "replan"] = "wait"
    """What traffic does while a link is down: it waits, or after `detection` is rerouted or replanned.

    Without another route it waits until links come back; only traffic that is cut off for ever is an error.
    `replan` also plans collectives that begin after detection for the surviving links. For a constant fault,
    which traffic always avoids, only `replan` has an effect, and it needs no `detection`.
    """
    detection: Duration | None = None
    """With reroute and replan: the time after a link closes until its traffic finds other routes."""

    @property
    def words(self) -> str:
        """The fault as `parse_fault` reads it: key=value of what is stated."""
        stated = {
            field.encode_name: getattr(self, field.name)
            for field in _keys()
            if getattr(self, field.name) != field.default
        }
        texts = {key: _spelled(value) for key, value in stated.items()}
        texts = {key: f"'{text}'" if " " in text else text for key, text in texts.items()}
        return " ".join(f"{key}={text}" for key, text in texts.items())

    @property
    def timed(self) -> bool:
        """Whether the fault is not simply always there.

        One that slows from 0 on, for ever, is. One that is down from 0 on is not: its traffic waits or finds
        out, where that of a constant one takes other routes from the beginning.
        """
        comes_and_goes = ("until", "every", "jitter", "burst", "until_step", "until_progress")
        if any(getattr(self, name) is not None for name in comes_and_goes):
            return True
        begins = [getattr(self, name) for name in ("from_", "from_step", "from_progress")]
        return any(begin is not None and (begin > 0 or self.down) for begin in begins)

    def outlasts(self, moment: int) -> bool:
        """Whether the fault slows from 0 on, steadily, and ends after a moment: until then it is constant.

        >>> Fault(link="0-1", bandwidth=0.5, until=Duration.parse("2 s")).outlasts(10**12)
        True
        """
        changes = ("every", "jitter", "burst")
        if self.relative or self.down or any(getattr(self, name) is not None for name in changes):
            return False
        return not self.from_ and self.until is not None and self.until > moment

    @property
    def relative(self) -> bool:
        """Whether the fault's times are steps or progress, which only a run can place in time."""
        names = ("from_step", "until_step", "from_progress", "until_progress")
        return any(getattr(self, name) is not None for name in names)

    @property
    def loss(self) -> Fraction:
        """The probability that a packet is lost, to twelve digits."""
        lost = self.packet_loss or 0.0
        if self.bit_error_rate and self.packet:
            lost = -expm1(8 * self.packet * log1p(-self.bit_error_rate))
        return Fraction(lost).limit_denominator(10**12)

    @property
    def target(self) -> str:
        """Which of TARGETS is stated."""
        return next(name for name in TARGETS if getattr(self, name) is not None)


@cache
def _keys() -> tuple[msgspec.structs.FieldInfo, ...]:
    """Return the keys of a fault; cached, because msgspec evaluates the types at every call."""
    return msgspec.structs.fields(Fault)


def check_fault(fault: Fault, *, file: str, key: str) -> None:
    """Refuse what the types alone let pass: `ConfigError` names the contradiction."""
    problem = (
        _target_problem(fault) or _effect_problem(fault) or _time_problem(fault) or _policy_problem(fault)
    )
    if problem:
        raise ConfigError(problem, file=file, key=key)


def _stated(fault: Fault, names: tuple[str, ...]) -> list[str]:
    values = {name: getattr(fault, name) for name in names}
    return [name for name, value in values.items() if value is not None and value is not False]


def _target_problem(fault: Fault) -> str:
    targets = _stated(fault, TARGETS)
    if len(targets) != 1:
        return f"needs exactly one of {', '.join(TARGETS)}; it has {', '.join(targets) or 'none'}"
    if fault.random is not None and (fault.count is None or fault.seed is None):
        return "random: needs count and seed"
    if fault.count is not None and fault.random is None:
        return "count: only with random"
    if fault.where is not None and fault.random is None and fault.all is None:
        return "where: only with all or random"
    if fault.where is not None and {fault.all, fault.random} & {"rails", "dimensions"}:
        return "where: not with rails and dimensions"
    if fault.flow is not None and fault.burst is not None:
        return "burst: not with flow, whose links would each draw bursts of their own"
    if fault.seed is not None and not _stated(fault, ("random", "jitter", "burst", "timeout")):
        return "seed: only with random, jitter, burst or timeout"
    return ""


def _effect_problem(fault: Fault) -> str:
    effects = _stated(fault, LINK_EFFECTS + GPU_EFFECTS)
    if not effects:
        return f"has no effect; allowed: {', '.join(LINK_EFFECTS + GPU_EFFECTS)}"
    others = [name for name in effects if name != "down"]
    if fault.down and others:
        return f"down: leaves nothing for {others[0]} to change"
    on_gpu = [name for name in GPU_EFFECTS if name in effects]
    hit = {fault.target, fault.all, fault.random}
    if on_gpu and hit.isdisjoint({"gpu", "node", "gpus", "nodes"}):
        return f"{on_gpu[0]}: only GPUs and nodes have it"
    return _loss_problem(fault) or _jitter_problem(fault) or _load_problem(fault)


def _loss_problem(fault: Fault) -> str:
    lossy = _stated(fault, ("packet_loss", "bit_error_rate"))
    if len(lossy) > 1:
        return "packet_loss and bit_error_rate: one of them"
    if not lossy:
        alone = _stated(fault, ("packet", "retransmission", "timeout"))
        return f"{alone[0]}: only with packet_loss or bit_error_rate" if alone else ""
    if fault.packet is None or fault.retransmission is None:
        return f"{lossy[0]}: needs packet (a size) and retransmission (selective_repeat or go_back_n)"
    if fault.packet == 0:
        return "packet: must be above 0 B"
    if fault.timeout is not None or fault.backoff is not None:
        return _timeout_problem(fault)
    lost = f"{lossy[0]}: {getattr(fault, lossy[0])} loses every packet of {fault.packet}"
    return lost if fault.loss == 1 else ""


def _timeout_problem(fault: Fault) -> str:
    if not fault.timeout:
        return "timeout: must be above 0 s" if fault.backoff is None else "backoff: only with timeout"
    if fault.seed is None:
        return "timeout: needs seed"
    if fault.timed:
        return "timeout: only with losses that are always there"
    if fault.backoff is not None and fault.retransmission != "selective_repeat":
        return "backoff: only with selective_repeat, where one packet is missed several times in a row"
    return ""


def _jitter_problem(fault: Fault) -> str:
    if (fault.jitter is None) != (fault.jitter_every is None) or fault.jitter_every == 0:
        return "jitter: needs jitter_every above 0, and jitter_every needs jitter"
    return "jitter: needs seed" if fault.jitter is not None and fault.seed is None else ""


def _load_problem(fault: Fault) -> str:
    if fault.burst is None:
        return "peak: only with burst" if fault.peak is not None else ""
    missing = [name for name in ("load", "peak", "seed") if getattr(fault, name) is None]
    if missing:
        return f"burst: needs {missing[0]}"
    if fault.burst == 0:
        return "burst: must be above 0 s"
    if fault.load is not None and fault.peak is not None and fault.peak < fault.load:
        return f"peak: {fault.peak} is below the mean load {fault.load}"
    return ""


def _time_problem(fault: Fault) -> str:
    for start, end in _SPANS:
        first, last = getattr(fault, start), getattr(fault, end)
        if last is not None and last <= (first or 0):
            return f"{end}: {last} is not after {start.rstrip('_')} {first if first is not None else 0}"
    if (fault.every is None) != (fault.for_ is None):
        return "every and for: a flap needs both"
    if fault.every is not None and fault.for_ is not None and not 0 < fault.for_ < fault.every:
        return f"for: {fault.for_} is not between 0 and every {fault.every}"
    kinds = [any(getattr(fault, name) is not None for name in names) for names in _SPANS]
    return "times, steps and progress: one kind in one fault" if sum(kinds) > 1 else ""


def _policy_problem(fault: Fault) -> str:
    if fault.policy == "wait" and fault.detection is not None:
        return "detection: only with the policies reroute and replan"
    if fault.policy == "replan" and fault.down and not fault.timed:
        return ""
    if fault.policy != "wait" and (fault.detection is None or not fault.down):
        return f"policy {fault.policy}: needs detection (a time) and down"
    return ""


def parse_fault(text: str) -> Fault:
    """Return the fault that words such as `link=3-4 bandwidth=0.5 from=10ms until=20ms` state.

    >>> parse_fault("gpu=3 speed=0.8").hbm, parse_fault("link=0-1 latency=100x").latency_factor
    (0.8, 100.0)
    >>> parse_fault("link=3-4 down").down
    True
    """
    file = f"--fault {text!r}"
    tree = {key: read_value(value) for key, value in stated_words(text, file).items()}
    factor = _FACTOR.match(str(tree.get("latency", "")))
    if factor:
        tree = {key: value for key, value in tree.items() if key != "latency"}
        tree["latency_factor"] = float(factor[1])
    if (speed := tree.pop("speed", None)) is not None:
        for part in ("compute", "hbm"):
            if part in tree:
                problem = f"speed states compute and hbm at once; leave out speed or {part}"
                raise ConfigError(problem, file=file, key="speed")
            tree[part] = speed
    for key, value in tree.items():
        if key == "within" or (isinstance(value, str) and is_distribution(value, key)):
            raise ConfigError(f"{value}: only draws have it, those of faults sample", file=file, key=key)
    fault = decode(Document(Path(file), tree), Fault)
    check_fault(fault, file=file, key="")
    return fault


_FACTOR = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)x\Z")
_IN_BRACKETS = re.compile(r"(?<=[a-z])\([^()'\"]*\)")


def stated_words(text: str, file: str) -> dict[str, str]:
    """Return the words key=value of a text, each value as it is written, without the spaces of `name(a, b)`.

    >>> stated_words("link='(0, 1)-(0, 2)' bandwidth=normal(0.5, 0.1)", "")
    {'link': '(0, 1)-(0, 2)', 'bandwidth': 'normal(0.5,0.1)'}
    """
    try:
        words = shlex.split(_IN_BRACKETS.sub(lambda match: match[0].replace(" ", ""), text))
    except ValueError as error:
        raise ConfigError(f"not words of key=value: {error}", file=file) from None
    stated: dict[str, str] = {}
    for word in words:
        key, equals, value = ("down=true" if word == "down" else word).partition("=")
        if not equals or not key or key in stated:
            problem = f"{key!r} stands twice" if key in stated else f"{word!r} is not key=value"
            raise ConfigError(problem, file=file)
        stated[key] = value
    return stated


def _spelled(value: object) -> str:
    if isinstance(value, Quantity):
        return value.exact()
    return "true" if value is True else str(value)


def read_value(text: str) -> object:
    """Return the value of a word as a document holds it: a truth value, a number or text."""
    if text in {"true", "false"}:
        return text == "true"
    try:
        return whole_number(text, least=-(2**63))
    except ValueError:
        return float(text) if _DECIMAL.match(text) else text
