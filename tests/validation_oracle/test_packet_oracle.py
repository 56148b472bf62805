"""The packet oracle against closed forms.

Links here carry 1 byte in 1 ns and add 100 ns; packets have 1,000 bytes, no headers, and acknowledgements
that take no time, so that every number can be followed by hand.
"""

import pytest

from rapid_des.errors import DeadlockError
from rapid_des.network.protocol import Protocol, cut_through_time
from rapid_des.units import Size
from rapid_des.values import replace
from validation.network.messages import Message
from validation.packet_oracle.simulation import simulate_packets
from validation.packet_oracle.transport import Credits, Pause, Transport, window

NS = 1000
US = 1_000_000
LINK = (10**9, 100 * NS)
PLAIN = Protocol(
    payload=Size(1000),
    header=Size(0),
    acknowledgement=Size(0),
    packets_per_acknowledgement=1,
    packet_time="exact",
)
OPEN = Transport(protocol=PLAIN, window_in_bdp=None, acknowledgements_first=True)


def there_and_back(hops: int) -> tuple[list[tuple[int, int]], tuple[int, ...], tuple[int, ...]]:
    """A line: links 0..hops-1 one way, then as many back."""
    return [LINK] * (2 * hops), tuple(range(hops)), tuple(range(hops, 2 * hops))


@pytest.mark.parametrize("size", [1, 1000, 1001, 25_500])
@pytest.mark.parametrize("rates", [[1], [1, 1, 1], [4, 1, 4], [1, 4, 1], [4, 2, 1]])
def test_zero_load_is_the_packet_pipeline(size: int, rates: list[int]) -> None:
    links = [(rate * 10**9, 100 * NS) for rate in rates] * 2
    hops = len(rates)
    message = Message(size, tuple(range(hops)), tuple(range(hops, 2 * hops)))
    times = simulate_packets(OPEN, links, [message])
    # Single packets round up on every link, the closed form once.
    assert times.arrival[0] == pytest.approx(cut_through_time(PLAIN, size, links[:hops]), abs=hops)


def test_flows_of_one_sender_take_turns_packet_by_packet() -> None:
    links, route, back = there_and_back(1)
    times = simulate_packets(OPEN, links, [Message(2000, route, back), Message(4000, route, back)])
    # Packets leave as a b a b b b: the second of a after 3 us, the last of b after 6.
    assert times.arrival.tolist() == [3 * US + 100 * NS, 6 * US + 100 * NS]


def test_a_switch_queues_first_come_first_served() -> None:
    # Senders 0 and 1 on links 0 and 1, both then over link 2; sender 1 starts half a packet later.
    links = [LINK] * 3
    messages = [Message(2000, (0, 2), ()), Message(2000, (1, 2), (), delay=500 * NS)]
    times = simulate_packets(OPEN, links, messages)
    # Packets reach the switch at 1.1 (a), 1.6 (b), 2.1 (a), 2.6 (b) us and leave back to back from 1.1 us on.
    assert times.arrival.tolist() == [4_200 * NS, 5_200 * NS]


def test_a_router_takes_turns_between_transit_and_its_own_gpu() -> None:
    # Message 0 passes over link 1, on which message 1 starts; each has 4 packets.
    times = simulate_packets(OPEN, [LINK] * 2, [Message(4000, (0, 1), ()), Message(4000, (1,), ())])
    # Own from 0, own from 1, transit (there since 1.1) from 2, own from 3, transit from 4, own from 5, then
    # transit from 6 and 7: own is out at 6, transit at 8 us.
    assert times.arrival.tolist() == [8_100 * NS, 6_100 * NS]


def test_a_window_of_w_bytes_gives_w_bytes_a_round_trip() -> None:
    # A round trip is 1 us + 2 x 100 ns; half of that product, 600 bytes, lets one packet go a round trip.
    links, route, back = there_and_back(1)
    half = replace(OPEN, window_in_bdp=0.5)
    assert window(half, [LINK], 100 * NS) == 600
    times = simulate_packets(half, links, [Message(5000, route, back)])
    # The last of 5 packets starts after 4 round trips of 1.2 us.
    assert times.arrival[0] == 4 * 1_200 * NS + 1_100 * NS


def test_a_window_of_one_product_never_stalls_alone() -> None:
    links, route, back = there_and_back(3)
    message = Message(50_000, route, back)
    one = simulate_packets(replace(OPEN, window_in_bdp=1.0), links, [message])
    assert one.arrival.tolist() == simulate_packets(OPEN, links, [message]).arrival.tolist()


def test_acknowledgements_load_the_way_back() -> None:
    # Two opposite flows of 10 packets; an acknowledgement costs a tenth of a packet.
    transport = replace(OPEN, protocol=Protocol(**{**PLAIN_FIELDS, "acknowledgement": Size(100)}))
    messages = [Message(10_000, (0,), (1,)), Message(10_000, (1,), (0,))]
    times = simulate_packets(transport, [LINK] * 2, messages)
    # Before a flow's last packet goes out at least 8 acknowledgements of 100 ns have gone before it.
    assert times.arrival.tolist() == [10 * US + 8 * 100 * NS + 100 * NS] * 2


PLAIN_FIELDS = {field: getattr(PLAIN, field) for field in PLAIN.__struct_fields__}


def test_acknowledgements_may_stand_in_the_queue_of_the_data() -> None:
    # Message 0's acknowledgements come back over link 2, where message 1's packets queue for link 3 too.
    links = [LINK, LINK, LINK, (10**8, 100 * NS)]
    messages = [Message(6000, (0,), (2, 3)), Message(6000, (2, 3), ())]
    ends = {}
    for first in (True, False):
        transport = replace(OPEN, window_in_bdp=1.0, acknowledgements_first=first)
        ends[first] = int(simulate_packets(transport, links, messages).arrival[0])
    # First: never behind data for more than the packet in service. Else: behind 10 us packets in the FIFO.
    assert ends[False] > ends[True] + 10 * US


@pytest.mark.parametrize("buffer", [1000, 2000, 8000])
def test_credits_let_a_buffer_through_each_round_trip(buffer: int) -> None:
    links, route, back = there_and_back(1)
    transport = replace(OPEN, flow_control=Credits(buffer))
    count = 24
    times = simulate_packets(transport, links, [Message(count * 1000, route, back)])
    # A packet's credit is back 1 us + 2 x 100 ns after it started; with one packet of buffer that is the
    # period, with two or more the link is always busy.
    period = 1_200 * NS if buffer == 1000 else US
    assert times.arrival[0] == (count - 1) * period + 1_100 * NS


def test_credits_hold_back_what_the_next_node_can_not_store() -> None:
    # Link 1 is ten times slower: after two packets of buffer, link 0 goes at the pace of link 1.
    links = [LINK, (10**8, 100 * NS), LINK]
    messages = [Message(10_000, (0, 1), ()), Message(1000, (0, 2), (), delay=20 * US)]
    few = simulate_packets(replace(OPEN, flow_control=Credits(2000)), links, messages)
    free = simulate_packets(OPEN, links, messages)
    # The slow link is busy for 10 packets from 1.1 us on, either way.
    assert few.arrival[0] == free.arrival[0] == 101_200 * NS
    # The short message needs 2.2 us. With credits it waits for one: packet 2 leaves the buffer for link 1 at
    # 21.1 us, which the sender knows 100 ns later.
    assert free.arrival[1] == 22_200 * NS
    assert few.arrival[1] == 23_400 * NS


def test_pause_bounds_the_queue_and_loses_no_time_on_the_slow_link() -> None:
    links = [LINK, (10**8, 100 * NS)]
    message = Message(50_000, (0, 1), ())
    transport = replace(OPEN, flow_control=Pause(stop_above=4000, go_at=2000))
    times = simulate_packets(transport, links, [message])
    assert times.arrival.tolist() == simulate_packets(OPEN, links, [message]).arrival.tolist()


def test_pause_spreads_to_flows_that_do_not_cross_the_jam() -> None:
    links = [LINK, (10**8, 100 * NS), LINK]
    messages = [Message(50_000, (0, 1), ()), Message(1000, (0, 2), (), delay=60 * US)]
    transport = replace(OPEN, flow_control=Pause(stop_above=4000, go_at=1000))
    victim = simulate_packets(transport, links, messages).arrival[1]
    # Without pause it needs 2 us and two latencies, and at most one packet before it.
    assert simulate_packets(OPEN, links, messages).arrival[1] < 65 * US < victim


def test_messages_wait_for_arrivals_answers_and_delays() -> None:
    links, route, back = there_and_back(1)
    messages = [
        Message(1000, route, back),
        Message(1000, route, back, after_arrival=(0,), delay=10 * NS),
        Message(1000, route, back, after_answer=(1,)),
    ]
    times = simulate_packets(OPEN, links, messages)
    assert times.start.tolist() == [0, 1_110 * NS, (1_110 + 1_200) * NS]


def test_a_cycle_of_full_buffers_is_a_deadlock_by_name() -> None:
    # Three links in a cycle, each message over two of them: with one packet of buffer everybody waits.
    messages = [Message(5000, (link, (link + 1) % 3), ()) for link in range(3)]
    with pytest.raises(DeadlockError, match="never arrives"):
        simulate_packets(replace(OPEN, flow_control=Credits(1000)), [LINK] * 3, messages)
