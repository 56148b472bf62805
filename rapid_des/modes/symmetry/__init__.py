"""Symmetry: what a rotation of the ranks, or going on by a period, leaves as it is; simulating one for all.

`rotation`: which cyclic shifts of the ranks map a program onto itself.
`collective`: which permutations of its members map a collective onto itself, and what is left of it then.
`folding`: the program with one rank for each orbit, and its records for all ranks.
`stretches`: visits of a program that are alike every so many (layers), and the program with fewer of them.
`recurrence`: a run of few periods, the proof that they recur, and the records of all.
"""

from rapid_des.modes.symmetry.folding import Budget, Folding, fold
from rapid_des.modes.symmetry.rotation import Rotation, rotations

__all__ = ["Budget", "Folding", "Rotation", "fold", "rotations"]
