"""DCQCN packet by packet: the marks of a port, and the rate of a flow, with timers that are events.

It shares nothing with rule R14 of the simulator but the paper (Zhu et al., SIGCOMM 2015): rates are floats,
every packet is drawn for itself, and timers expire whether anybody asks or not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from simpy import Environment
from simpy.events import Timeout

from rapid_des.network.congestion import Dcqcn
from rapid_des.units import PS_PER_S

_LINE = 1 - 1e-6
"""From this share of the line's rate on a flow is let go of."""


def is_marked(stated: Dcqcn, queued: int, random: Random) -> bool:
    """Tell whether a port at which so many bytes are queued marks a packet (RED on the queue as it is)."""
    low, high, most = int(stated.kmin or 0), int(stated.kmax or 0), stated.pmax or 0.0
    if queued <= low:
        return False
    return queued >= high or random.random() < most * (queued - low) / (high - low)


@dataclass(eq=False)
class RateMachine:
    """The sender of one flow; rates are bytes a second."""

    env: Environment
    stated: Dcqcn
    line: float
    alpha: float = 1.0
    stages: list[int] = field(default_factory=lambda: [0, 0])
    """Of the timer, and of the byte counter."""
    sent: int = 0
    cuts: int = 0
    told: int = -(2**62)
    """When the receiver sent its last notice."""

    def __post_init__(self) -> None:
        self.rate = self.target = self.line

    def pace(self, wire: int) -> int:
        """Count a packet that is sent; return the picoseconds until the next one may be."""
        time = -int(-wire * PS_PER_S // self.rate)
        every = int(self.stated.byte_counter or 0)
        if self.rate < self.line and every:
            self.sent += wire
            while self.sent >= every:
                self.sent -= every
                self._rise(1)
        return time

    def notices(self) -> bool:
        """Tell whether the receiver of a marked packet sends a notice."""
        if int(self.env.now) - self.told < int(self.stated.cnp_interval or 0):
            return False
        self.told = int(self.env.now)
        return True

    def cut(self) -> None:
        """Have a notice arrive."""
        if self.rate >= self.line:
            self.alpha = 1.0
        if self.rate >= self.line or self.stated.clamp == "every_cut" or self.stages[0]:
            self.target = self.rate
        self.rate = max(float(self.stated.minimum_rate or 0), self.rate * (1 - self.alpha / 2))
        gain = self.stated.gain or 0.0
        self.alpha += (1 - self.alpha) * gain
        self.stages, self.sent, self.cuts = [0, 0], 0, self.cuts + 1
        self._later(int(self.stated.alpha_timer or 0), self._calm)
        self._later(int(self.stated.rate_timer or 0), self._tick)

    def _later(self, wait: int, action: object) -> None:
        mark = self.cuts
        assert callable(action), "a method"
        Timeout(self.env, wait).callbacks.append(lambda _: action() if mark == self.cuts else None)

    def _calm(self) -> None:
        self.alpha *= 1 - (self.stated.gain or 0.0)
        if self.rate < self.line:
            self._later(int(self.stated.alpha_timer or 0), self._calm)

    def _tick(self) -> None:
        self._rise(0)
        if self.rate < self.line:
            self._later(int(self.stated.rate_timer or 0), self._tick)

    def _rise(self, counter: int) -> None:
        self.stages[counter] += 1
        fast = self.stated.fast_recovery or 0
        if max(self.stages) > fast:
            step = self.stated.hyper_increase if min(self.stages) > fast else self.stated.additive_increase
            self.target = min(self.line, self.target + int(step or 0))
        self.rate = (self.rate + self.target) / 2
        if self.rate >= _LINE * self.line:
            self.rate = self.target = self.line
