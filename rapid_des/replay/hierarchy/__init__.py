"""Hierarchical execution: blocks on the inner dimensions once, then the pipeline and data-parallel graph."""

from rapid_des.replay.hierarchy.outer import Hierarchical, run_hierarchical
from rapid_des.replay.hierarchy.rungs import RUNGS, Rung

__all__ = ["RUNGS", "Hierarchical", "Rung", "run_hierarchical"]
