"""Mamba-2: parameters, what is computed and split, what serving keeps; layers with one half."""

from math import prod

import pytest

from rapid_des.device.operators import Gemm
from rapid_des.errors import ConfigError
from rapid_des.frontend import build, load_model, memory
from rapid_des.frontend.inference import pass_lists, passes
from rapid_des.frontend.parts import ModelSection, PieceKey, section_parameters, training_lists

BLOCK = ModelSection("block", 0)
MAMBA = ("model.attention", "{kind: mamba2, heads: 4, head_dim: 32, state: 16, groups: 2, chunk: 8}")
ALONE = ("model.feed_forward", "{kind: none}")
PROJECTED = 2 * 128 + 2 * 2 * 16 + 4
MIXED = 128 + 2 * 2 * 16


def listed(job, phase="forward"):
    return training_lists(job)[PieceKey(BLOCK, phase)]


def test_parameters_of_published_models():
    # The second as mistral.ai prints it ("Codestral Mamba", July 2024).
    assert load_model("mamba2_2_7b").parameters == 2_702_599_680
    settings = {"hidden": 4096, "attention.heads": 128, "attention.groups": 8, "vocabulary": 32768}
    codestral = load_model("mamba2_2_7b", settings={**settings, "tied_embeddings": False})
    assert codestral.parameters == 7_285_403_648


@pytest.mark.parametrize("tp", [1, 2])
def test_a_rank_holds_its_heads_and_groups(tiny, tp):
    job = tiny(MAMBA, ALONE, ("parallelism.tp", str(tp)))
    vectors = MIXED * (4 + 1) + 3 * 4 + 128
    expected = (64 * (PROJECTED + 128) + vectors) // tp + 64
    assert section_parameters(job)[BLOCK].total() == expected
    assert sum(one.parameters for one in listed(job, "backward")) == expected


def test_groups_are_copied_where_there_are_fewer_than_tp(tiny):
    job = tiny(MAMBA, ALONE, ("parallelism.tp", "4"))
    vectors = (128 // 4 + 2 * 16) * (4 + 1) + 3 + 128 // 4
    columns = 2 * 128 // 4 + 2 * 16 + 1
    assert section_parameters(job)[BLOCK].total() == 64 * (columns + 128 // 4) + vectors + 64


def test_the_forward_computes_projections_and_the_chunked_scan(tiny):
    kernels = {one.name: one.operator for one in listed(tiny(MAMBA, ALONE))}
    shapes = {
        name: (kernel.batch, kernel.m, kernel.n, kernel.k)
        for name, kernel in kernels.items()
        if isinstance(kernel, Gemm)
    }
    # 32 positions are four chunks of eight; heads of 32 channels, states of 16, groups of two heads.
    assert shapes == {
        "mamba.input": (1, 32, PROJECTED, 64),
        "mamba.states": (4 * 4, 32, 16, 8),
        "mamba.scores": (4 * 2, 8, 8, 16),
        "mamba.scan": (4 * 4, 8, 32, 4 + 16),
        "mamba.output": (1, 32, 64, 128),
    }
    assert (kernels["mamba.norm"].rows, kernels["mamba.norm"].columns) == (32 * 2, 64)


def test_the_backward_computes_every_product_twice_and_states_and_scores_again(tiny):
    def work(operations, *names):
        gemms = [one.operator for one in operations if isinstance(one.operator, Gemm)]
        return sum(2 * prod((gemm.batch, gemm.m, gemm.n, gemm.k)) for gemm in gemms)

    job = tiny(MAMBA, ALONE)
    forward, backward = listed(job), listed(job, "backward")
    again = [one for one in forward if one.name in {"mamba.states", "mamba.scores"}]
    projections = [one for one in forward if one.name in {"mamba.input", "mamba.output"}]
    scan = [one for one in forward if one.name in {"mamba.states", "mamba.scan"}]
    # Twice each product of the scan, where scores count half below their diagonal.
    assert work(backward) == work(again) + 2 * work(projections) + 2 * work(scan) + 2 * 4 * 2 * 2 * 8 * 16 * 4


@pytest.mark.parametrize("kind", ["all_gather", "ring", "ulysses"])
def test_ranks_of_cp_share_heads_between_the_projections(tiny, kind):
    """Each computes a cp-th of everything; what the first projection makes goes, results and gates return."""

    def kernels(operations):
        gemms = {one.name: one.operator for one in operations if isinstance(one.operator, Gemm)}
        return {name: prod((gemm.batch, gemm.m, gemm.n, gemm.k)) for name, gemm in gemms.items()}

    alone = tiny(MAMBA, ALONE)
    split = tiny(MAMBA, ALONE, ("parallelism.cp", "2"), ("parallelism.cp_kind", kind))
    for phase in ("forward", "backward"):
        whole = kernels(listed(alone, phase))
        assert kernels(listed(split, phase)) == {name: work // 2 for name, work in whole.items()}
    exchanged = {one.name: one.size for one in listed(split) if one.role == "cp.states"}
    # 16 positions a rank, bf16.
    assert exchanged == {
        "mamba.input.to_heads": 16 * PROJECTED * 2,
        "mamba.output.from_heads": 16 * 2 * 128 * 2,
    }
    assert section_parameters(split)[BLOCK] == section_parameters(alone)[BLOCK]
    marked = sum(one.parameters for one in listed(split, "backward"))
    assert marked == section_parameters(split)[BLOCK].total()


def test_a_request_of_any_length_keeps_the_same_state(tiny_service):
    kept = [
        memory(tiny_service(MAMBA, ("inference.output_length", length))).stages[0].categories["kv_cache"]
        for length in ("5", "50")
    ]
    assert kept == [4 * 2 * (128 * 16 + 4 * MIXED) * 2] * 2  # layers, requests, elements, bytes


def test_a_decode_step_updates_the_state_and_costs_the_same_later(tiny_service, prices):
    job = tiny_service(MAMBA, ALONE)
    _, first, *_, last = passes(job)
    kernels = {one.name: one.operator for one in pass_lists(job, first)[BLOCK]}
    assert (kernels["mamba.update"].rows, kernels["mamba.update"].columns) == (2 * 4, 32 * 16)
    assert "mamba.scan" not in kernels
    assert pass_lists(job, last)[BLOCK] == pass_lists(job, first)[BLOCK]
    table = build(job, prices).tables[0]
    assert len(table) > 0


def test_layers_of_one_half_have_one_norm_and_no_second_addition(tiny):
    names = [one.name for one in listed(tiny(ALONE))]
    assert sum(name.endswith("norm") for name in names) == 1
    assert not any(name.startswith("ffn") for name in names)
    names = [one.name for one in listed(tiny(("model.attention", "{kind: none}")))]
    assert not any(name.startswith("attention") for name in names) and "ffn.in" in names


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            [
                ("model.attention", "{kind: mamba2, heads: 6, head_dim: 8, state: 8, groups: 3}"),
                ("parallelism.tp", "2"),
            ],
            "one must divide by the other",
        ),
        ([MAMBA, ("parallelism.cp", "8")], "4 mamba2 heads of a tp rank are not divisible by cp 8"),
        ([("model.attention", "{kind: mamba2, heads: 4, head_dim: 8, state: 8, groups: 3}")], "3 groups"),
        ([("model.attention", "{kind: none}"), ALONE], "a layer needs attention or feed_forward"),
        ([ALONE, ("model.block", "parallel")], "block parallel needs both"),
    ],
)
def test_what_can_not_be_is_refused_by_name(tiny, settings, problem):
    with pytest.raises(ConfigError, match=problem):
        tiny(*settings)
