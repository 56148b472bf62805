"""What failures do that do not simply stop a job: hangs, void results, slow parts, pauses."""

from typing import Any

import pytest
from msgspec import structs

from rapid_des import goodput
from rapid_des.errors import CannotFinishError, ConfigError
from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.network.faults import parse_fault
from rapid_des.runs.clock import replicate
from rapid_des.runs.failures import FailingParts, Failure, failures
from rapid_des.runs.laws import Exponential
from rapid_des.runs.loading import load_reliability
from rapid_des.runs.planning import Subject
from rapid_des.runs.spares import Tier
from rapid_des.runs.steps import CUT, SimulatedSteps, SlowClass
from rapid_des.runs.stretch import CheckpointLevel, TrainingStretch
from rapid_des.runs.times import parse_time
from rapid_des.runs.treatment import RunPlan, Treatment
from rapid_des.simulation import simulate

S = 10**12
"""A second in picoseconds."""


class Steps:
    """Steps that one slow part makes 12 s long and each further one another 2 s."""

    def simulated(self, state):
        return frozenset({(0, tuple(map(str, sorted(state))))})

    def of(self, state):
        return (10 + 2 * len(state)) * S


def plan(effect, *, last=30, every=6, stall=0, restart="0 s", tolerated=0.5, tiers=(), nodes=0, **stated):
    times: dict[str, Any] = {
        name: parse_time(stated.pop(name, "0 s")) for name in ("detection", "diagnosis", "repair")
    }
    lasts = stated.pop("lasts", None)
    treatment = Treatment(
        "part", **times, nodes=nodes, effect=effect, lasts=lasts and parse_time(lasts),
        misdiagnosis=stated.pop("misdiagnosis", 0.0)
    )  # fmt: skip
    return RunPlan(
        TrainingStretch(10 * S, (CheckpointLevel(every, stall * S),), last), None, (treatment,),
        {"start": parse_time(restart)}, tuple(Tier(count, parse_time("0 s")) for count in tiers),
        steps=Steps(), tolerated=tolerated, **stated
    )  # fmt: skip


def at(*seconds, part=None):
    return iter(
        [
            Failure(int(each * S), 0, n if part is None else part, 1, (0.5,) * 16)
            for n, each in enumerate(seconds)
        ]
    )


def spent(run, *seconds, part=None):
    found = replicate(run, at(*seconds, part=part), 0)
    assert sum(found.times.values()) == found.wall
    return {cause: time / S for cause, time in found.times.items() if time}


def test_a_hang_stands_still_until_its_time_out():
    assert spent(plan("hangs", detection="600 s"), 65) == {"steps": 300, "rework": 5, "hang": 600}


def test_void_results_are_rolled_back_beyond_their_failure():
    # void since 70 s, noticed at 170 s: the checkpoint of 120 s is void too, that of 60 s is not
    assert spent(plan("corrupts", detection="100 s", restart="4 s"), 70) == {
        "steps": 300, "rework": 110, "restart_start": 4
    }  # fmt: skip


def test_void_results_noticed_during_a_standstill_are_rolled_back_too():
    # the failure at 150 s goes back to 120 s; the one of 70 s is noticed at 170 s and goes back to 60 s
    run = plan("corrupts", detection="100 s")
    stop = structs.replace(run.treatments[0], effect="stops", detection=parse_time("30 s"))
    run = structs.replace(run, treatments=(*run.treatments, stop))
    struck = iter([*at(70), Failure(150 * S, 1, 0, 1, (0.5,) * 16)])
    found = replicate(run, struck, 0)
    assert {cause: time / S for cause, time in found.times.items() if time} == {
        "steps": 300, "rework": 30 + 60, "detection": 30
    }  # fmt: skip


def test_a_slow_part_counts_from_the_next_step_on_until_it_recovers():
    # slow from 33 s on: the step that ends at 40 s is the last fast one. Recovered at 93 s: four steps of
    # 12 s have ended, the fifth ends at 100 s
    assert spent(plan("slows", lasts="60 s"), 33) == {"steps": 300, "slow_steps": 10}
    both = spent(plan("slows"), 33, 33)  # all 26 later steps take 14 s
    assert both == {"steps": 300, "slow_steps": 26 * 4}


def test_a_slow_part_that_is_not_tolerated_is_replaced_after_its_detection():
    run = plan("slows", detection="40 s", restart="5 s", tolerated=0.15)
    # detected at 73 s, with 12 s of the steps after the checkpoint at 6 steps (40 + 2 · 12 = 64 s) lost
    assert spent(run, 33) == {"steps": 300, "slow_steps": 4, "rework": 9, "restart_start": 5}


def test_a_part_that_cuts_the_job_stops_it_at_once():
    class Cut(Steps):
        def of(self, state):
            return CUT

    run = structs.replace(plan("slows", restart="5 s"), steps=Cut())
    assert spent(run, 33) == {"steps": 300, "rework": 33, "restart_start": 5}


def test_a_pause_makes_a_checkpoint_and_loses_the_step_that_was_going_on():
    assert spent(plan("pauses", stall=3, lasts="100 s", restart="5 s"), 25) == {
        "steps": 300, "rework": 5, "checkpoints": 6 * 3, "maintenance": 100, "restart_start": 5
    }  # fmt: skip


def test_a_pause_during_a_standstill_comes_after_it():
    run = plan("pauses", lasts="100 s")
    stop = structs.replace(run.treatments[0], effect="stops", detection=parse_time("30 s"))
    run = structs.replace(run, treatments=(*run.treatments, stop))
    struck = iter([Failure(60 * S, 1, 0, 1, (0.5,) * 16), *at(70)])
    found = replicate(run, struck, 0)
    assert (found.times["detection"], found.times["maintenance"]) == (30 * S, 100 * S)
    assert found.wall == 430 * S


def test_a_wrong_diagnosis_brings_the_failure_back():
    # each incident returns with probability 0.3: 1 / 0.7 incidents for each failure
    fleet = FailingParts("part", 1, Exponential(), 1e9)
    run = plan("stops", last=20_000, misdiagnosis=0.3)
    incidents, struck = 0, 0
    for number in range(20):
        found = replicate(run, failures([fleet], seed=0, replication=number), number)
        incidents += len(found.incidents)
        struck += len({each.at for each in found.incidents if each.times.get("rework", 0) > 0})
    assert incidents / struck == pytest.approx(1 / 0.7, rel=0.05)


def test_nodes_are_retired_after_their_last_repair():
    run = plan("stops", nodes=1, tiers=(2,), repair="1 s", retire_after=2)
    # place 0 fails five times: nodes 0, then both spares, then node 0 again, which retires, and a spare
    found = replicate(run, at(10, 20, 30, 40, 50, part=0), 0)
    assert found.retired == 2


@pytest.mark.parametrize(
    ("repair", "retire_after", "said"),
    [
        ("1 s", 1, "waits for a node that no repair gives back"),
        ("2 h", None, "does not progress: 1,000 failures in a row"),
    ],
)
def test_a_run_that_waits_for_a_node_without_end_says_so(repair, retire_after, said):
    # the failures of other nodes go on while the job stands still
    run = plan("stops", nodes=1, tiers=(0,), repair=repair, retire_after=retire_after)
    fleet = FailingParts("part", 4, Exponential(), 1e8)
    with pytest.raises(CannotFinishError, match=said):
        replicate(run, failures([fleet], seed=0, replication=0), 0)


@pytest.fixture(scope="module")
def where():
    job = load_job(
        "llama2_7b_train", settings={"parallelism.tp": 2, "parallelism.pp": 2, "parallelism.dp": 4}
    )
    return job, load_machine("dgx_a100_x2")


def test_states_that_symmetry_makes_equal_share_a_simulation(where):
    job, machine = where
    slow = SlowClass("gpu={gpu} compute=0.8 hbm=0.8", 1, 1, 8)
    alike: dict[object, list[int]] = {}
    steps = SimulatedSteps(job, machine, {0: slow}, lambda *_: 0)
    for gpu in range(16):
        key = steps.words(frozenset({(0, gpu)}))
        alike.setdefault(key, []).append(gpu)
    # 2 stages; replicas of two nodes of four replicas each by 2 ranks: the four places within a node remain
    assert len(alike) < 16
    gpus = next(gpus for gpus in alike.values() if len(gpus) > 1)
    faults = [parse_fault(slow.at(gpu)) for gpu in (gpus[0], gpus[-1])]
    first, last = (
        simulate(job, machine.with_faults([fault]), mode="hierarchical").step_time for fault in faults
    )
    assert first == last


def test_a_slow_gpu_makes_the_step_slower_and_states_are_simulated_once(where):
    slow = SlowClass("gpu={gpu} compute=0.8 hbm=0.8", 1, 1, 8)
    job, machine = where
    steps = SimulatedSteps(job, machine, {0: slow}, Subject(job, machine, "analytical").step_on)
    healthy = steps.of(frozenset())
    assert steps.of(frozenset({(0, 0)})) > healthy
    assert steps.key(frozenset({(0, 0)})) == steps.key(frozenset({(0, 1)}))
    assert steps.of(frozenset({(0, 0)})) == steps.of(frozenset({(0, 1)}))


def test_of_many_slow_parts_the_slowest_alone_count(where):
    job, machine = where
    words = SlowClass("gpu={gpu} compute=0.8 hbm=0.8", 1, 1, 8)
    calls, times = [], {0: 10, 1: 11, 2: 14, 3: 19}

    def step_on(machine, _):
        calls.append(machine)
        slowed = {gpu // 4 for gpu in machine.slowed}
        return sum(times[stage] - 10 for stage in slowed) + 10

    steps = SimulatedSteps(job, machine, {0: words}, step_on, together=2)
    three = frozenset({(0, 4), (0, 8), (0, 12)})
    assert steps.of(three) == 10 + 4 + 9 == steps.of(three - {(0, 4)})
    assert len(calls) == 4  # each alone, and the two slowest together
    assert (len(steps.simulated(three)), len(steps.simulated(three - {(0, 4)}))) == (4, 1)
    assert SimulatedSteps(job, machine, {0: words}, step_on, together=3).of(three) == 10 + 1 + 4 + 9


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"effect": "slows"}, "classes[0].fault: the effect slows needs it"),
        ({"fault": "gpu={gpu} compute=0.9"}, "classes[0].fault: the effect stops has none"),
        ({"effect": "pauses"}, "classes[0].lasts: the effect pauses needs it"),
        ({"effect": "hangs"}, "time_out: unset, and classes[0] hangs"),
        ({"effect": "slows", "fault": "gpu={gpu} compute=2"}, "classes[0].fault: "),
        ({"misdiagnosis": 1.5}, "classes[0].misdiagnosis"),
    ],
)
def test_what_an_effect_lacks_is_refused(keys, said):
    tree = {
        "classes": [{"name": "gpu", "mtbf": "2000 h"} | keys],
        "detection": "1 min", "diagnosis": "1 min", "repair": "1 h",
    }  # fmt: skip
    with pytest.raises(ConfigError) as refusal:
        load_reliability(tree)
    assert said in str(refusal.value)


def test_a_condition_that_is_none_is_refused():
    tree = {"classes": [], "detection": "1 s", "diagnosis": "1 s", "repair": "1 s", "tolerate": "slow"}
    with pytest.raises(ConfigError, match=r"tolerate: 'slow' is no condition"):
        load_reliability(tree)


def test_steps_of_a_job_are_simulated_under_its_faults(where):
    tree = {
        "classes": [
            {"name": "hot", "per": "job", "law": {"kind": "log", "at": ["5 h", "20 h"]}, "effect": "slows",
             "lasts": "10 h", "fault": "gpu=0 compute=0.8 hbm=0.8"},
        ],
        "detection": "1 min", "diagnosis": "1 min", "repair": "1 h", "tolerate": "step_slower < 90%",
    }  # fmt: skip
    job, machine = where
    plain = goodput(job, machine, tree, days=2, replications=1, mode="analytical").as_json()
    assert plain["time_s"]["slow_steps"] > 0 == plain["time_s"]["rework"]
    assert plain["simulations"] == 2
    strict = goodput(
        job, machine, tree | {"tolerate": "step_slower < 1%"}, days=2, replications=1, mode="analytical"
    )
    assert strict.replications[0].times["slow_steps"] < 130 * S < plain["time_s"]["slow_steps"] * S
