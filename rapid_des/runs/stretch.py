"""Steps and checkpoints of a stretch of training at one speed, without events: arithmetic on whole steps."""

from __future__ import annotations

from msgspec import Struct

from rapid_des.runs.times import Time

PROCESSES, NODE, EVERYTHING = range(3)
"""What a level of checkpoints survives: failures that replace no node, up to one, or any number of nodes."""


class CheckpointLevel(Struct, frozen=True):
    """Checkpoints of one kind: how often, at what cost, and what they survive; times are picoseconds."""

    every: int
    """The number of steps between two checkpoints; 0: none are made."""
    stall: int = 0
    """The time that training waits for a checkpoint."""
    write: int = 0
    """The time from the end of the stall until the checkpoint can be loaded."""
    survives: int = EVERYTHING
    load: Time | None = None
    """The time to load it; None: not stated."""


class Travelled(Struct, frozen=True):
    """What a stretch of training holds; the three times add up to its length."""

    steps: int
    """The number of whole steps."""
    partial: int
    """The time in a step that has not ended, in picoseconds."""
    stalled: int
    """The time in which training waited for checkpoints, in picoseconds."""


class TrainingStretch(Struct, frozen=True):
    """Training at one speed: checkpoints of each level after each `every` steps and after the last one.

    >>> course = TrainingStretch(step=10, levels=(CheckpointLevel(every=3, stall=5),), last=7)
    >>> course.time_to(0, 7), course.after(0, 33)
    (85, Travelled(steps=3, partial=0, stalled=3))
    """

    step: int
    """The duration of a step in picoseconds."""
    levels: tuple[CheckpointLevel, ...] = ()
    """The levels of checkpoints, the one that survives most at the end."""
    last: int | None = None
    """The number of the run's last step; None: the run has none."""
    lacking: int = 0
    """The number of replicas whose share of the batch each step lacks."""
    cause: str = "slow_steps"
    """The cause of the time that steps take beyond healthy ones."""

    def time_to(self, done: int, target: int) -> int:
        """Return the time from the end of step `done` to that of step `target` and its checkpoints."""
        stalls = sum(level.stall * self._checkpoints(level, done, target) for level in self.levels)
        return (target - done) * self.step + stalls

    def _checkpoints(self, level: CheckpointLevel, done: int, target: int) -> int:
        """Return the number of checkpoints after the steps behind `done` up to `target`."""
        if not level.every:
            return 0
        extra = target == self.last and target > done and target % level.every != 0
        return target // level.every - done // level.every + extra

    def after(self, done: int, elapsed: int) -> Travelled:
        """Return what the time `elapsed` after step `done` holds."""
        ended = self._ended(done, elapsed)
        passed = self.time_to(done, done + ended)
        rest, stalled = elapsed - passed, passed - ended * self.step
        if rest < self.step and done + ended != self.last:
            return Travelled(ended, rest, stalled)
        trained = 0 if done + ended == self.last else self.step
        return Travelled(ended + (trained > 0), 0, stalled + rest - trained)

    def rest(self, done: int, elapsed: int) -> int:
        """Return the time from `elapsed` to the end of the step that is going on and of its checkpoints."""
        ended = self._ended(done, elapsed)
        over = elapsed - self.time_to(done, done + ended)
        return self.time_to(done, done + ended + 1) - elapsed if over else 0

    def saved(self, done: int, elapsed: int, level: CheckpointLevel) -> int:
        """Return the last step behind `done` whose checkpoint has ended by then; 0 where there is none."""
        if not level.every or elapsed < 0:
            return 0
        step = (done + self._ended(done, elapsed)) // level.every * level.every
        return step if step > done else 0

    def _ended(self, done: int, elapsed: int) -> int:
        """Return the number of steps that have ended with their checkpoints, by bisection."""
        low, high = 0, elapsed // self.step
        if self.last is not None:
            high = min(high, self.last - done)
        while low < high:
            middle = (low + high + 1) // 2
            fits = self.time_to(done, done + middle) <= elapsed
            low, high = (middle, high) if fits else (low, middle - 1)
        return low
