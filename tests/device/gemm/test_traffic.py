import pytest

from rapid_des.device import Gemm, load_device
from tests.device.prices import estimate_of

A100 = load_device("a100_sxm_80gb")


def reads_over_compulsory(m, n, k):
    moved = estimate_of(A100, Gemm(m, n, k, dtype="fp16")).bytes["hbm"]
    return (moved - 2 * m * n) / (2 * (m * k + n * k))


def test_operands_that_fit_l2_are_read_once():
    # Profilers count 1.05 times the operands on every such row.
    assert reads_over_compulsory(1024, 1024, 1024) == pytest.approx(1.05)


@pytest.mark.parametrize(("m", "n", "k", "counted"), [(16384, 4096, 4096, 5.18), (16384, 12288, 4096, 9.20)])
def test_big_operands_are_read_several_times(m, n, k, counted):
    # Nsight Compute on cuBLAS, A100: dram_read over 2 (mk + nk); a model within 40 % sees the effect.
    assert reads_over_compulsory(m, n, k) == pytest.approx(counted, rel=0.4)


def test_a_larger_l2_saves_traffic():
    stacked = load_device("a100_case_a")
    gemm = Gemm(16384, 8192, 8192)
    assert estimate_of(stacked, gemm).bytes["hbm"] < 0.8 * estimate_of(A100, gemm).bytes["hbm"]
