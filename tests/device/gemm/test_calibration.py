import numpy as np
import pytest

from rapid_des.device import Gemm, load_device
from rapid_des.device.calibration import MeasuredGemms, changed, error, fit_constants, pattern_search
from rapid_des.device.gemm.candidates import gemm_constants
from rapid_des.values import asdict

A100 = load_device("a100_sxm_80gb")
GEMMS = tuple(Gemm(m, n, 4096) for m in (1, 64, 512, 4096) for n in (1024, 8192))


def made_with(**constants):
    truth = gemm_constants({**A100.constants("gemm", "bf16"), **constants}, "test")
    blank = MeasuredGemms(A100, GEMMS, np.ones(len(GEMMS)), tuple("ab" * 4))
    return MeasuredGemms(A100, GEMMS, blank.predicted_us(truth), blank.cases)


def test_constants_behind_made_up_times_are_found_again():
    samples = made_with(hbm=0.6, start_us=5.0)
    start = gemm_constants(A100.constants("gemm", "bf16"), "test")
    found = fit_constants(start, [samples], ["hbm", "start_us"])
    assert (found.hbm, found.start_us) == (pytest.approx(0.6, rel=0.03), pytest.approx(5.0, rel=0.05))
    assert error(found, [samples]) < 0.01
    assert set(changed(asdict(start), asdict(found))) <= {"hbm", "start_us"}


def test_a_share_never_rises_above_one():
    best = pattern_search({"x": 0.9}, lambda fit: (fit["x"] - 3) ** 2, ["x"], shares=["x"])
    assert best == {"x": 1.0}


def test_a_bounded_constant_stays_within_and_can_leave_zero():
    bounds = {"x": (0.0, 2.0), "y": (1.0, 5.0)}
    best = pattern_search(
        {"x": 0.0, "y": 9.0}, lambda fit: (fit["x"] - 1) ** 2 + fit["y"], ["x", "y"], bounds=bounds
    )
    # y only falls, to its least value; x starts at 0, where no factor would move it.
    assert best == {"x": pytest.approx(1, abs=0.03), "y": 1.0}


def test_cases_weigh_the_same_however_long():
    samples = MeasuredGemms(A100, GEMMS[:3], np.ones(3), ("long", "long", "short"))
    assert samples.weights().tolist() == [0.25, 0.25, 0.5]


def test_thinning_keeps_ends_and_order():
    samples = MeasuredGemms(A100, GEMMS, np.arange(1.0, 9.0), ("c",) * 8)
    assert samples.thinned(3).measured_us.tolist() == [1.0, 4.0, 8.0]
