"""Collectives inside switches: engines, modes, folding, memory, fluid links and links that close."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapid_des.engines import compiled
from rapid_des.errors import FabricCutError, UnsupportedByEngine
from rapid_des.modes.blocks.reach import sharing
from rapid_des.modes.execution import EngineChoice, execute
from rapid_des.modes.symmetry import Budget, fold
from rapid_des.network.collectives import IN_SWITCH, demand, prove
from rapid_des.network.faults import parse_fault
from rapid_des.program.collectives.plans import CollectiveCall
from rapid_des.program.collectives.select import Planner
from rapid_des.program.lowering import lower
from rapid_des.program.routes import geometry, signatures
from rapid_des.program.switch_trees import TreesOverGroups, lines_through
from rapid_des.simulation import replay
from rapid_des.values import replace
from tests.engines.agreement import assert_engines_agree, assert_same
from tests.engines.random_programs import CUT, FLUID, PACKETS, SEGMENTS
from tests.program.machines import STORE, dimension, machine, ring, switch
from tests.program.tracing import ALL_REDUCE, NANOSECOND, Nodes, same_everywhere

UPLINK = {"bandwidth": "500 MB/s", "latency": "50 ns"}
CLOS = dimension("clos", 8, leaf_size=2, spines=2, uplink=UPLINK)
FABRICS = [
    (switch(5),),
    (CLOS,),
    (switch(4, nic={"gpus": 1, "bandwidth": "2 GB/s", "latency": "10 ns"}),),
    (switch(2), dimension("clos", 3, leaf_size=1, spines=2, uplink=UPLINK, rails=2, spans_inner=True)),
    (dimension("dragonfly", 12, hosts=2, routers=2, global_links=1, local_link=UPLINK, global_link=UPLINK),),
]


def alone(kind, size, ranks):
    nodes = Nodes()
    nodes.collective(kind, size)
    return same_everywhere(nodes, ranks)


def inside(*dimensions, algorithm="sharp", chunks=1, **keys):
    return machine(*dimensions, collectives={"default": {"algorithm": algorithm, "chunks": chunks}}, **keys)


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(FABRICS),
    st.sampled_from([STORE, SEGMENTS, CUT, PACKETS, *FLUID]),
    st.sampled_from(sorted(IN_SWITCH)),
    st.integers(1, 3),
    st.sampled_from(sorted(IN_SWITCH["sharp"])),
    st.integers(1, 5000),
)
def test_engines_agree_and_no_byte_is_lost(fabric, switching, name, chunks, kind, size):
    where = inside(*fabric, switching=switching, algorithm=name, chunks=chunks)
    program = lower(alone(kind, size, where.fabric.gpus), where).program
    records = assert_engines_agree(program, trail=switching["mode"] != "fluid")
    assert records.sent == records.received
    assert (records.finish >= 0).all()


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(FABRICS),
    st.sampled_from(sorted(IN_SWITCH["sharp"])),
    st.integers(0, 3000),
    st.integers(1, 3),
    st.randoms(use_true_random=False),
)
def test_the_schedule_that_is_replayed_keeps_the_data_property(fabric, kind, size, chunks, rng):
    where = inside(*fabric, chunks=chunks)
    gpus = where.fabric.gpus
    group = tuple(rng.sample(range(gpus), rng.randint(2, gpus)))
    extents, axes = geometry(where, group)
    above = TreesOverGroups(where).of("group", group, extents, group[0])
    ((step,),) = Planner(where).plan(CollectiveCall(kind, size, extents, axes, above), group, group[0])
    schedule = step.schedule(len(group))
    prove(schedule, demand(kind, len(group), size))
    if step.algorithm == "sharp":
        assert schedule.switches == len(above.whole) - len(group)


def test_lines_through_a_rank_are_those_of_the_axes():
    assert lines_through((4, 5, 6, 7, 8, 9), (3, 2), 8) == [(7, 8, 9), (5, 8)]


def _steps(ranks, groups_of, groups):
    nodes = Nodes()
    done: tuple[int, ...] = ()
    for _ in range(3):
        done = (nodes.compute(1_000_000, after=done),)
        done = (nodes.collective(ALL_REDUCE, 4096, "node", stream="tp", after=done),)
        done = (nodes.collective(ALL_REDUCE, 4096, "rail", stream="dp", after=done),)
    return same_everywhere(nodes, ranks, groups_of=groups_of, groups=groups)


def _nodes_and_rails():
    """Four nodes of two GPUs; the steps of a job with a group in each node, and one on each rail."""
    groups: dict[str, tuple[int, ...]] = {f"node{node}": (2 * node, 2 * node + 1) for node in range(4)}
    groups |= {f"rail{rail}": tuple(range(rail, 8, 2)) for rail in range(2)}
    return _steps(8, lambda rank: [f"node{rank // 2}", f"rail{rank % 2}"], groups)


def test_nodes_that_live_alike_are_folded():
    where = inside(switch(2), ring(4), algorithm=["sharp", "ring"])
    program = lower(_nodes_and_rails(), where).program
    folding = fold(program, Budget(run_s=1))
    assert folding is not None
    assert folding.factor == 4
    records = compiled.run(folding.program)
    assert_same(folding.unfolded(program, records), compiled.run(program), ties=False)


def test_two_flows_of_one_tree_share_fluid_links():
    # the third member's link is shared by nobody; each sends 1000 B at 1 GB/s, then gets them
    where = inside(switch(3), switching=FLUID[0])
    done = replay(alone(ALL_REDUCE, 1000, 3), where)
    assert done.step_time == pytest.approx(2 * 1100 * NANOSECOND, abs=4)


def analytic(traces, where):
    return execute(lower(traces, where, analytic=True).program, EngineChoice("simpy")).records.makespan


def test_the_closed_form_of_a_lone_tree_is_its_simulation():
    for fabric in FABRICS:
        where = inside(*fabric, chunks=1)
        traces = alone(ALL_REDUCE, 4000, where.fabric.gpus)
        simulated = execute(lower(traces, where).program, EngineChoice("simpy")).records.makespan
        assert analytic(traces, where) == simulated


def test_closed_forms_of_algorithms_by_dimension():
    where = inside(switch(2), switch(3), algorithm=["nvls", "sharp"])
    # three steps, each as long as its chain of two hops of 3000 B, which is longer than any link is busy
    assert analytic(alone(ALL_REDUCE, 6000, 6), where) == 3 * 2 * 3100 * NANOSECOND


def test_groups_below_other_trees_have_other_signatures():
    routing = {"order": "innermost_first", "tie": "positive", "ecmp": "lowest_id"}
    one, alike = signatures(inside(CLOS, routing=routing), [(0, 2), (2, 4)])
    assert one == alike
    one, other = signatures(inside(CLOS, routing=routing), [(0, 1, 2), (0, 2, 4)])
    assert one != other


def test_blocks_over_several_switches_are_refused_in_hierarchical_execution():
    where = inside(CLOS, ring(2))
    inner = [tuple(range(8)), tuple(range(8, 16))]
    outer = [[("dp", np.array([[place, place + 8]]))] for place in range(8)]
    with pytest.raises(UnsupportedByEngine, match="below several switches.*use --mode flattened"):
        sharing(where, inner, outer)
    sharing(inside(switch(8), ring(2), algorithm=["nvls", "ring"]), inner, outer)


def broken(where, *faults):
    return where.with_faults([parse_fault(text) for text in faults])


def test_what_a_closing_link_stops_reaches_the_same_switch_another_way():
    where = inside(CLOS, switching=SEGMENTS)
    traces = alone(ALL_REDUCE, 4000, 8)
    healthy = replay(traces, where, trail=True)
    fabric, run = where.fabric, healthy.run
    tree = where.switch_trees.over(tuple(range(8)))
    spine = fabric.node_name(tree.switches[tree.parents.index(-1) - 8])
    text = f"link=switch0-{spine} down=true from=5us policy=reroute detection=50ns"
    done = replay(traces, broken(where, text), trail=True)
    records = done.run.execution.records
    assert records.sent == records.received == run.execution.records.sent
    other = next(f"switch{number}" for number in (4, 5) if f"switch{number}" != spine)
    carried = {fabric.link_name(link): int(sent) for link, sent in enumerate(records.link_bytes.sum(axis=1))}
    # leaf 0 goes up by the other spine and down again by another leaf to the root
    assert carried[f"switch0>{other}"] > 0
    assert done.step_time > healthy.step_time


def test_a_root_that_dies_for_good_cuts_its_tree():
    where = inside(CLOS, switching=SEGMENTS)
    tree = where.switch_trees.over(tuple(range(8)))
    spine = where.fabric.node_name(tree.switches[tree.parents.index(-1) - 8])
    text = f"{spine.replace('switch', 'switch=')} down=true from=5us policy=reroute detection=50ns"
    with pytest.raises(FabricCutError, match=rf"at \S+ us: small: .* cannot reach {spine}: dead links cut"):
        replay(alone(ALL_REDUCE, 4000, 8), broken(where, text))


def test_a_link_that_sleeps_delays_the_tree():
    where = inside(switch(4))
    text = "link=gpu1>switch0 down=true from=500ns until=2500ns policy=wait"
    done = replay(alone(ALL_REDUCE, 4000, 4), broken(where, text))
    assert done.step_time == (2 * 4100 + 2000) * NANOSECOND


def test_machines_without_such_algorithms_look_for_no_trees():
    where = machine(CLOS)
    assert not where.in_switches
    program = lower(alone(ALL_REDUCE, 4000, 8), where).program
    assert all(template.pair_source.max(initial=0) < template.members for template in program.templates)
    moved = replace(where, dead=frozenset({0}))
    assert not moved.in_switches
    assert np.array_equal(program.route_links, lower(alone(ALL_REDUCE, 4000, 8), where).program.route_links)
