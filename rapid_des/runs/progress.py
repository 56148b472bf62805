"""What a run has done so far: its kept steps with their durations, and the checkpoints among them."""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

from rapid_des.runs.stretch import EVERYTHING, CheckpointLevel, TrainingStretch

_HELD = -1
"""The level of a step that no checkpoint holds."""


class _Segment(Struct):
    """Steps of equal duration, one after another; without steps it marks a loaded checkpoint."""

    first: int
    """The number of steps before it."""
    last: int
    began: int
    ended: int
    """The time at which it ended, in picoseconds since the start of the run."""
    course: TrainingStretch
    holds: int = _HELD
    """What the checkpoint of step `first` survives that the run was loaded from."""


class Progress:
    """The kept steps of a run; the cost of each call grows with the speeds since a checkpoint."""

    def __init__(self, healthy: int, replicas: int = 1) -> None:
        self._healthy, self._replicas = healthy, replicas
        self._segments: list[_Segment] = []
        self.done = 0
        """The number of steps whose results are left."""
        self.lacking = 0
        """The number of shares of the batch, one for each replica, that these steps lack."""
        self.partial = 0
        """The time spent in a step that has not ended."""

    def book(self, course: TrainingStretch, began: int, ended: int) -> int:
        """Add a stretch of training; return the time in which it waited for checkpoints."""
        travelled = course.after(self.done, ended - began)
        first, self.done = self.done, self.done + travelled.steps
        self.lacking += travelled.steps * course.lacking
        self.partial = travelled.partial
        self._segments.append(_Segment(first, self.done, began, ended, course))
        return travelled.stalled

    def hold(self, course: TrainingStretch, now: int, survives: int = EVERYTHING) -> None:
        """State that a checkpoint holds the step that the run stands at."""
        self._segments.append(_Segment(self.done, self.done, now, now, course, survives))

    def saved(self, at: int, needed: int) -> tuple[int, CheckpointLevel | None]:
        """Return the last step that a checkpoint holds which was complete at a time, and its level.

        `needed` is what the checkpoint must survive. Step 0 needs no checkpoint.
        """
        for segment in reversed(self._segments):
            if segment.began > at:
                continue
            levels = [level for level in segment.course.levels if level.survives >= needed]
            if segment.holds >= needed:
                loaded = [level for level in levels if level.survives == segment.holds]
                return segment.first, loaded[0] if loaded else None
            found = [(self._written(segment, level, at), -level.survives, level) for level in levels]
            step, _, level = max(found, key=lambda each: each[:2], default=(0, 0, None))
            if step > segment.first:
                return step, level
        return 0, None

    def _written(self, segment: _Segment, level: CheckpointLevel, at: int) -> int:
        elapsed = min(at - level.write, segment.ended) - segment.began
        step = segment.course.saved(segment.first, elapsed, level)
        return step if step <= segment.last else segment.last // level.every * level.every

    def lose(self, step: int) -> int:
        """Go back to the end of a step; return the time of the training that is lost."""
        lost, self.partial = self.partial, 0
        while self._segments and self._segments[-1].last > step:
            segment = self._segments.pop()
            kept = max(step - segment.first, 0)
            steps = segment.last - segment.first - kept
            lost += steps * segment.course.step
            self.lacking -= steps * segment.course.lacking
            if kept:
                segment.last = step
                self._segments.append(segment)
        self.done = step
        return lost

    @property
    def until(self) -> int:
        """The time at which the last training ended."""
        return self._segments[-1].ended if self._segments else 0

    def useful(self) -> tuple[int, dict[str, int]]:
        """Return the time of the kept steps as on a healthy machine, and by cause what they took beyond.

        A step that lacks shares of the batch counts as much less.
        """
        beyond, healthy = Counter[str](), 0
        for each in self._segments:
            steps, worth = each.last - each.first, self._worth(each.course)
            healthy += steps * worth
            beyond[each.course.cause] += steps * (each.course.step - worth)
        if self.partial:
            course = self._segments[-1].course
            part = self.partial * self._worth(course) // course.step
            healthy += part
            beyond[course.cause] += self.partial - part
        return healthy, {cause: time for cause, time in beyond.items() if time}

    def _worth(self, course: TrainingStretch) -> int:
        """Return the time in which a healthy machine does the work of a step."""
        return self._healthy * (self._replicas - course.lacking) // self._replicas
