from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rapid_des.errors import ConfigError, FabricCutError
from rapid_des.importers.astra_sim.files import NetworkFile
from rapid_des.importers.astra_sim.topology import astra_hop_table, network_of

HERE = Path("net.yml")


def network(*dimensions, bandwidth=50.0, latency=500.0, **stated):
    shapes, sizes = zip(*dimensions, strict=True)
    count = len(dimensions)
    file = NetworkFile(
        topology=shapes,
        npus_count=sizes,
        bandwidth=(bandwidth,) * count,
        latency=(latency,) * count,
        **stated,
    )
    return network_of(file, HERE)


def nodes_on_the_way(one, source, destination):
    links = one.router.route(source, destination)
    return [int(one.fabric.destination[link]) for link in links]


def test_times_are_truncated_to_whole_nanoseconds_with_the_sum_taken_first():
    # 50 GiB/s = 53.687 B/ns; 1,000,000 B take 18,626.45 ns; with 100.6 ns latency 18,727.05
    table = astra_hop_table(network(("Ring", 4), latency=100.6), [1_000_000])
    assert table.occupancy[0, 0] == 18_626_000
    assert table.occupancy[0, 0] + table.lag[0, 0] == 18_727_000


def test_a_message_too_short_to_measure_keeps_a_link_busy_for_a_tick():
    table = astra_hop_table(network(("Ring", 4), latency=0.0), [1])
    assert (table.occupancy[0, 0], table.lag[0, 0]) == (1, 0)


def test_outermost_dimension_first_and_upwards_on_ties():
    # 4 x 4: from (0, 0) to (2, 2) = 10: two steps up in dimension 1 (4, 8), then two in dimension 0 (9, 10)
    assert nodes_on_the_way(network(("Ring", 4), ("Ring", 4)), 0, 10) == [4, 8, 9, 10]


def test_inside_a_two_dimensional_shape_the_first_axis_goes_first():
    assert nodes_on_the_way(network(("Mesh2D", 16)), 0, 10) == [1, 2, 6, 10]
    assert nodes_on_the_way(network(("Torus2D", 16)), 0, 15) == [3, 15]
    assert nodes_on_the_way(network(("KingMesh2D", 16)), 0, 11) == [5, 10, 11]


def test_switches_are_two_hops():
    one = network(("Ring", 4), ("Switch", 2))
    assert len(nodes_on_the_way(one, 0, 4)) == 2


def test_two_dimensional_shapes_need_a_square_number():
    with pytest.raises(ConfigError, match=r"npus_count\[0\]: Torus2D: 8 is not a square number"):
        network(("Torus2D", 8))


def test_derated_links_are_slower_both_ways_and_the_first_entry_counts():
    one = network(("Ring", 4), faulty_links=((0, 1, 0.5), (1, 0, 0.1)))
    table = astra_hop_table(one, [1_000_000])
    busy = {
        (int(one.fabric.source[link]), int(one.fabric.destination[link])): int(table.occupancy[0, of])
        for link, of in enumerate(one.service_class)
    }
    assert busy[0, 1] == busy[1, 0] == 37_252_000
    assert busy[1, 2] == 18_626_000


def test_messages_go_around_dead_links():
    assert nodes_on_the_way(network(("Ring", 4), faulty_links=((0, 1, 0.0),)), 0, 1) == [3, 2, 1]


def test_a_cut_fabric_is_named():
    one = network(("Mesh", 4), faulty_links=((1, 2, 0.0),))
    with pytest.raises(FabricCutError, match="gpu0 cannot reach gpu3"):
        one.router.routes(np.array([[0, 3]]))


@pytest.mark.parametrize("ends", [(0, 2), (0, 9), (-1, 0)])
def test_faults_of_links_that_do_not_exist_are_refused(ends):
    with pytest.raises(ConfigError, match=r"faulty_links\[0\]"):
        network(("Ring", 4), faulty_links=((*ends, 0.5),))
