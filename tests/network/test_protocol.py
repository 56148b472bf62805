from pathlib import Path

import pytest

from rapid_des.config import Document, decode
from rapid_des.errors import ConfigError
from rapid_des.network.protocol import (
    ACK_RATIO_ONE,
    CutThrough,
    Protocol,
    acknowledgement_ratio,
    acknowledgement_time,
    cut_through,
    cut_through_time,
    effective_bandwidth,
    fluid_service,
    in_segments,
    packet_time,
    pipeline_time,
    service_time,
    wire_bytes,
)
from rapid_des.units import Size, serialization_time

ROCE = Protocol(
    payload=Size(4096),
    header=Size(36),
    acknowledgement=Size(48),
    packets_per_acknowledgement=1,
    packet_time="whole_ns",
)
PLAIN = Protocol(
    payload=Size(1000),
    header=Size(0),
    acknowledgement=Size(0),
    packets_per_acknowledgement=1,
    packet_time="exact",
)
GB = 10**9
NS = 1000


def test_no_packet_takes_no_time_in_whole_nanoseconds() -> None:
    # 36 + 64 B at 900 GB/s are 0.11 ns
    assert packet_time(ROCE, 64, 900 * GB) == NS
    assert fluid_service(ROCE, 64, [(900 * GB, NS)]).ratio > ACK_RATIO_ONE // 2


def recursion(count: int, full: list[int], last: list[int]) -> int:
    """The definition: units one after the other through links that each serve one at a time."""
    free = [0] * len(full)
    for unit in range(count):
        arrived = 0
        for link, time in enumerate(last if unit == count - 1 else full):
            free[link] = arrived = max(free[link], arrived) + time
    return free[-1]


def test_headers_are_paid_per_packet_and_an_empty_message_is_one_packet() -> None:
    assert wire_bytes(ROCE, 10_000) == 10_000 + 3 * 36
    assert wire_bytes(ROCE, 8192) == 8192 + 2 * 36
    assert wire_bytes(ROCE, 0) == 36


@pytest.mark.parametrize(
    ("bandwidth", "full_packet_ns"),
    # ns-3: 4,132 bytes take 82.64, 165.28, 330.56 and 20.66 ns.
    [(50 * GB, 83), (25 * GB, 165), (12_500_000_000, 331), (200 * GB, 21)],
)
def test_ns3_rounds_each_packet_to_whole_nanoseconds(bandwidth: int, full_packet_ns: int) -> None:
    assert service_time(ROCE, 10 * 4096, bandwidth) == 10 * full_packet_ns * NS
    assert effective_bandwidth(ROCE, bandwidth) == 4132 * 10**9 // full_packet_ns


def test_exact_packet_times_round_up_once_a_message() -> None:
    # 3,000 bytes at 7 GB/s: 428,571.43 ps.
    assert service_time(PLAIN, 3000, 7 * GB) == 428_572
    assert effective_bandwidth(PLAIN, 7 * GB) == 7 * GB


@pytest.mark.parametrize("count", [1, 2, 3, 10])
@pytest.mark.parametrize("full", [[5], [5, 5], [9, 3, 9], [3, 9, 3], [1, 2, 3, 4], [4, 3, 2, 1]])
@pytest.mark.parametrize("short", [0, 1])
def test_pipeline_time_is_the_packet_recursion(count: int, full: list[int], short: int) -> None:
    last = [max(1, time - 2) if short else time for time in full]
    assert pipeline_time(count, full, last) == recursion(count, full, last)


def test_cut_through_over_equal_links_pays_one_packet_more_a_hop() -> None:
    # 1 MiB over 3 hops of 200 Gb/s and 500 ns between host links of 800 Gb/s and 1 ns, the ns-3 case
    # p2p_ring8_h3_1M: 256 packets, 2 * (41 + 1) + 3 * (165 + 500) + 255 * 165 = 44,154 ns.
    hops = [(100 * GB, NS), *[(25 * GB, 500 * NS)] * 3, (100 * GB, NS)]
    assert cut_through_time(ROCE, 2**20, hops) == 44_154 * NS


def arrival(visits: CutThrough) -> int:
    """Return when a message has arrived that waits for nothing."""
    return sum(visits.head[:-1]) + sum(visits.lag) + visits.occupancy[-1]


def test_store_and_forward_pays_a_whole_segment_a_hop() -> None:
    # 4,000 bytes in segments of 2,000 at 1 GB/s: three link times of 2 us over two hops, and latencies.
    hops = [(GB, 100 * NS), (GB, 100 * NS)]
    assert arrival(in_segments(PLAIN, 4000, hops, segment=2000)) == 6_200 * NS
    assert arrival(in_segments(PLAIN, 4000, hops, segment=4000)) == 8_200 * NS
    # Segments of one packet are cut-through: 1 us + 4 us.
    assert arrival(in_segments(PLAIN, 4000, hops, segment=1000)) == cut_through_time(PLAIN, 4000, hops)
    assert cut_through_time(PLAIN, 4000, hops) == 5_200 * NS


@pytest.mark.parametrize("rates", [[25], [25, 25], [100, 25, 100], [25, 100, 25], [25, 50, 100]])
@pytest.mark.parametrize("size", [1, 4096, 5000, 2**20])
def test_cut_through_visits_chain_up_to_the_zero_load_arrival(rates: list[int], size: int) -> None:
    hops = [(rate * GB, 500 * NS) for rate in rates]
    visits = cut_through(ROCE, size, hops)
    start = sum(visits.head[:-1]) + sum(visits.lag[:-1])
    assert start + visits.occupancy[-1] + visits.lag[-1] == cut_through_time(ROCE, size, hops)
    assert all(head <= busy for head, busy in zip(visits.head, visits.occupancy, strict=True))


def test_a_fluid_message_has_its_latencies_half_before_and_half_after_its_drain() -> None:
    # The last of the packets needs 165 ns on two more links, and 3 latencies.
    hops = [(25 * GB, 500 * NS)] * 3
    service = fluid_service(ROCE, 2**20, hops)
    assert service.before + service.after == pytest.approx((2 * 165 + 1500) * NS, abs=2)
    assert service.after - service.before in {0, 1}
    # Together with the drain at the effective rate it is exact.
    drained = serialization_time(service.wire, effective_bandwidth(ROCE, 25 * GB))
    assert service.before + drained + service.after == cut_through_time(ROCE, 2**20, hops)


def test_acknowledgements_load_the_way_back_by_their_time() -> None:
    # 2 ns an acknowledgement against 165 ns a packet.
    assert acknowledgement_ratio(ROCE, 2**20, 25 * GB) == pytest.approx(ACK_RATIO_ONE * 2 / 165, abs=1)
    assert acknowledgement_ratio(PLAIN, 2**20, 25 * GB) == 0
    # Two hops of 2 ns and 500 ns.
    assert acknowledgement_time(ROCE, [(25 * GB, 500 * NS)] * 2) == 1004 * NS


def test_a_protocol_block_states_every_parameter() -> None:
    tree = {"payload": "4 KiB", "header": "36 B", "acknowledgement": "48 B", "packet_time": "whole_ns"}
    with pytest.raises(ConfigError, match="missing key 'packets_per_acknowledgement'"):
        decode(Document(Path("machine.yaml"), tree), Protocol)
    assert decode(Document(Path("machine.yaml"), tree | {"packets_per_acknowledgement": 1}), Protocol) == ROCE
