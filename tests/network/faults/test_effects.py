"""What constant faults leave of a fabric and of GPUs."""

from fractions import Fraction

import numpy as np
import pytest

from rapid_des.errors import TopologyError
from rapid_des.network.build import build
from rapid_des.network.faults import apply_static, gpu_factors, parse_fault
from tests.network.fabrics import INNER, dimension

TORUS = build("torus", [dimension("t", shape="torus", size=[4, 4])], INNER).fabric
CLUSTER = build(
    "cluster",
    [
        dimension("nvlink", shape="switch", size=4, bandwidth="300 GB/s"),
        dimension("rail", shape="switch", size=3, nic={"bandwidth": "25 GB/s", "latency": "1 us", "gpus": 1}),
    ],
    INNER,
).fabric


def left(fabric, *texts, gpus_per_node=None):
    return apply_static(fabric, [parse_fault(text) for text in texts], gpus_per_node)


def changed(fabric, *texts, gpus_per_node=None):
    after, dead = left(fabric, *texts, gpus_per_node=gpus_per_node)
    slower = np.flatnonzero((after.bandwidth != fabric.bandwidth) | (after.latency != fabric.latency))
    return {fabric.link_name(link) for link in slower}, {fabric.link_name(link) for link in dead}


def test_a_link_is_hit_in_both_directions_and_an_arrow_in_one():
    assert changed(TORUS, "link=0-1 bandwidth=0.5")[0] == {"gpu0>gpu1", "gpu1>gpu0"}
    assert changed(TORUS, "link=0>1 bandwidth=0.5")[0] == {"gpu0>gpu1"}
    assert changed(TORUS, "link='(3, 0) > (0, 0)' down=true")[1] == {"gpu3>gpu0"}
    assert changed(TORUS, "link=#0 down=true")[1] == {TORUS.link_name(0)}


def test_factors_multiply_and_latencies_add():
    after, _ = left(TORUS, "link=0>1 bandwidth=0.5 latency=2us", "dimension=t bandwidth=0.1 latency=1us")
    link = TORUS.link(0, 1)
    assert after.bandwidth[link] == 5_000_000_000  # 100 GB/s · 0.5 · 0.1, as the decimals say
    assert after.latency[link] == 4_000_000  # 1 + 2 + 1 us


def test_a_factor_lengthens_each_links_own_latency():
    after, _ = left(TORUS, "link=0>1 latency=100x", "link=0>1 latency=2us")
    assert after.latency[TORUS.link(0, 1)] == 102_000_000  # 100 · 1 us + 2 us


def test_a_dead_gpu_takes_its_links_and_its_compute_with_it():
    names = {"gpu5>gpu4", "gpu5>gpu6", "gpu5>gpu1", "gpu5>gpu9"}
    both = names | {"gpu4>gpu5", "gpu6>gpu5", "gpu1>gpu5", "gpu9>gpu5"}
    assert changed(TORUS, "gpu='(1, 1)' down=true")[1] == both
    factors = gpu_factors(TORUS, [parse_fault("gpu=5 down=true"), parse_fault("gpu=2 compute=0.8")])
    assert {gpu: (f.compute, f.hbm) for gpu, f in factors.items()} == {
        2: (Fraction(4, 5), Fraction(1)),
        5: (Fraction(0), Fraction(0)),
    }


def test_a_gpu_that_only_computes_slower_keeps_its_links():
    assert changed(TORUS, "gpu=5 compute=0.5 hbm=0.7") == (set(), set())


def test_a_node_takes_its_gpus_nics_and_own_switch_but_not_the_rails():
    dead = changed(CLUSTER, "node=1 down=true", gpus_per_node=4)[1]
    # Four GPUs: 4 links to the NVSwitch, 4 to NICs, 4 cables from NICs to the rails, each both ways.
    assert len(dead) == 2 * 12
    assert "gpu4>switch1" in dead
    assert "nic7>switch6" in dead  # the cable to a rail dies, the rail's other cables live
    assert "switch6>nic3" not in dead


def test_a_router_that_others_route_through_outlives_its_only_node():
    # A HyperX of four routers with a node of two GPUs at each: the node takes its two links each way along.
    rate = {"bandwidth": "25 GB/s", "latency": "1 us"}
    keys = {"shape": "hyperx", "size": 8, "hosts": 2, "routers": 4, "router_link": rate}
    fabric = build("x", [dimension(**keys)], INNER).fabric
    dead = changed(fabric, "node=1 down=true", gpus_per_node=2)[1]
    assert dead == {
        "gpu2>switch1", "gpu3>switch1", "switch1>gpu2", "switch1>gpu3",
    }  # fmt: skip


def test_nics_and_switches_are_hit_by_their_number():
    assert changed(CLUSTER, "nic=0 bandwidth=0.5")[0] == {
        "gpu0>nic0",
        "nic0>gpu0",
        "nic0>switch3",
        "switch3>nic0",
    }
    assert len(changed(CLUSTER, "switch=switch0 down=true")[1]) == 8


def test_nodes_can_be_chosen_and_drawn_like_links():
    some = changed(CLUSTER, "all=nodes where='a1 = 2' down=true", gpus_per_node=4)[1]
    assert some == changed(CLUSTER, "node=2 down=true", gpus_per_node=4)[1]
    assert len(changed(CLUSTER, "random=nodes count=1 seed=3 down=true", gpus_per_node=4)[1]) == 24


def test_predicates_choose_by_dimension_coordinate_and_rate():
    where = "dimension = rail and source.a1 = 2 and bandwidth < '30 GB/s'"
    names, _ = changed(CLUSTER, f'all=directions where="{where.replace(chr(39), "")}" bandwidth=0.5')
    assert names == {"gpu8>nic8", "gpu9>nic9", "gpu10>nic10", "gpu11>nic11"}
    assert len(gpu_factors(CLUSTER, [parse_fault("all=gpus where='a0 = 1' hbm=0.9")])) == 3


def test_random_faults_follow_their_seed():
    first = changed(TORUS, "random=links count=5 seed=7 down=true")[1]
    assert first == changed(TORUS, "random=links count=5 seed=7 down=true")[1]
    assert first != changed(TORUS, "random=links count=5 seed=8 down=true")[1]
    assert len(first) == 10  # five cables, two directions
    assert {">".join(reversed(name.split(">"))) for name in first} == first
    assert len(changed(TORUS, "random=directions count=5 seed=7 down=true")[1]) == 5
    # 24 cables: every one is drawn when all are asked for.
    assert len(changed(TORUS, "random=links count=32 seed=1 down=true")[1]) == len(TORUS)


def test_loss_slows_as_its_retransmission_scheme_says():
    # 4,096 B at 100 GB/s take 40.96 ns; with 1 us each way a round trip is 2,040.96 ns, 50 packets in flight.
    # Selective repeat, p = 0.01: 99 % of the rate; mean wait 0.01/0.99 · 2,040.96 ns = 20.616 ns, rounded up.
    after, _ = left(TORUS, "link=0>1 packet_loss=0.01 packet='4096 B' retransmission=selective_repeat")
    link = TORUS.link(0, 1)
    assert (after.bandwidth[link], after.latency[link]) == (99_000_000_000, 1_020_616)
    # Go-back-N: 0.99 / (0.99 + 0.01 · 50) = 0.66443.
    after, _ = left(TORUS, "link=0>1 packet_loss=0.01 packet='4096 B' retransmission=go_back_n")
    assert after.bandwidth[link] == 100_000_000_000 * 99 // 149
    # A bit error rate of 1e-6 loses a packet of 32,768 bits with probability 1 - (1 - 1e-6)^32768 = 0.032237.
    after, _ = left(TORUS, "link=0>1 bit_error_rate=1e-6 packet='4096 B' retransmission=selective_repeat")
    assert after.bandwidth[link] == pytest.approx(100e9 * (1 - 1e-6) ** 32768, rel=1e-9)


@pytest.mark.parametrize(
    ("fabric", "text", "says"),
    [
        (TORUS, "link=0-5 down=true", "gpu0 to gpu5; links of gpu0 lead to gpu1, gpu3, gpu4, gpu12"),
        (TORUS, "link=0-99 down=true", "there is no gpu 99; allowed: gpu0 to gpu15"),
        (TORUS, "link=#64 down=true", "allowed: #0 to #63"),
        (TORUS, "link=here down=true", "names no link; allowed: A-B, A>B, #ID"),
        (TORUS, "link=gpu0 down=true", "links of gpu0 lead to gpu1, gpu3, gpu4, gpu12"),
        (TORUS, "link=a-b down=true", "'a' names no node"),
        (TORUS, "gpu='(4,0)' down=true", "allowed: (0..3, 0..3)"),
        (TORUS, "gpu='(1,)' down=true", "allowed: (0..3, 0..3)"),
        (TORUS, "switch=0 down=true", "this fabric has no switch"),
        (TORUS, "dimension=x down=true", "no dimension 'x'; allowed: t"),
        (TORUS, "node=0 down=true", "states no gpus_per_node"),
        (TORUS, "random=links count=33 seed=0 down=true", "allowed: up to 32"),
        (TORUS, "all=links where='colour = red' down=true", "is no condition; allowed: FIELD"),
        (TORUS, "all=links where='bandwidth < 5' down=true", "no unit"),
        (TORUS, "all=gpus where='a0 = x' down=true", "where: a0"),
        (TORUS, "all=gpus where='a0 > 9' down=true", "nothing meets where"),
    ],
)
def test_what_is_not_there_is_named_with_what_is(fabric, text, says):
    with pytest.raises(TopologyError) as caught:
        left(fabric, text)
    assert says in str(caught.value)
    assert str(caught.value).startswith("faults[0]: ")
