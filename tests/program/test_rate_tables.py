"""What a machine's dcqcn block says of links and routes."""

import numpy as np

from rapid_des.program import rates
from rapid_des.program.lowering import lower
from rapid_des.program.program import NONE
from rapid_des.program.timetable import FULL_RATE
from tests.program.machines import machine, switch
from tests.semantics.messages import one_message

STATED = {"preset": "zhu_2015", "additive_increase": "1 MB/s", "minimum_rate": "1 B/s", "dimensions": ["d1"]}
SWITCHING = {
    "mode": "cut_through",
    "segment": "64 B",
    "parts": 4,
    "congestion": {"control": "none", "dcqcn": STATED},
}


def table(peer):
    """GPU 0 of four on two switches sends to another: within, across, or across by way of GPU 1."""
    where = machine(switch(2), switch(2, bandwidth="500 MB/s"), switching=SWITCHING)
    program = lower(one_message(640, peer=peer, ranks=4), where).program
    return where, program, program.queue_pairs.rates


def row_to(program, table, where, peer):
    ends = where.fabric.destination[program.route_links[program.route_starts[1:] - 1]]
    return table.rows[int(np.flatnonzero(ends == peer)[0])]


def test_links_of_the_stated_dimensions_mark_from_so_much_of_their_time():
    where, _, found = table(3)
    outer = where.fabric.dimension == 1
    assert (found.first[~outer] == NONE).all()
    # 5 KB and 200 KB at 500 MB/s
    assert set(found.first[outer].tolist()) == {10_000_000}
    assert set(found.full[outer].tolist()) == {400_000_000}


def test_the_line_rate_is_that_of_the_first_link_that_marks():
    for peer, cap in ((1, FULL_RATE), (2, FULL_RATE), (3, FULL_RATE // 2)):
        where, program, found = table(peer)
        row = row_to(program, found, where, peer)
        assert row[[rates.CAP, rates.CURRENT, rates.TARGET]].tolist() == [cap] * 3


def test_rates_are_shares_of_the_first_link_and_at_least_the_least():
    where, program, found = table(2)  # over links of 500 MB/s
    row = row_to(program, found, where, 2)
    assert row[[rates.STEP, rates.LEAST]].tolist() == [FULL_RATE // 500, 1]


def test_a_notice_takes_the_latencies_of_the_way_back():
    _, _, found = table(2)
    assert set(found.echo.tolist()) == {200_000}
