"""What a run says of routes that are chosen by load."""

import pytest

from rapid_des.simulation import replay
from rapid_des.studies.traffic import shift
from tests.semantics.test_r12_load import three_routers


def notes(**choice):
    where = three_routers("0 ns", **choice)
    return [note for note in replay(shift(6, 2, 6400), where, engine="simpy").notes if "by load" in note]


@pytest.mark.parametrize(
    ("choice", "what"),
    [
        ({}, "for whole messages, of up to 6.25 KiB"),
        ({"per": "part", "parts": 10}, "for parts, 10 of a message at most, of up to 640 B"),
    ],
)
def test_a_run_says_that_routes_are_chosen_for_more_than_packets(choice, what):
    (note,) = notes(**choice)
    assert what in note


def test_nothing_is_said_where_parts_are_packets():
    assert notes(per="part", parts=100) == []  # of 64 B, the packet of these machines
