"""Area and cost of dies beside what is published of the A100's."""

import pytest

from rapid_des.device.device import load_device
from rapid_des.device.die import DieOptions, die_cost
from rapid_des.errors import InputError

GA100 = DieOptions(node="7nm", stacks=6, links=12, link="nvlink3", spare_sms=20)
"""128 SMs of which 108 are on, as in the whitepaper."""


def whole(**settings):
    every = {"l2.capacity": "48 MiB", "shared.capacity": "192 KiB"} | settings
    return load_device("a100_sxm_80gb", settings=every).spec


def test_the_die_of_an_a100_is_as_large_as_published_and_its_parts_are_near():
    die = die_cost(whole(), GA100)
    assert die.area == pytest.approx(826, rel=0.005)  # whitepaper
    sms = sum(
        die.parts[name] for name in ("control", "vector units", "tensor units", "registers", "shared memory")
    )
    # LLMCompass's readings of an annotated picture: SMs 476.25, L2 119.31, interfaces of HBM 58 mm².
    assert sms == pytest.approx(476.25, rel=0.11)
    assert die.parts["L2"] == pytest.approx(119.31, rel=0.05)
    assert die.parts["memory, interfaces"] == pytest.approx(58, rel=0.09)


def test_a_die_costs_its_share_of_a_wafer_over_its_yield():
    die = die_cost(whole(), GA100)
    assert die.die_dollars * die.dies * die.die_yield == pytest.approx(9346)
    assert die.die_yield == pytest.approx((1 + die.area * 0.0015 / 3) ** -3)
    assert die.memory_dollars == pytest.approx(7 * 80 * 2**30 / 1e9)


def test_half_of_the_arithmetic_makes_a_smaller_and_cheaper_die():
    half = {"sms": 54, "tensor_peak.fp16": "156 TFLOP/s", "vector_peak.fp32": "9.75 TFLOP/s"}
    small = whole(**half, **{"vector_peak.fp64": "4.85 TFLOP/s"})
    without = DieOptions(node="7nm", stacks=6, links=12, link="nvlink3")
    ours, theirs = die_cost(small, without), die_cost(whole(), without)
    assert ours.parts["tensor units"] == pytest.approx(theirs.parts["tensor units"] / 2)
    assert ours.parts["L2"] == theirs.parts["L2"] and ours.dollars < theirs.dollars


def test_a_device_of_which_no_parts_are_known_is_named():
    with pytest.raises(InputError, match="areas are known of the parts of GPUs"):
        die_cost(load_device("tpu_v4").spec, GA100)


def test_a_die_beyond_a_wafer_is_refused():
    with pytest.raises(InputError, match="does not fit on a wafer"):
        die_cost(whole(), DieOptions(node="7nm", stacks=64, links=12, link="nvlink3", spare_sms=2**14))
