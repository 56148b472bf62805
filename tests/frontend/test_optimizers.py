"""Optimizers: bytes a parameter, and what their update runs."""

import pytest

from rapid_des.device.operators import Gemm
from rapid_des.frontend import build, memory
from rapid_des.frontend.muon import Matrix, matrices
from rapid_des.frontend.optimizers import step_kernels
from rapid_des.frontend.parts import stage_parameters


def optimizer_bytes(job):
    return memory(job).stages[0].categories["optimizer"]


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        ("adam", 4 + 8),
        ("sgd", 4 + 4),
        # Two moments of a byte, four bytes of scale for 256 of each.
        ("adam_8bit", 4 + 2 * (1 + 4 / 256)),
    ],
)
def test_states_take_so_many_bytes_a_parameter(tiny, optimizer, expected):
    job = tiny(("training.optimizer", optimizer))
    parameters = memory(job).stages[0].parameters
    assert optimizer_bytes(job) == pytest.approx(expected * parameters, abs=8)


def test_states_have_the_stated_dtype(tiny):
    narrow = tiny(("precision.optimizer", "bf16"))
    assert optimizer_bytes(tiny()) - optimizer_bytes(narrow) == 2 * 2 * memory(narrow).stages[0].parameters


def test_muon_keeps_one_momentum_of_matrices_and_adams_two_of_the_rest(tiny):
    job = tiny(("training.optimizer", "muon"))
    # A layer: QKV 64 x 128, output 64 x 64, gate and up 64 x 256, down 64 x 128; four layers.
    assert matrices(job, 0) == {
        Matrix("dense", 64, 128): 8, Matrix("dense", 64, 64): 4, Matrix("dense", 64, 256): 4,
    }  # fmt: skip
    whole = memory(job).stages[0].parameters
    inside = 4 * 64 * (128 + 64 + 256 + 128)
    assert optimizer_bytes(job) == 4 * whole + 4 * inside + 8 * (whole - inside)


def test_newton_schulz_is_five_times_three_products_of_each_matrix(tiny):
    job = tiny(("training.optimizer", "muon"))
    products = [
        one for one in step_kernels(job, 0, stage_parameters(job, 0)).values() if isinstance(one, Gemm)
    ]
    # Of an m by n matrix 2·m·m·n, 2·m³ and 2·m·m·n FLOPs (Jordan et al. 2024).
    flops = sum(2 * one.batch * one.m * one.n * one.k for one in products)
    sides = {128: 8, 64: 4, 256: 4}
    assert flops == 5 * sum(count * (4 * 64 * 64 * n + 2 * 64**3) for n, count in sides.items())


def test_replicas_that_split_the_optimizer_share_the_matrices(tiny):
    def products(*settings):
        job = tiny(("training.optimizer", "muon"), ("parallelism.dp", "2"), *settings)
        kernels = step_kernels(job, 0, stage_parameters(job, 0))
        return sum(one.batch for one in kernels.values() if isinstance(one, Gemm))

    assert 2 * products(("training.zero_stage", "1")) == products()
    assert 2 * products(("training.zero_stage", "2")) == products()


SPLIT = ("training.optimizer", "muon"), ("parallelism.dp", "2"), ("training.zero_stage", "3")


def rows(table, name):
    return [row for row, number in enumerate(table.name) if table.names[number].startswith(name)]


def test_split_matrices_come_together_and_go_back_beside_the_iterations_of_others(tiny, prices, replay):
    job = tiny(*SPLIT)
    (table,) = (trace := build(job, prices)).tables
    exchanged = [int(table.size[row]) for row in rows(table, "optimizer.newton_schulz") if table.size[row]]
    # Half of four layers' matrices of each shape, two bytes a parameter: there, and back.
    parts = [4 * 64 * 128 * 2, 2 * 64 * 64 * 2, 2 * 64 * 256 * 2]
    assert sorted(exchanged) == sorted(2 * parts)
    assert memory(job).stages[0].timeline[-1].categories["temporary"] == 2 * sum(parts)
    replay(trace.traces, rendezvous=True)


def test_nothing_travels_for_matrices_that_nobody_splits(tiny, prices):
    (table,) = build(tiny(SPLIT[0], SPLIT[2]), prices).tables
    assert not any(table.size[row] for row in rows(table, "optimizer.newton_schulz"))


@pytest.mark.parametrize(
    "settings",
    [
        [("parallelism.tp", "2"), ("parallelism.pp", "2"), ("parallelism.dp_replicate", "2")],
        [("training.adapters", "{rank: 4}")],
        [
            ("model.feed_forward", "{kind: experts, experts: 4, topk: 2, hidden: 32}"),
            ("parallelism.dp", "4"),
            ("parallelism.ep", "2"),
        ],
    ],
)
def test_muon_of_split_matrices_runs_in_combination(tiny, prices, replay, settings):
    replay(build(tiny(*SPLIT, *settings), prices).traces, rendezvous=True)


@pytest.mark.parametrize("stage", ["0", "1", "3"])
def test_the_host_keeps_momenta_that_come_for_the_iterations(tiny, prices, stage):
    offloaded = ("training.offload_optimizer", "true")
    job = tiny(SPLIT[0], SPLIT[1], offloaded, ("training.zero_stage", stage))
    (table,) = build(job, prices).tables
    inside = 4 * 64 * (128 + 64 + 256 + 128) // (1 if stage == "0" else 2)
    (fetched,), (left,) = rows(table, "fetch.momenta"), rows(table, "offload.momenta")
    assert table.duration[fetched] == table.duration[left] == 4 * inside
    (first,) = rows(table, "optimizer.newton_schulz.0.gram")
    assert fetched < first < rows(table, "optimizer.host")[0]
    assert memory(job).stages[0].categories["optimizer"] == 0
