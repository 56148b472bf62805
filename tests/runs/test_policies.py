"""What is done after a failure: in-place restarts, one replica's replacement, fewer replicas."""

from math import gamma
from typing import Any

import pytest

from rapid_des import BoundedCache, goodput, simulate
from rapid_des.errors import ConfigError
from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.runs.clock import replicate
from rapid_des.runs.failures import FailingParts, Failure, failures
from rapid_des.runs.laws import Exponential
from rapid_des.runs.policies import ReplicaPlaces
from rapid_des.runs.spares import Tier
from rapid_des.runs.steps import with_fewer_replicas
from rapid_des.runs.stretch import CheckpointLevel, TrainingStretch
from rapid_des.runs.times import parse_time
from rapid_des.runs.treatment import NOTHING, RunPlan, Treatment

CACHE = BoundedCache()
"""The step, which is simulated once."""
S = 10**12
"""A second in picoseconds."""


class Steps:
    """Steps that each missing replica makes 2 s longer."""

    def simulated(self, state):
        return frozenset({(0, tuple(map(str, sorted(state))))})

    def of(self, state):
        return (10 + 2 * sum(count for _, count in state)) * S


def played(policy, *struck, tiers=(), repair="0 s", **others):
    treatments = tuple(
        Treatment(f"{nodes} nodes", NOTHING, NOTHING, parse_time(repair), nodes) for nodes in (0, 1)
    )
    level = CheckpointLevel(6, 3 * S, load=parse_time("7 s"))
    plan = RunPlan(
        TrainingStretch(10 * S, (level,), 30), None, treatments,
        {"allocate": parse_time("20 s"), "start": parse_time("5 s")},
        tuple(Tier(count, NOTHING) for count in tiers), policy=policy, steps=Steps(), nodes=4,
        replicas=ReplicaPlaces(4, tuple(frozenset({place}) for place in range(4)), REDUNDANCY.get(policy, 1)),
        **others,
    )  # fmt: skip
    events = [Failure(at * S, nodes, place, 1, (0.5,) * 16) for at, nodes, place in struck]
    found = replicate(plan, iter(events), 0)
    assert sum(found.times.values()) == found.wall
    return found


def spent(policy, *struck, **others):
    return {cause: time / S for cause, time in played(policy, *struck, **others).times.items() if time}


REDUNDANCY = {"redundant": 2}
STEPS = {"steps": 300, "checkpoints": 15}


def test_a_restart_in_place_allocates_only_where_a_node_was_replaced():
    restart = {"rework": 5, "restart_start": 5, "restart_load": 7}
    assert spent("in_place", (68, 0, 0)) == STEPS | restart
    assert spent("in_place", (68, 1, 0)) == STEPS | restart | {"restart_allocate": 20}


def test_other_replicas_hold_the_state_of_one_that_failed():
    # 9 steps and a checkpoint have ended after 93 s
    assert spent("replica", (98, 1, 0)) == STEPS | {"rework": 5, "restart_allocate": 20, "restart_start": 5}
    assert spent("restart", (98, 1, 0))["rework"] == 35


def test_a_job_without_spares_goes_on_with_fewer_replicas_until_a_repair():
    # at 68 s back to step 6; 32 s of restart; training at 12 s a step from 100 s to the repair at 228 s:
    # six steps and a checkpoint of 3 s, then four steps, and 5 s of the next one, which are lost
    found = spent("shrink", (68, 1, 0), tiers=(0,), repair="160 s")
    assert found == STEPS | {
        "rework": 5 + 5, "restart_allocate": 40, "restart_start": 10, "restart_load": 14,
        "fewer_replicas": 10 * 2, "checkpoints": 15 + 3,
    }  # fmt: skip
    waits = spent("restart", (68, 1, 0), tiers=(0,), repair="160 s")
    assert waits["spare_wait"] == 160


def test_a_smaller_batch_after_a_shrink_trains_fewer_tokens():
    # as above, but each of the ten steps of 12 s of three replicas does the work of 7.5 s, and lacks a share
    among = {"tiers": (0,), "repair": "160 s", "batch": "smaller"}
    found = played("shrink", (68, 1, 0), **among)
    assert (found.steps, found.lacking) == (30, 10)
    assert found.times["steps"] == (20 * 10 + 10 * 7.5) * S
    assert found.times["fewer_replicas"] == 10 * 4.5 * S
    # 120 shares are 30 steps of four replicas: ten that lack one are made up for by three steps more
    longer = played("shrink", (68, 1, 0), shares=120, **among)
    assert (longer.steps, longer.lacking) == (33, 10)
    assert longer.wall - found.wall == (30 + 3) * S  # and the checkpoint after step 33


def test_a_node_waits_for_a_spare_of_its_own_unit():
    # nodes 0 and 1 are a unit with one spare, 2 and 3 another: the second failure in a unit waits
    among = {"tiers": (1,), "repair": "160 s", "spares_unit": 2}
    assert "spare_wait" not in spent("in_place", (5, 1, 0), (70, 1, 2), **among)
    # out at 5 s and back at 165 s; the other node of the unit fails at 70 s
    assert spent("in_place", (5, 1, 0), (70, 1, 1), **among)["spare_wait"] == 165 - 70
    among["spares_unit"] = None
    assert spent("in_place", (5, 1, 0), (70, 1, 2), **among)["spare_wait"] == 165 - 70
    among["tiers"] = (2,)
    assert "spare_wait" not in spent("in_place", (5, 1, 0), (70, 1, 1), **among)


@pytest.mark.parametrize(
    ("spares", "said"),
    [
        ({"hot": 1, "per": "row"}, "spares.per: 'row' is not one of gpu, node, half"),
        ({"hot": 1, "per": "half"}, "spares.per: half has 4 GPUs, a node 8; allowed: whole nodes"),
        (
            {"hot": 1, "per": "node"},
            "spares: 1 spare nodes and 1 of the job, DGX A100 has 1; allowed: up to 0",
        ),
    ],
)
def test_units_without_whole_nodes_are_refused(spares, said):
    tree: dict[str, Any] = {"classes": [], "detection": "0 s", "diagnosis": "0 s", "repair": "0 s"}
    tree |= {"spares": spares, "domains": {"half": 4}}
    with pytest.raises(ConfigError) as refusal:
        goodput(
            load_job("llama2_7b_train"),
            load_machine("dgx_a100"),
            tree,
            days=1,
            mode="analytical",
            cache=CACHE,
        )
    assert said in str(refusal.value)


def test_the_last_replica_waits():
    found = spent("shrink", *((10 + place, 1, place) for place in range(4)), tiers=(0,), repair="100 s")
    assert found["spare_wait"] > 0


def test_redundant_replicas_endure_as_many_failures_as_chance_allows():
    # N replicas whose data r can compute: after k failures all r of some data are out with a probability of
    # about 1 - exp(-N (k/N)^r), so that Γ(1 + 1/r) N^(1 - 1/r) failures are endured
    count, redundancy, runs = 100, 2, 60
    replicas = ReplicaPlaces(count, tuple(frozenset({place}) for place in range(count)), redundancy)
    plan = RunPlan(
        TrainingStretch(10 * S, (CheckpointLevel(6, S),)), 10**7 * S,
        (Treatment("node", NOTHING, NOTHING, parse_time("100 y"), 1),), {}, (Tier(0, NOTHING),),
        policy="redundant", steps=Steps(), nodes=count, replicas=replicas,
    )  # fmt: skip
    fleet, endured = FailingParts("node", count, Exponential(), 5e12), 0
    for number in range(runs):
        incidents = replicate(plan, failures([fleet], seed=0, replication=number), number).incidents
        waits = next(place for place, each in enumerate(incidents) if "spare_wait" in each.times)
        endured += len({each.part for each in incidents[:waits]})
    assert endured / runs == pytest.approx(
        gamma(1 + 1 / redundancy) * count ** (1 - 1 / redundancy), rel=0.15
    )


def test_redundant_replicas_compute_the_data_of_those_that_are_out():
    # replica 1 is out from 68 s to 228 s; nothing but the step that was going on is lost
    found = spent("redundant", (68, 1, 1), tiers=(0,), repair="160 s")
    assert found["fewer_replicas"] > 0
    assert "spare_wait" not in found
    assert found["rework"] < 20


@pytest.fixture(scope="module")
def where():
    return load_job("llama2_7b_train", settings={"parallelism.dp": 4}), load_machine("dgx_a100_x2")


def test_fewer_replicas_keep_the_batch(where):
    job = with_fewer_replicas(where[0], 1)
    assert job.spec.parallelism.dp == 3
    assert job.training.global_batch >= where[0].training.global_batch > job.training.global_batch - 3


def test_fewer_replicas_may_have_a_smaller_batch(where):
    job, batch = with_fewer_replicas(where[0], 1, smaller=True), where[0].training.global_batch
    assert job.training.global_batch == batch * 3 // 4
    assert job.micro_batches == where[0].micro_batches


@pytest.mark.parametrize(
    ("settings", "policy", "said"),
    [
        ({"parallelism.dp": 1}, "shrink", "policy: shrink needs replicas, the job has dp 1"),
        (
            {"parallelism.dp": 4, "training.zero_stage": 1},
            "replica",
            "policy: replica needs replicas with the",
        ),
        ({}, "restart", "batch: 'smaller' goes with the policy shrink, not restart; allowed: keep"),
    ],
)
def test_policies_that_need_what_the_job_has_not_are_refused(settings, policy, said):
    tree = {"classes": [], "detection": "0 s", "diagnosis": "0 s", "repair": "0 s", "policy": policy}
    tree |= {"batch": "smaller"} if policy == "restart" else {}
    job, machine = load_job("llama2_7b_train", settings=settings), load_machine("dgx_a100_x2")
    with pytest.raises(ConfigError) as refusal:
        goodput(job, machine, tree, days=1, replications=1, mode="analytical", cache=CACHE)
    assert said in str(refusal.value)


SHRINKING = {
    "classes": [{"name": "node", "per": "node", "law": {"kind": "log", "at": ["5 h"], "parts": [1]}}],
    "detection": "0 s", "diagnosis": "0 s", "repair": "10 h", "policy": "shrink",
    "checkpoint": {"interval": "1 h", "stall": "1 s"}, "spares": {"hot": 0},
}  # fmt: skip


def test_a_job_shrinks_by_the_replicas_of_a_node_at_simulated_steps(where):
    tree = SHRINKING
    job = load_job(where[0], settings={"parallelism.tp": 8, "parallelism.pp": 1, "parallelism.dp": 2})
    result = goodput(job, where[1], tree, days=1, replications=1, mode="analytical", cache=CACHE)
    times = result.replications[0].times
    assert times["fewer_replicas"] > 4 * 3600 * S
    waits = goodput(
        job, where[1], tree | {"policy": "restart"}, days=1, replications=1, mode="analytical", cache=CACHE
    )
    assert waits.replications[0].times["spare_wait"] == 10 * 3600 * S
    assert result.goodputs > waits.goodputs


def test_tokens_are_counted_where_the_batch_is_smaller(where):
    # one of two replicas is out for ten hours of a day
    job = load_job(where[0], settings={"parallelism.tp": 8, "parallelism.pp": 1, "parallelism.dp": 2})
    tree = SHRINKING | {"batch": "smaller"}
    result = goodput(job, where[1], tree, days=1, replications=1, mode="analytical", cache=CACHE)
    run, healthy = result.replications[0], result.step_time
    # the step of one replica reduces no gradients: it is shorter than that of both
    alone = simulate(with_fewer_replicas(job, 1, smaller=True), where[1], mode="analytical").step_time
    assert 0.999 < run.lacking * alone / (10 * 3600 * S) <= 1
    assert result.tokens == [(2 * run.steps - run.lacking) * job.tokens // 2]
    assert result.figures["tokens_per_day"].mean == pytest.approx(result.tokens[0], rel=1e-9)
    in_steps = result.goodputs[0] * 24 * 3600 * S / healthy
    assert in_steps == pytest.approx(result.tokens[0] / job.tokens, abs=1)
    asked = goodput(
        job, where[1], tree, tokens=result.tokens[0], replications=1, mode="analytical", cache=CACHE
    )
    assert asked.replications[0].wall == pytest.approx(run.wall, rel=0.001)
    assert result.tokens[0] <= asked.tokens[0] < result.tokens[0] + job.tokens
