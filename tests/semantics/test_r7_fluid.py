"""R7: in the fluid mode flows share links."""

import numpy as np
import pytest

from rapid_des.errors import CannotFinishError, FabricCutError
from rapid_des.network.faults import parse_fault
from rapid_des.program.lowering import lower
from rapid_des.program.program import Timetable
from rapid_des.program.timetable import FULL_RATE
from rapid_des.values import replace
from tests.program.machines import dimension, machine, ring
from tests.program.tracing import ALL_GATHER, Nodes, trace_set
from tests.semantics.messages import LATENCY, one_message, two_senders


def test_fluid_messages_share_a_link_in_equal_parts(replayed):
    done = replayed(two_senders(500, 300), machine(ring(2), switching={"mode": "fluid"}))
    # half the link each: 300 B are out after 600 ns; the other 200 B then take 200 ns
    assert done.finish[1] == pytest.approx([800_000 + LATENCY, 600_000 + LATENCY], abs=2)


def test_a_fluid_message_of_no_bytes_arrives_too(replayed):
    done = replayed(one_message(0, peer=1, ranks=2), machine(ring(2), switching={"mode": "fluid"}))
    assert LATENCY <= done.finish[1][0] <= LATENCY + 1000


@pytest.mark.parametrize(("opens", "waits"), [(40_000, 0), (50_000, 0), (60_000, 10_000)])
def test_a_flow_joins_its_links_after_half_of_its_latency(run, opens, waits):
    program = lower(one_message(500, peer=1, ranks=2), machine(ring(2), switching={"mode": "fluid"})).program
    closed = Timetable(*(np.array(column, np.int64) for column in ([0, opens], [0, FULL_RATE], [0, 0])))
    records = run(replace(program, link_timetables=dict.fromkeys(range(program.links), closed)))
    # it joins at 50 ns, drains for 500 ns as soon as the link is open, and arrives 50 ns after
    assert records.finish.max() == pytest.approx(600_000 + waits, abs=2)


@pytest.mark.parametrize(("until", "late"), [(49_000, 0), (51_000, 70_000), (400_000, 70_000)])
def test_a_flow_arrives_later_by_the_lag_that_its_links_add_when_it_joins(run, until, late):
    program = lower(one_message(500, peer=1, ranks=2), machine(ring(2), switching={"mode": "fluid"})).program
    slow = Timetable(*(np.array(column, np.int64) for column in ([0, until], [FULL_RATE] * 2, [70_000, 0])))
    records = run(replace(program, link_timetables={int(program.route_links[0]): slow}))
    # it joins at 50 ns
    assert records.finish.max() == pytest.approx(600_000 + late, abs=2)


def test_messages_against_each_other_share_with_acknowledgements_larger_than_they(replayed):
    protocol = {
        "payload": "64 B",
        "header": "0 B",
        "acknowledgement": "128 B",
        "packets_per_acknowledgement": 1,
        "packet_time": "exact",
    }
    small = machine(ring(2), switching={"mode": "fluid", "protocol": protocol})
    ranks = Nodes(), Nodes()
    for rank, nodes in enumerate(ranks):
        nodes.send(1 - rank, 64, stream="out")
        nodes.recv(1 - rank, 64, stream="in")
    done = replayed(trace_set(ranks), small)
    # r + 2 r = 1 GB/s: 64 B take 192 ns
    assert [times[1] for times in done.finish] == pytest.approx([192_000 + LATENCY] * 2, abs=10)


@pytest.mark.parametrize("acknowledgement", ["0 B", "1 B"])
def test_only_acknowledgements_that_there_are_need_a_way_back(replayed, acknowledgement):
    protocol = {"payload": "100 B", "header": "0 B", "acknowledgement": acknowledgement}
    protocol |= {"packets_per_acknowledgement": 1, "packet_time": "exact"}
    where = machine(dimension("mesh", 2), switching={"mode": "fluid", "protocol": protocol})
    cut = where.with_faults([parse_fault("link=1>0 down=true")])
    message = one_message(500, peer=1, ranks=2)
    if acknowledgement == "0 B":
        assert replayed(message, cut).finish[1] == replayed(message, where).finish[1]
    else:
        with pytest.raises(FabricCutError, match="gpu1 cannot reach gpu0"):
            replayed(message, cut)


def test_a_fluid_message_waits_at_no_hop_for_its_end(replayed):
    line = machine(dimension("mesh", 5), switching={"mode": "fluid"})
    done = replayed(one_message(10_000_000, peer=4, ranks=5), line)
    assert done.finish[4][0] == pytest.approx(10_000_000_000 + 4 * LATENCY, abs=10_000)


def test_a_flow_that_drains_past_the_horizon_is_not_called_a_deadlock(replayed):
    slow = machine(dimension("ring", 2, bandwidth="4 B/s"), switching={"mode": "fluid"})
    sender, receiver = Nodes(), Nodes()
    for tag in range(64):  # 74 days in all
        sender.send(1, 399_999, tag=tag, stream=f"stream{tag}")
        receiver.recv(0, 399_999, tag=tag, stream=f"stream{tag}")
    with pytest.raises(CannotFinishError, match="passes the time horizon of .* 128 of 128 steps end later"):
        replayed(trace_set([sender, receiver]), slow)


def test_a_flow_that_joins_slows_those_that_are_there(replayed):
    done = replayed(two_senders(500, 300, delays=(0, 200_000)), machine(ring(2), switching={"mode": "fluid"}))
    # alone for 200 ns; then both at half the rate: the other 300 B of each take 600 ns
    assert done.finish[1] == pytest.approx([800_000 + LATENCY] * 2, abs=2)


def test_blocks_that_wait_for_a_late_member_leave_in_order_and_make_no_convoy(replayed):
    late = 10_000_000
    ranks = [Nodes() for _ in range(4)]
    for rank, nodes in enumerate(ranks):
        gate = nodes.compute(late) if rank == 2 else ()
        nodes.collective(ALL_GATHER, 1000, after=gate)
    done = replayed(trace_set(ranks), machine(ring(4), switching={"mode": "fluid"}))
    # rank 2 then has three blocks for rank 3, which come every microsecond and not all after three; two of
    # them go on to rank 0 as they come, and one of these to rank 1, over a hop more each
    last = [finish[-1] - late for finish in done.finish]
    assert last == pytest.approx([3_000_000 + hops * LATENCY for hops in (3, 3, 1, 2)], abs=10)


def test_messages_of_two_collectives_share_a_link_whatever_their_sizes(replayed):
    done = replayed(two_senders(500, 500), machine(ring(2), switching={"mode": "fluid"}))
    assert done.finish[1] == pytest.approx([1_000_000 + LATENCY] * 2, abs=2)
