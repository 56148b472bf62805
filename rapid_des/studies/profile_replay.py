"""Asking a measured run: its step on a machine as it was, and as it is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from rapid_des.machine import Machine
from rapid_des.modes.execution import EngineChoice
from rapid_des.profiles import Profile
from rapid_des.profiles.ranks import ProfileChanges, RunOfRanks, run_of_ranks
from rapid_des.profiles.replay import simulated_time
from rapid_des.program.lowering import rank_times
from rapid_des.simulation import replay
from rapid_des.units import seconds


class AskedProfiles(Struct, frozen=True):
    """A measured step, simulated on a machine as it was and as it is asked for, in picoseconds."""

    measured: int
    unchanged: int
    """The step on the base machine, with nothing changed."""
    changed: int
    """The step with all that was changed."""
    critical: int
    """The rank whose step is longest."""
    run: RunOfRanks
    machine: str
    world: int

    @property
    def expected(self) -> float:
        """The measured step times the ratio of the two simulated ones."""
        return self.measured * self.changed / self.unchanged if self.unchanged else float(self.measured)

    def as_json(self) -> dict[str, Any]:
        """Return what `replay FILE --network simulated --json` prints, times in seconds."""
        return {
            "step_time_s": seconds(self.changed),
            "measured_s": seconds(self.measured),
            "unchanged_s": seconds(self.unchanged),
            "expected_s": self.expected / 1e12,
            "network": "simulated",
            "machine": self.machine,
            "critical_rank": self.critical,
            "ranks": self.world,
            "copied_ranks": self.run.copies,
            "clock_skew_s": {str(rank): skew / 1e9 for rank, skew in self.run.skews.items()},
            "collectives_simulated": self.run.sent,
            "collectives_as_measured": self.run.kept,
        }


def ask_profiles(
    profiles: Sequence[Profile],
    machines: tuple[Machine, Machine],
    wanted: ProfileChanges,
    *,
    engine: EngineChoice,
) -> AskedProfiles:
    """Return a measured step on `machines[0]` as it was, and on `machines[1]` as it is asked for."""
    before, after = run_of_ranks(profiles, ProfileChanges()), run_of_ranks(profiles, wanted)
    unchanged = _steps(before, machines[0], engine)
    same = wanted == ProfileChanges() and machines[0] == machines[1]
    changed = unchanged if same else _steps(after, machines[1], engine)
    critical = max(changed, key=lambda rank: changed[rank])
    measured = max(chosen.length for _, chosen, _ in before.profiles.values()) * 1000
    return AskedProfiles(
        measured=measured,
        unchanged=max(unchanged.values()),
        changed=changed[critical],
        critical=critical,
        run=after,
        machine=machines[1].name,
        world=len(after.traces.ranks),
    )


def _steps(run: RunOfRanks, machine: Machine, engine: EngineChoice) -> Mapping[int, int]:
    """Return the simulated step of each rank that has a profile, in picoseconds."""
    result = replay(run.traces, machine, engine=engine)
    assert result.run is not None
    lowered, records = result.run.lowered, result.run.execution.records
    found = {}
    for position, binding in enumerate(lowered.program.bindings):
        if binding.rank in run.profiles:
            profile, chosen, nodes = run.profiles[binding.rank]
            times = rank_times(lowered, records, position)
            found[binding.rank] = simulated_time(profile, chosen, times.start[nodes], times.finish[nodes])
    return found
