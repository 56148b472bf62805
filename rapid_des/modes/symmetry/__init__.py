"""Symmetry: one rank, or one period, is simulated for all that a rotation or a shift in time maps onto it.

`rotation`: the cyclic shifts of the ranks that map a program onto itself.
`collective`: the permutations of its members that map a collective onto itself, and its tasks up to them.
`folding`: the program with one rank for each orbit, and its records for all ranks.
`choices`: the choices of links that a folded run makes for all ranks of an orbit alike.
`recurrence`: a run of few periods, the proof that they repeat, and the records of all.
"""

from rapid_des.modes.symmetry.folding import Budget as Budget
from rapid_des.modes.symmetry.folding import Folding as Folding
from rapid_des.modes.symmetry.folding import fold as fold
from rapid_des.modes.symmetry.rotation import Rotation as Rotation
from rapid_des.modes.symmetry.rotation import rotations as rotations
