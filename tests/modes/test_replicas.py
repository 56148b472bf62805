"""Hierarchical runs that lower one replica for all: never another result than lowering them all."""

import pytest

from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.modes import execution
from rapid_des.modes.blocks import outer
from rapid_des.modes.execution import EngineChoice
from rapid_des.simulation import simulate
from rapid_des.values import replace

WHOLE = EngineChoice(fold=False)


def both(machine, nodes, *, algorithm=None, mode="hierarchical", **split):
    """Run four layers of Llama 2 7B in blocks with every replica lowered, and as it is done."""
    settings = [(f"parallelism.{axis}", str(size)) for axis, size in split.items()]
    settings += [("training.global_batch", str(4 * split["dp"])), ("model.layers", "4")]
    job = load_job("llama2_7b_train", settings=settings)
    options = [("collectives.default", f"{{algorithm: {algorithm}, chunks: 8}}")] if algorithm else []
    where = load_machine(
        machine,
        settings=[("fabric.1.size", str(nodes)), *options],
        device_settings=[("operators", "roofline")],
    )
    whole, once = (simulate(job, where, mode=mode, engine=choice) for choice in (WHOLE, EngineChoice()))
    assert replace(once, folded=1, wall_s=0, engine="") == replace(whole, folded=1, wall_s=0, engine="")
    assert whole.folded == 1
    return once


@pytest.mark.parametrize(
    ("nodes", "split"),
    [
        (16, {"pp": 2, "dp": 8}),
        (8, {"pp": 1, "dp": 8}),  # the group is the whole dimension
        (8, {"pp": 1, "cp": 2, "dp": 4}),  # each replica has two of its members
    ],
)
def test_one_replica_stands_for_all_on_a_switch(nodes, split):
    assert both("dgx_h100_x8", nodes, tp=8, **split).folded == split["dp"]


def test_links_that_choose_by_rank_tell_replicas_apart():
    # both neighbours' messages reach a member at one instant: the lower rank's goes first (R3)
    assert both("dgx_h100_x8", 8, algorithm="bidirectional_ring", tp=8, pp=1, dp=8).folded == 1


def test_blocks_of_different_sizes_tell_replicas_apart():
    assert both("dgx_h100_x8", 14, tp=8, pp=2, dp=7).folded == 1


def test_replicas_whose_routes_differ_in_length_are_not_one():
    # eight replicas on a torus of 4 x 4: the seventh's way to the eighth is not the first's to the second
    assert both("torus2d_ring_a100_64", 4, tp=4, pp=1, dp=8).folded < 8


@pytest.mark.parametrize("split", [{"pp": 2, "dp": 8}, {"pp": 1, "cp": 2, "dp": 4}, {"pp": 1, "dp": 7}])
def test_one_replica_stands_for_all_where_nothing_takes_a_link(split):
    once = both("dgx_h100_x8", 16, mode="hybrid", tp=8, **split)
    mates = split["dp"] * split.get("cp", 1)  # all of a stage
    assert once.folded == mates  # blocks of different sizes too: 7 does not divide the gradients


@pytest.mark.parametrize(
    "axes",
    [
        {"tp": 8, "dp": 2},
        {"tp": 4, "cp": 2, "dp": 2},
        {
            "tp": 4,
            "cp": 2,
            "dp": 2,
            "cp_kind": "ring",
        },  # its messages stay in the group: nobody stands for all
    ],
)
def test_one_rank_stands_for_its_inner_group_in_blocks_by_closed_forms(axes):
    both("dgx_h100_x8", 2, mode="analytical", pp=1, **axes)


def test_replicas_whose_messages_take_other_ways_are_not_one():
    # on a torus the stages of some replicas are farther apart than those of the first
    assert both("torus2d_ring_a100_64", 4, mode="hybrid", tp=2, pp=4, dp=3).folded < 3


EXPERTS = {
    "model.layers": 2,
    "model.exceptions": "[]",
    "parallelism.layers": "even",
    "training.global_batch": 16,
    "training.schedule": "1f1b",
}


@pytest.mark.parametrize(
    ("mates", "split"),
    [
        (16, {"pp": 2, "dp": 16, "ep": 8}),  # two groups of experts a stage
        (16, {"pp": 2, "tp": 2, "dp": 8, "ep": 8, "etp": 1, "sequence_parallel": True}),
        (16, {"pp": 2, "cp": 2, "dp": 8, "ep": 4}),
    ],
)
def test_one_rank_stands_for_its_stage_where_experts_spread_over_replicas(mates, split):
    settings = EXPERTS | {f"parallelism.{axis}": size for axis, size in split.items()}
    job = load_job("deepseek_v3_train_2048", settings={key: str(value) for key, value in settings.items()})
    machine = load_machine("dgx_h100_x8", device_settings=[("operators", "roofline")])
    whole, once = (
        simulate(job, machine, mode="analytical", engine=choice, allow_oom=True)
        for choice in (WHOLE, EngineChoice())
    )
    assert replace(once, folded=1, wall_s=0, engine="") == replace(whole, folded=1, wall_s=0, engine="")
    assert once.folded == mates and whole.folded == 1


def test_one_gpu_stands_for_its_node_where_a_large_graph_has_experts_outside_blocks(monkeypatch):
    monkeypatch.setattr(outer, "_MOST_WHOLE", 16)  # as if these 32 ranks were over a thousand
    monkeypatch.setattr(execution, "_WORTH_FOLDING_S", 0)
    settings = EXPERTS | {"parallelism.pp": 2, "parallelism.dp": 16, "parallelism.ep": 16}
    job = load_job("deepseek_v3_train_2048", settings={key: str(value) for key, value in settings.items()})
    machine = load_machine("dgx_h100_x8", device_settings=[("operators", "roofline")])
    whole, once = (
        simulate(job, machine, mode="hierarchical", engine=choice, allow_oom=True)
        for choice in (WHOLE, EngineChoice("compiled"))
    )
    assert once.folded == 8 and whole.folded == 1
    assert once.hops == whole.hops and set(once.finish) == set(whole.finish)
    # buffers of many megabytes are rounded up by less than 128 B, 16 ranks times 8 rails
    assert once.step_time == pytest.approx(whole.step_time, rel=1e-5)
    assert sum(once.breakdown.values()) == once.step_time
    assert "here for 8" in " ".join(once.notes)
