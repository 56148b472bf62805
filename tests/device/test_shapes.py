"""What is no operator, and sizes that are none: one line that says what is allowed."""

from typing import Any

import numpy as np
import pytest

import rapid_des as rd

DEVICE = rd.load_device("a100_sxm_80gb")
GEMM: Any = rd.Gemm  # a shape takes what its types forbid; who uses it looks
GROUPED_GEMM: Any = rd.GroupedGemm
VECTOR: Any = rd.Vector
WRONG: dict[str, Any] = {
    "Gemm: n is 8.5; allowed: whole numbers from 1": GEMM(8, 8.5, 1),
    "Gemm: k is 0; allowed: whole numbers from 1": rd.Gemm(8, 8, 0),
    "Gemm: m is nan": GEMM(float("nan"), 8, 8),
    "Gemm: dtype is 'bf17'; allowed: fp64,": GEMM(8, 8, 8, dtype="bf17"),
    "GroupedGemm: rows is 1.5; allowed: whole numbers from 0": GROUPED_GEMM((8, 1.5), 8, 8),
    "GroupedGemm: rows is 5; allowed: a tuple": GROUPED_GEMM(5, 8, 8),
    "Attention: heads is None": rd.Attention(1, 8, 8, heads=None, kv_heads=1, head_dim=64),
    "Vector: rows is '8'": VECTOR("add", "8", 8),
    "'gemm' is no operator; allowed: Gemm, GroupedGemm, Attention, Vector": "gemm",
}


@pytest.mark.parametrize("said", WRONG)
def test_a_shape_that_can_not_be_is_one_line(said):
    with pytest.raises(rd.InputError) as raised:
        rd.estimate(WRONG[said], DEVICE)
    assert str(raised.value).startswith(said)


def test_any_whole_number_is_a_size():
    known = rd.estimate(rd.Gemm(64, 64, 64), DEVICE)
    assert rd.estimate(rd.Gemm(*np.array([64, 64, 64])), DEVICE).duration == known.duration
