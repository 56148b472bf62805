"""What is stated for a whole chip follows its SMs and its peak clock, whichever way these are changed."""

from fractions import Fraction
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from rapid_des.config.specs import preset_names
from rapid_des.device.device import load_device
from rapid_des.errors import ConfigError

DEVICES = sorted(preset_names("device"))

STATED = {"tensor_peak.bf16": "500 TFLOP/s", "shared.bandwidth": "10 TB/s", "l2.capacity": "10 MiB"}


def tree_of(changes):
    """Return what a file states, given dotted keys."""
    tree: dict[str, Any] = {}
    for key, value in changes.items():
        *parents, last = key.split(".")
        place = tree
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return tree


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["h100_sxm", "a100_sxm_80gb", "b300", "l40s", "mi300x"]),
    st.integers(1, 400),
    st.sets(st.sampled_from(sorted(STATED))),
)
def test_a_file_with_a_base_and_settings_over_it_give_one_device(tmp_path_factory, base, sms, stated):
    changes = {"sms": sms} | {key: STATED[key] for key in stated}
    by_settings = load_device(base, settings={key: str(value) for key, value in changes.items()})
    by_mapping = load_device({"base": base} | tree_of(changes))
    folder = tmp_path_factory.mktemp("devices")
    (folder / "half.yaml").write_text(yaml.safe_dump({"base": base} | tree_of(changes)))
    (folder / "same.yaml").write_text("base: half.yaml\n")
    for name in ("half.yaml", "same.yaml"):
        assert load_device(folder / name).spec == by_settings.spec
    assert by_mapping.spec == by_settings.spec


@pytest.mark.parametrize("base", DEVICES)
def test_twice_the_sms_have_twice_their_rates_together(base):
    one = load_device(base).spec
    two = load_device({"base": base, "sms": 2 * one.sms}).spec
    for key in ("tensor_peak", "vector_peak"):
        assert getattr(two, key) == {dtype: 2 * peak for dtype, peak in getattr(one, key).items()}
    for key in ("registers", "shared"):
        assert getattr(two, key).bandwidth == 2 * getattr(one, key).bandwidth
        assert getattr(two, key).capacity == getattr(one, key).capacity  # of one SM
    assert (two.l2, two.hbm) == (one.l2, one.hbm)


def test_half_the_sms_do_half_the_work():
    # 66 of 132 SMs at the same clock; a base's peak kept as it is would be that of all.
    half = load_device({"base": "h100_sxm", "sms": 66})
    assert half.tensor_rate("bf16") == pytest.approx(load_device("h100_sxm").tensor_rate("bf16") / 2)


def test_what_a_chip_moves_at_its_peak_clock_follows_that_clock():
    peaks = {"tensor_peak": {"bf16": "500 TFLOP/s"}}
    base = load_device("h100_sxm").spec
    slow = load_device({"base": "h100_sxm", "clock": {"peak": "0.5x"}} | peaks).spec
    for key in ("registers", "shared", "l2"):
        ratio = Fraction(getattr(slow, key).bandwidth, getattr(base, key).bandwidth)
        assert float(ratio) == pytest.approx(0.5)


@pytest.mark.parametrize("peak", ["1.5 GHz", "1.05x"])
def test_another_peak_clock_needs_peaks_in_files_as_in_settings(tmp_path, peak):
    (tmp_path / "fast.yaml").write_text(f"base: h100_sxm\nclock: {{peak: {peak}}}\n")
    with pytest.raises(ConfigError, match=r"fast\.yaml: clock\.peak: .*set tensor_peak and vector_peak too"):
        load_device(tmp_path / "fast.yaml")
    with pytest.raises(ConfigError, match=r"--set: clock\.peak: .*set tensor_peak and vector_peak too"):
        load_device("h100_sxm", settings={"clock.peak": peak})
