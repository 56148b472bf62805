"""Modules that predict further tokens: what they compute and hold, and that only training has them."""

import pytest

from rapid_des.device.operators import Gemm
from rapid_des.frontend import build, load_model, memory
from rapid_des.frontend.parts import (
    HEAD,
    PREDICTION,
    ModelSection,
    PieceKey,
    section_parameters,
    sections,
    training_lists,
)

TWO = ("model.predictions", "2")
BLOCK = ModelSection("block", 0)
LAYER = 64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 128 + 2 * 64
"""Of the tiny model: hidden 64, heads of 16 channels, two of keys and values, a gated feed-forward of 128."""


def shapes(operations):
    return {one.name: one.operator for one in operations if isinstance(one.operator, Gemm)}


def test_modules_stand_between_the_layers_and_the_head(tiny):
    job = tiny(TWO, ("parallelism.pp", "2"))
    assert [section.name for section, _ in sections(job, 1)] == [
        "block",
        "block",
        "prediction",
        "prediction",
        "head",
    ]
    assert [label for _, label in sections(job, 1)][2:4] == ["P0", "P1"]


@pytest.mark.parametrize(("settings", "table"), [([], 0), ([("parallelism.pp", "2")], 256 * 64)])
def test_a_module_is_a_projection_norms_and_a_layer(tiny, settings, table):
    parameters = section_parameters(tiny(TWO, *settings))[PREDICTION].total()
    assert parameters == LAYER + 2 * 64 * 64 + 3 * 64 + table


def test_it_computes_the_projection_a_layer_and_the_head(tiny):
    lists = training_lists(tiny(TWO))
    module, layer, head = (
        shapes(lists[PieceKey(section, "forward")]) for section in (PREDICTION, BLOCK, HEAD)
    )
    project = module.pop("predict.project")
    assert (project.m, project.n, project.k) == (32, 64, 128)
    assert module == layer | head
    backward = shapes(lists[PieceKey(PREDICTION, "backward")])
    assert len(backward) == 2 * (len(module) + 1)


def test_operations_wait_for_what_stands_before_them(tiny):
    for phase in ("forward", "backward"):
        for place, one in enumerate(training_lists(tiny(TWO))[PieceKey(PREDICTION, phase)]):
            assert all(other < place for other in one.after)


def test_a_copy_of_the_table_is_summed_with_the_first_stages(tiny, prices):
    tables = build(tiny(TWO, ("parallelism.pp", "2")), prices).tables
    assert all("gradients.embedding" in table.names for table in tables)
    plain = build(tiny(("parallelism.pp", "2")), prices).tables
    assert not any("gradients.embedding" in table.names for table in plain)


def test_memory_flops_and_parameters(tiny):
    plain, more = tiny(), tiny(TWO)
    assert more.model.parameters == plain.model.parameters
    added = memory(more).stages[0].categories["weights"] - memory(plain).stages[0].categories["weights"]
    assert added == 2 * 2 * (LAYER + 2 * 64 * 64 + 3 * 64)
    one = tiny(("model.predictions", "1")).model_flops - plain.model_flops
    assert more.model_flops - plain.model_flops == 2 * one > 0


def test_serving_leaves_them_out(tiny_service, prices):
    plain, more = tiny_service(), tiny_service(TWO)
    assert len(build(more, prices).tables[0]) == len(build(plain, prices).tables[0])


def test_deepseek_v3_has_one():
    assert load_model("deepseek_v3").spec.predictions == 1
