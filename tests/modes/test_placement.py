"""Ranks on GPUs of a job's choice: the same step where a fabric is alike, a shorter one where it is not."""

import json
from itertools import permutations
from random import Random
from typing import Any

import numpy as np
import pytest

from rapid_des.errors import ConfigError, UnsupportedByEngine
from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.modes.placement import cost_of, improved, searched, seconds_a_byte, traffic_of
from rapid_des.modes.pricing import price
from rapid_des.network.faults import parse_fault
from rapid_des.simulation import compare, simulate

SMALL = {"model.layers": 2, "training.global_batch": 4, "training.sequence_length": 1024}

RINGS = {"collectives": "{default: ring}"}


def job(folder=None, **parallelism):
    settings = SMALL | {f"parallelism.{key}": value for key, value in parallelism.items()}
    return load_job("llama2_7b_train", settings=settings, folder=folder)


SPLIT = {"tp": 4, "pp": 2, "dp": 2}


def test_a_switch_does_not_tell_placements_apart():
    machine = load_machine("dgx_a100")
    split = {"tp": 4, "pp": 1, "dp": 2}
    came = simulate(job(**split), machine)
    turned = simulate(job(**split, placement=[7, 6, 5, 4, 3, 2, 1, 0]), machine)
    assert turned.step_time == came.step_time
    assert dict(turned.breakdown) == dict(came.breakdown)
    assert any("ranks stand on GPUs 7, 6, 5, 4, 3, 2, 1, 0" in note for note in turned.notes)


def test_ranks_as_they_come_are_no_placement():
    machine = load_machine("torus_2d_a100", settings=RINGS)
    came, stated = (simulate(job(**SPLIT, placement=how), machine) for how in (None, list(range(16))))
    assert stated.step_time == came.step_time and stated.finish == came.finish


def test_ranks_that_a_shuffle_drove_apart_are_slower_and_auto_is_not():
    machine = load_machine("mesh_2d_a100")
    apart = list(range(16))
    Random(1).shuffle(apart)
    came, shuffled, found = (
        simulate(job(**SPLIT, placement=how), machine).step_time for how in (None, apart, "auto")
    )
    assert found <= came < shuffled


def test_order_that_puts_replicas_inside_is_mended():
    # groups of tp stand eight apart where dp and pp are inside: auto brings them together
    machine = load_machine("torus_2d_a100", settings=RINGS)
    outside = {**SPLIT, "order": ["dp", "pp", "tp", "cp", "ep"]}
    came, found = (simulate(job(**outside, placement=how), machine).step_time for how in (None, "auto"))
    assert found < came


def test_traffic_is_that_of_the_trace_and_distance_that_of_the_links():
    machine = load_machine("torus_2d_a100", settings=RINGS)
    trace = price(job(**SPLIT), machine).traces
    traffic = traffic_of(trace)
    assert traffic.shape == (16, 16) and not np.diag(traffic).any()
    assert (traffic[:4, 8:].sum(axis=1) > 0).all()  # activations to the next stage
    seconds = seconds_a_byte(machine, 16)
    links = 1 / machine.fabric.bandwidth[list(machine.router.route(0, 10))]
    assert seconds[0, 10] == pytest.approx(links.sum())


def test_no_swap_is_left_that_would_lower_the_sum():
    random = np.random.default_rng(3)
    traffic, places = random.random((9, 9)), random.random((9, 2))
    seconds = np.abs(places[:, None] - places[None]).sum(axis=2)
    np.fill_diagonal(traffic, 0)

    def cost(gpus):
        return (traffic * seconds[np.ix_(gpus, gpus)]).sum()

    found = improved(traffic, seconds, np.arange(9))
    assert cost(found) < cost(np.arange(9))
    for one, other in permutations(range(9), 2):
        swapped = found.copy()
        swapped[[one, other]] = swapped[[other, one]]
        assert cost(swapped) >= cost(found) - 1e-9


def test_a_file_beside_the_job_says_it(tmp_path):
    from rapid_des.config import to_tree

    machine = load_machine("torus_2d_a100", settings=RINGS)
    (tmp_path / "gpus.json").write_text(json.dumps([*range(8, 16), *range(8)]))
    stated = to_tree(job(**SPLIT).spec, "job") | {"model": "llama2_7b"}
    stated["parallelism"] |= {"placement": "gpus.json"}
    (tmp_path / "job.json").write_text(json.dumps(stated))
    result = simulate(load_job(tmp_path / "job.json"), machine)
    assert any("GPUs 8, 9, 10" in note for note in result.notes)


@pytest.mark.parametrize(
    ("placement", "problem"),
    [
        ([0, 1], "a list of 2 GPUs; allowed: 16, one for each rank"),
        ([0] * 16, "ranks 0 and 1: both on GPU 0"),
        ([*range(15), 99], "rank 15: '99' is no GPU of .*; allowed: 0 to 63"),
        ([*range(15), 10**30], "rank 15: '10+' is no GPU"),
        ("nowhere.json", "nowhere.json: cannot be read.*; allowed: auto, a list"),
        ("../nowhere.json", "'../nowhere.json' leads out of .*; allowed: auto, a list"),
    ],
)
def test_placements_that_can_not_be_are_refused(placement, problem):
    with pytest.raises(ConfigError, match=problem):
        simulate(job(**SPLIT, placement=placement), load_machine("torus_2d_a100", settings=RINGS))


def test_other_modes_and_slow_gpus_are_refused():
    machine = load_machine("torus_2d_a100", settings=RINGS)
    with pytest.raises(UnsupportedByEngine, match="parallelism.placement: .*take mode flattened"):
        simulate(job(**SPLIT, placement="auto"), machine, mode="analytical")
    found: Any = compare(job(**SPLIT, placement="auto"), machine)
    assert "take mode flattened" in found["hybrid"] and found["flattened"].step_time > 0
    slow = machine.with_faults([parse_fault("gpu=3 compute=0.5")])
    with pytest.raises(ConfigError, match="takes faults of links alone"):
        simulate(job(**SPLIT, placement="auto"), slow)
    cut = machine.with_faults([parse_fault("link=0-1 bandwidth=0.2")])
    came, chosen = (simulate(job(**SPLIT, placement=how), cut).step_time for how in (None, "auto"))
    assert chosen <= came


def test_the_search_lays_rings_out_so_that_neighbours_touch():
    # Two rings of eight on a 4 x 4 mesh: each fits round a block of 4 x 2, and its 8 messages cross 8 links.
    ranks = np.arange(16)
    traffic = np.zeros((16, 16))
    traffic[ranks, ranks // 8 * 8 + (ranks + 1) % 8] = 1
    row, column = np.divmod(ranks, 4)
    hops = abs(row[:, None] - row) + abs(column[:, None] - column)
    found = searched(traffic, hops.astype(float), [ranks])
    assert sorted(found) == ranks.tolist() and cost_of(traffic, hops, found) == 16
