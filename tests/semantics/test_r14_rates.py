"""R14: queues mark parts, receivers tell senders of marks, and those hand over at lower rates for a while."""

import re
from typing import Any

import pytest

from rapid_des.errors import ConfigError
from rapid_des.program import rates
from rapid_des.program.timetable import FULL_RATE
from tests.program.machines import machine, switch
from tests.program.tracing import Nodes, trace_set
from tests.semantics.messages import LATENCY, one_message

ALL = {
    "kmin": "0 B",
    "kmax": "1 B",
    "pmax": 1.0,
    "cnp_interval": "10 us",
    "gain": 0.5,
    "alpha_timer": "1 us",
    "rate_timer": "3 us",
    "byte_counter": "0 B",
    "fast_recovery": 1,
    "additive_increase": "100 MB/s",
    "hyper_increase": "200 MB/s",
    "minimum_rate": "10 MB/s",
    "clamp": "every_cut",
}
"""Everything is marked behind which anything waits; nothing is drawn."""


def slowing(parts=20, **keys):
    """Messages of 1,280 B go in 20 parts, each 64 ns on a link."""
    congestion: dict[str, Any] = {"control": "none", "dcqcn": ALL | keys}
    return {"mode": "cut_through", "segment": "64 B", "parts": parts, "congestion": congestion}


def incast(senders, size=1280):
    """GPUs 1, 2, … each send to GPU 0."""
    programs = [Nodes() for _ in range(senders + 1)]
    for sender in range(1, senders + 1):
        programs[sender].send(0, size, tag=sender)
        programs[0].recv(sender, size, tag=sender, stream=f"from{sender}")
    return trace_set(programs)


def set_off(done, link):
    """When the parts of the GPU that sends over a link did."""
    trail = done.records.trail
    return sorted(trail.start[(trail.position == 0) & (trail.link == link)].tolist())


def test_a_message_alone_is_not_marked(replayed):
    done = replayed(one_message(1280, peer=2, ranks=4), machine(switch(4), switching=slowing()))
    assert done.finish[2] == [1_280_000 + 64_000 + 2 * LATENCY]
    assert done.records.rates.marks.sum() == done.records.rates.cuts.sum() == 0


def test_what_waits_is_marked_and_its_sender_goes_on_at_half_the_rate(replayed):
    where = machine(switch(3), switching=slowing())
    done = replayed(incast(2), where, trail=True)
    # First parts come to the switch at 164 ns. GPU 1's is taken while GPU 2's waits, and marked; at 328 ns it
    # is at GPU 0, and at 528 a notice is back over two idle links. GPU 2's, behind which second ones wait, is
    # one part later. What sets off from then on is followed 128 ns later; no other notice goes for 10 us.
    links = [where.fabric.link(sender, 3) for sender in (1, 2)]
    assert set_off(done, links[0]) == [*range(0, 577_000, 64_000), *range(704_000, 1_857_000, 128_000)]
    assert set_off(done, links[1]) == [*range(0, 641_000, 64_000), *range(768_000, 1_793_000, 128_000)]
    marked = done.records.rates
    assert sorted(marked.cuts.tolist())[-2:] == [1, 1]
    assert sorted(marked.held.tolist())[-2:] == [9 * 64_000, 10 * 64_000]
    assert marked.slowest.min() == FULL_RATE // 2


def test_messages_to_one_gpu_share_a_rate_that_outlives_them(replayed):
    programs = [Nodes() for _ in range(3)]
    for sender in (1, 2):
        programs[sender].send(0, 1280, tag=sender)
        programs[0].recv(sender, 1280, tag=sender, stream=f"from{sender}")
    gate = programs[1].compute(3_000_000, stream="gate")
    for peer in (0, 2):
        programs[1].send(peer, 128, tag=9, stream=f"to{peer}", after=gate)
        programs[peer].recv(1, 128, tag=9, stream="late")
    where = machine(switch(3), switching=slowing(rate_timer="1 ms"))
    done = replayed(trace_set(programs), where, trail=True)
    # two parts to each: those to GPU 0 still go 128 ns apart, those to GPU 2 as the link, which takes turns
    assert set_off(done, where.fabric.link(1, 3))[-4:] == [3_000_000, 3_064_000, 3_128_000, 3_192_000]
    assert sorted(done.records.rates.held.tolist())[-2:] == [9 * 64_000, 11 * 64_000]


def test_only_links_of_the_stated_dimensions_mark(replayed):
    inner, outer = switch(4), switch(2, bandwidth="500 MB/s")
    programs = incast(3)
    everywhere = replayed(programs, machine(inner, outer, switching=slowing()))
    elsewhere = replayed(programs, machine(inner, outer, switching=slowing(dimensions=["d1"])))
    assert everywhere.records.rates.marks.sum() > 0
    assert elsewhere.records.rates.marks.sum() == 0


def test_a_cut_takes_half_of_alpha_and_recovery_goes_half_way_to_the_rate_before():
    row, control = state(), [rates.ONE // 2, 100, 300, 0, 1, 1, 50, rates.ONE, 0]
    rates.cut(row, control, 1000)  # alpha is 1: half of the rate
    assert row[rates.CURRENT] == FULL_RATE // 2
    rates.cut(row, control, 1250)  # alpha fell twice by half: an eighth of the rate
    assert (row[rates.TARGET], row[rates.CURRENT]) == (FULL_RATE // 2, FULL_RATE // 2 * 7 // 8)
    rates.advance(row, control, 1549)
    assert row[rates.CURRENT] == FULL_RATE // 2 * 7 // 8
    rates.advance(row, control, 1550)  # the timer runs out: half-way back
    assert row[rates.CURRENT] == FULL_RATE // 2 * 15 // 16
    rates.advance(row, control, 1850)  # one stage was fast recovery: the target rises as well
    assert row[rates.TARGET] == FULL_RATE // 2 + 1000
    assert row[rates.CURRENT] == (FULL_RATE // 2 * 15 // 16 + FULL_RATE // 2 + 1000) // 2


def test_time_and_bytes_together_raise_a_rate_by_more():
    row, control = state(), [rates.ONE // 2, 100, 300, 64, 0, 1, 50, rates.ONE, 0]
    rates.cut(row, control, 0)
    rates.paced(row, control, 10, (64, 100))
    rates.advance(row, control, 10)  # bytes of this instant do not count yet
    assert row[rates.STAGES] == 0
    rates.advance(row, control, 299)
    assert row[rates.TARGET] == FULL_RATE  # no higher than the line's
    row[rates.TARGET] = row[rates.CURRENT]
    rates.advance(row, control, 300)
    assert row[rates.TARGET] == FULL_RATE * 3 // 4 + 5000


def test_a_later_cut_of_several_may_leave_the_target_where_it_was():
    row, control = state(), [rates.ONE // 2, 100, 300, 0, 1, 0, 50, rates.ONE, 0]
    for moment in (0, 60):
        rates.cut(row, control, moment)
    assert (row[rates.TARGET], row[rates.CURRENT]) == (FULL_RATE, FULL_RATE // 4)
    rates.advance(row, control, 360)
    rates.cut(row, control, 400)
    assert row[rates.TARGET] == FULL_RATE * 5 // 8


@pytest.mark.parametrize(
    ("switching", "said"),
    [
        (slowing(parts=1), "switching.congestion.dcqcn: stated with parts 1; allowed: more parts"),
        (slowing() | {"mode": "fluid", "parts": 1, "segment": None}, "mode fluid; allowed: mode cut_through"),
        (slowing(kmax="0 B"), "switching.congestion.dcqcn.kmax: 0 B; allowed: above kmin, 0 B"),
        (slowing(kmin="5"), "switching.congestion.dcqcn.kmin: '5' has no unit"),
        (slowing(pmax=1.5), "switching.congestion.dcqcn.pmax: "),
        (slowing(rate_timer="0 us"), "switching.congestion.dcqcn.rate_timer: 0 s; allowed: above 0"),
        (slowing(dimensions=["rail"]), "switching.congestion.dcqcn.dimensions: rail; allowed: d0"),
        (slowing(gain=None), "switching.congestion.dcqcn.gain: missing; allowed: stated, or a preset"),
    ],
)
def test_what_can_not_be_is_refused(switching, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        machine(switch(3), switching=switching)


def test_a_preset_of_nics_leaves_thresholds_to_switches():
    congestion: dict[str, Any] = {"control": "none", "dcqcn": {"preset": "connectx"}}
    with pytest.raises(ConfigError, match="dcqcn.kmin: missing: thresholds are the switches'"):
        machine(switch(3), switching=slowing() | {"congestion": congestion})
    congestion["dcqcn"] |= {"kmin": "150 KB", "kmax": "1.5 MB", "pmax": 1.0}
    where = machine(switch(3), switching=slowing() | {"congestion": congestion})
    whole = where.switching.congestion.dcqcn.whole()
    assert (whole.gain, whole.fast_recovery, int(whole.byte_counter)) == (5 / 1024, 1, 32_767 * 64)


def state():
    row = [0] * rates.COLUMNS
    for column in (rates.CAP, rates.CURRENT, rates.TARGET, rates.SLOWEST):
        row[column] = FULL_RATE
    row[rates.LEAST], row[rates.STEP], row[rates.LEAP], row[rates.NOTICED_AT] = 10, 1000, 5000, -1
    return row
