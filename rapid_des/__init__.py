"""Predict how long a distributed LLM training step or inference request takes, by discrete events.

>>> import rapid_des as rd
>>> machine = rd.load_machine("dgx_a100")
>>> job = rd.load_job("llama2_7b_train", settings={"training.global_batch": 16})
>>> result = rd.simulate(job, machine, mode="analytical")
>>> result.bound, result.figures.gpus
('compute', 8)

Load: load_job, load_machine, load_device, load_model (a path, a preset's name, a mapping, or what was
loaded before, with settings over it), load_rollout, load_study
and load_trace. Run: simulate, compare, replay, serve,
simulate_rollout; a BoundedCache shares work. Read: Result, its rows (operators, messages, links) and
pictures, ServeResult. Ask: estimate (an operator's time), bench (a collective's), memory, machine.route,
machine.check, machine.summary. Break: Fault, parse_fault, machine.with_faults, scenario, criticality,
faults_sample. Study: plan, sweep (many points, to a DataFrame), search, difference (of two results). Errors
are all below RapidDesError.
"""

from __future__ import annotations

from rapid_des.version import __version__ as __version__

TYPE_CHECKING = False  # as `typing` has it, which takes longer to import than the rest: see `cli.entry`
if TYPE_CHECKING:
    from typing import Any

    from rapid_des.bounded_cache import BoundedCache
    from rapid_des.chakra.dialects import ReadOptions
    from rapid_des.chakra.writer import write_set
    from rapid_des.device.device import Device, load_device
    from rapid_des.device.operators import Attention, Estimate, Gemm, GroupedGemm, Vector
    from rapid_des.device.pricing import estimate
    from rapid_des.errors import (
        CannotFinishError,
        ConfigError,
        DeadlockError,
        FabricCutError,
        InfeasibleJobError,
        InputError,
        RapidDesError,
        TopologyError,
        TraceError,
        UnsupportedByEngine,
    )
    from rapid_des.frontend.build import check_memory, memory
    from rapid_des.frontend.job import Job
    from rapid_des.frontend.loading import load_job, load_model
    from rapid_des.frontend.memory import JobMemory
    from rapid_des.frontend.model import Model
    from rapid_des.machine import Machine, load_machine
    from rapid_des.modes.execution import EngineChoice
    from rapid_des.modes.pricing import price
    from rapid_des.network.faults.specs import Fault, parse_fault
    from rapid_des.report.pictures.charts import draw_collective
    from rapid_des.report.pictures.fabric import picture
    from rapid_des.report.pictures.overview import draw
    from rapid_des.report.pictures.roofline import draw_roofline
    from rapid_des.report.result import Result
    from rapid_des.report.rows import LinkRow, MessageRow, OperatorRow
    from rapid_des.serving.result import ServeResult, Slo
    from rapid_des.serving.rollout import load_rollout, simulate_rollout
    from rapid_des.serving.server import serve
    from rapid_des.simulation import MODES, compare, load_trace, replay, simulate
    from rapid_des.studies.collective_bench import BenchRow, bench
    from rapid_des.studies.criticality import Criticality, criticality
    from rapid_des.studies.difference import Difference, difference
    from rapid_des.studies.fault_rows import FaultSample
    from rapid_des.studies.fault_sample import faults_sample
    from rapid_des.studies.faults import How, Scenario, scenario
    from rapid_des.studies.plan import Plan, Wanted, plan
    from rapid_des.studies.points import Point
    from rapid_des.studies.results import Sweep
    from rapid_des.studies.search import Search, search
    from rapid_des.studies.spaces import load_study
    from rapid_des.studies.sweep import sweep
    from rapid_des.units import Bandwidth, Duration, Size, seconds

_HOMES = {
    "Attention": "rapid_des.device.operators",
    "Bandwidth": "rapid_des.units",
    "BenchRow": "rapid_des.studies.collective_bench",
    "BoundedCache": "rapid_des.bounded_cache",
    "CannotFinishError": "rapid_des.errors",
    "ConfigError": "rapid_des.errors",
    "Criticality": "rapid_des.studies.criticality",
    "DeadlockError": "rapid_des.errors",
    "Device": "rapid_des.device.device",
    "Difference": "rapid_des.studies.difference",
    "Duration": "rapid_des.units",
    "EngineChoice": "rapid_des.modes.execution",
    "Estimate": "rapid_des.device.operators",
    "FabricCutError": "rapid_des.errors",
    "Fault": "rapid_des.network.faults.specs",
    "FaultSample": "rapid_des.studies.fault_rows",
    "Gemm": "rapid_des.device.operators",
    "GroupedGemm": "rapid_des.device.operators",
    "How": "rapid_des.studies.faults",
    "InfeasibleJobError": "rapid_des.errors",
    "InputError": "rapid_des.errors",
    "Job": "rapid_des.frontend.job",
    "JobMemory": "rapid_des.frontend.memory",
    "LinkRow": "rapid_des.report.rows",
    "MODES": "rapid_des.simulation",
    "Machine": "rapid_des.machine",
    "MessageRow": "rapid_des.report.rows",
    "Model": "rapid_des.frontend.job",
    "OperatorRow": "rapid_des.report.rows",
    "Plan": "rapid_des.studies.plan",
    "Point": "rapid_des.studies.points",
    "RapidDesError": "rapid_des.errors",
    "ReadOptions": "rapid_des.chakra.dialects",
    "Result": "rapid_des.report.result",
    "Scenario": "rapid_des.studies.faults",
    "Search": "rapid_des.studies.search",
    "ServeResult": "rapid_des.serving.result",
    "Size": "rapid_des.units",
    "Slo": "rapid_des.serving.result",
    "Sweep": "rapid_des.studies.results",
    "TopologyError": "rapid_des.errors",
    "TraceError": "rapid_des.errors",
    "UnsupportedByEngine": "rapid_des.errors",
    "Vector": "rapid_des.device.operators",
    "Wanted": "rapid_des.studies.plan",
    "bench": "rapid_des.studies.collective_bench",
    "check_memory": "rapid_des.frontend.build",
    "compare": "rapid_des.simulation",
    "criticality": "rapid_des.studies.criticality",
    "difference": "rapid_des.studies.difference",
    "draw": "rapid_des.report.pictures.overview",
    "draw_collective": "rapid_des.report.pictures.charts",
    "draw_roofline": "rapid_des.report.pictures.roofline",
    "estimate": "rapid_des.device.pricing",
    "faults_sample": "rapid_des.studies.fault_sample",
    "load_device": "rapid_des.device.device",
    "load_job": "rapid_des.frontend.loading",
    "load_machine": "rapid_des.machine",
    "load_model": "rapid_des.frontend.loading",
    "load_rollout": "rapid_des.serving.rollout",
    "load_study": "rapid_des.studies.spaces",
    "load_trace": "rapid_des.simulation",
    "memory": "rapid_des.frontend.build",
    "parse_fault": "rapid_des.network.faults.specs",
    "picture": "rapid_des.report.pictures.fabric",
    "plan": "rapid_des.studies.plan",
    "price": "rapid_des.modes.pricing",
    "replay": "rapid_des.simulation",
    "scenario": "rapid_des.studies.faults",
    "search": "rapid_des.studies.search",
    "seconds": "rapid_des.units",
    "serve": "rapid_des.serving.server",
    "simulate": "rapid_des.simulation",
    "simulate_rollout": "rapid_des.serving.rollout",
    "sweep": "rapid_des.studies.sweep",
    "write_set": "rapid_des.chakra.writer",
}

__all__ = [
    "Attention",
    "Bandwidth",
    "BenchRow",
    "BoundedCache",
    "CannotFinishError",
    "ConfigError",
    "Criticality",
    "DeadlockError",
    "Device",
    "Difference",
    "Duration",
    "EngineChoice",
    "Estimate",
    "FabricCutError",
    "Fault",
    "FaultSample",
    "Gemm",
    "GroupedGemm",
    "How",
    "InfeasibleJobError",
    "InputError",
    "Job",
    "JobMemory",
    "LinkRow",
    "MODES",
    "Machine",
    "MessageRow",
    "Model",
    "OperatorRow",
    "Plan",
    "Point",
    "RapidDesError",
    "ReadOptions",
    "Result",
    "Scenario",
    "Search",
    "ServeResult",
    "Size",
    "Slo",
    "Sweep",
    "TopologyError",
    "TraceError",
    "UnsupportedByEngine",
    "Vector",
    "Wanted",
    "bench",
    "check_memory",
    "compare",
    "criticality",
    "difference",
    "draw",
    "draw_collective",
    "draw_roofline",
    "estimate",
    "faults_sample",
    "load_device",
    "load_job",
    "load_machine",
    "load_model",
    "load_rollout",
    "load_study",
    "load_trace",
    "memory",
    "parse_fault",
    "picture",
    "plan",
    "price",
    "replay",
    "scenario",
    "search",
    "seconds",
    "serve",
    "simulate",
    "simulate_rollout",
    "sweep",
    "write_set",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that the command line starts at once."""
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module 'rapid_des' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Return the public names, also those that are not imported yet."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
