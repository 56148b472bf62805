"""Policy `replan`: collectives that begin once a closure is noticed are planned for what survives.

Closed forms are on rings of 1 byte a nanosecond and 100 ns a link, in segments of 100 B.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapid_des.chakra.trace import CollectiveType
from rapid_des.errors import FabricCutError, TraceError
from rapid_des.network.faults import parse_fault
from rapid_des.program.lowering import rank_times
from rapid_des.simulation import replay
from tests.engines.agreement import assert_same
from tests.engines.random_programs import machines, traces
from tests.program.machines import STORE, dimension, machine, ring, switch
from tests.program.tracing import (
    ALL_GATHER,
    ALL_REDUCE,
    BARRIER,
    NANOSECOND,
    Nodes,
    same_everywhere,
    trace_set,
)

CUT = {"mode": "cut_through", "segment": "100 B"}
SEGMENTS = {"mode": "store_and_forward", "segment": "100 B"}
STATIC = "policy=replan"
REPLAN = "policy=replan detection=50ns"


def result(subject, where, *faults):
    """What both engines say, to the tick."""
    broken = where.with_faults(list(map(parse_fault, faults)))
    done, other = (replay(subject, broken, engine=engine, trail=True) for engine in ("simpy", "compiled"))
    records = (one.run.execution.records for one in (done, other))
    assert_same(*records, ties=False, trail=where.switching.mode != "fluid")
    return done


def assert_same_run(one, other):
    """Equal nodes, link tables by kind of traffic, bytes and hops, to the tick."""
    for position in range(len(one.run.lowered.program.bindings)):
        mine, theirs = (
            rank_times(run.lowered, run.execution.records, position) for run in (one.run, other.run)
        )
        for column in ("start", "finish", "met"):
            np.testing.assert_array_equal(getattr(mine, column), getattr(theirs, column), err_msg=column)
    for column in ("link_bytes", "link_busy", "link_wait"):
        mine, theirs = (_by_label(run, column) for run in (one.run, other.run))
        assert mine.keys() == theirs.keys()
        for label, sums in mine.items():
            np.testing.assert_array_equal(sums, theirs[label], err_msg=column)
    assert _totals(one) == _totals(other)
    np.testing.assert_array_equal(_hops(one), _hops(other))


def _by_label(run, column):
    table = getattr(run.execution.records, column)
    return {label: table[:, place] for place, label in enumerate(run.lowered.program.labels)}


def _totals(done):
    records = done.run.execution.records
    return records.sent, records.received, records.hops


def _hops(done):
    trail = done.run.execution.records.trail
    rows = np.stack([trail.start, trail.link, trail.finish, trail.arrival], 1)
    return rows[np.lexsort(rows.T[::-1])]


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_what_begins_after_the_detection_runs_as_if_the_fault_had_always_been_there(data):
    where = data.draw(machines())
    subject = data.draw(traces(where.fabric.gpus))
    links = data.draw(st.lists(st.integers(0, len(where.fabric) - 1), min_size=1, max_size=3, unique=True))
    try:
        always = result(subject, where, *(f"link=#{link} down=true {STATIC}" for link in links))
    except FabricCutError:
        return
    timed = [f"link=#{link} down=true from=0ns policy=replan detection=0ns" for link in links]
    assert_same_run(result(subject, where, *timed), always)


def test_parts_are_handed_over_at_the_rate_of_the_slowest_link_that_is_left():
    # without the ring's links gpu0 reaches gpu1 through switches of half the rate only
    where = machine(
        ring(3), switch(2, bandwidth="500 MB/s"), switching={**CUT, "segment": "64 B", "parts": 3}
    )
    nodes = Nodes()
    nodes.collective(ALL_REDUCE, 300)
    subject = trace_set([nodes, nodes])
    always = result(subject, where, *(f"link=#{link} down=true {STATIC}" for link in (0, 1)))
    timed = [f"link=#{link} down=true from=0ns policy=replan detection=0ns" for link in (0, 1)]
    assert_same_run(result(subject, where, *timed), always)


TORUS = dimension("torus", [3, 3])
PER_AXIS = [["ring", "ring"], ["bidirectional_ring", "ring"], ["bidirectional_ring", "bidirectional_ring"]]


@settings(max_examples=3, deadline=None)
@given(st.data())
def test_so_do_collectives_over_several_dimensions(data):
    choice = {"algorithm": data.draw(st.sampled_from(PER_AXIS)), "chunks": data.draw(st.sampled_from([1, 3]))}
    where = machine(TORUS, switching=CUT, collectives={"default": choice})
    rows = [Nodes() for _ in range(9)]
    for kind in data.draw(
        st.lists(st.sampled_from([ALL_REDUCE, ALL_GATHER, BARRIER]), min_size=1, max_size=3)
    ):
        for nodes in rows:
            work = nodes.compute(data.draw(st.sampled_from([0, 1000, 70_000])))
            nodes.collective(kind, 2000, after=work)
    cables = st.sampled_from([f"link={a}-{b}" for a in range(9) for b in range(a) if adjacent(a, b)])
    down = data.draw(st.lists(cables, min_size=1, max_size=4, unique=True))
    try:
        always = result(trace_set(rows), where, *(f"{cable} down=true {STATIC}" for cable in down))
    except FabricCutError:
        return
    timed = [f"{cable} down=true from=0ns policy=replan detection=0ns" for cable in down]
    assert_same_run(result(trace_set(rows), where, *timed), always)


@pytest.mark.parametrize("policy", [STATIC, "from=0ns policy=replan detection=0ns"])
def test_members_whose_line_has_lost_its_switch_do_not_leave_the_others_alone(policy):
    # of the three lines through switches only that of GPUs 0 and 3 goes without
    where = machine(ring(3), switch(2), collectives={"default": {"algorithm": ["ring", "nvls"], "chunks": 3}})
    nodes = Nodes()
    nodes.collective(ALL_REDUCE, 600)
    done = result(same_everywhere(nodes, 6), where, f"link=gpu0>switch0 down=true {policy}")
    sent, received, _ = _totals(done)
    assert sent == received > 0


def adjacent(one, other):
    return (one % 3 == other % 3) != (one // 3 == other // 3)


def test_a_group_leaves_its_dimensions_where_a_ring_through_them_is_faster():
    # gpu5 has lost its row: of the 16 GPUs' rings only one that turns into columns has no detour; 30 steps of
    # 62,500 B and 100 ns each
    where = machine(
        dimension("torus", [4, 4]),
        switching=CUT | {"segment": "1 KB"},
        collectives={"default": ["ring", "ring"]},
    )
    nodes = Nodes()
    nodes.collective(ALL_REDUCE, 1_000_000)
    down = ["link=4-5 down=true", "link=5-6 down=true"]
    subject = same_everywhere(nodes, 16)
    assert nanoseconds(result(subject, where, *(f"{one} {STATIC}" for one in down))) == 30 * (62_500 + 100)
    timed = result(subject, where, *(f"{one} from=0ns policy=replan detection=0ns" for one in down))
    assert nanoseconds(timed) == 30 * (62_500 + 100)
    assert nanoseconds(result(subject, where, *down)) > 3_000_000


def nanoseconds(done):
    assert done.step_time % NANOSECOND == 0
    return done.step_time // NANOSECOND


def crossed(done, name):
    """Bytes on a link."""
    run = done.run
    sums = run.execution.records.link_bytes.sum(axis=1)
    return sum(int(sums[link]) for link in range(len(sums)) if run.machine.fabric.link_name(link) == name)


def waiting(*delays, after=0):
    """Four ranks: an all-reduce of 4000 B once each has worked so long; another one `after` ns later."""
    rows = []
    for delay in delays:
        nodes = Nodes()
        first = nodes.collective(ALL_REDUCE, 4000, after=nodes.compute(delay * NANOSECOND))
        if after:
            nodes.collective(ALL_REDUCE, 4000, after=nodes.compute(after * NANOSECOND, after=first))
        rows.append(nodes)
    return trace_set(rows)


RING = machine(ring(4), switching=CUT)
ONE_ROUND = 6 * 1100
"""An all-reduce of 4000 B: six steps of 1000 B and 100 ns, around a ring or in a bucket to and fro a line."""


def test_a_ring_that_lost_a_cable_becomes_a_line():
    late = waiting(1000, 1000, 1000, 1000)
    replanned = result(late, RING, f"link=1-2 down=true from=200ns {REPLAN}")
    assert nanoseconds(replanned) == 1000 + ONE_ROUND
    # with policy reroute what goes from 1 to 2 takes three links, each of which serves its own data too
    rerouted = result(late, RING, "link=1-2 down=true from=200ns policy=reroute detection=50ns")
    assert nanoseconds(rerouted) > 1000 + ONE_ROUND
    assert_same_run(replanned, result(late, RING, f"link=1-2 down=true {STATIC}"))


def test_a_ring_that_lost_one_direction_turns_round():
    done = result(waiting(1000, 1000, 1000, 1000), RING, f"link=1>2 down=true from=200ns {REPLAN}")
    assert nanoseconds(done) == 1000 + ONE_ROUND
    assert crossed(done, "gpu2>gpu1") == 6000


@pytest.mark.parametrize("delays", [(0, 0, 0, 0), (0, 900, 900, 900)])
def test_a_collective_keeps_the_plan_that_its_first_member_began_with(delays):
    fault = "link=1-2 down=true from=200ns policy={} detection=50ns"
    replanned = result(waiting(*delays), RING, fault.format("replan"))
    assert_same_run(replanned, result(waiting(*delays), RING, fault.format("reroute")))
    assert replanned.run.execution.records.sent == result(waiting(*delays), RING).run.execution.records.sent


def test_the_next_one_is_replanned():
    done = result(waiting(0, 0, 0, 0, after=500), RING, f"link=1-2 down=true from=200ns {REPLAN}")
    times = [rank_times(done.run.lowered, done.run.execution.records, rank) for rank in range(4)]
    begun, ended = max(time.met[3] for time in times), max(time.finish[3] for time in times)
    assert ended - begun <= ONE_ROUND * NANOSECOND < max(time.finish[1] for time in times)


def test_once_the_link_is_back_the_machines_own_plan_serves_again():
    fault = f"link=1-2 down=true from=200ns until=900ns {REPLAN}"
    healed = result(waiting(1000, 1000, 1000, 1000), RING, fault)
    assert_same_run(healed, result(waiting(1000, 1000, 1000, 1000), RING))


def test_a_collective_that_outlasts_the_closure_keeps_its_line():
    fault = f"link=1-2 down=true from=0ns until=1200ns {REPLAN}"
    done = result(waiting(1000, 1000, 1000, 1000), RING, fault)
    assert nanoseconds(done) == 1000 + ONE_ROUND
    assert crossed(done, "gpu1>gpu2") == 0


def test_faults_of_both_kinds_add_up():
    # 0-1 is always down and 2-3 from 200 ns on: a ring of 4 is cut in two, a torus of 3 x 3 is not
    where = machine(TORUS, switching=CUT)
    nodes = Nodes()
    nodes.collective(ALL_REDUCE, 9000, after=nodes.compute(1000 * NANOSECOND))
    subject, always = same_everywhere(nodes, 9), f"link=0-1 down=true {STATIC}"
    both = result(subject, where, always, f"link=4-7 down=true {STATIC}")
    assert_same_run(result(subject, where, always, f"link=4-7 down=true from=200ns {REPLAN}"), both)
    with pytest.raises(FabricCutError, match="at 1 us: .*cannot reach"):
        result(waiting(1000, 1000, 1000, 1000), RING, f"link=0-1 down=true from=0ns {REPLAN}",
               f"link=2-3 down=true from=200ns {REPLAN}")  # fmt: skip


def test_a_tree_of_switches_moves_to_the_spine_that_is_left():
    # members, leaf, spine and back: four hops of 4000 B and 100 ns, over either spine
    uplink = {"bandwidth": "1 GB/s", "latency": "100 ns"}
    clos = dimension("clos", 8, leaf_size=2, spines=2, uplink=uplink)
    where = machine(clos, collectives={"all_reduce": "sharp"})
    nodes = Nodes()
    nodes.collective(ALL_REDUCE, 4000, after=nodes.compute(1000 * NANOSECOND))
    subject = same_everywhere(nodes, 8)
    healthy = result(subject, where)
    root = next(spine for spine in (4, 5) if crossed(healthy, f"switch0>switch{spine}"))
    fault = f"switch={root} down=true from=200ns detection=50ns policy="
    done = result(subject, where, f"{fault}replan")
    assert nanoseconds(done) == nanoseconds(healthy) == 1000 + 4 * 4100
    assert crossed(done, f"switch0>switch{9 - root}") == 4000
    assert_same_run(done, result(subject, where, f"switch={root} down=true {STATIC}"))
    with pytest.raises(FabricCutError, match=f"cannot reach switch{root}"):
        result(subject, where, f"{fault}reroute")


@pytest.mark.parametrize(
    "kind", [CollectiveType.REDUCE, CollectiveType.BROADCAST, CollectiveType.REDUCE_SCATTER]
)
def test_a_root_where_no_paths_meet_takes_no_part_in_what_has_a_root_below(kind):
    # the one spine that reaches everybody is left by one link: paths to it meet at another spine below
    uplink = {"bandwidth": "500 MB/s", "latency": "50 ns"}
    clos = dimension("clos", 6, leaf_size=2, spines=2, uplink=uplink)
    nodes = Nodes()
    nodes.collective(kind, 300)
    where = machine(clos, collectives={"default": "sharp"})
    cut = ("switch4>switch1", "switch3>switch2", "switch0>switch3")
    done = result(same_everywhere(nodes, 4), where, *(f"link={link} down=true {STATIC}" for link in cut))
    sent, received, _ = _totals(done)
    assert sent == received > 0


def test_members_that_disagree_are_named_as_ever():
    rows = [Nodes() for _ in range(4)]
    for rank, nodes in enumerate(rows):
        nodes.collective(ALL_REDUCE, 4000 if rank else 8000)
    with pytest.raises(TraceError, match="its members disagree on collective number 0"):
        result(trace_set(rows), RING, "link=1-2 down=true from=0ns policy=replan detection=0ns")


def test_what_is_planned_once_serves_all_collectives_that_are_alike():
    nodes = Nodes()
    after: int | tuple[()] = ()
    for _ in range(40):
        after = nodes.collective(ALL_REDUCE, 4000, after=after)
    fault = f"link=1-2 down=true from=200ns until=150us {REPLAN}"
    done = result(trace_set([nodes] * 4), RING, fault)
    assert done.run.execution.records.finished
    # the first goes on its way, then as many as fit as lines, then rings again
    assert crossed(done, "gpu1>gpu2") == pytest.approx(6000 * 40 / 2, rel=0.5)


PARTS = {**CUT, "segment": "64 B", "parts": 4}


@pytest.mark.parametrize(
    ("fabric", "switching", "algorithm", "chunks", "size", "down"),
    [
        # by longest chain and busiest link a bucket would take 20.7 and 32.8 us; its turns take 38.4, 50.2
        ([dimension("torus", [4, 4])], PARTS, "ring", 1, 20_000, (0, 4)),
        ([ring(5)], PARTS, "ring", 1, 20_000, (2, 0)),
        ([dimension("hypercube", 8)], STORE, "ring", 4, 20_000, (16,)),
        # line by line each phase is faster, but the lines of one cross links of others
        ([dimension("king_mesh", [3, 3])], PARTS, ["ring", "bucket"], 4, 300, (27, 13)),
        ([switch(4), ring(3)], SEGMENTS, ["bidirectional_ring"] * 2, 2, 300, (28, 25, 7)),
        ([ring(4), switch(2)], SEGMENTS, ["ring", "bidirectional_ring"], 2, 2000, (10,)),
        (
            [dimension("torus", [4, 2])],
            {"mode": "store_and_forward"},
            ["bidirectional_ring", "ring"],
            4,
            300,
            (7, 10),
        ),
    ],
)
def test_a_plan_for_what_survives_is_no_slower_than_detours(fabric, switching, algorithm, chunks, size, down):
    choice = {"default": {"algorithm": algorithm, "chunks": chunks}}
    where = machine(*fabric, switching=switching, collectives=choice)
    nodes = Nodes()
    nodes.collective(ALL_REDUCE, size)
    subject = trace_set([nodes] * where.fabric.gpus)
    detours, planned = (
        result(subject, where, *(f"link=#{link} down=true {policy}" for link in down)).step_time
        for policy in ("", STATIC)
    )
    assert planned <= detours


def test_flows_without_a_protocol_are_planned_too():
    where = machine(ring(4), switching={"mode": "fluid"})
    nodes = Nodes()
    nodes.collective(ALL_REDUCE, 4000)
    subject = trace_set([nodes] * 4)
    planned = result(subject, where, f"link=0-1 down=true {STATIC}")
    # three blocks of 1 KB to each end of the line and three back, one behind the other as on a queue pair
    assert planned.step_time == 6_600_000


def test_groups_that_lost_nothing_keep_their_plan():
    pairs = {"low": (0, 1), "high": (2, 3)}
    nodes = Nodes()
    nodes.collective(ALL_REDUCE, 4000, "pair")
    subject = same_everywhere(nodes, 4, lambda rank: ["low" if rank < 2 else "high"], groups=pairs)
    assert_same_run(result(subject, RING, f"link=1-2 down=true {STATIC}"), result(subject, RING))
