"""Symmetry: what a rotation of the ranks leaves as it is, and simulating one rank for all that live alike.

`rotation`: which cyclic shifts of the ranks map a program onto itself.
`collective`: which permutations of its members map a collective onto itself, and what is left of it then.
`folding`: the program with one rank for each orbit, and its records for all ranks.
"""

from rapid_des.modes.symmetry.folding import Budget, Folding, fold
from rapid_des.modes.symmetry.rotation import Rotation, rotations

__all__ = ["Budget", "Folding", "Rotation", "fold", "rotations"]
