import random

import numpy as np
import pytest

from rapid_des.errors import DeadlockError
from rapid_des.network.protocol import Protocol, cut_through_time
from rapid_des.units import Size
from validation.network.messages import Message

from .fluid_messages import compiled, simulate_flows

ROCE = Protocol(
    payload=Size(4096),
    header=Size(36),
    acknowledgement=Size(48),
    packets_per_acknowledgement=1,
    packet_time="whole_ns",
)
NS = 1000
LINK = (25 * 10**9, 500 * NS)


def test_an_uncontended_message_arrives_when_its_packets_do() -> None:
    links = [(100 * 10**9, NS), LINK, LINK, (100 * 10**9, NS)]
    times = simulate_flows(ROCE, links, [Message(100_000, (0, 1, 2, 3), ())])
    assert times.arrival.tolist() == [cut_through_time(ROCE, 100_000, links)]


def test_a_message_waits_for_arrivals_for_answers_and_its_own_delay() -> None:
    links = [LINK, LINK]
    messages = [
        Message(4096, (0,), (1,)),
        Message(4096, (0,), (1,), after_arrival=(0,), delay=10 * NS),
        Message(4096, (0,), (1,), after_answer=(1,)),
    ]
    times = simulate_flows(ROCE, links, messages)
    # A packet takes 165 + 500 ns, its acknowledgement 2 + 500 ns.
    assert times.start.tolist() == [0, 675 * NS, (675 + 665 + 502) * NS]
    assert times.arrival.tolist() == [665 * NS, 1340 * NS, 2507 * NS]


def test_messages_that_wait_for_each_other_are_named() -> None:
    messages = [Message(1, (0,), (), after_arrival=(1,)), Message(1, (0,), (), after_arrival=(0,))]
    with pytest.raises(DeadlockError, match="message 0 waits"):
        simulate_flows(ROCE, [LINK], messages)


def random_case(seed: int) -> tuple[list[tuple[int, int]], list[Message]]:
    chance = random.Random(seed)
    links = [(chance.choice([12, 25, 50, 100]) * 10**9, chance.randrange(1, 900) * NS) for _ in range(30)]
    messages = []
    for number in range(40):
        route = tuple(chance.sample(range(30), chance.randrange(1, 6)))
        back = tuple(chance.sample(range(30), len(route)))
        before = tuple(chance.sample(range(number), min(number, chance.randrange(3))))
        messages.append(Message(chance.randrange(1, 10**6), route, back, before))
    return links, messages


@pytest.mark.parametrize("seed", range(2))
def test_interpreted_and_compiled_agree_to_the_tick(seed: int) -> None:
    links, messages = random_case(seed)
    slow = simulate_flows(ROCE, links, messages)
    fast = simulate_flows(ROCE, links, messages, kernel=compiled())
    assert np.array_equal(slow.arrival, fast.arrival)
    assert np.array_equal(slow.start, fast.start)


def test_renumbering_the_messages_changes_no_time() -> None:
    """Which slot a flow has must not matter: engines choose slots as they come free."""
    links, messages = random_case(0)
    messages = [Message(m.size, m.route, m.back) for m in messages]
    times = simulate_flows(ROCE, links, messages)
    turned = simulate_flows(ROCE, links, messages[::-1])
    assert turned.arrival[::-1].tolist() == times.arrival.tolist()
