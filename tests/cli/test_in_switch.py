"""Collectives inside switches from the command line: a step, its links, faults on the tree, refusals."""

import csv

import pytest

from tests.cli.shell import call, refused

JOB = ["llama2_7b_train", "--set", "job.parallelism.sequence_parallel=false"]
JOB += ["--set", "job.training.sequence_length=512", "--set", "job.training.global_batch=4"]
IN_SWITCH = ["--set", "machine.collectives.all_reduce={'algorithm': nvls, 'chunks': 8}"]


def test_a_step_whose_all_reduces_run_through_the_switch(tmp_path):
    path = tmp_path / "links.csv"
    plain = call("run", *JOB, "--on", "dgx_h100", "--json").json
    answer = call("run", *JOB, "--on", "dgx_h100", *IN_SWITCH, "--links", path, "--json")
    assert answer.code == 0, answer.err
    # all-reduces of pairs: both need S/2 + S/2 up and down by either way, the ring in more latencies
    assert answer.json["breakdown_s"]["tp"] != plain["breakdown_s"]["tp"]
    assert answer.json["step_time_s"] == pytest.approx(plain["step_time_s"], rel=0.1)
    rows = list(csv.DictReader(path.read_text().splitlines()))
    up = {
        row["link"]: int(row["bytes"])
        for row in rows
        if row["kind"] == "tp" and row["link"].endswith("switch0")
    }
    down = {
        row["link"]: int(row["bytes"])
        for row in rows
        if row["kind"] == "tp" and row["link"].startswith("switch0")
    }
    # NVLS with two members: all of the buffer and one half again go up, a half and a half come down
    assert 2 * sum(up.values()) == 3 * sum(down.values()) > 0


@pytest.mark.parametrize("mode", ["hybrid", "analytical"])
def test_modes_without_a_fabric_price_the_switch_too(mode):
    # without data parallelism nothing meets the all-reduces of tensor parallelism on their links
    words = [
        "run",
        *JOB,
        "--on",
        "dgx_h100",
        "--set",
        "job.parallelism.dp=1",
        "--set",
        "job.parallelism.tp=4",
        "--set",
        "job.host=null",
    ]
    flattened = call(*words, *IN_SWITCH, "--json").json
    answer = call(*words, *IN_SWITCH, "--mode", mode, "--json").json
    assert answer["breakdown_s"]["tp"] == pytest.approx(flattened["breakdown_s"]["tp"], rel=0.3)
    assert answer["step_time_s"] == pytest.approx(flattened["step_time_s"], rel=0.03)


def test_a_machine_without_switches_is_refused():
    said = refused(call("run", *JOB, "--on", "torus_2d_a100", *IN_SWITCH), 2)
    assert "collectives.all_reduce: 'nvls' works inside switches, of which the fabric has none" in said


def test_a_group_over_several_switches_is_refused():
    words = ["topology", "bench", "dgx_h100_x8", "--sizes", "1MiB", "--algorithm", "nvls"]
    said = refused(call(*words), 2)
    assert "needs one switch that all members reach without passing a GPU; the 64 members" in said


def test_a_member_that_lost_its_switch_can_not_finish():
    said = refused(
        call("run", *JOB, "--on", "dgx_h100", *IN_SWITCH, "--fault", "link=gpu1-switch0 down=true"), 3
    )
    assert "the 4 members of group 'model.0' have none left, as links are dead" in said
