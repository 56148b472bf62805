"""The compiled engine: the same rules as the SimPy engine, as one loop over flat arrays."""

from rapid_des.engines.compiled.engine import CompiledSimulation, run

__all__ = ["CompiledSimulation", "run"]
