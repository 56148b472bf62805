"""What arrays say beyond their doctests: types, and rows that are empty or missing."""

import numpy as np
from msgspec import Struct

from rapid_des.arrays import Int64s, digest, entries_of, fingerprint, ranges, rows_of, starts_by, starts_of


def test_starts_count_in_64_bits_whatever_the_lengths_are():
    assert starts_of(np.array([2**31 - 1, 2**31 - 1], np.int32)).tolist() == [0, 2**31 - 1, 2**32 - 2]


def test_no_rows_have_no_entries():
    nothing = np.zeros(0, np.int64)
    assert starts_of([]).tolist() == [0] == starts_by(nothing, 0).tolist()
    assert rows_of([]).tolist() == [] == ranges(0, nothing).tolist()
    assert entries_of(starts_of([3]), nothing).tolist() == []


def test_positions_in_rows_are_ranges_from_0():
    assert ranges(0, np.array([2, 0, 3])).tolist() == [0, 1, 0, 1, 2]


def test_columns_that_hold_the_same_bytes_otherwise_have_other_digests():
    whole, halves = np.array([1, 2], np.int64), np.array([1, 0, 2, 0], np.int32)
    assert whole.tobytes() == halves.tobytes()
    assert digest(whole) != digest(halves)
    assert digest(whole[:1], whole[1:]) != digest(whole, whole[:0])
    assert digest(whole) == digest(np.repeat(whole, 2)[::2])


def test_a_fingerprint_is_of_all_fields_but_those_that_are_left_out():
    class Columns(Struct, frozen=True):
        size: Int64s
        names: tuple[str, ...] = ()

    one, other = Columns(np.arange(3)), Columns(np.arange(3), ("a",))
    assert fingerprint(one) == fingerprint(Columns(np.arange(3))) != fingerprint(Columns(np.arange(4)))
    assert fingerprint(one) != fingerprint(other)
    assert fingerprint(one, without={"names"}) == fingerprint(other, without={"names"})
