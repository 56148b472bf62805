"""Every group's templates get the routes that the router names one by one, however many they are."""

import numpy as np
import pytest

from rapid_des.chakra.trace import CollectiveType
from rapid_des.program.lowering import lower
from tests.program.machines import dimension, machine, ring, switch
from tests.program.tracing import Nodes, same_everywhere

FLUID = {"mode": "fluid"}
CUT = {"mode": "cut_through", "segment": "100 B"}


def lowered(where, collectives):
    """Every rank calls all collectives of all ranks, then those of its half."""
    ranks = where.fabric.gpus
    nodes = Nodes()
    for group in ("world", "half"):
        for kind in collectives:
            nodes.collective(kind, 8 * ranks, group)
    halves = {f"half{part}": tuple(range(part, ranks, 2)) for part in (0, 1)}
    return lower(
        same_everywhere(
            nodes,
            ranks,
            groups_of=lambda rank: ["world", f"half{rank % 2}"],
            peers_of=lambda _: [],
            groups=halves | {"world": tuple(range(ranks))},
        ),
        where,
    ).program


@pytest.mark.parametrize("switching", [CUT, FLUID])
@pytest.mark.parametrize(
    "fabric",
    [
        (switch(2), switch(70)),
        (ring(70),),
        (dimension("torus", [7, 10]),),
        (switch(70, nic={"bandwidth": "2 GB/s", "latency": "5 ns", "gpus": 1}),),
    ],
)
def test_the_routes_of_a_group_are_those_of_its_members(fabric, switching):
    # direct among 70 or 140 members has 4,830 or 19,460 pairs: routed in bulk; rings have 70: looked up once
    where = machine(*fabric, switching=switching, collectives={"default": "ring", "all_to_all": "direct"})
    program = lowered(where, [CollectiveType.ALL_TO_ALL, CollectiveType.ALL_REDUCE])
    rng, starts = np.random.default_rng(0), program.route_starts
    assert max(len(routes) for group in program.groups for routes in group.routes.values()) >= 4830
    for group in program.groups:
        for number, routes in group.routes.items():
            template = program.templates[number]
            for pair in rng.choice(len(routes), min(len(routes), 60), replace=False).tolist():
                ends = [
                    group.bindings[side[pair]] for side in (template.pair_source, template.pair_destination)
                ]
                links = program.route_links[starts[routes[pair]] : starts[routes[pair] + 1]]
                assert tuple(links.tolist()) == where.router.route(*map(int, ends))


def test_groups_of_equal_members_share_their_routes():
    where = machine(switch(70), switching=CUT, collectives={"default": "direct"})
    program = lowered(where, [CollectiveType.ALL_TO_ALL, CollectiveType.ALL_GATHER])
    (world,) = (group for group in program.groups if len(group.bindings) == 70)
    one, other = world.routes.values()
    assert one is other
    # every pair of all ranks once, 70 · 69; that of a half, 35 · 34, is small and stands once for itself
    assert len(program.route_starts) - 1 == 70 * 69 + 2 * 35 * 34


def test_equal_routes_have_equal_services_in_every_batch():
    # 520 · 519 = 269,880 routes, more than are looked at together: within a node, between nodes, or both
    fast = switch(8, bandwidth="3 GB/s")
    where = machine(fast, switch(65), switching=CUT, collectives={"default": "direct"})
    nodes = Nodes()
    nodes.collective(CollectiveType.ALL_TO_ALL, 520, "world")
    traces = same_everywhere(
        nodes, 520, groups_of=lambda _: ["world"], peers_of=lambda _: [], groups={"world": tuple(range(520))}
    )
    program = lower(traces, where).program
    starts, fabric = program.route_starts, where.fabric
    assert len(starts) - 1 == 520 * 519
    lengths = np.diff(starts)
    first = program.route_class[starts[:-1]]
    outer_only = (lengths == 2) & (fabric.dimension[program.route_links[starts[:-1]]] == 1)
    inner_only = (lengths == 2) & ~outer_only
    kinds = [inner_only, outer_only, lengths == 4]
    assert sum(kind.sum() for kind in kinds) == len(lengths)
    # a kind's hops are numbered one after the other from a base of its own
    assert sorted(first[kind].min() for kind in kinds) == sorted(first[kind].max() for kind in kinds)
    hop = np.arange(len(program.route_class)) - np.repeat(starts[:-1], lengths)
    assert (program.route_class == np.repeat(first, lengths) + hop).all()
    bases = {int(first[kind][0]): int(lengths[kind][0]) for kind in kinds}
    assert [base for base in sorted(bases)] == np.cumsum([0, *(bases[base] for base in sorted(bases))])[
        :3
    ].tolist()
