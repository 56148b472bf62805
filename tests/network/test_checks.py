"""Channel dependencies: which routes may wait in a circle."""

import pytest

from rapid_des.network.build import build
from rapid_des.network.checks import channel_dependency_cycle
from rapid_des.network.routing import DimensionOrderRouter
from tests.network.fabrics import INNER, dimension


@pytest.mark.parametrize(
    ("keys", "cycle"),
    [
        (
            {"shape": "mesh", "size": [4, 4]},
            0,
        ),  # dimension order on a mesh is the textbook's deadlock-free routing
        ({"shape": "hypercube", "size": 16}, 0),  # so is e-cube
        ({"shape": "switch", "size": 8}, 0),
        ({"shape": "ring", "size": 3}, 0),  # every route is one hop
        ({"shape": "ring", "size": 4}, 4),  # 0-1-2, 1-2-3, 2-3-0, 3-0-1 wait for each other upwards
        ({"shape": "torus", "size": [5, 5]}, 5),
    ],
)
def test_rings_longer_than_three_need_virtual_channels_and_meshes_do_not(keys, cycle):
    plan = build("x", [dimension(**keys)], INNER)
    found = channel_dependency_cycle(plan.fabric, DimensionOrderRouter(plan))
    assert len(found) == cycle
    ends = [(int(plan.fabric.source[link]), int(plan.fabric.destination[link])) for link in found]
    assert all(one[1] == two[0] for one, two in zip(ends, ends[1:] + ends[:1], strict=True))


def test_only_the_named_pairs_count():
    plan = build("x", [dimension(shape="ring", size=8)], INNER)
    router = DimensionOrderRouter(plan)
    assert channel_dependency_cycle(plan.fabric, router, [(0, 3), (3, 6)]) == ()
    assert (
        len(channel_dependency_cycle(plan.fabric, router, [(0, 3), (3, 6), (6, 1), (2, 4), (5, 7), (7, 2)]))
        == 8
    )
