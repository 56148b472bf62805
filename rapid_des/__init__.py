"""Predict how long a distributed LLM training step or inference request takes, by discrete events.

>>> import rapid_des as rd
>>> machine = rd.load_machine("dgx_a100")
>>> job = rd.load_job("llama2_7b_train", settings={"training.global_batch": 16})
>>> result = rd.simulate(job, machine, mode="analytical")
>>> result.bound, result.figures.gpus
('compute', 8)

Load: load_job, load_machine, load_device, load_model (a path, a preset's name, a mapping, or what was
loaded before, with settings over it), load_reliability, load_rollout,
load_study and load_trace. Run: simulate, compare, replay, serve, goodput,
simulate_rollout; a BoundedCache shares work. Read: Result, its rows (operators, messages, links) and
pictures, ServeResult. Ask: estimate (an operator's time), bench (a collective's), memory, machine.route,
machine.check, machine.summary. Break: Fault, parse_fault, machine.with_faults, scenario, criticality,
faults_sample. Study: plan, sweep (many points, to a DataFrame), search, difference (of two results). Errors
are all below RapidDesError.
"""

from __future__ import annotations

from rapid_des.version import __version__ as __version__


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, so that the command line starts at once."""
    from rapid_des.public_names import public_name

    return public_name(__name__, __file__, name)


def __dir__() -> list[str]:
    """Return the public names, also those that are not imported yet."""
    from rapid_des.public_names import homes

    return sorted({*homes(__file__), *(name for name in globals() if name.startswith("__"))})
