"""Fabrics on a page: each kind has its boxes, a box opens, and links have the colours of what they did."""

import numpy as np
import pytest

from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.modes.blocks.bounds import most_busy
from rapid_des.network.faults import parse_fault
from rapid_des.report.charts import PageSection
from rapid_des.report.fabric_boxes import boxes_of, layout_of
from rapid_des.report.link_measures import BINS, LinksSeen, links_seen, utilisation_of
from rapid_des.report.page.document import sections_html
from rapid_des.report.page.fabric import fabric_charts
from rapid_des.report.page.whole_run import fabric_of
from rapid_des.simulation import simulate


@pytest.mark.parametrize(
    ("name", "changes", "first", "boxes", "inside"),
    [
        # 8 x 8 x 8 GPUs in 4 x 4 x 4 blocks of 8
        ("torus_3d_a100", [("fabric.0.size", "[8, 8, 8]")], "block 0", 64, 8),
        # 8 racks of 72 GPUs, their NICs and a switch; 72 switches of the rails in 32 boxes
        ("gb200_nvl72_x8", (), "rack 0", 8 + 32, 2 * 72 + 1),
        # 128 nodes in 64 boxes, 32 leaves and 16 spines; two nodes have 16 GPUs, 16 NICs and 2 switches
        ("dgx_h100_superpod_128", (), "nodes 0 to 1", 64 + 32 + 16, 34),
        # 16 routers in groups of 4 with 64 GPUs and their NICs
        ("dragonfly_a100_256", (), "group 0", 4, 4 + 2 * 64),
    ],
)
def test_a_large_fabric_has_the_boxes_of_its_kind(name, changes, first, boxes, inside):
    machine = load_machine(name, settings=changes)
    layout = layout_of(machine)
    whole = boxes_of(layout)
    assert (whole.names[0], len(whole.names)) == (first, boxes)
    assert (whole.box >= 0).all()
    opened = boxes_of(layout, whole, 0)
    assert opened.inside == inside == (whole.box == 0).sum()


def test_a_fault_and_the_busiest_link_show_in_the_whole_and_in_their_box():
    machine = load_machine("gb200_nvl72_x8", faults=[parse_fault("link=gpu80-nic80 down=true")])
    busy = machine.fabric.link(200, machine.fabric.gpus + 200)
    seen = LinksSeen([utilisation_of({busy: 0.5}, len(machine.fabric))])
    whole, *opened = fabric_charts(machine, seen, room=300)[:-1]
    assert [each.name for each in opened] == ["rack 1", "rack 2"]  # GPU 80 is in rack 1, GPU 200 in rack 2
    racks = {node.title.partition(":")[0]: node for node in whole.nodes}
    assert (racks["rack 1"].state, racks["rack 2"].levels) == ("derated", [4])
    (down,) = [cable for cable in opened[0].cables if cable.state == "down"]
    assert down.link == "gpu80-nic80"
    (dark,) = [cable for cable in opened[1].cables if cable.levels == [4]]
    assert dark.link == "gpu200-nic200"


def test_links_are_busy_over_time_as_over_the_whole_step_and_the_path_is_part_of_that():
    few = {"model.layers": 2, "parallelism.tp": 2, "training.global_batch": 8}
    result = simulate(load_job("llama2_7b_train", settings=few), load_machine("dgx_a100"), trail=True)
    seen = links_seen(result.run)
    whole = seen.measures[0].values
    assert np.allclose(seen.over_time.sum(axis=0) / BINS, whole)
    (path,) = (measure.values for measure in seen.measures if measure.name == "critical path")
    assert path.any()
    assert (path <= whole + 1e-12).all()


def test_a_torus_of_131072_gpus_is_drawn_as_blocks_of_which_few_open():
    machine = load_machine("torus_3d_a100", settings=[("fabric.0.size", "[64, 64, 32]")])
    whole, *opened = fabric_charts(machine)
    assert len(whole.nodes) == 4 * 4 * 4
    assert [len(each.nodes) for each in opened] == [131_072 // 64]  # two would be more than 4,000 GPUs
    assert len(sections_html([PageSection("Fabric", [whole, *opened])])) < 8_000_000


@pytest.mark.parametrize("mode", ["hybrid", "analytical"])
def test_no_link_is_busier_than_modes_of_blocks_say_it_is_at_most(mode):
    job, where = load_job("llama2_7b_train", settings={"model.layers": 2}), load_machine("dgx_a100")
    whole, blocks = simulate(job, where), simulate(job, where, mode=mode)
    most, busy = most_busy(blocks.blocks), links_seen(whole.run).measures[0].values * whole.step_time
    assert (most >= busy - 1).all()
    assert most.max() < 3 * busy.max()
    section = fabric_of(blocks, None)
    assert "at most" in section.lead
    assert "fabric" in sections_html([section])
