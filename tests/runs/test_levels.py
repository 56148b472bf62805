"""Several levels of checkpoints: which one a failure leaves, what copies cost, and the best intervals."""

from math import sqrt

import pytest

from rapid_des import BoundedCache, goodput
from rapid_des.errors import ConfigError
from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.runs.checkpoints import PeerCopies
from rapid_des.runs.clock import replicate
from rapid_des.runs.failures import Failure
from rapid_des.runs.stretch import EVERYTHING, NODE, PROCESSES, CheckpointLevel, TrainingStretch
from rapid_des.runs.times import parse_time
from rapid_des.runs.treatment import NOTHING, RunPlan, Treatment

CACHE = BoundedCache()
"""The step, which is simulated once."""
S = 10**12
"""A second in picoseconds."""
LEVELS = tuple(
    CheckpointLevel(every, stall * S, survives=survives, load=parse_time(load))
    for every, stall, survives, load in (
        (2, 0, PROCESSES, "1 s"), (5, 1, NODE, "7 s"), (10, 3, EVERYTHING, "60 s")
    )
)  # fmt: skip
FILE = {
    "classes": [
        {"name": "gpu", "mtbf": "2000 h"},
        {"name": "software", "per": "job", "mtbf": "100 h", "takes": "nothing"},
    ],
    "detection": "1 min", "diagnosis": "1 min", "repair": "10 h",
    "checkpoint": {
        "interval": "auto", "storage": "1 GB/s",
        "nearer": [
            {"place": "peer", "interval": "auto", "share": 0.2},
            {"place": "host", "interval": "auto", "host_link": "50 GB/s"},
        ],
    },
}  # fmt: skip


def spent(*struck):
    treatments = tuple(Treatment(f"{n} nodes", NOTHING, NOTHING, NOTHING, n) for n in (0, 1, 2))
    plan = RunPlan(TrainingStretch(10 * S, LEVELS, 30), None, treatments, {})
    found = replicate(plan, iter([Failure(at * S, nodes, 0, 1, (0.5,) * 16) for at, nodes in struck]), 0)
    assert sum(found.times.values()) == found.wall
    return {cause: found.times[cause] / S for cause in ("rework", "restart_load")}


def test_a_stretch_with_several_levels_is_what_stepping_through_it_gives():
    course, moment = TrainingStretch(10, (CheckpointLevel(2, 1), CheckpointLevel(3, 5))), 0
    for step in range(1, 20):
        moment += 10 + (step % 2 == 0) + 5 * (step % 3 == 0)
        assert course.time_to(0, step) == moment
        assert (
            course.after(0, moment).steps == step == course.after(0, moment - 1).steps + (step % 6 in (1, 5))
        )
        assert course.saved(0, moment, course.levels[1]) == step // 3 * 3


@pytest.mark.parametrize(
    ("nodes", "rework", "load"),
    [
        (0, 5, 1),  # 16 steps take 160 + 3 + 3 = 164 s with their checkpoints: 5 s of step 17 are lost
        (1, 15, 7),  # back to step 15
        (2, 65, 60),  # back to step 10
    ],
)
def test_a_failure_goes_back_to_the_nearest_level_that_survives_it(nodes, rework, load):
    # stalls: 1 s after step 5, 1 + 3 after 10, 1 after 15; step 16 ends at 166 s
    assert spent((171, nodes)) == {"rework": rework, "restart_load": load}


def test_what_was_loaded_from_memory_does_not_survive_a_worse_failure():
    # the first failure goes back to step 15, by the peer's copy; the second one needs step 10 from storage
    first = 171
    assert spent((first, 1), (first + 12, 2)) == {"rework": 15 + 50 + 5, "restart_load": 67}


def test_void_results_leave_a_checkpoint_from_before_them():
    corrupt = Treatment("void", parse_time("30 s"), NOTHING, NOTHING, 0, effect="corrupts")
    plan = RunPlan(TrainingStretch(10 * S, LEVELS[2:], 30), None, (corrupt,), {})
    found = replicate(plan, iter([Failure(95 * S, 0, 0, 1, (0.5,) * 16)]), 0)
    assert found.times["rework"] == (125 - 3) * S  # step 10's checkpoint ends at 103 s, after the failure


@pytest.fixture(scope="module")
def where():
    return load_job("llama2_7b_train", settings={"parallelism.dp": 4}), load_machine("dgx_a100_x2")


def test_copies_to_peers_cost_what_the_fabric_says(where):
    job, machine = where
    copies = PeerCopies(machine, job.gpus, 0.25)
    # each GPU has a link of its own to the other node: 25 GB/s, 8 s for 200 GB
    alone = copies.alone(200 * 10**9)
    assert alone == 8 * S
    steps = {False: 10 * S, True: 12 * S}
    assert copies.cost(200 * 10**9, lambda on: steps[bool(on.faults)]) == (32 * S * 2 // 12, 32 * S)


def test_each_level_has_the_best_interval_for_the_failures_that_load_it(where):
    job, machine = where
    result = goodput(job, machine, FILE, days=5, replications=2, mode="analytical", cache=CACHE)
    host, peer, storage = result.plan.course.levels
    assert (host.survives, peer.survives, storage.survives) == (PROCESSES, NODE, EVERYTHING)
    for level, rate in ((host, 1 / 100), (peer, 16 / 2000)):  # failures an hour
        young = sqrt(2 * level.stall * 3600e12 / rate)
        assert max(level.every * int(result.step_time), level.write) == pytest.approx(
            max(young, level.write), rel=0.1, abs=2 * int(result.step_time)
        )
    assert [each["place"] for each in result.as_json()["nearer_checkpoints"]] == ["host", "peer"]


@pytest.mark.parametrize(
    ("near", "said"),
    [
        (
            {"place": "host", "interval": "1 h", "host_link": "0 B/s"},
            "nearer[0].host_link: a level in the memory of a host needs it",
        ),
        (
            {"place": "peer", "interval": "1 h", "share": 0.2, "host_link": "1 GB/s"},
            "nearer[0].host_link: no",
        ),
        ({"place": "peer", "interval": "1 ms", "share": 0.2}, "nearer[0].interval: 1 ms is shorter"),
    ],
)
def test_levels_that_lack_something_are_refused(where, near, said):
    tree = FILE | {"checkpoint": {"interval": "1 h", "storage": "1 GB/s", "nearer": [near]}}
    job, machine = where
    with pytest.raises(ConfigError) as refusal:
        goodput(job, machine, tree, days=5, replications=1, mode="analytical", cache=CACHE)
    assert said in str(refusal.value)
