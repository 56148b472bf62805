"""Exchanges of tokens among experts: who sends whom how much, and what is sent once."""

import numpy as np
import pytest

from rapid_des.chakra.trace import Exchange
from rapid_des.network.collectives.token_exchange import (
    exchange_schedule,
    expected_places,
    imbalance,
)


def carried(schedule):
    """Return bytes [from, to]."""
    table = np.zeros((schedule.members, schedule.members), np.int64)
    table[schedule.source, schedule.destination] += schedule.size
    return table


def test_members_get_their_share_of_every_other_ones_copies():
    table = carried(exchange_schedule(Exchange((1, 2, 1)), 400, (3,)))
    assert table.tolist() == [[0, 200, 100], [100, 0, 100], [100, 200, 0]]


def test_results_go_the_other_way():
    there = carried(exchange_schedule(Exchange((1, 2, 1)), 400, (3,)))
    back = carried(exchange_schedule(Exchange((1, 2, 1), returns=True), 400, (3,)))
    assert (back == there.T).all()


def test_a_member_that_nobody_chooses_gets_nothing():
    schedule = exchange_schedule(Exchange((1, 0)), 100, (2,))
    assert schedule.source.tolist() == [1] and schedule.size.tolist() == [100]


def test_copies_for_one_member_travel_once():
    # Two members, two copies a token: a member is chosen by 1 - 1/4 of the tokens, 50 bytes.
    table = carried(exchange_schedule(Exchange(topk=2, once=True), 100, (2,)))
    assert table.tolist() == [[0, 38], [38, 0]]


def test_a_token_crosses_the_network_once_a_node_on_its_rail_and_is_passed_on_inside():
    # 2 nodes of 2, 4 copies of a token: a node is chosen by 15/16 of the tokens, a member by 1 - (3/4)^4.
    table = carried(exchange_schedule(Exchange(topk=4, once=True), 4 * 1600, (2, 2)))
    rail, inside = 1500, 1600 * 2 * (1 - 0.75**4)
    assert table[0].tolist() == [0, pytest.approx(inside, abs=1), rail, 0]
    assert table[3].tolist() == [0, rail, pytest.approx(inside, abs=1), 0]


def test_a_limit_of_nodes_bounds_the_copies_on_the_network():
    free = carried(exchange_schedule(Exchange(topk=8, once=True), 8 * 10**6, (1,) * 8))
    kept = carried(exchange_schedule(Exchange(topk=8, once=True, nodes=4), 8 * 10**6, (1,) * 8))
    # Each member to its seven peers: expected nodes of 8, and of 4, of which 7/8 are others.
    assert free[0].sum() == pytest.approx(10**6 * expected_places(8, 8) * 7 / 8, rel=1e-5)
    assert kept[0].sum() == pytest.approx(10**6 * expected_places(4, 8) * 7 / 8, rel=1e-5)


def test_uneven_nodes_send_to_each_member_itself():
    table = carried(exchange_schedule(Exchange(topk=2, once=True), 900, (2, 1)))
    assert (table + np.eye(3, dtype=np.int64) * table[0, 1] == table[0, 1]).all()


def test_imbalance_is_the_largest_share_over_the_mean():
    assert imbalance(Exchange()) == 1
    assert imbalance(Exchange((1, 1, 4))) == 2
