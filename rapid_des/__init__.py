"""Predict how long a distributed LLM training step or inference request takes, by discrete events.

import rapid_des as rd

machine = rd.load_machine("dgx_a100_x8")
job = rd.load_job("llama2_7b_train")
result = rd.simulate(job, machine)
print(result.step_time, result.breakdown)
result.write_timeline("step.perfetto.json")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rapid_des.frontend import Job, load_job
    from rapid_des.machine import Machine, load_machine
    from rapid_des.report.result import Result
    from rapid_des.simulation import load_trace, replay, simulate

_HOMES = {
    "Job": "rapid_des.frontend",
    "Machine": "rapid_des.machine",
    "Result": "rapid_des.report.result",
    "load_job": "rapid_des.frontend",
    "load_machine": "rapid_des.machine",
    "load_trace": "rapid_des.simulation",
    "replay": "rapid_des.simulation",
    "simulate": "rapid_des.simulation",
}

__version__ = "0.1.0"

__all__ = [
    "Job",
    "Machine",
    "Result",
    "load_job",
    "load_machine",
    "load_trace",
    "replay",
    "simulate",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that the command line starts at once."""
    if name not in _HOMES:
        raise AttributeError(f"module 'rapid_des' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
