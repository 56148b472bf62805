"""NCCL in closed form: what its formula says where it can be worked out by hand, and what it refuses."""

from __future__ import annotations

from itertools import pairwise

import pytest

from rapid_des.chakra.trace import CollectiveType
from rapid_des.errors import ConfigError, InputError
from rapid_des.network.collectives.libraries.nccl import GroupPlacement, peer_channels
from rapid_des.network.collectives.libraries.nccl_fabric import fabric_names, load_fabric
from rapid_des.network.collectives.libraries.nccl_network import nccl_time, send_time

AR, AG, RS, A2A = (
    CollectiveType.ALL_REDUCE,
    CollectiveType.ALL_GATHER,
    CollectiveType.REDUCE_SCATTER,
    CollectiveType.ALL_TO_ALL,
)
KIB, MIB, GIB = 2**10, 2**20, 2**30


def micros(estimate):
    return estimate.duration / 1e6


@pytest.mark.parametrize("name", fabric_names())
def test_every_fabric_is_physical_and_times_rise_with_the_size(name):
    fabric = load_fabric(name)
    for kind in (AR, AG, RS, A2A):
        times = [nccl_time(fabric, kind, 4, 2**power).duration for power in range(8, 24)]
        # a protocol's last size may take longer than the next protocol's first by NCCL's own tuning
        assert all(after > 0.75 * before for before, after in pairwise(times))
        assert times[-1] > times[0]
    assert all(0 < part.exposed <= 1 for part in (fabric.node.ll, fabric.node.ll128, fabric.node.simple))
    if fabric.network is not None:
        assert 0 < fabric.network.ll128_share <= 120 / 128


def test_a_tiny_all_reduce_is_a_start_and_ring_steps():
    node = load_fabric("a100_nvswitch").node
    estimate = nccl_time(load_fabric("a100_nvswitch"), AR, 8, 8)
    # 2·7 LL hops; the byte a rank sends in each takes nothing
    assert estimate.protocol == "ll"
    assert micros(estimate) == pytest.approx((node.base + 14 * node.ll.hop) / 1e6, rel=0.01)


@pytest.mark.parametrize(
    ("collective", "ranks", "total", "protocol"),
    [
        # NCCL's table for A100: LL until its slope has cost the other's later start,
        # all-gather n = 2: 4.6 us at (1/87.7 - 1/240) us/kB of half the buffer: 1.27 MB
        (AG, 2, MIB, "ll"),
        (AG, 2, 2 * MIB, "simple"),
        # n = 8: LL to LL128 at 2.7 MB, LL128 to Simple at 15.5 MB
        (AG, 8, 2 * MIB, "ll"),
        (AG, 8, 8 * MIB, "ll128"),
        (AG, 8, 16 * MIB, "simple"),
    ],
)
def test_the_protocol_changes_where_nccl_changes_it(collective, ranks, total, protocol):
    assert nccl_time(load_fabric("a100_nvswitch"), collective, ranks, total // ranks).protocol == protocol


def test_eight_hopper_gpus_reduce_in_the_switch_and_four_in_a_ring():
    fabric = load_fabric("h100_nvswitch")
    assert nccl_time(fabric, AR, 8, 64 * MIB).algorithm == "nvls"
    assert nccl_time(fabric, AR, 4, 64 * MIB).algorithm == "ring"


def test_a_large_ring_across_nodes_runs_at_the_rate_of_the_nics():
    fabric = load_fabric("h100_ndr")
    for per_node in (1, 2, 4):
        ranks = 10 * per_node
        time = micros(nccl_time(fabric, AR, ranks, 8 * GIB, per_node=per_node)) * 1e-6
        bus = 8 * GIB * 2 * (ranks - 1) / ranks / time
        # measured with one NDR-400 NIC a GPU: 48.9 GB/s and twice and four times that
        assert bus == pytest.approx(per_node * 48.9e9, rel=0.015)


def test_no_send_is_faster_than_the_nic():
    fabric = load_fabric("gh200_slingshot")
    assert micros(send_time(fabric, 2, GIB, per_node=1)) * 1e-6 > GIB / fabric.network.nic


def test_an_all_reduce_over_nodes_keeps_ll128_longer_than_a_gather():
    fabric = load_fabric("h100_ndr")
    # NCCL counts on 1.4 times the latency of Simple in an all-reduce: of 60·3.4 + 18·14 us against
    # 60·1.9 + 18·4, which 512 MiB at 196 and 182 GB/s do not bring in again and 1 GiB do
    kinds = [nccl_time(fabric, AR, 40, size, per_node=4).protocol for size in (512 * MIB, GIB)]
    assert kinds == ["ll128", "simple"]
    # a rank alone on its node gets 0.7 of the ring in NCCL's eyes: 64 MiB go with Simple
    assert nccl_time(fabric, AR, 10, 64 * MIB, per_node=1).protocol == "simple"
    assert nccl_time(fabric, AG, 40, 512 * MIB // 40, per_node=4).protocol == "simple"


def test_whole_nodes_climb_trees_and_parts_of_them_go_round():
    fabric = load_fabric("h100_ndr")
    for per_node, algorithm in ((4, "ring"), (8, "nvls_tree")):
        assert nccl_time(fabric, AR, 10 * per_node, 16 * GIB, per_node=per_node).algorithm == algorithm


def test_a_small_all_reduce_across_nodes_climbs_a_tree_and_comes_back():
    fabric = load_fabric("gh200_slingshot")
    small = fabric.network.small
    one, two, eight = (micros(nccl_time(fabric, AR, 4 * nodes, 8, per_node=4)) for nodes in (1, 2, 8))
    # 1 level up and 1 down for two nodes, 3 and 3 for eight; measured on Alps: 7.75, 18.7 and 41.3 us
    assert two - one == pytest.approx(2 * small.level / 1e6, rel=0.01)
    assert eight - one == pytest.approx(6 * small.level / 1e6, rel=0.01)
    alone = micros(nccl_time(fabric, AR, 2, 8, per_node=1))
    assert alone == pytest.approx((fabric.node.base + 2 * small.level) / 1e6, rel=0.01)


def test_a_send_in_a_node_gets_channels_by_its_size():
    fabric = load_fabric("h100_nvswitch")
    channel = fabric.node.point_to_point.channel
    # 8 ranks: 4 channels each until 16 MiB a channel makes more of them; then the link is the limit
    slow, fast = (micros(send_time(fabric, 8, size)) for size in (16 * MIB, 64 * MIB))
    assert fast - slow == pytest.approx(48 * MIB / (4 * channel) * 1e6, rel=1e-3)
    large = micros(send_time(fabric, 8, 16 * GIB))
    assert large == pytest.approx(16 * GIB / fabric.node.simple.link * 1e6, rel=1e-3)


def test_more_nodes_never_make_a_collective_faster():
    fabric = load_fabric("h100_efa")
    for kind, share in ((AR, 256 * MIB), (A2A, 256 * MIB)):
        times = [
            nccl_time(fabric, kind, 8 * nodes, share, per_node=8).duration for nodes in (2, 4, 8, 16, 32)
        ]
        assert times == sorted(times)


@pytest.mark.parametrize(
    ("nodes", "per_node", "channels"),
    [
        # 4, halved while channels times ranks exceed 4 times the GPU's own channels: 8 a GPU, 32 at most
        (2, 1, 4),
        (8, 1, 4),
        (10, 1, 2),  # 4·10 > 4·8 >= 2·10
        (2, 8, 4),  # 4·16 <= 4·32
        (10, 2, 2),
        (10, 4, 2),  # 4·40 > 4·32 >= 2·40
        (10, 8, 1),
    ],
)
def test_a_peer_gets_fewer_channels_among_more_ranks(nodes, per_node, channels):
    assert peer_channels(GroupPlacement(nodes * per_node, nodes, per_node)) == channels


def test_a_send_is_slower_among_more_ranks():
    fabric = load_fabric("h100_ndr")
    assert send_time(fabric, 10, GIB, per_node=1).duration > send_time(fabric, 8, GIB, per_node=1).duration


@pytest.mark.parametrize(("kind", "per_node"), [(AR, 8), (AG, 8), (A2A, 8), (A2A, 4)])
def test_a_collective_takes_channels_of_a_gpu_and_bytes_of_its_hbm(kind, per_node):
    cost = nccl_time(load_fabric("h100_ndr"), kind, 16, 64 * MIB, per_node=per_node)
    assert 0 < cost.channels <= 32
    assert cost.hbm_bytes >= 64 * MIB
    assert (cost.intra_node_share, cost.inter_node_share) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a100_nvswitch", AR, 16, MIB, 8), "has no network between nodes: 16 ranks are 2 nodes"),
        (("a100_nvswitch", AR, 9, MIB, 8), "9 ranks cannot be laid out with 8 on each node"),
    ],
)
def test_what_it_can_not_say_is_refused(arguments, message):
    name, kind, ranks, size, per_node = arguments
    with pytest.raises(InputError, match=message):
        nccl_time(load_fabric(name), kind, ranks, size, per_node=per_node)


def test_an_unknown_fabric_lists_the_presets():
    with pytest.raises(ConfigError, match="no fabric file 'h1000'; presets: a100_hdr, a100_nvswitch, "):
        load_fabric("h1000")
