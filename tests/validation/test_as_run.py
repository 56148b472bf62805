"""Collectives as runs have them, beside the closed form and beside measurements."""

from __future__ import annotations

import csv

import msgspec
import pytest

from rapid_des.chakra.trace import CollectiveType, one_collective
from rapid_des.machine import load_machine
from rapid_des.network.collectives.libraries.nccl import GroupPlacement
from rapid_des.network.collectives.libraries.serving_kernels import exchange_cost, load_kernels
from rapid_des.network.specs import DeepEp
from rapid_des.simulation import replay
from validation import DataFolder, open_folder, validate
from validation.measurements import CHECKOUT_DATA
from validation.network.as_run import Collective, Runs, alike
from validation.network.nccl import NcclTest, microseconds

AR = CollectiveType.ALL_REDUCE
KIB, MIB = 2**10, 2**20
RACKS = "gb200_nvl72_x8", "gb300_nvl72_x8"
COLUMNS = "gpu,op,ranks,gpus_per_node,bytes,time_us_out,case_id\n"


def gather(ranks):
    return one_collective(ranks, CollectiveType.ALL_GATHER, 256 * MIB, stream="dp")


def written(tmp_path, name, columns, *rows):
    (tmp_path / "collectives").mkdir()
    (tmp_path / "collectives" / name).write_text(columns + "\n".join(rows) + "\n")
    return DataFolder(tmp_path, split=False)


def closed(fabric, ranks, per_node, size):
    return microseconds(NcclTest("c", 1.0, "all_reduce", size, ranks, per_node, fabric))


@pytest.mark.parametrize("size", [KIB, 64 * KIB, 4 * MIB, 256 * MIB])
def test_a_collective_in_a_node_takes_what_the_closed_form_says(size):
    ask = Runs().ask(Collective("hgx_b200", AR, 1, 8), size)
    assert ask() == pytest.approx(closed("nvlink5", 8, 8, size), rel=0.002)


def test_a_group_that_is_no_part_of_the_fabric_takes_as_long():
    # 4 of 8 GPUs on 3 of 32 nodes: whole nodes, planes or dimensions are none of these
    ask = Runs().ask(Collective("aws_p5_x32", AR, 3, 4), 64 * MIB)
    assert ask() == pytest.approx(closed("h100_efa", 12, 4, 64 * MIB), rel=0.02)


@pytest.mark.parametrize("size", [KIB, MIB, 256 * MIB])
def test_rings_among_gpus_with_a_link_to_every_other_take_all_of_these_links(size):
    # four A100, 100 GB/s between any two: 300 GB/s a GPU as through a switch; one ring over one link of each
    # would take 2.2 times as long
    ask = Runs().ask(Collective("hgx_a100_x4", AR, 1, 4), size)
    assert ask() == pytest.approx(closed("a100_nvswitch", 4, 4, size), rel=0.002)


def test_two_gpus_of_such_a_mesh_have_the_link_between_them():
    ask = Runs().ask(Collective("hgx_a100_x4", AR, 1, 2), 256 * MIB)
    # a ring carries 224 of 300 GB/s (a100_nvswitch), so 74.7 of one link's 100, less its ramp and own copy
    assert 0.9 * 74.7 < 256 * MIB / ask() / 1e3 < 74.7


def test_a_message_that_is_split_over_planes_has_the_ports_of_all():
    # one GPU on each of two racks; 800 Gb/s in two planes against 400: half the time but for the start
    one, two = (replay(gather([0, 72]), load_machine(name)) for name in RACKS)
    assert one.step_time / two.step_time == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize(
    ("kernel", "machine", "kernels", "nodes", "per_node"),
    [
        ("low_latency", "aws_p5_x32", "h100", 2, 8),
        # the normal kernel sends a token once to each node, and once to each rank there, however many of its
        # eight experts these have
        ("normal", "aws_p5_x32", "h100", 2, 8),
        ("normal", "gb200_nvl72", "nvlink5", 1, 4),
    ],
)
@pytest.mark.parametrize("size", [256 * KIB, 64 * MIB])
def test_an_exchange_takes_what_the_kernel_takes(kernel, machine, kernels, nodes, per_node, size):
    keys = {"library": "deepep", "kernels": kernels, "kernel": kernel, "direction": "dispatch"}
    keys |= {"experts": 256, "topk": 8, "multiprocessors": 24}
    library = msgspec.convert(keys, DeepEp)
    cost = exchange_cost(
        load_kernels(kernels), library, GroupPlacement(nodes * per_node, nodes, per_node), size
    )
    case = Collective(machine, CollectiveType.ALL_TO_ALL, nodes, per_node, tuple(keys.items()))
    assert Runs().ask(case, size)() == pytest.approx(cost.duration / 1e6, rel=0.03)


@pytest.mark.parametrize("nodes", [1, 2])
def test_sends_take_what_a_communicator_of_two_says(nodes):
    ask = Runs().ask(Collective("dgx_h100_superpod_32", None, nodes, 2 // nodes), 64 * MIB)
    test = NcclTest("c", 1.0, "sendrecv", 64 * MIB, 2, 2 // nodes, "h100_ndr")
    assert ask() == pytest.approx(microseconds(test), rel=0.01)


def test_sizes_of_one_group_are_simulated_together_and_each_as_if_alone():
    together, case = Runs(), Collective("hgx_b200", AR, 1, 8)
    asked = {size: together.ask(case, size) for size in (KIB, MIB, 32 * MIB)}
    alone = {size: Runs().ask(case, size)() for size in asked}
    assert {size: ask() for size, ask in asked.items()} == alone


def test_machines_that_differ_in_their_gpus_alone_share_runs():
    assert alike("dgx_h200") == alike("dgx_h100") == "dgx_h100"
    assert alike("hgx_b300") == "hgx_b300"  # its engines' kernels have other limits
    assert alike("gb200_nvl72") == "gb200_nvl72"


def test_topics_have_the_rows_of_their_files_and_say_why_some_are_not_run(tmp_path):
    rows = ["H100,all_reduce,4,2,1073741824,22000,a", "H100,sendrecv,20,2,1073741824,42000,b"]
    folder = written(tmp_path, "nccl_h100_ndr_10node.csv", COLUMNS, *rows)
    report = validate(folder, ["network/as-run"])
    figures, sends = (report["topics"][f"network/as-run/{name}"] for name in ("ndr/large", "sends/ndr/large"))
    assert "libraries" in report["constants"]["topologies/dgx_h100_superpod_32.yaml"]
    assert figures["rows"] == sends["rows"] == 1
    assert figures["unsupported"] == sends["unsupported"] == {}


def test_a_layout_that_the_machine_has_not_is_not_supported(tmp_path):
    folder = written(
        tmp_path,
        "nccl_aws_p5_efa.csv",
        "gpu,op,ranks,bytes,time_us_out,case_id\n",
        "H100,all_reduce,512,1073741824,22000,a",
    )
    figures = validate(folder, ["network/as-run"])["topics"]["network/as-run/aws-p5/all_reduce"]
    assert figures["unsupported"] == {"aws_p5_x32 has no 64 nodes of 8 GPUs": 1}


@pytest.mark.skipif(not CHECKOUT_DATA.is_dir(), reason="the data ships with a checkout only")
def test_runs_over_nodes_are_near_measurements(tmp_path):
    name, file = "network/as-run/ndr/large", "collectives/nccl_h100_ndr_10node.csv"
    rows = open_folder(None).read(file)[::3]
    (tmp_path / "collectives").mkdir()
    with (tmp_path / file).open("w", newline="") as opened:
        table = csv.DictWriter(opened, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    figures = validate(DataFolder(tmp_path, split=False), [name])["topics"][name]
    assert figures["rows"] > 10
    assert figures["mean_abs_pct"] <= 4


@pytest.mark.skipif(not CHECKOUT_DATA.is_dir(), reason="the data ships with a checkout only")
@pytest.mark.parametrize(
    ("topic", "most"),
    [
        ("network/as-run/nccl/A100-SXM4-80GB/all_gather/large", 8),
        ("network/as-run/nccl/B300-SXM/reduce_scatter/large", 8),
        ("network/as-run/nccl/GB200-NVL72/all_reduce/small", 12),
        ("network/as-run/custom-all-reduce/GB200-NVL72", 8),
    ],
)
def test_runs_are_as_near_to_measurements_as_the_closed_form(topic, most):
    run, form = topic, topic.replace("as-run/", "")
    figures = validate(open_folder(None), [run, form])["topics"]
    assert figures[run]["rows"] == figures[form]["rows"] > 0
    assert figures[run]["mean_abs_pct"] <= most
    assert figures[run]["mean_abs_pct"] == pytest.approx(figures[form]["mean_abs_pct"], abs=0.5)
