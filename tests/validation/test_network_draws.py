"""What `auto` loses with groups side by side, and how DCQCN begins: small draws of both topics."""

import pytest

from validation.network.regret import drawn_cases, listed_cases, row_of
from validation.network.start_up import LINE, packet_model, simulated


def lost(case):
    row = row_of(case)
    return row.predicted / row.measured - 1


def test_auto_takes_what_is_about_the_best_with_all_groups_at_once():
    cases = [*list(listed_cases())[::6], *drawn_cases(2, seed=3)]
    assert {case.name: lost(case) for case in cases if lost(case) > 0.02} == {}


@pytest.mark.parametrize(("senders", "size"), [(4, 1_000_000), (16, 1_000_000)])
def test_an_incast_begins_as_slowly_as_packet_by_packet(senders, size):
    times = [packet_model(senders, size, seed, on_leaving=True) for seed in range(2)]
    assert simulated(senders, size, 0) == pytest.approx(sum(times) / 2, rel=0.05)
    assert times[0] > 1.5 * senders * size / LINE  # the port idles while rates recover
