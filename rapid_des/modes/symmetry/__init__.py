"""Symmetry folding: ranks whose futures are provably equal are simulated once."""

from rapid_des.modes.symmetry.fold import Folding, fold, unfold

__all__ = ["Folding", "fold", "unfold"]
