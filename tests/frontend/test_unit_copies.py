"""Copies of whole units around gathers and reductions, as both versions of PyTorch's FSDP make them."""

import pytest

from rapid_des.errors import ConfigError
from rapid_des.frontend import build, load_job, memory
from rapid_des.frontend.parts import section_parameters
from rapid_des.machine import load_machine
from rapid_des.simulation import simulate

EXPERTS = ("model.feed_forward", "{kind: experts, experts: 4, topk: 2, hidden: 32}")
ADAPTERS = ("training.adapters", "{rank: 4}")


def sharded(tiny, copies, *settings, stage=3, dp=4):
    split = [("parallelism.dp", str(dp)), ("training.zero_stage", str(stage))]
    return tiny(*split, ("training.unit_copies", copies), *settings)


def copied(job, prices):
    """Return by name of a copy how many elements it moves in a step: a picosecond each."""
    table = build(job, prices).tables[0]
    totals: dict[str, int] = {}
    for name, duration in zip(table.name.tolist(), table.duration.tolist(), strict=True):
        _, _, copy = table.names[name].partition("unit.")
        if copy:
            totals[copy] = totals.get(copy, 0) + duration
    return totals


def test_flat_gradients_are_put_together_widened_and_divided(tiny, prices):
    job = sharded(tiny, "flat")
    passed = 2 * job.model.parameters  # two micro-batches
    assert copied(job, prices) == {"flatten": passed, "widen": passed, "divide": passed}
    narrow = sharded(tiny, "flat", ("precision.gradient_reduce", "bf16"))
    assert copied(narrow, prices) == {"flatten": passed, "divide": passed}


def test_parameters_are_copied_out_for_both_passes_and_gradients_in(tiny, prices):
    job = sharded(tiny, "per_parameter")
    passed = 2 * job.model.parameters
    assert copied(job, prices) == {"copy_out": 2 * passed, "copy_in": passed}


def test_lists_are_copied_matrix_by_matrix(tiny, prices):
    settings = [("training.gather_singly", "true"), ("training.recompute", "full")]
    job = sharded(tiny, "lists", *settings)
    passed = 2 * job.model.parameters  # two micro-batches
    layers = 2 * sum(
        each["dense"] * 4 for key, each in section_parameters(job).items() if key.name == "block"
    )
    gathered = 2 * passed + layers
    assert copied(job, prices) == {
        "clear": gathered, "copy_out": gathered, "divide": passed, "copy_in": passed
    }  # fmt: skip
    table = build(job, prices).tables[0]
    names = [table.names[name] for name in table.name]
    assert sum(name.endswith("unit.copy_in") for name in names) == 2 * (4 * 6 + 1 + 2)


@pytest.mark.parametrize("copies", ["flat", "per_parameter"])
def test_gradients_travel_behind_their_copies(tiny, prices, copies):
    job = sharded(tiny, copies)
    table = build(job, prices).tables[0]
    last = {"flat": "unit.divide", "per_parameter": "unit.copy_in"}[copies]
    reductions = 0
    for row, name in enumerate(table.name.tolist()):
        if table.names[name].startswith("gradients.dp.scatter"):
            waits = table.dependencies[table.dependency_starts[row] : table.dependency_starts[row + 1]]
            assert [table.names[table.name[other]].endswith(last) for other in waits] == [True]
            reductions += 1
    assert reductions == 2 * 6  # micro-batches; four layers, table and head


def test_frozen_parameters_are_copied_out_alone(tiny, prices):
    job = sharded(tiny, "per_parameter", ADAPTERS)
    sizes = section_parameters(job)
    frozen = sum(each["frozen"] * (4 if key.name == "block" else 1) for key, each in sizes.items())
    trained = sum(each["dense"] * (4 if key.name == "block" else 1) for key, each in sizes.items())
    table = next(each["frozen"] for key, each in sizes.items() if key.name == "embedding")  # has no backward
    assert copied(job, prices) == {
        "copy_out": 4 * (frozen + trained - table),
        "copy_in": 2 * trained,
    }


def test_experts_are_copied_where_replicas_share_them(tiny, prices):
    split = sharded(tiny, "flat", EXPERTS, ("parallelism.ep", "4"))
    whole = sharded(tiny, "flat", EXPERTS)
    dense = sum(
        each["dense"] * (4 if key.name == "block" else 1) for key, each in section_parameters(split).items()
    )
    assert copied(split, prices)["flatten"] == 2 * dense
    assert copied(whole, prices)["flatten"] == 2 * whole.model.parameters


@pytest.mark.parametrize(("stage", "dp"), [(1, 4), (2, 4), (3, 1)])
def test_nothing_is_copied_where_no_units_are_gathered(tiny, prices, stage, dp):
    assert copied(sharded(tiny, "flat", stage=stage, dp=dp), prices) == {}


def test_copies_change_no_memory(tiny):
    assert memory(sharded(tiny, "flat")).fullest.peak == memory(sharded(tiny, "none")).fullest.peak


def test_units_that_are_gathered_matrix_by_matrix_have_no_copies(tiny):
    with pytest.raises(ConfigError, match=r"unit_copies: flat copies whole units, and gather_singly"):
        sharded(tiny, "flat", ("training.gather_singly", "true"))


def test_a_step_clears_what_a_rank_holds_of_the_gradients(tiny, prices):
    job = sharded(tiny, "none")
    assert build(job, prices).tables[0].duration[0] == job.model.parameters // 4


def test_gathers_between_blocks_slow_the_kernels_beside_them():
    """They travel most of a step."""
    changes = {
        "software": "fsdp", "model.layers": 4, "parallelism": {"dp": 16}, "training.global_batch": 16,
        "training.micro_batch": 1, "training.sequence_length": 2048, "training.zero_stage": 3,
    }  # fmt: skip
    job = load_job("llama2_7b_train", settings=changes)
    steps = {}
    for contention in ("true", "false"):
        machine = load_machine("dgx_a100_x2", settings={"collectives.contention": contention})
        for mode in ("flattened", "hierarchical"):
            result = simulate(job, machine, mode=mode, engine="compiled")
            steps[contention, mode] = result.step_time
            assert sum(result.breakdown.values()) == result.step_time
    assert steps["true", "flattened"] > 1.02 * steps["false", "flattened"]
    assert steps["true", "hierarchical"] == pytest.approx(steps["true", "flattened"], rel=0.01)
    assert steps["false", "hierarchical"] == pytest.approx(steps["false", "flattened"], rel=0.01)
