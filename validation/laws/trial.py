"""A drawn case that was built and run healthy once: what every law begins with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import rapid_des as rd
from rapid_des.bounded_cache import BoundedCache
from rapid_des.chakra.trace import TraceSet
from validation.laws.draws import Case


class DoesNotApplyError(Exception):
    """A law says nothing about a case; its text is the reason."""


@dataclass
class Trial:
    """A case with its job and machine."""

    case: Case
    job: rd.Job
    machine: rd.Machine
    cache: BoundedCache = field(default_factory=BoundedCache)

    @cached_property
    def healthy(self) -> rd.Result:
        """The flattened run without faults."""
        return self.run()

    @cached_property
    def traces(self) -> TraceSet:
        """The job's traces, priced on the machine's device."""
        return rd.price(self.job, self.machine).traces

    @property
    def holds_back(self) -> bool:
        """Tell whether messages are sprayed or held back: such are not rerouted in mid-flight."""
        return bool({"congestion", "spray"} & self.case.machine["switching"].keys())

    def faulted(self, *faults: str) -> rd.Machine:
        """Return the machine with faults in words."""
        return self.machine.with_faults([rd.parse_fault(text) for text in faults])

    def run(self, *faults: str, **options: Any) -> rd.Result:
        """Return a run under faults."""
        return rd.simulate(self.job, self.faulted(*faults), cache=self.cache, **options)

    def settings(self, **over: Any) -> rd.Machine:
        """Return the machine of another tree."""
        return rd.load_machine({**self.case.machine, **over})


def differ(results: Sequence[tuple[str, rd.Result]]) -> str:
    """Return how results differ from the first in step, ends of ranks or breakdown; empty: they do not."""
    (name, first), *others = results
    for other, result in others:
        if result.finish != first.finish:
            return f"{other}: {int(result.step_time)} ps, {name}: {int(first.step_time)} ps"
        if result.breakdown != first.breakdown:
            return f"{other}: {dict(result.breakdown)}, {name}: {dict(first.breakdown)}"
    return ""
