"""Steps and checkpoints of a stretch of training at one speed, without events: arithmetic on whole steps."""

from __future__ import annotations

from msgspec import Struct


class Travelled(Struct, frozen=True):
    """What a stretch of training holds; the three times add up to its length."""

    steps: int
    """The number of whole steps."""
    partial: int
    """The time in a step that has not ended, in picoseconds."""
    stalled: int
    """The time in which training waited for checkpoints, in picoseconds."""


class TrainingStretch(Struct, frozen=True):
    """Training at one speed: a checkpoint after each `every` steps and after the last one.

    >>> course = TrainingStretch(step=10, every=3, stall=5, last=7)
    >>> course.time_to(0, 7), course.after(0, 33)
    (85, Travelled(steps=3, partial=0, stalled=3))
    """

    step: int
    """The duration of a step in picoseconds."""
    every: int = 0
    """The number of steps between two checkpoints; 0: none are made."""
    stall: int = 0
    """The time that training waits for a checkpoint, in picoseconds."""
    last: int | None = None
    """The number of the run's last step; None: the run has none."""

    def time_to(self, done: int, target: int) -> int:
        """Return the time from the end of step `done` to that of step `target` and its checkpoint."""
        return (target - done) * self.step + self.stall * self.checkpoints(done, target)

    def checkpoints(self, done: int, target: int) -> int:
        """Return the number of checkpoints after the steps behind `done` up to `target`."""
        if not self.every:
            return 0
        extra = target == self.last and target > done and target % self.every != 0
        return target // self.every - done // self.every + extra

    def after(self, done: int, elapsed: int) -> Travelled:
        """Return what the time `elapsed` after step `done` holds."""
        if not self.every:
            return Travelled(*divmod(elapsed, self.step), 0)
        cycle, offset = self.every * self.step + self.stall, done % self.every
        if self.last is not None:
            steps = self.last - done
            before = steps * self.step + self.stall * (self.last // self.every - done // self.every)
            if elapsed >= before:
                return Travelled(steps, 0, elapsed - steps * self.step)
        cycles, rest = divmod(elapsed + offset * self.step, cycle)
        within = min(rest // self.step, self.every)
        stalled = max(0, rest - self.every * self.step)
        partial = rest - within * self.step - stalled
        return Travelled(cycles * self.every + within - offset, partial, cycles * self.stall + stalled)

    def saved(self, done: int, elapsed: int) -> int:
        """Return the last step behind `done` whose checkpoint has ended by then; 0 where there is none."""
        if not self.every or elapsed < 0:
            return 0
        cycle, offset = self.every * self.step + self.stall, done % self.every
        cycles = (elapsed + offset * self.step) // cycle
        return (done // self.every + cycles) * self.every if cycles else 0
