"""From a job to operators to a trace for every rank."""

from rapid_des.frontend.blocks import Block, Blocks, blocks
from rapid_des.frontend.build import build
from rapid_des.frontend.explain import Explanation, explain
from rapid_des.frontend.feasibility import check_memory
from rapid_des.frontend.inference import decode_time
from rapid_des.frontend.job import JobSpec
from rapid_des.frontend.loading import load_job
from rapid_des.frontend.memory import JobMemory, StageMemory, memory
from rapid_des.frontend.model import Model, ModelSpec
from rapid_des.frontend.program import Segment
from rapid_des.frontend.resolved import Job
from rapid_des.frontend.trace import JobTrace

__all__ = [
    "Block",
    "Blocks",
    "Explanation",
    "Job",
    "JobMemory",
    "JobSpec",
    "JobTrace",
    "Model",
    "ModelSpec",
    "Segment",
    "StageMemory",
    "blocks",
    "build",
    "check_memory",
    "decode_time",
    "explain",
    "load_job",
    "memory",
]
