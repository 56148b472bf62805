"""The compiled engine: the same rules as the SimPy engine, as one loop over flat arrays."""

from rapid_des.engines.compiled.engine import CompiledSimulation as CompiledSimulation
from rapid_des.engines.compiled.engine import KernelRun as KernelRun
from rapid_des.engines.compiled.engine import kernel_of as kernel_of
from rapid_des.engines.compiled.engine import run as run
