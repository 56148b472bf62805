"""The bench: nccl-tests' columns, sizes, bounds that hold, and clear errors."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from rapid_des.cli.topology_bench import bench as command
from rapid_des.errors import InputError
from rapid_des.machine import load_machine
from rapid_des.network.collectives import algorithms_for
from rapid_des.network.collectives.task import CollectiveType
from rapid_des.studies.collective_bench import OPERATIONS, bench, sizes_between


def test_sizes_go_by_the_factor_and_end_within():
    assert sizes_between("1KiB:10KiB", 2) == [1024, 2048, 4096, 8192]
    assert sizes_between("3MB") == [3_000_000]


@pytest.mark.parametrize("text", ["4:8", "8KiB:4KiB", "1KiB:2KiB:3KiB", "0B:1B"])
def test_senseless_sizes_are_refused(text):
    with pytest.raises(InputError):
        sizes_between(text)


@pytest.mark.parametrize("machine", ["dgx_a100", "hypercube_a100"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_algorithm_beats_the_bound(machine, operation):
    for name in algorithms_for(CollectiveType[operation.upper()]):
        opened = load_machine(machine, settings=[(f"collectives.{operation}", name)])
        for row in bench(opened, operation, [2048, 2**20], gpus=8, engine="simpy"):
            assert 0 < row.bound.time <= row.duration, f"{name} at {row.size} B"
            assert row.algorithm == name


def test_bus_bandwidth_is_that_of_nccl_tests():
    (row,) = bench(load_machine("dgx_a100"), "all_gather", [8 * 2**20], engine="simpy")
    # 7/8 of all shards together
    assert row.bus_bandwidth == pytest.approx(8 * 2**20 * 7 / 8 / (row.duration * 1e-12))


def test_the_command_prints_a_table_json_and_a_picture(tmp_path):
    run = CliRunner()
    words = ["dgx_a100", "--op", "all_reduce", "--sizes", "1KiB:4KiB", "--factor", "2", "--engine", "simpy"]
    shown = run.invoke(command, words, catch_exceptions=False)
    assert [line.split()[0] for line in shown.output.splitlines()[3:]] == ["1024", "2048", "4096"]
    picture = tmp_path / "bench.svg"
    plain = run.invoke(command, [*words, "--json", "--plot", str(picture)], catch_exceptions=False)
    rows = json.loads(plain.output)["rows"]
    assert [row["size_bytes"] for row in rows] == [1024, 2048, 4096]
    assert rows[0]["bound"] == "latency"
    assert picture.read_text().startswith("<?xml")


def test_nccls_own_time_stands_beside(tmp_path):
    words = ["dgx_a100", "--sizes", "64MiB", "--nccl", "a100_nvswitch", "--json", "--engine", "simpy"]
    (row,) = json.loads(CliRunner().invoke(command, words, catch_exceptions=False).output)["rows"]
    # measured on 8 A100: 616 us
    assert row["nccl_us"] == pytest.approx(616, rel=0.1)
    assert (row["nccl_algorithm"], row["nccl_protocol"]) == ("ring", "simple")


def test_an_unknown_operation_lists_the_known():
    with pytest.raises(InputError, match="--op: 'allreduce' is not one of all_reduce, reduce"):
        bench(load_machine("dgx_a100"), "allreduce", [1024], engine="simpy")
    with pytest.raises(InputError, match="--gpus: 9 is not one of 2 to 8"):
        bench(load_machine("dgx_a100"), "all_reduce", [1024], gpus=9, engine="simpy")
