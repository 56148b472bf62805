"""R9: every message has a queue pair; those of a sender take turns, and windows hold them back."""

import pytest

from rapid_des.errors import ConfigError, UnsupportedByEngine
from rapid_des.modes.execution import ENGINES, EngineChoice
from rapid_des.network.faults import parse_fault
from rapid_des.simulation import run_traces
from tests.program.machines import machine, ring
from tests.program.tracing import Nodes, trace_set
from tests.semantics.messages import LATENCY, PARTS, one_message, two_senders

TURNS = PARTS | {"congestion": {"control": "none"}}
"""Up to four parts of whole packets of 64 B, which take 64 ns."""


def window(products):
    return PARTS | {"congestion": {"control": "window", "bandwidth_delay_products": products}}


@pytest.mark.parametrize("hops", [1, 2, 3])
@pytest.mark.parametrize("switching", [TURNS, window(2)])
def test_a_message_alone_arrives_as_the_whole_does(replayed, switching, hops):
    done = replayed(one_message(640, peer=hops, ranks=7), machine(ring(7), switching=switching))
    assert done.finish[hops] == [640_000 + (hops - 1) * 64_000 + hops * LATENCY]
    assert done.records.hops == 4 * hops


@pytest.mark.parametrize("slow_first", [True, False])
def test_a_message_over_links_of_two_rates_arrives_with_the_slow_links_last_packet(replayed, slow_first):
    slow, fast = ring(2, bandwidth="500 MB/s"), ring(2)
    rings = (slow, fast) if slow_first else (fast, slow)
    done = replayed(one_message(640, peer=3, ranks=4), machine(*rings, switching=window(2)))
    assert done.finish[3] == [1_280_000 + 64_000 + 2 * LATENCY]


def test_a_window_below_the_bandwidth_delay_product_stalls_the_sender(replayed):
    # a packet's round trip is 64 + 100 + 100 ns, half of it 132 B: part k of 192 B begins when byte 60 of
    # the part before is acknowledged, (60 + 200) ns after that part did
    done = replayed(one_message(640, peer=1, ranks=2), machine(ring(2), switching=window(0.5)))
    assert done.finish[1] == [3 * 260_000 + 64_000 + LATENCY]


def test_a_window_of_several_parts_lets_as_many_go(replayed):
    # 264 B are part 0 and 72 B of part 1: part 2 begins when byte 384 - 264 = 120 is acknowledged, at 320 ns,
    # which is before its link is done with part 1, at 384 ns
    done = replayed(one_message(640, peer=1, ranks=2), machine(ring(2), switching=window(1)))
    assert done.finish[1] == [640_000 + LATENCY]


def test_messages_of_one_sender_take_turns_part_by_part(replayed):
    done = replayed(two_senders(640, 640), machine(ring(2), switching=TURNS))
    # three parts of 192 B of each, then their last 64 B
    assert sorted(done.finish[1]) == [6 * 192_000 + 64_000 + LATENCY, 6 * 192_000 + 128_000 + LATENCY]


def test_a_message_that_comes_later_gets_its_turn_at_once(replayed):
    sender, receiver = Nodes(), Nodes()
    gate = sender.compute(400_000, stream="gate")
    for tag, (size, after) in enumerate([(640, ()), (640, ()), (64, gate)]):
        sender.send(1, size, tag=tag, stream=f"s{tag}", after=after)
        receiver.recv(0, size, tag=tag, stream=f"s{tag}")
    done = replayed(trace_set([sender, receiver]), machine(ring(2), switching=TURNS))
    # at 400 ns the second part of the first message is on the link; the second message's waits since 384 ns
    assert done.finish[1][2] == 4 * 192_000 + 64_000 + LATENCY


def test_transit_gets_half_of_a_link_however_many_messages_its_own_gpu_sends(replayed):
    programs = [Nodes() for _ in range(5)]
    programs[0].send(2, 768, stream="transit")
    programs[2].recv(0, 768, stream="transit")
    for tag in (1, 2):
        programs[1].send(2, 768, tag=tag, stream=f"own{tag}")
        programs[2].recv(1, 768, tag=tag, stream=f"own{tag}")
    done = replayed(trace_set(programs), machine(ring(5), switching=TURNS))
    # own, transit (there at 164 ns), transit on the tie (there at 356 ns), own, transit, own, transit
    assert done.finish[2][0] == 7 * 192_000 + LATENCY


def test_acknowledgements_go_before_data(replayed):
    protocol = {
        "payload": "64 B",
        "header": "0 B",
        "acknowledgement": "16 B",
        "packets_per_acknowledgement": 1,
        "packet_time": "exact",
    }
    switching = {"mode": "cut_through", "parts": 4, "protocol": protocol, "congestion": {"control": "none"}}
    programs = [Nodes(), Nodes()]
    programs[0].send(1, 640, stream="there")
    programs[1].recv(0, 640, stream="there")
    programs[1].send(0, 64, after=programs[1].compute(312_000, stream="gate"), stream="back")
    programs[0].recv(1, 64, stream="back")
    done = replayed(trace_set(programs), machine(ring(2), switching=switching))
    # three packets are there at 292 ns; 48 ns of acknowledgements, of which 28 are left at 312 ns
    assert done.finish[0][1] == 312_000 + 28_000 + 64_000 + LATENCY


def test_a_fault_that_comes_and_goes_holds_queue_pairs_back_but_does_not_reroute_them():
    traces = one_message(640, peer=1, ranks=3)
    fault = "link=gpu0>gpu1 down=true from=192ns until=1us"
    waits = machine(ring(3), switching=window(2)).with_faults([parse_fault(f"{fault} policy=wait")])
    for engine in ENGINES:
        done = run_traces(traces, waits, EngineChoice(engine))
        # 192 of 640 B are through when the link closes
        assert done.execution.records.makespan == 1_000_000 + 448_000 + LATENCY
    reroutes = machine(ring(3), switching=window(2)).with_faults(
        [parse_fault(f"{fault} policy=reroute detection=0ns")]
    )
    with pytest.raises(UnsupportedByEngine, match="queue pairs are not rerouted in mid-flight; use policy=w"):
        run_traces(traces, reroutes, EngineChoice("simpy"))


def test_only_cut_through_has_queue_pairs():
    with pytest.raises(ConfigError, match=r"switching.congestion: stated with mode fluid; allowed: mode cut"):
        machine(ring(2), switching={"mode": "fluid", "congestion": {"control": "none"}})
    with pytest.raises(ConfigError, match="bandwidth_delay_products"):
        machine(ring(2), switching=window(0))
