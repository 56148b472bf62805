"""Plays a job with a kernel that is to be kept, in a process of its own: `python -m … KERNEL FILE`."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path

import numpy as np

from rapid_des.compiling import kept
from rapid_des.engines import compiled
from rapid_des.engines.compiled import fluid_kernel, kernel
from rapid_des.engines.compiled.jit import machine_code
from rapid_des.engines.simpy import engine as simpy_engine
from rapid_des.frontend import build, load_job
from rapid_des.machine import load_machine
from rapid_des.program.lowering import lower
from rapid_des.program.program import Program, Records

_JOB = (("model.layers", "4"), ("training.global_batch", "8"))
_OWN = ("events", "trail")
"""Of the records: what each engine counts for itself, and a table whose rows have no order."""


def job(switching: str) -> Program:
    """Return a small job that uses everything: tensor, pipeline and data parallel groups on every rank."""
    machine = load_machine("dgx_a100", settings=[("switching.mode", switching)])
    job = load_job("llama2_7b_train", settings=_JOB)
    return lower(build(job, machine.device.operators).traces, machine).program


def differences(one: Records, other: Records) -> list[str]:
    """Return the names of the records that are not equal."""
    names = [field.name for field in fields(Records) if field.name not in _OWN]
    return [name for name in names if not np.array_equal(getattr(one, name), getattr(other, name))]


def main(name: str, file: Path) -> None:
    """Exit with 0 if the kernel in a file sees in a job what the SimPy engine sees."""
    fluid = name == fluid_kernel.play_fluid.__qualname__
    code = machine_code(fluid_kernel.play_fluid if fluid else kernel.play)
    code.kept = kept.read(file)
    program = job("fluid" if fluid else "cut_through")
    wrong = differences(compiled.run(program), simpy_engine.run(program))
    if wrong:
        sys.exit(f"{wrong} differ")
    if "numba" in sys.modules:
        sys.exit("the file's kernel did not fit")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
