"""Caching changes no result, stays within its limit, and is not carried to other processes."""

import pickle
from itertools import pairwise

import pytest

from rapid_des.bounded_cache import BoundedCache
from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.network.faults import parse_fault
from rapid_des.simulation import simulate

pytestmark = pytest.mark.usefixtures("own_caches")

SMALL = {
    "model.layers": "2",
    "training.global_batch": "4",
    "training.sequence_length": "2048",
    "parallelism": "{tp: 2, pp: 2, dp: 2}",
}
TORI = {"fabric.0.size": "[2, 2]", "fabric.1.size": "2", "gpus_per_node": "4"}
JOBS = [
    {},
    {"training.recompute": "full", "training.bucket_parameters": "200000000"},
    {"training.schedule": "gpipe", "training.sequence_length": "1024"},
]


def same_parts(one, other):
    return (one.finish, one.breakdown, one.busiest, one.hops, one.folded) == (
        other.finish, other.breakdown, other.busiest, other.hops, other.folded
    )  # fmt: skip


@pytest.mark.parametrize(
    ("mode", "fault"),
    [("hierarchical", "link=0>1 bandwidth=0.5"), ("hybrid", "gpu=3 compute=0.8")],
)
def test_a_cache_that_other_jobs_have_filled_changes_no_result(monkeypatch, mode, fault):
    monkeypatch.setattr("rapid_des.modes.blocks.bounds._MOST_RANKS", 0)  # else so few ranks have no blocks
    faults = [parse_fault(fault)] if fault else []
    machine, cache = load_machine("torus2d_ring_a100_64", settings=TORI, faults=faults), BoundedCache()
    jobs = [load_job("llama3_1_70b_train_64", settings=SMALL | settings) for settings in JOBS]
    alone = [simulate(job, machine, mode=mode) for job in jobs]
    known = [*zip(jobs, alone, strict=True)]
    for job, expected in (*known, known[0]):
        assert same_parts(simulate(job, machine, mode=mode, cache=cache), expected)
    assert len(cache) > 0


@pytest.mark.parametrize("mode", ["flattened", "analytical"])
def test_machines_that_differ_in_their_device_or_their_links_share_what_is_equal(mode):
    # what collectives do by themselves is kept for machines of any device (`Machine.network`)
    job, cache, plays = load_job("llama3_1_70b_train_64", settings=SMALL), BoundedCache(), []
    for links, device in ({}, {}), ({}, {"hbm.bandwidth": "0.5x"}), ({"fabric.0.bandwidth": "0.5x"}, {}):
        machine = load_machine("torus2d_ring_a100_64", settings=TORI | links, device_settings=device)
        plays.append(len(cache))
        assert same_parts(simulate(job, machine, mode=mode, cache=cache), simulate(job, machine, mode=mode))
    grown = [after - before for before, after in pairwise([*plays, len(cache)])]
    assert grown[1] < grown[2] <= grown[0]


def test_the_least_recently_used_is_dropped_first():
    memory, made = BoundedCache(limit=10), []

    def make(key):
        made.append(key)
        return key

    def ask(key, weight=1):
        return memory.get_or_make(key, lambda: make(key), weight=lambda _: weight)

    assert [ask("a", 4), ask("b", 4), ask("a", 4), ask("c", 4)] == ["a", "b", "a", "c"]
    assert (made, memory.weight, len(memory)) == (["a", "b", "c"], 8, 2)  # b went: a was asked for later
    ask("a", 4)
    ask("b", 4)
    assert made == ["a", "b", "c", "b"]


def test_a_value_heavier_than_the_limit_is_never_cached():
    memory, made = BoundedCache(limit=10), []
    for _ in range(2):
        memory.get_or_make("small", lambda: made.append("small"), weight=lambda _: 3)
        memory.get_or_make("large", lambda: made.append("large"), weight=lambda _: 11)
    assert made == ["small", "large", "large"]
    assert memory.weight == 3


def test_a_copy_for_another_process_starts_empty():
    memory = BoundedCache(limit=10)
    memory.get_or_make("a", lambda: 1)
    copy = pickle.loads(pickle.dumps(memory))
    assert (copy.limit, copy.weight, len(copy)) == (10, 0, 0)
    assert memory.get_or_make("a", lambda: 2) == 1


def test_a_failure_is_not_cached():
    memory = BoundedCache(limit=10)
    with pytest.raises(ZeroDivisionError):
        memory.get_or_make("a", lambda: 1 // 0)
    assert memory.get_or_make("a", lambda: 7) == 7
