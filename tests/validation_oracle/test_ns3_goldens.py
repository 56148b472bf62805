import csv
import gzip
import io
from functools import cache

import numpy as np
import pytest

from tests.network.fluid_messages import compiled, simulate_flows
from validation.measurements import CHECKOUT_DATA, DataFolder
from validation.network.messages import Traffic, makespan
from validation.network.packets import ns3_topics, protocol, read_traffic
from validation.packet_oracle.simulation import simulate_packets
from validation.packet_oracle.transport import Transport
from validation.scoring import score

DATA = DataFolder(CHECKOUT_DATA, split=True)
INDEX = {row["case"]: row for row in DATA.read("ns3/index.csv")}


def case(name: str) -> Traffic:
    traffic = read_traffic(DATA, f"ns3/{name}")
    assert traffic is not None
    return traffic


def ns3_arrivals(name: str) -> np.ndarray:
    """Nanoseconds by message."""
    text = gzip.decompress((CHECKOUT_DATA / "ns3" / name / "messages.csv.gz").read_bytes()).decode()
    return np.array([int(row["relaxed_rx_arrive_ns"]) for row in csv.DictReader(io.StringIO(text))])


def relaxed(name: str) -> Transport:
    payload = int(INDEX[name]["payload"])
    return Transport(protocol=protocol(payload), window_in_bdp=2.0, acknowledgements_first=True)


@cache
def packets(name: str) -> np.ndarray:
    traffic = case(name)
    return simulate_packets(relaxed(name), traffic.links, traffic.messages).arrival


@pytest.mark.parametrize("name", [name for name in INDEX if name.startswith("p2p_")])
def test_zero_load_is_ns3_to_the_nanosecond_in_packets_and_in_every_packet_mode(name: str) -> None:
    expected = 1000 * ns3_arrivals(name)
    assert packets(name).tolist() == expected.tolist()
    for mode in ("fluid", "cut_through"):
        assert makespan(case(name), protocol(int(INDEX[name]["payload"])), mode) == expected.max()


SHARED = ("park", "share", "incast", "shift", "outcast", "ard_sw8", "ard_fc8", "a2a_line8", "a2a_sw8_4M")
DENSE = ("a2a_fc8", "a2a_ft16", "a2a_king4x4", "pipe_row", "perm_t4x4x4", "perm_mesh4x4", "perm_ring16")


@pytest.mark.parametrize("name", [name for name in INDEX if name.startswith(SHARED + DENSE)])
def test_the_oracle_is_ns3_to_the_nanosecond_where_flows_share_links(name: str) -> None:
    assert packets(name).max() == 1000 * ns3_arrivals(name).max()


@pytest.mark.parametrize("name", ["share3_line8_4M", "perm_ring16", "incast7_sw8_1M", "ar_ring8_256K"])
def test_the_oracle_has_each_message_of_ns3_to_the_nanosecond(name: str) -> None:
    assert packets(name).tolist() == (1000 * ns3_arrivals(name)).tolist()


@pytest.mark.parametrize(
    ("name", "percent"),
    # ns-3 hashes acknowledgements onto other paths of equal length where there are several.
    [("a2a_ring8_4M", 0.15), ("a2a_mesh4x4_2M", 0.5), ("perm_ft16_ecmp4", 0.5), ("a2a_hc16_4M", 0.3)],
)
def test_the_oracle_is_close_to_ns3_where_acknowledgements_have_a_choice(name: str, percent: float) -> None:
    assert packets(name).max() == pytest.approx(1000 * ns3_arrivals(name).max(), rel=percent / 100)


@pytest.mark.parametrize(
    ("kind", "mean", "worst"), [("clean", 0.5, 1.5), ("contended", 2.0, 12.0), ("cc-dominated", 4.0, 15.0)]
)
def test_the_fluid_mode_reaches_the_targets_on_the_goldens(kind: str, mean: float, worst: float) -> None:
    (topic,) = [topic for topic in ns3_topics(DATA) if topic.name == f"network/ns3/{kind}"]
    report = score(topic, split=False)
    assert report["unsupported"] == {}
    assert report["mean_abs_pct"] <= mean
    assert report["max_abs_pct"] <= worst


def test_the_fluid_mode_has_each_message_of_an_uncontended_case() -> None:
    traffic = case("ar_ring8_256K")
    times = simulate_flows(protocol(4096), traffic.links, traffic.messages, kernel=compiled())
    # Effective rates are whole bytes a second, so a chain of 14 messages may be off by some picoseconds.
    assert times.arrival == pytest.approx(1000 * ns3_arrivals("ar_ring8_256K"), abs=100)


@pytest.mark.parametrize("name", ["a2a_tt_1M", "pipe_row_t4x4", "rowcol_t4x4_4M_p1000", "perm_ft16_ecmp4"])
def test_the_engine_and_the_loop_for_messages_agree_to_the_tick(name: str) -> None:
    traffic, roce = case(name), protocol(int(INDEX[name]["payload"]))
    times = simulate_flows(roce, traffic.links, traffic.messages, kernel=compiled())
    assert makespan(traffic, roce, "fluid") == times.arrival.max()
