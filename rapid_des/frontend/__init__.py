"""From a job to operators to a trace for every rank."""

from rapid_des.frontend.blocks import Block, Blocks, blocks
from rapid_des.frontend.build import build
from rapid_des.frontend.inference import decode_time
from rapid_des.frontend.job import Job, Model
from rapid_des.frontend.loading import load_job, load_model
from rapid_des.frontend.memory import JobMemory, StageMemory, check_memory, memory
from rapid_des.frontend.operations import PricedOperator
from rapid_des.frontend.spec import JobSpec, ModelSpec
from rapid_des.frontend.trace import JobTrace, Segment

__all__ = [
    "Block",
    "Blocks",
    "Job",
    "JobMemory",
    "JobSpec",
    "JobTrace",
    "Model",
    "ModelSpec",
    "PricedOperator",
    "Segment",
    "StageMemory",
    "blocks",
    "build",
    "check_memory",
    "decode_time",
    "load_job",
    "load_model",
    "memory",
]
