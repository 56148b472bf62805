"""Rates that marks cut: the stored answers are the oracle's, and parts of a packet come near to them."""

from rapid_des.validation.measurements import CHECKOUT_DATA, DataFolder
from rapid_des.validation.network.marks import mark_cases
from validation.packet_oracle.regenerate import mark_answer


def test_the_stored_answers_come_from_this_oracle():
    stored = DataFolder(CHECKOUT_DATA, split=False).read("packet_oracle/marks.csv")
    cases = list(mark_cases())
    assert len(stored) == len(cases)
    for number in (0, 3):
        assert {key: str(value) for key, value in mark_answer(cases[number]).items()} == stored[number]
