"""Slow and dead GPUs: operators repriced for jobs, durations stretched for traces, the dead refused."""

from fractions import Fraction

import pytest

from rapid_des.device.device import load_device
from rapid_des.device.operators import Gemm
from rapid_des.device.pricing import operator_model
from rapid_des.errors import InputError, UnsupportedByEngine
from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.modes import pricing
from rapid_des.network.faults import parse_fault
from rapid_des.simulation import replay, simulate
from tests.program.machines import machine, ring
from tests.program.tracing import ALL_REDUCE, NANOSECOND, Nodes, trace_set

HALF, ONE = Fraction(1, 2), Fraction(1)
SHAPES = {
    "large": Gemm(m=8192, n=8192, k=8192, dtype="bf16"),
    "thin": Gemm(m=1, n=8192, k=8192, dtype="bf16"),
}


def broken(where, *faults):
    return where.with_faults([parse_fault(text) for text in faults])


@pytest.fixture(scope="module")
def job():
    return load_job("llama2_7b_train")


@pytest.fixture(scope="module")
def cluster():
    return load_machine("dgx_a100_x8")


def price(shape, **shares):
    device = load_device("a100_sxm_80gb").slowed(**shares)
    return operator_model(device).estimate(SHAPES[shape]).duration


@pytest.mark.parametrize(
    ("shape", "bound", "free"), [("large", "compute", "hbm"), ("thin", "hbm", "compute")]
)
def test_an_operator_slows_with_what_bounds_it(shape, bound, free):
    healthy = price(shape, compute=ONE, hbm=ONE)
    assert 1.7 < price(shape, **{bound: HALF, free: ONE}) / healthy < 2.05
    assert price(shape, **{bound: ONE, free: HALF}) / healthy < 1.35


def test_only_the_ranks_on_slow_gpus_are_repriced(job, cluster):
    healthy = pricing.price(job, cluster).traces.ranks
    slow = pricing.price(job, broken(cluster, "gpu=3 compute=0.5")).traces.ranks
    changed = [
        one.rank
        for one, other in zip(healthy, slow, strict=True)
        if (one.nodes.duration != other.nodes.duration).any()
    ]
    assert changed == [3]
    assert slow[3].nodes.duration.sum() > healthy[3].nodes.duration.sum()


def test_stated_durations_grow_by_the_compute_factor_and_a_note_says_so():
    nodes = Nodes()
    nodes.compute(1000 * NANOSECOND)
    result = replay(trace_set([nodes, nodes]), broken(machine(ring(2)), "gpu=1 compute=0.8"))
    assert result.finish == {0: 1000 * NANOSECOND, 1: 1250 * NANOSECOND}
    assert any("compute factor" in note for note in result.notes)


def test_a_rank_on_a_dead_gpu_is_refused_and_a_smaller_job_runs():
    nodes = Nodes()
    nodes.compute(1000)
    nodes.collective(ALL_REDUCE, 100)
    where = broken(machine(ring(4)), "gpu=2 down=true")
    with pytest.raises(InputError, match="gpu2 is down, and rank 2 of the job runs on it"):
        replay(trace_set([nodes] * 3), where)
    assert replay(trace_set([nodes] * 2), where).step_time > 0


@pytest.mark.parametrize(
    "fault",
    [
        "gpu=5 compute=0.5",
        "gpu=1 hbm=0.6",
        "link=0-1 bandwidth=0.5",
        "gpu=5 bandwidth=0.5",
        "link=0-16 bandwidth=0.1",
    ],
)
def test_hierarchical_runs_cost_faults_as_flattened_ones_where_no_links_are_shared(fault):
    # tp, dp and pp on a dimension each have links of their own; gpu5 is no first rank of its block. Rings go
    # one way: both ways the members of a block, which is run alone, wait less for the slow one (1 %).
    rings = [("collectives.default", "ring")]
    where = broken(load_machine("torus2d_ring_a100_64", settings=rings), fault)
    settings = [("training.global_batch", "16"), ("model.layers", "16")]
    subject = load_job("llama3_1_70b_train_64", settings=settings)
    flat, hierarchical = (
        simulate(subject, where, mode=mode).step_time for mode in ("flattened", "hierarchical")
    )
    assert hierarchical == pytest.approx(flat, rel=0.005)


def test_hierarchical_runs_refuse_places_hit_in_different_ways():
    where = broken(load_machine("torus2d_ring_a100_64"), "link=1-17 bandwidth=0.5", "link=6-22 bandwidth=0.5")
    with pytest.raises(UnsupportedByEngine, match="places 1, 2"):
        simulate(load_job("llama3_1_70b_train_64"), where, mode="hierarchical", strict=True)


def test_hierarchical_runs_refuse_faults_that_come_and_go():
    where = broken(load_machine("torus2d_ring_a100_64"), "link=0-1 bandwidth=0.5 from=1ms")
    with pytest.raises(UnsupportedByEngine, match="use --mode flattened"):
        simulate(load_job("llama3_1_70b_train_64"), where, mode="hierarchical")
