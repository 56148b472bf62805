import hashlib

import numpy as np
import pytest

from validation import Row, Topic, is_calibration, score
from validation.scoring import fit_roofline, roofline

TEST_CASE = next(name for name in "abcdefgh" if not is_calibration(name))
OTHER_TEST = next(name for name in "ijklmnop" if not is_calibration(name))
FITTED = next(name for name in "qrstuvwxyz0123456789" if is_calibration(name))


def topic(*rows, floor=0.0):
    return Topic("t", lambda: rows, floor_us=floor)


def test_the_split_is_the_parity_of_the_whole_hash():
    for name in ("aic/x/1", "vidur/a100/Qwen-72B", ""):
        assert is_calibration(name) == (int(hashlib.sha256(name.encode()).hexdigest(), 16) % 2 == 0)


def test_long_sweeps_do_not_outvote_short_ones():
    rows = [Row(TEST_CASE, 100.0, 110.0)] * 9 + [Row(OTHER_TEST, 100.0, 70.0)]
    report = score(topic(*rows))
    # Case means 10 % and 30 %: their mean is 20 %, the signed one (10 - 30) / 2.
    assert (report["mean_abs_pct"], report["bias_pct"]) == (pytest.approx(20.0), pytest.approx(-10.0))
    assert (report["max_abs_pct"], report["median_abs_pct"]) == (pytest.approx(30.0), pytest.approx(10.0))
    assert (report["rows"], report["cases"]) == (10, 2)


def test_the_floor_is_taken_off_before_dividing():
    report = score(topic(Row(TEST_CASE, 10.0, 15.0), floor=2.0))
    residual = report["residuals"][0]
    # (15 - 10 - 2) / 10 against 5 / 10.
    assert (residual["pct"], residual["raw_pct"]) == (pytest.approx(30.0), pytest.approx(50.0))


def test_calibration_rows_stand_apart_unless_all_are_test():
    rows = (Row(TEST_CASE, 1.0, 1.0), Row(FITTED, 1.0, 2.0))
    split, whole = score(topic(*rows)), score(topic(*rows), split=False)
    assert (split["rows"], split["calibration"]["mean_abs_pct"]) == (1, pytest.approx(100.0))
    assert (whole["rows"], "calibration" in whole) == (2, False)


def test_rows_that_the_model_does_not_represent_are_counted_with_their_reason():
    report = score(topic(Row(TEST_CASE, 1.0, None, unsupported="no fp4"), Row(TEST_CASE, 1.0, 1.0, null=1.5)))
    assert report["unsupported"] == {"no fp4": 1}
    assert report["rows"] == 1
    assert report["null_mean_abs_pct"] == pytest.approx(50.0)


def test_a_topic_without_test_rows_has_no_figures():
    report = score(topic(Row(FITTED, 1.0, 1.0)))
    assert (report["rows"], report["mean_abs_pct"]) == (0, None)


def test_a_roofline_is_found_again():
    truth = np.array([5.0, 2e8, 1.5e6])
    flops, moved = np.geomspace(1e6, 1e12, 60), np.geomspace(1e9, 1e5, 60)
    found = fit_roofline(flops, moved, roofline(truth, flops, moved))
    assert found == pytest.approx(truth, rel=0.03)
