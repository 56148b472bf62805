"""Hierarchical execution: blocks on the inner dimensions once, then the pipeline and data-parallel graph."""

from rapid_des.modes.blocks.modes import RUNGS, Rung
from rapid_des.modes.blocks.outer import Hierarchical, run_hierarchical

__all__ = ["RUNGS", "Hierarchical", "Rung", "run_hierarchical"]
