"""Blocks and graphs that slow links do not reach are not run again, and nothing changes by that."""

import pytest

from rapid_des import BoundedCache, load_job, load_machine, parse_fault, simulate

JOB = {"model.layers": 2, "training.global_batch": 2, "parallelism": "{tp: 4, pp: 2, dp: 2}"}
TORI = {"fabric.0.size": "[2, 4]", "fabric.1.size": "2", "gpus_per_node": "4"}
FAULTS = (
    "link=0-1 bandwidth=0.37",  # in a block
    "link=1-3 bandwidth=0.55 latency=3us",  # the same graph, other durations
    "link=0-1 down=true",  # other routes
    "gpu=7 compute=0.8",
)


@pytest.mark.usefixtures("own_caches")
def test_a_step_with_a_fault_is_the_same_whatever_was_simulated_before(monkeypatch):
    monkeypatch.setattr("rapid_des.modes.blocks.bounds._MOST_RANKS", 0)  # else so few ranks have no blocks
    mode = "hierarchical"
    machine = load_machine("torus2d_ring_a100_64", settings=TORI)
    job = load_job("llama3_1_70b_train_64", settings=JOB)
    shared = BoundedCache(1 << 28)
    healthy = simulate(job, machine, mode=mode, cache=shared)
    for text in FAULTS:
        hurt = machine.with_faults([parse_fault(text)])
        together, alone = (simulate(job, hurt, mode=mode, cache=cache) for cache in (shared, None))
        assert (together.finish, together.breakdown) == (alone.finish, alone.breakdown)
        assert together.hops == alone.hops
    assert simulate(job, machine, mode=mode, cache=shared).finish == healthy.finish


def test_a_rank_of_which_another_place_was_simulated_has_a_breakdown():
    machine, job = load_machine("torus2d_ring_a100_64"), load_job("llama3_1_70b_train_64")
    healthy = simulate(job, machine, mode="hierarchical")
    hurt = simulate(job, machine.with_faults([parse_fault("link=1-17 bandwidth=0.1")]), mode="hierarchical")
    # the faulty step follows the second rank of each group of four, the healthy one the first
    assert hurt.critical_rank % 4 == 1 and healthy.critical_rank % 4 == 0
    parts = healthy.rank_breakdown(hurt.critical_rank)
    assert sum(parts.values()) == healthy.step_time


def test_closed_forms_of_libraries_know_slow_links():
    machine = load_machine("dgx_a100")
    job = load_job("llama2_7b_train").replace(tp=1, pp=1, dp=8, sequence_parallel=False)
    slow = machine.with_faults([parse_fault("link=gpu2-switch0 bandwidth=0.3")])
    healthy, faulty = (simulate(job, on, mode="analytical").step_time for on in (machine, slow))
    simulated, flattened = (
        simulate(job, slow, mode=mode).step_time for mode in ("hierarchical", "flattened")
    )
    # NCCL's rings go at 230 GB/s of 300: at 90 they wait for the link
    assert 1.02 < faulty / healthy <= simulated / healthy
    assert abs(simulated - flattened) < 0.005 * flattened
