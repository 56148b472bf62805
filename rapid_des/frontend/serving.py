"""Reading a replayed inference job: time to first token, time per output token, end to end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rapid_des.frontend.inference import decode_time
from rapid_des.frontend.trace import JobTrace


@dataclass(frozen=True)
class ServingTimes:
    """What the requests of a static batch wait, in picoseconds."""

    first_token: int
    """Until the whole batch has its first token (TTFT)."""
    decode: int
    """From then until the last token."""
    steps: tuple[tuple[int, int], ...]
    """Simulated decode steps: number (1 is the second token) and duration."""
    output_length: int

    @property
    def total(self) -> int:
        """End to end."""
        return self.first_token + self.decode

    @property
    def per_token(self) -> int:
        """Mean time of an output token after the first (TPOT); 0 if there is none."""
        return self.decode // max(1, self.output_length - 1)


def serving_times(trace: JobTrace, finish: Callable[[int], Sequence[int]]) -> ServingTimes:
    """Return the milestones of an inference job from its replay.

    `finish(rank)` gives the finish time of each row of that rank's table. A pass ends when its slowest
    replica has sampled; decode steps that were not simulated are interpolated linearly between their
    neighbours.
    """
    last = len(trace.tables) - 1
    ends: dict[int, int] = {}
    for entry, stage in zip(trace.traces.ranks, trace.stage_of_rank, strict=True):
        if stage == last:
            times = finish(entry.rank)
            for segment in trace.segments[last]:
                end = int(times[segment.stop - 1])
                ends[segment.step] = max(end, ends.get(segment.step, 0))
    order = sorted(ends)
    steps = tuple((step, ends[step] - ends[before]) for before, step in zip(order, order[1:], strict=False))
    length = trace.job.inference.output_length
    decode = decode_time(steps, 1, length - 1) if steps else 0
    return ServingTimes(ends[0], decode, steps, length)
