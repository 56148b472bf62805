"""Groups, dimensions and shared programs of whole trace sets."""

from __future__ import annotations

import pytest

from rapid_des.chakra.trace import CollectiveType
from rapid_des.errors import TraceError, UnsupportedByEngine
from rapid_des.importers.astra_sim import AstraResult, direct, lower
from rapid_des.importers.astra_sim.collectives import CollectivePlanner, Scope
from rapid_des.program import routes
from rapid_des.report.result_text import astra_report
from rapid_des.report.tables import text

PLANE = {"topology": ["Ring"] * 2, "npus_count": [4, 3], "bandwidth": [50, 25], "latency": [100, 300]}
AR = CollectiveType.ALL_REDUCE


@pytest.fixture
def plane(bench):
    bench.network = PLANE
    bench.system |= {key: ["ring", "ring"] for key in bench.system if key.endswith("-implementation")}
    return bench


def every_rank(bench, group, **options):
    return bench.replay([([bench.collective(480_000, group=0)], (group,))] * 12, **options)


def test_a_group_of_all_ranks_is_the_world_in_any_order(plane):
    plane.groups = {"5": list(range(11, -1, -1))}
    assert every_rank(plane, "5") == every_rank(plane, "world") == every_rank(plane, "")


def test_group_zero_is_the_world_in_the_stock_dialect_only(plane):
    plane.groups = {"0": [0, 1]}
    assert every_rank(plane, "0") == every_rank(plane, "world")
    ranks = [([plane.collective(480_000, group=0)], ("0",))] * 2 + [([plane.compute(1)],)] * 10
    assert [end for end, _ in plane.replay(ranks, dialect="extended")][2:] == [1] * 10


def test_flat_algorithms_run_on_one_ring_over_all_ranks(plane):
    plane.system["all-reduce-implementation"] = ["oneRing"]
    assert [axis.size for axis in CollectivePlanner(plane.setup()).axes(AR, Scope())] == [12]
    program = lower(plane.traces([([plane.collective(480_000)],)] * 12), plane.setup()).program
    assert [template.members for template in program.templates] == [12]


def test_collectives_along_stated_dimensions_meet_only_there(plane):
    # the outer dimension of 3: ranks r, r + 4, r + 8 meet; the trace names the group by its flags
    names = {f"dimensions:0,1#{r}": (r, r + 4, r + 8) for r in range(4)}
    ranks = [([plane.collective(480_000, group=0)], (f"dimensions:0,1#{rank % 4}",)) for rank in range(12)]
    program = lower(plane.traces(ranks, names), plane.setup()).program
    phase_groups = {tuple(group.bindings.tolist()) for group in program.groups if group.routes}
    assert phase_groups == set(names.values())
    assert len(program.programs) == 1


def test_all_dimensions_are_the_world(plane):
    assert every_rank(plane, "dimensions:1,1#0") == every_rank(plane, "world")


def test_group_members_must_exist(plane):
    plane.groups = {"5": [0, 12]}
    with pytest.raises(
        TraceError, match=r"process group '5': \(0, 12\); allowed: at least one rank, 0 to 11"
    ):
        every_rank(plane, "5")


def test_ranks_call_only_their_own_groups(plane):
    plane.groups = {"5": [0, 1]}
    with pytest.raises(TraceError, match="rank 2 calls process group '5', of which it is no member"):
        every_rank(plane, "5")


def test_groups_that_only_the_trace_defines_are_used(plane):
    ranks = [([plane.collective(480_000, group=0)], ("tp",))] * 2 + [([plane.compute(1)],)] * 10
    program = lower(plane.traces(ranks, {"tp": (0, 1)}), plane.setup()).program
    assert [group.bindings.tolist() for group in program.groups] == [[0, 1]]


def test_few_pairs_are_numbered_by_sorting_alike(plane, monkeypatch):
    traces = plane.traces([([plane.collective(480_000)],)] * 12)
    dense = lower(traces, plane.setup()).program
    monkeypatch.setattr(routes, "_DENSE", 0)
    sparse = lower(traces, plane.setup()).program
    assert [group.routes.keys() for group in dense.groups] == [group.routes.keys() for group in sparse.groups]
    assert dense.route_links.tolist() == sparse.route_links.tolist()


def test_windows_among_too_many_are_refused_not_approximated(bench, monkeypatch):
    monkeypatch.setattr(direct, "_MOST_EDGES", 10)
    bench.system["all-reduce-implementation"] = ["direct1"]
    # each of 6 sends waits for receipts among all before it: 1 + 2 + 3 + 4 + 5, on each of 4 ranks
    with pytest.raises(UnsupportedByEngine, match="all-reduce, direct1, 4096 B among 4: 60 dependencies"):
        bench.replay([([bench.collective(4096)],)] * 4)


@pytest.mark.parametrize(
    ("name", "steps"),
    [("mesh", 2 * 8), ("hypercube", 2 * 3), ("torus2d", 4 * 2)],  # of 9: n - 1, ceil(ln 9), sqrt(9) - 1
)
def test_extended_algorithms_are_rings_of_their_own_length(bench, name, steps):
    # 9000 B over 9 ranks at 1 B/ns, nothing else takes time
    bench.network |= {"npus_count": [9], "bandwidth": [1e9 / 2**30], "latency": [0]}
    bench.system |= {"endpoint-delay": 0, "local-mem-bw": 0, "all-reduce-implementation": [name]}
    finish = bench.replay([([bench.collective(9000)],)] * 9, dialect="extended")
    assert {end for end, _ in finish} == {1000 * steps}


def test_long_tables_show_the_first_and_the_last_ranks():
    result = AstraResult(tuple(range(40)), tuple(range(100, 140)), (0,) * 40, hops=0)
    lines = list(text(astra_report(result, "title")))
    place = lines.index("  by finish (24 in between are left out)")
    assert [line.split()[0] for line in lines[place + 2 : place + 18]] == [
        str(rank) for rank in (*range(8), *range(32, 40))
    ]
