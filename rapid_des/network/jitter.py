"""Machines whose GPUs and messages are not all alike: stated distributions, drawn with a seed.

What is drawn follows from the seed and from model facts (the GPU's id; a message's rank, visit and number in
its collective), so that it is the same in every engine, mode and run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from math import exp, log
from statistics import NormalDist
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from rapid_des.config import Spec
from rapid_des.errors import ConfigError
from rapid_des.network.fabric import Fabric
from rapid_des.network.faults.effects import GpuFactors, gpu_factors, mixed
from rapid_des.network.faults.specs import Fault
from rapid_des.units import Duration

Sigma: TypeAlias = Annotated[float, Meta(gt=0, le=0.5)]
Share: TypeAlias = Annotated[float, Meta(gt=0, lt=1)]
GRAIN = 400
"""GPU speeds are whole multiples of 1/400: GPUs of equal speed share their prices and their blocks."""
_BODY, _SLOW = 1, 2
"""Constants that separate the draws of one seed and one GPU."""
_NORMAL = NormalDist()


class Slow(Spec, frozen=True, kw_only=True):
    """A share of the GPUs, or of whole servers, that are slower than the others."""

    share: Share
    """The probability that a GPU or server is slow."""
    speed: Share
    """The share of the clock that is left."""
    of: Literal["gpus", "nodes"]
    """The unit that is slow: single GPUs, or servers with all their GPUs (needs `gpus_per_node`)."""


class GpuSpeed(Spec, frozen=True, kw_only=True):
    """How the clocks of GPUs differ; memory, links and hosts keep their rates."""

    lognormal: Sigma | None = None
    """The standard deviation of the logarithm of a GPU's clock; its median is the device file's clock."""
    slow: Slow | None = None
    """The GPUs or servers that are slower in addition."""


class LognormalDelay(Spec, frozen=True, kw_only=True):
    """Delays whose logarithm is normally distributed."""

    median: Duration
    """The median delay."""
    sigma: Annotated[float, Meta(gt=0, le=4)]
    """The standard deviation of the logarithm of the delay."""


class MessageDelay(Spec, frozen=True, kw_only=True):
    """How much later than its links would bring it a message arrives; exactly one distribution."""

    exponential: Duration | None = None
    """The mean of exponentially distributed delays."""
    lognormal: LognormalDelay | None = None
    """The parameters of lognormally distributed delays."""
    share: Annotated[float, Meta(gt=0, le=1)] = 1
    """The probability that a message is delayed at all."""
    dimensions: tuple[str, ...] = ()
    """The dimensions whose messages are delayed: a message is if it crosses a link of one of them; unset:
    all.
    """


class Jitter(Spec, frozen=True, kw_only=True):
    """How GPUs differ from one another, and how late messages come; drawn with a seed."""

    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    """The seed of all draws."""
    gpu_speed: GpuSpeed | None = None
    """The distribution of the GPUs' clocks."""
    message_delay: MessageDelay | None = None
    """The distribution of message delays. Only in mode flattened: a block of another mode represents
    repetitions whose draws differ.
    """


def check_jitter(
    jitter: Jitter, dimensions: tuple[str, ...], gpus_per_node: int | None, *, file: str
) -> None:
    """Refuse what the types alone let pass: `ConfigError` names what is wrong and what is allowed."""
    key, problem = _problem(jitter, dimensions, gpus_per_node)
    if problem:
        raise ConfigError(problem, file=file, key=".".join(filter(None, ("jitter", key))))


def _problem(jitter: Jitter, dimensions: tuple[str, ...], gpus_per_node: int | None) -> tuple[str, str]:
    speed, delay = jitter.gpu_speed, jitter.message_delay
    if speed is None and delay is None:
        return "", "states nothing; allowed: gpu_speed, message_delay"
    if speed is not None and speed.lognormal is None and speed.slow is None:
        return "gpu_speed", "states nothing; allowed: lognormal, slow"
    if speed is not None and speed.slow is not None and speed.slow.of == "nodes" and gpus_per_node is None:
        return "gpu_speed.slow.of", "nodes, but the machine states no gpus_per_node"
    if delay is None:
        return "", ""
    if (delay.exponential is None) == (delay.lognormal is None):
        return "message_delay", "needs exactly one of exponential, lognormal"
    for name in delay.dimensions:
        if name not in dimensions:
            return "message_delay.dimensions", f"no dimension {name!r}; allowed: {', '.join(dimensions)}"
    return "", ""


def gpu_speeds(
    fabric: Fabric, faults: Iterable[Fault], jitter: Jitter | None, gpus_per_node: int | None
) -> dict[int, GpuFactors]:
    """Return the speed of each GPU that constant faults and jitter slow or stop, by ascending id."""
    factors = gpu_factors(fabric, faults, gpus_per_node)
    if jitter is None:
        return factors
    drawn, whole = drawn_speeds(jitter, fabric.gpus, gpus_per_node), GpuFactors.whole()
    both = {gpu: factors.get(gpu, whole).combined(drawn.get(gpu, whole)) for gpu in {*factors, *drawn}}
    return {gpu: share for gpu, share in sorted(both.items()) if share != whole}


def drawn_speeds(jitter: Jitter, gpus: int, gpus_per_node: int | None) -> Mapping[int, GpuFactors]:
    """Return the clocks of the GPUs that are not as the device file says, by ascending id.

    >>> even = Jitter(seed=1, gpu_speed=GpuSpeed(lognormal=0.02))
    >>> [float(one.compute) for one in drawn_speeds(even, 4, None).values()]
    [1.02, 0.9975, 1.005, 1.0275]
    """
    stated = jitter.gpu_speed
    if stated is None:
        return {}
    drawn = {gpu: _speed(stated, jitter.seed, gpu, gpus_per_node) for gpu in range(gpus)}
    return {gpu: GpuFactors(speed, Fraction(1)) for gpu, speed in drawn.items() if speed != 1}


def _speed(stated: GpuSpeed, seed: int, gpu: int, gpus_per_node: int | None) -> Fraction:
    speed, slow = 1.0, stated.slow
    if stated.lognormal is not None:
        speed = exp(stated.lognormal * _NORMAL.inv_cdf(_uniform(seed, _BODY, gpu)))
    if slow is not None:
        unit = gpu // (gpus_per_node or 1) if slow.of == "nodes" else gpu
        if _uniform(seed, _SLOW, unit) < slow.share:
            speed *= slow.speed
    return Fraction(max(1, round(speed * GRAIN)), GRAIN)


def _uniform(*numbers: int) -> float:
    """Return a draw strictly between 0 and 1."""
    return ((mixed(*numbers) >> 12) + 0.5) / 2**52


def delay_quantile(stated: MessageDelay) -> Callable[[float], float]:
    """Return the function from the probability of a longer delay, given there is one, to picoseconds."""
    if stated.exponential is not None:
        mean = int(stated.exponential)
        return lambda above: -mean * log(above)
    assert stated.lognormal is not None, "one distribution is stated"
    median, sigma = int(stated.lognormal.median), stated.lognormal.sigma
    return lambda above: median * exp(-sigma * _NORMAL.inv_cdf(above))


def delay_text(stated: MessageDelay) -> str:
    """Return a distribution of delays in words.

    >>> delay_text(MessageDelay(exponential=Duration.parse("2 us"), share=0.01))
    '0.01 of them by 2 us on average, exponentially distributed'
    """
    who = "" if stated.share == 1 else f"{stated.share:.4g} of them "
    if stated.exponential is not None:
        text = f"by {stated.exponential} on average, exponentially distributed"
    else:
        assert stated.lognormal is not None, "one distribution is stated"
        text = f"by {stated.lognormal.median} in the median, lognormal with sigma {stated.lognormal.sigma:g}"
    over = f", over {', '.join(stated.dimensions)}" if stated.dimensions else ""
    return f"{who}{text}{over}"


def draws_delays(jitter: Jitter | None, faults: Iterable[Fault]) -> bool:
    """Whether messages of a machine draw how late they come: by its jitter, or by losses with timeouts."""
    late = jitter is not None and jitter.message_delay is not None
    return late or any(fault.timeout is not None for fault in faults)
