"""Collectives that nothing can interfere with, replayed from memory.

A process group is alone if no other group's routes use its links. A collective whose members all arrive at
one instant on idle links of their own then always runs the same way: it is simulated once, and everywhere
else its members are done at the same offsets from that instant. Whether all members did arrive at one
instant, one collective after the other, is known after the run: `Shortened.broken` looks at every one, and
groups for which it does not hold are simulated in full in another run. The result is exact or is not used.
"""

from rapid_des.modes.shortcuts.shorten import Shortened, play, shorten

__all__ = ["Shortened", "play", "shorten"]
