"""The bench: nccl-tests' columns, sizes, bounds that hold, and clear errors."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from rapid_des.chakra.trace import CollectiveType
from rapid_des.cli.topology import bench as command
from rapid_des.errors import InputError, UnsupportedByEngine
from rapid_des.machine import load_machine
from rapid_des.network.collectives import algorithm, algorithms_for
from rapid_des.program.collectives.select import Planner
from rapid_des.simulation import replay
from rapid_des.studies.collective_bench import (
    OPERATIONS,
    Question,
    StatedAlgorithm,
    chosen,
    each_answer,
    sizes_between,
)
from rapid_des.studies.traffic import messages
from tests.cli.shell import call as shell
from tests.program.machines import dimension, machine, ring, switch


def answer(where, question, engine="auto"):
    return list(each_answer(where, question, engine=engine))


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
        for row in answer(opened, Question(operation, [2048, 2**20], gpus=8), engine="compiled"):
            assert 0 < row.bound.time <= row.duration, f"{name} at {row.size} B"
            assert row.algorithm == name


def test_bus_bandwidth_is_that_of_nccl_tests():
    (row,) = answer(load_machine("dgx_a100"), Question("all_gather", [8 * 2**20]), engine="simpy")
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
    (row,) = json.loads(CliRunner().invoke(command, words, catch_exceptions=False).stdout)["rows"]
    # measured on 8 A100: 616 us
    assert row["nccl_s"] == pytest.approx(616e-6, rel=0.1)
    assert (row["nccl_algorithm"], row["nccl_protocol"]) == ("ring", "simple")


def test_rotated_dimensions_use_all_links_of_a_torus():
    settings = [("fabric.0.size", "[4, 4]"), ("collectives.default", "ring")]
    torus = load_machine("torus_2d_a100", settings=settings)
    (ring,) = answer(torus, Question("all_reduce", [2**24]), engine="simpy")
    (rotated,) = answer(
        torus, Question("all_reduce", [2**24], stated=StatedAlgorithm("torus")), engine="simpy"
    )
    # one ring uses one of four links of every GPU one way
    assert 3 < ring.duration / rotated.duration <= 4.2
    assert rotated.bound.time <= rotated.duration
    assert rotated.algorithm == "torus"


def test_messages_take_as_long_as_the_collective_that_they_are():
    machine = load_machine("dgx_a100", settings=[("collectives.all_reduce", "ring")])
    (asked,) = answer(machine, Question("all_reduce", [2**20]), engine="simpy")
    ring = algorithm("ring")(CollectiveType.ALL_REDUCE, 8, 2**20)
    assert replay(messages(ring, range(8)), machine.native, engine="simpy").step_time == asked.duration


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--algorithm", "rign"), "--algorithm: 'rign' is not a collective algorithm; allowed: ring, "),
        (("--algorithm", "bruck"), "--algorithm: 'bruck' does not do all_reduce; it does all_gather"),
        (("--algorithm", "auto", "--chunks", "2"), "--chunks: 2; allowed: 1, as auto chooses chunks itself"),
        (("--algorithm", "ring", "--op", "sum"), "--op: 'sum' is not one of all_reduce, "),
    ],
)
def test_a_wrong_option_is_named_as_it_was_given(words, told):
    refused = shell("topology", "bench", "dgx_a100", "--sizes", "1MiB", *words)
    assert refused.code == 2
    assert told in refused.err


def test_chunks_pipeline_a_tree():
    machine = load_machine("torus_2d_a100", settings=[("fabric.0.size", "[4, 4]")])
    whole, parts = (
        answer(
            machine,
            Question("broadcast", [2**24], stated=StatedAlgorithm("mesh_tree", chunks)),
            engine="simpy",
        )[0].duration
        for chunks in (1, 8)
    )
    assert parts < 0.6 * whole


def test_an_algorithm_of_a_file_is_timed(tmp_path):
    path = tmp_path / "exchange.csv"
    path.write_text(
        "# collective=all_reduce members=2 blocks=1\nsource,destination,block,count,reduces,after\n"
        "0,1,0,1,1,\n1,0,0,1,1,\n"
    )
    words = ["dgx_a100", "--gpus", "2", "--sizes", "1MiB", "--algorithm", str(path), "--json"]
    (row,) = json.loads(CliRunner().invoke(command, words, catch_exceptions=False).stdout)["rows"]
    # 1 MiB each way at 300 GB/s less headers, two hops of 350 ns
    microseconds = 2**20 / 300e3 * 272 / 256 + 0.7
    assert row["time_s"] == pytest.approx(microseconds * 1e-6, rel=0.01)
    with pytest.raises(InputError, match="does all_reduce of 2 members, not all_reduce of 8"):
        answer(load_machine("dgx_a100"), Question("all_reduce", [1024], stated=StatedAlgorithm(str(path))))


def test_switches_that_reduce_can_not_send_messages():
    with pytest.raises(UnsupportedByEngine, match="switches that reduce or multiply data cannot be replayed"):
        answer(load_machine("dgx_a100"), Question("all_reduce", [1024], stated=StatedAlgorithm("nvls")))


@pytest.mark.parametrize("operation", ["all_reduce", "reduce_scatter", "all_gather", "broadcast"])
@pytest.mark.parametrize("algorithm", ["nvls", "sharp"])
def test_algorithms_inside_switches_are_timed_beside_bounds_that_hold_for_them(operation, algorithm):
    words = ["dgx_h100", "--op", operation, "--sizes", "64KiB:64MiB", "--factor", "32"]
    words += ["--algorithm", algorithm, "--chunks", "8", "--json"]
    rows = json.loads(CliRunner().invoke(command, words, catch_exceptions=False).stdout)["rows"]
    assert {row["algorithm"] for row in rows} == {algorithm}
    assert all(0 < row["bound_pct"] <= 100 for row in rows)
    # at 64 MiB each comes within a factor of two of the link's rate
    assert rows[-1]["bound_pct"] > 50


def test_a_named_algorithm_is_the_machines():
    assert chosen("all_reduce", "direct", 1) == (None, ("machine.collectives.all_reduce=direct",))
    assert chosen("all_reduce", "torus", 2) == (StatedAlgorithm("torus", 2), ())
    assert chosen("all_reduce", "sharp", 1) == (None, ("machine.collectives.all_reduce=sharp",))
    words = ["dgx_a100", "--sizes", "1KiB", "--algorithm", "ring", "--chunks", "2", "--json"]
    (row,) = json.loads(CliRunner().invoke(command, words, catch_exceptions=False).stdout)["rows"]
    assert row["algorithm"] == "ring"


def test_an_unknown_operation_lists_the_known():
    with pytest.raises(InputError, match="--op: 'allreduce' is not one of all_reduce, reduce"):
        answer(load_machine("dgx_a100"), Question("allreduce", [1024]), engine="simpy")
    with pytest.raises(InputError, match="--gpus: 9 is not one of 2 to 8"):
        answer(load_machine("dgx_a100"), Question("all_reduce", [1024], gpus=9), engine="simpy")


@st.composite
def questions(draw):
    """A machine of any links, one-sided ones too, and a collective on all or some of its GPUs."""
    rates = st.sampled_from(["2 GB/s", "50 GB/s", "900 GB/s"])
    latencies = st.sampled_from(["0 ns", "100 ns", "3 us"])
    shapes = st.sampled_from(["ring", "mesh", "torus", "fully_connected", "switch", "hypercube"])
    dimensions = []
    for _ in range(draw(st.integers(1, 2))):
        shape = draw(shapes)
        keys = {"bandwidth": draw(rates), "latency": draw(latencies)}
        if shape not in ("fully_connected", "hypercube"):
            keys["reverse"] = {"bandwidth": draw(rates), "latency": draw(latencies)}
        dimensions.append(dimension(shape, draw(st.sampled_from([2, 3, 4])), **keys))
    header = draw(st.sampled_from(["0 B", "8 B", "64 B"]))
    protocol = {
        "payload": draw(st.sampled_from(["64 B", "4 KiB"])),
        "header": header,
        "acknowledgement": header,
        "packets_per_acknowledgement": 1,
        "packet_time": draw(st.sampled_from(["exact", "whole_ns"])),
    }
    modes = st.sampled_from(["store_and_forward", "cut_through", "fluid"])
    switching = {"mode": draw(modes), "protocol": protocol}
    operation = draw(st.sampled_from(OPERATIONS))
    names = sorted({"ring", "direct", "recursive"} & set(algorithms_for(CollectiveType[operation.upper()])))
    opened = machine(*dimensions, switching=switching, collectives={"default": draw(st.sampled_from(names))})
    gpus = draw(st.sampled_from([None, 2, opened.fabric.gpus - 1])) if opened.fabric.gpus > 2 else None
    return opened, Question(operation, draw(st.sampled_from([[1], [4], [30], [4097], [2**18]])), gpus=gpus)


@settings(max_examples=60, deadline=None)
@given(questions())
def test_no_collective_on_any_fabric_beats_its_bound(question):
    opened, asked = question
    for row in answer(opened, asked, engine="simpy"):
        assert row.bound.time <= row.duration


def test_every_size_is_planned_once(monkeypatch):
    planned, plan = [], Planner.plan

    def counted(self, call, ranks, rank):
        planned.append(call.size)
        return plan(self, call, ranks, rank)

    monkeypatch.setattr(Planner, "plan", counted)
    where = load_machine("dgx_a100", settings={"collectives.default": "ring"})
    rows = answer(where, Question("all_reduce", [1024, 2048]))
    assert [row.algorithm for row in rows] == ["ring", "ring"]
    assert planned == [1024, 2048]


def test_algorithms_are_those_of_the_first_ranks_lines():
    # the switch of each pair is another one, so that ranks call by different trees
    where = machine(switch(2), ring(4), collectives={"default": ["sharp", "ring"]})
    rows = answer(where, Question("all_reduce", [1024]))
    assert rows[0].algorithm == "sharp/ring/sharp"


@pytest.mark.parametrize("operation", ["gather", "all_gather"])
def test_of_less_than_a_byte_a_member_nothing_moves_at_no_rate(operation):
    answer = shell("topology", "bench", "dgx_a100", "--op", operation, "--sizes", "4B", "--json").json
    (row,) = answer["rows"]
    assert (row["time_s"], row["algbw_GBps"], row["bound_pct"]) == (0, 0, 0)


def test_all_algorithms_stand_beside_what_auto_takes():
    words = ["hypercube_a100", "--sizes", "16MiB", "--algorithm", "all"]
    plain = CliRunner().invoke(command, [*words, "--json"], catch_exceptions=False)
    rows = json.loads(plain.output)["algorithms"]
    assert rows[0]["algorithm"] == "hypercube"
    assert rows[0]["best"]
    assert [row["algorithm"] for row in rows if row["auto"]] == ["hypercube"]
    assert [row["time_s"] for row in rows] == sorted(row["time_s"] for row in rows)
    shown = CliRunner().invoke(command, words, catch_exceptions=False).output.splitlines()
    assert shown[3].endswith("best, auto")
    assert "hypercube" in shown[3]
    assert len(shown) == 3 + len(rows)
    with pytest.raises(InputError, match="goes without --chunks"):
        CliRunner().invoke(command, [*words, "--chunks", "4"], catch_exceptions=False)
