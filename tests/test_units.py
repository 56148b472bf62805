"""Quantities: every spelling to one exact integer, and back to text that reads the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapid_des.units import (
    Bandwidth,
    Duration,
    FlopRate,
    Frequency,
    Power,
    Size,
    ceil_divide,
    seconds,
    serialization_time,
)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Duration, "1 ps", 1),
        (Duration, "1.2 us", 1_200_000),
        (Duration, "1.2 µs", 1_200_000),
        (Duration, "2h", 7_200 * 10**12),
        (Duration, "0.0001 ps", 1),  # rounds up
        (Duration, "1e-3 s", 10**9),
        (Size, "1 GB", 10**9),
        (Size, "1 GiB", 2**30),
        (Size, "1 Gb", 125_000_000),
        (Size, "9 b", 2),  # 9 bits need two bytes
        (Size, "1_000 B", 1000),
        (Size, ".5 KiB", 512),
        (Bandwidth, "400 Gb/s", 50 * 10**9),
        (Bandwidth, "400 Gbps", 50 * 10**9),
        (Bandwidth, "450 GB/s", 450 * 10**9),
        (FlopRate, "312 TFLOP/s", 312 * 10**12),
        (FlopRate, "624 TOP/s", 624 * 10**12),
        (Frequency, "1.41 GHz", 1_410_000_000),
        (Power, "400 W", Power.parse("0.4 kW")),
    ],
)
def test_text_is_an_exact_integer(kind, text, value):
    assert kind.parse(text) == value


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        (Duration, 5, "5 is not a quantity such as '1.2 us'"),
        (Duration, None, "None is not a quantity"),
        (Duration, True, "True is not a quantity"),
        (Duration, "5", "'5' has no unit; allowed: ps, ns, us"),
        (Duration, "5 MB", "unit 'MB'; allowed: ps, ns, us"),
        (Duration, "-5 us", "out of range"),
        (Duration, "200 000 h", "unit '000 h'"),
        (Duration, "3000 h", "out of range"),  # 10.8e18 ps; int64 ends at 9.22e18
        (Size, "1 gb", "unit 'gb'"),
        (Size, "1 GB/s", "unit 'GB/s'"),
        (Bandwidth, "1 GB", "unit 'GB'"),
        (Bandwidth, "nan GB/s", "is not a quantity"),
        (Bandwidth, "", "is not a quantity"),
    ],
)
def test_other_text_is_refused_with_what_is_allowed(kind, text, said):
    with pytest.raises(ValueError, match=r"quantity|allowed") as refusal:
        kind.parse(text)
    assert said in str(refusal.value)


@given(st.integers(0, 2**62))
def test_short_spellings_are_exact_and_long_ones_near(value):
    for kind in (Duration, Size, Bandwidth):
        shown = kind.parse(str(kind(value)))
        assert abs(shown - value) <= value / 1000


@pytest.mark.parametrize("text", ["1.2 us", "80 GiB", "2.5 KB", "1 B", "350 ns"])
def test_what_is_written_is_what_is_shown(text):
    kind = Duration if text.endswith("s") else Size
    assert str(kind.parse(text)) == text


def test_times_round_up():
    assert serialization_time(1, 3 * 10**12) == 1  # a third of a picosecond
    assert serialization_time(0, 1) == 0
    assert ceil_divide(0, 7) == 0
    assert seconds(1) == 1e-12
