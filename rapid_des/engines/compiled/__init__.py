"""The compiled engine: the same rules as the SimPy engine, as one loop over flat arrays."""

from rapid_des.engines.compiled.engine import CompiledSimulation, kernel_of, run

__all__ = ["CompiledSimulation", "kernel_of", "run"]
