import numpy as np
import pytest

from rapid_des.validation.null import fit_roofline, roofline


def test_a_roofline_is_found_again():
    truth = np.array([5.0, 2e8, 1.5e6])
    flops, moved = np.geomspace(1e6, 1e12, 60), np.geomspace(1e9, 1e5, 60)
    found = fit_roofline(flops, moved, roofline(truth, flops, moved))
    assert found == pytest.approx(truth, rel=0.03)
