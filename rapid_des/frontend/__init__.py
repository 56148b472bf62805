"""From a job to operators to a trace for every rank."""

from rapid_des.frontend.build import build, check_memory, memory
from rapid_des.frontend.job import Job
from rapid_des.frontend.loading import load_job, load_model
from rapid_des.frontend.memory import JobMemory, StageMemory
from rapid_des.frontend.model import Model
from rapid_des.frontend.spec import JobSpec, ModelSpec
from rapid_des.frontend.trace import JobTrace, PricedOperator, Segment

__all__ = [
    "Job",
    "JobMemory",
    "JobSpec",
    "JobTrace",
    "Model",
    "ModelSpec",
    "PricedOperator",
    "Segment",
    "StageMemory",
    "build",
    "check_memory",
    "load_job",
    "load_model",
    "memory",
]
