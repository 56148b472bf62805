"""What a fault says, the same in `faults:` of a machine file and as `key=value` words after `--fault`."""

from __future__ import annotations

from fractions import Fraction
from math import expm1, log1p
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from rapid_des.config import Spec
from rapid_des.network.specs import Count
from rapid_des.units import Duration, Size

Factor: TypeAlias = Annotated[float, Meta(gt=0, le=1)]
Probability: TypeAlias = Annotated[float, Meta(ge=0, lt=1)]
Progress: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Step: TypeAlias = Annotated[int, Meta(ge=0)]
Named: TypeAlias = int | str
Kind: TypeAlias = Literal["links", "directions", "gpus", "nics", "switches", "nodes"]

TARGETS = ("link", "dimension", "gpu", "nic", "switch", "node", "all", "random")
LINK_EFFECTS = ("bandwidth", "latency", "packet_loss", "bit_error_rate", "down", "jitter")
GPU_EFFECTS = ("compute", "hbm")


class Fault(Spec, frozen=True, kw_only=True):
    """One fault: exactly one target, at least one effect, and when; without a time it is always there."""

    link: str | None = None
    """A-B both directions, A>B one, #17 a link id; ends are gpu5 or 5, nic0, switch2, coordinates (1, 0)."""
    dimension: str | None = None
    """All links of the dimension of this name."""
    gpu: Named | None = None
    """A GPU by id or coordinates: its links, or its own speed with `compute` and `hbm`."""
    nic: Named | None = None
    switch: Named | None = None
    node: Annotated[int, Meta(ge=0)] | None = None
    """A server: its GPUs and NICs and the switches that serve only them (needs `gpus_per_node`)."""
    all: Kind | None = None
    """Everything of a kind that `where` admits."""
    random: Kind | None = None
    """`count` of a kind, drawn with `seed` from those that `where` admits."""
    count: Count | None = None
    seed: Step | None = None
    where: str | None = None
    """Conditions joined by `and`, as in: dimension = rail and source.a0 < 4."""

    bandwidth: Factor | None = None
    latency: Duration | None = None
    """Added to each link's own."""
    packet_loss: Probability | None = None
    bit_error_rate: Probability | None = None
    packet: Size | None = None
    """Bytes on the wire that one loss or bit error costs."""
    retransmission: Literal["selective_repeat", "go_back_n"] | None = None
    down: bool = False
    jitter: Duration | None = None
    """Every `jitter_every`, links draw an added latency from 0 to this, with `seed`."""
    jitter_every: Duration | None = None
    compute: Factor | None = None
    hbm: Factor | None = None

    from_: Duration | None = msgspec.field(name="from", default=None)
    until: Duration | None = None
    every: Duration | None = None
    """Flapping: there for `for` at the beginning of each period, from `from` on."""
    for_: Duration | None = msgspec.field(name="for", default=None)
    from_step: Step | None = None
    until_step: Step | None = None
    from_progress: Progress | None = None
    until_progress: Progress | None = None

    policy: Literal["wait", "reroute", "replan"] = "wait"
    """While a link is down, its traffic waits, or after `detection` is routed anew or planned anew.

    `replan` also plans collectives that begin once it is noticed for what survives. Of a constant fault,
    which traffic always avoids, it is the one policy that changes anything, and needs no `detection`.
    """
    detection: Duration | None = None

    @property
    def timed(self) -> bool:
        """Whether the fault is not simply always there."""
        names = ("from_", "until", "every", "jitter")
        return self.relative or any(getattr(self, name) is not None for name in names)

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
