"""What was measured on a machine: the evidence behind its files, and the steps of jobs that ran on it."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta

from rapid_des.config import Spec
from rapid_des.units import Duration

_Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]


class MeasuredStep(Spec, frozen=True, kw_only=True):
    """A step of a training job that was measured on the machine, and what forecasts ask of a job."""

    job: str
    """The job, for people."""
    measured: Duration
    """The measured time of a step."""
    simulated: Duration
    """The simulated time of the step on the machine as its files state it."""
    software: str
    """The name of the job's software profile."""
    family: str
    """The architecture of the GPU."""
    format: str
    """The number format of the job's matrix products."""
    experts: bool = False
    """Whether the model has experts."""
    shares: dict[str, _Share] = {}
    """The classes' shares of the simulated step."""

    def __post_init__(self) -> None:
        if min(self.measured, self.simulated) < 1:
            raise ValueError("measured and simulated times must be above 0")


class MachineEvidence(Spec, frozen=True, kw_only=True):
    """What was measured on a machine."""

    calibrated_on: tuple[str, ...]
    """What the constants of the machine's files were fitted to, a line each."""
    steps: tuple[MeasuredStep, ...] = ()
    """The measured steps of jobs, from which forecasts of other jobs on this machine learn."""
