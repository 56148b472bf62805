"""Sustained clocks: by dtype, with their evidence, and as the measured loops have them."""

from collections import defaultdict
from fractions import Fraction
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import pytest

from rapid_des.device import Gemm, Vector, load_device
from rapid_des.device.device import rates_of
from rapid_des.device.operators import Dtype
from rapid_des.device.pricing import operator_model
from validation import DataFolder
from validation.fit_clocks import SCALED, loops, scaled_clock
from validation.measurements import CHECKOUT_DATA

H100 = load_device("h100_sxm").under(clock="sustained")
WIDE = {dtype: Gemm(8192, 8192, 8192, dtype=dtype) for dtype in ("bf16", "fp8")}


def seconds(operator, device):
    return operator_model(device).estimate(operator).duration / 1e12


def test_matrix_work_in_a_dtype_runs_at_the_clock_that_holds_for_it():
    clock = H100.spec.clock
    assert clock.sustained_by_dtype["fp8"] < clock.sustained
    clocks: dict[Dtype, Any] = {"bf16": clock.sustained, "fp8": clock.sustained_by_dtype["fp8"]}
    for dtype, held in clocks.items():
        peak = H100.spec.tensor_peak[dtype]
        assert rates_of(H100, dtype).tensor == pytest.approx(peak * held / clock.peak)
    assert rates_of(H100.under(clock="boost"), "fp8").tensor == pytest.approx(1978.9e12 * 1.98 / 1.83)


@pytest.mark.parametrize("operators", ["native", "roofline"])
def test_only_operators_in_that_dtype_are_slower(operators):
    one = load_device(H100, settings={"operators": operators, "clock.sustained": "1.36 GHz"})
    by_dtype = H100.priced_by(operators)
    assert seconds(WIDE["bf16"], one) == seconds(WIDE["bf16"], by_dtype)
    assert seconds(Vector("rms_norm", 4096, 4096), one) == seconds(Vector("rms_norm", 4096, 4096), by_dtype)
    assert seconds(WIDE["fp8"], by_dtype) == pytest.approx(seconds(WIDE["fp8"], one) * 1.36 / 1.28, rel=0.01)


@pytest.mark.parametrize("changed", [{"clock.sustained": "1.2 GHz"}, {"clock.sustained": "0.9x"}])
def test_a_sustained_clock_set_by_hand_holds_for_all_and_is_not_called_measured(changed):
    clock = load_device("h100_sxm", settings=changed).spec.clock
    assert (clock.sustained_by_dtype, clock.sustained_from, clock.sustained_within) == ({}, "assumed", None)


def test_a_file_that_states_a_clock_of_its_own_states_its_evidence():
    assert load_device("a100_sxm_40gb").spec.clock.sustained_from == "measured"  # its base's clock
    assert load_device("a6000").spec.clock.sustained_from == "assumed"
    own = {
        "base": "h100_sxm",
        "name": "capped",
        "clock": {"sustained": "1 GHz", "sustained_from": "measured"},
    }
    assert load_device(own).spec.clock.sustained_from == "measured"


def test_a_slowed_device_slows_the_clock_of_every_dtype():
    slow = H100.slowed(compute=Fraction(1, 2), hbm=Fraction(1)).spec.clock
    assert (slow.sustained, slow.sustained_by_dtype["fp8"]) == (680_000_000, 640_000_000)


def test_device_files_have_the_clocks_that_measured_loops_show():
    shown, stated = defaultdict(list), {}
    for found in loops(DataFolder(Path(CHECKOUT_DATA), split=True)):
        board, _, _ = found.name.partition(",")
        shown[board].append(float(found.clock()))
        stated[board] = found.device.for_arithmetic(found.gemms[0].dtype).spec.clock.sustained
    for board, clocks in shown.items():
        # H100's own loops are kept aside; they stay within what the file says of its neighbours' clock.
        # GB200's are of four virtual machines, up to 6 % from their mean.
        assert geometric_mean(clocks) == pytest.approx(stated[board], rel=0.02), board
        assert clocks == pytest.approx([float(stated[board])] * len(clocks), rel=0.06), board


@pytest.mark.parametrize(("known", "other"), [(name, one) for name in SCALED for one in SCALED[name]])
def test_clocks_of_devices_that_nobody_measured_follow_from_power(known, other):
    device = load_device(other)
    assert scaled_clock(load_device(known), device) == pytest.approx(device.spec.clock.sustained, rel=0.005)
    assert device.spec.clock.sustained_from == "scaled"
    assert device.spec.clock.sustained_within >= 0.07
