"""Rule R8: links that close in mid-flight, on rings of 1 byte a nanosecond and 100 ns a link."""

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapid_des.engines.compiled import replanning as compiled_engine
from rapid_des.engines.simpy import engine as simpy_engine
from rapid_des.errors import FabricCutError
from rapid_des.modes.timed_faults import with_timetables
from rapid_des.network.faults import parse_fault
from rapid_des.program.faults.closures import Remaining, closures_of, replan
from rapid_des.program.faults.slow_gpus import pace_of
from rapid_des.program.lowering import lower
from rapid_des.simulation import replay
from tests.engines.agreement import assert_same
from tests.engines.random_programs import CUT as PIPED
from tests.engines.random_programs import FLUID, PACKET_PARTS, PACKETS, PARTS, machines, traces
from tests.program.faults.test_timed import one_message
from tests.program.machines import STORE, dimension, machine, ring
from tests.program.tracing import ALL_REDUCE, NANOSECOND, Nodes, trace_set

CUT = {"mode": "cut_through", "segment": "100 B"}
SEGMENTS = STORE | {"segment": "100 B"}
REROUTE = "policy=reroute detection=50ns"
SHARED = {"mode": "fluid"}
EVERY = (STORE, SEGMENTS, PIPED, PACKETS, PARTS, PACKET_PARTS, *FLUID)


def result(subject, *faults, where=None):
    """What both engines say, to the tick."""
    broken = (where or machine(ring(4), switching=CUT)).with_faults([parse_fault(text) for text in faults])
    done, other = (replay(subject, broken, engine=engine, trail=True) for engine in ("simpy", "compiled"))
    assert_same(*(one.run.execution.records for one in (done, other)), trail=broken.switching.mode != "fluid")
    return done


def nanoseconds(done):
    assert done.step_time % NANOSECOND == 0
    return done.step_time // NANOSECOND


def crossed(done):
    """Bytes by link name."""
    run = done.run
    sums = run.execution.records.link_bytes.sum(axis=1)
    return {run.machine.fabric.link_name(link): int(sums[link]) for link in sums.nonzero()[0].tolist()}


def test_whole_segments_that_were_served_stay_sent_and_the_rest_goes_the_other_way():
    # at 350 ns three segments of 100 B are through; 700 B leave again at 350 + 50 over three links: a segment
    # and its latency for each of the first two (200 ns each), then 700 B and 100 ns
    done = result(one_message(), f"link=0>1 down=true from=350ns {REROUTE}")
    assert nanoseconds(done) == 400 + 2 * 200 + 700 + 100
    assert crossed(done) == {"gpu0>gpu1": 300, "gpu0>gpu3": 700, "gpu3>gpu2": 700, "gpu2>gpu1": 700}


def test_a_link_is_booked_for_what_it_served_until_it_closed():
    done = result(one_message(), f"link=0>1 down=true from=350ns {REROUTE}")
    records, fabric = done.run.execution.records, done.run.machine.fabric
    assert records.link_busy[fabric.link(0, 1)].sum() == 350 * NANOSECOND
    assert records.sent == records.received == 1000


def test_without_segments_a_message_that_was_cut_goes_again_as_a_whole():
    # 350 + 50 ns, then three times (1000 + 100) ns stored and forwarded
    done = result(one_message(), f"link=0>1 down=true from=350ns {REROUTE}", where=machine(ring(4)))
    assert nanoseconds(done) == 400 + 3 * 1100


def test_a_stored_message_goes_on_from_the_gpu_that_holds_it():
    # it is on gpu1 at 1100 ns; 1>2 is closed and noticed, so on the ring of 5 it goes back: 1>0>4>3>2
    done = result(one_message(hops=2), f"link=1>2 down=true from=600ns {REROUTE}", where=machine(ring(5)))
    assert nanoseconds(done) == 1100 + 4 * 1100
    assert crossed(done) == dict.fromkeys(
        ["gpu0>gpu1", "gpu1>gpu0", "gpu0>gpu4", "gpu4>gpu3", "gpu3>gpu2"], 1000
    )


def test_later_hops_serve_only_what_got_through():
    # cut-through 0>1>2 on five: 1>2 runs 200 ns behind 0>1, which closes at 350 ns with 300 B through;
    # they end on 1>2 at 200 + 300 ns, the other 700 B go 0>4>3>2
    where = machine(ring(5), switching=CUT)
    done = result(one_message(hops=2), f"link=0>1 down=true from=350ns {REROUTE}", where=where)
    records, fabric = done.run.execution.records, where.fabric
    assert records.link_busy[fabric.link(1, 2)].sum() == 300 * NANOSECOND
    assert crossed(done)["gpu1>gpu2"] == 300
    assert nanoseconds(done) == 400 + 2 * 200 + 700 + 100


def test_who_waits_for_the_link_leaves_it_too():
    first, other = Nodes(), Nodes()
    for tag in (0, 1):
        first.send(1, 1000, tag=tag, stream=f"send{tag}")
        other.recv(0, 1000, tag=tag, stream=f"recv{tag}")
    done = result(trace_set([first, other]), f"link=0>1 down=true from=350ns {REROUTE}")
    # 700 B and the 1000 B that waited share 0>3>2>1 from 400 ns on
    assert crossed(done)["gpu0>gpu3"] == 1700
    assert nanoseconds(done) == 400 + 2 * 200 + 1700 + 100


def test_what_is_sent_once_the_closure_is_noticed_takes_another_way_at_once():
    first, other = Nodes(), Nodes()
    first.send(1, 1000, after=first.compute(500 * NANOSECOND))
    other.recv(0, 1000)
    done = result(trace_set([first, other]), f"link=0>1 down=true from=0ns {REROUTE}")
    assert nanoseconds(done) == 500 + 2 * 200 + 1000 + 100


def test_a_link_that_is_back_is_used_again():
    first, other = Nodes(), Nodes()
    first.send(1, 1000, after=first.compute(500 * NANOSECOND))
    other.recv(0, 1000)
    done = result(trace_set([first, other]), f"link=0>1 down=true from=0ns until=400ns {REROUTE}")
    assert nanoseconds(done) == 500 + 1000 + 100


def test_a_cut_is_named_with_the_time_at_which_it_was_found():
    faults = [f"link=0-1 down=true from=300ns {REROUTE}", f"link=2-3 down=true from=0ns {REROUTE}"]
    with pytest.raises(FabricCutError, match="at 350 ns: .*gpu0 cannot reach gpu1") as caught:
        result(one_message(), *faults)
    assert caught.value.exit_code == 3


LINE = dimension("mesh", 3)


@pytest.mark.parametrize(
    ("switching", "sent", "ends"),
    [
        # three segments of 100 B are through at 350 ns; 700 B leave when the link is back, then 100 ns
        (CUT, 700, 5000 + 700 + 100),
        (SEGMENTS, 700, 5000 + 700 + 100),
        (SHARED, 700, 5000 + 700 + 100),
        # a message without segments goes again as a whole
        (STORE, 1000, 5000 + 1000 + 100),
    ],
)
@pytest.mark.parametrize("policy", ["reroute", "replan"])
def test_what_an_only_link_stopped_waits_until_it_is_back(switching, sent, ends, policy):
    where = machine(LINE, switching=switching)
    done = result(
        one_message(),
        f"link=0-1 down=true from=350ns until=5us policy={policy} detection=50ns",
        where=where,
    )
    assert done.step_time == pytest.approx(ends * NANOSECOND, abs=4000 if switching == SHARED else 0)
    assert crossed(done)["gpu0>gpu1"] in (sent, 1000)
    assert done.run.execution.records.received == 1000


@pytest.mark.parametrize("switching", [CUT, STORE, SHARED])
def test_what_is_sent_while_an_only_link_is_down_waits_until_it_is_back(switching):
    first, other = Nodes(), Nodes()
    first.send(1, 1000, after=first.compute(500 * NANOSECOND))
    other.recv(0, 1000)
    outage = f"link=0-1 down=true from=0ns until=2us {REROUTE}"
    done = result(trace_set([first, other]), outage, where=machine(LINE, switching=switching))
    assert nanoseconds(done) == 2000 + 1000 + 100


def test_outages_that_overlap_hold_what_they_stop_until_the_last_is_over():
    faults = [
        f"link=0-1 down=true from=350ns until=5us {REROUTE}",
        "link=0>1 down=true from=4us until=9us policy=replan detection=1us",
        "link=0>1 down=true from=8us until=12us policy=wait",
    ]
    done = result(one_message(), *faults, where=machine(LINE, switching=CUT))
    assert nanoseconds(done) == 12_000 + 700 + 100


def test_what_waits_sets_off_again_once_a_whole_route_is_there():
    # 1>2 is down when 0>1 is back at 5 us; 700 B leave gpu0 at 8 us, behind a head and two latencies
    faults = [
        f"link=0-1 down=true from=350ns until=5us {REROUTE}",
        f"link=1-2 down=true from=4us until=8us {REROUTE}",
    ]
    done = result(one_message(hops=2), *faults, where=machine(LINE, switching=CUT))
    assert nanoseconds(done) == 8000 + 100 + 700 + 2 * 100


def test_a_cut_for_ever_is_found_though_other_links_come_back():
    faults = [
        f"link=0-1 down=true from=350ns until=5us {REROUTE}",
        f"link=1-2 down=true from=370ns {REROUTE}",
    ]
    with pytest.raises(FabricCutError, match="at 400 ns: .*gpu0 cannot reach gpu2.*gpu1>gpu2"):
        result(one_message(hops=2), *faults, where=machine(LINE, switching=CUT))


@pytest.mark.parametrize("switching", EVERY)
@pytest.mark.parametrize(
    ("policy", "hit"),
    [("reroute", "gpu=1"), ("replan", "switch=0"), ("reroute", "dimension=d0"), ("replan", "dimension=d0")],
)
def test_an_outage_of_all_that_a_group_has_costs_about_its_length(switching, policy, hit):
    nodes = Nodes()
    nodes.collective(ALL_REDUCE, 4000, "world")
    nodes.collective(ALL_REDUCE, 2000, "world")
    subject, where = trace_set([nodes] * 3), machine(dimension("switch", 3), switching=switching)
    healthy = result(subject, where=where).step_time
    middle = healthy // 2
    times = f"from={middle}ps until={middle + 50_000_000}ps"
    waited = result(subject, f"{hit} down=true {times} policy=wait", where=where).step_time
    left = result(subject, f"{hit} down=true {times} policy={policy} detection=50ns", where=where).step_time
    # Nothing passes until the links are back; then what was cut is sent again, which is at most all of it.
    assert middle + 50_000_000 < left <= waited + healthy


def test_a_flow_keeps_the_bytes_that_got_through_and_the_rest_goes_the_other_way():
    # it joins its link at 50 ns, so that 300 B are out at 350; from 400 on 700 B cross three links, 300 ns
    done = result(
        one_message(), f"link=0>1 down=true from=350ns {REROUTE}", where=machine(ring(4), switching=SHARED)
    )
    assert done.step_time == pytest.approx((400 + 300 + 700) * NANOSECOND, abs=4000)
    assert crossed(done) == {"gpu0>gpu1": 300, "gpu0>gpu3": 700, "gpu3>gpu2": 700, "gpu2>gpu1": 700}


ANSWERED = {
    "payload": "100 B", "header": "0 B", "acknowledgement": "1 B", "packets_per_acknowledgement": 1,
    "packet_time": "exact",
}  # fmt: skip


def test_a_flow_whose_acknowledgements_can_not_come_back_goes_the_other_way_too():
    where = machine(ring(4), switching=SHARED | {"protocol": ANSWERED})
    done = result(one_message(), f"link=1>0 down=true from=350ns {REROUTE}", where=where)
    assert crossed(done) == {"gpu0>gpu1": 1000}  # they find another way back, at once where it is noticed
    assert done.step_time == pytest.approx((400 + 700 + 100) * NANOSECOND, abs=4000)


@pytest.mark.parametrize("protocol", [{}, {"protocol": ANSWERED | {"acknowledgement": "0 B"}}])
def test_a_flow_without_acknowledgements_needs_no_way_back(protocol):
    where = machine(ring(4), switching=SHARED | protocol)
    assert nanoseconds(result(one_message(), f"link=1>0 down=true from=350ns {REROUTE}", where=where)) == 1100


def test_flows_share_what_is_left_of_a_closing_fabric():
    first, other = Nodes(), Nodes()
    for tag in (0, 1):
        first.send(1, 1000, tag=tag, stream=f"send{tag}")
        other.recv(0, 1000, tag=tag, stream=f"recv{tag}")
    where = machine(ring(4), switching=SHARED)
    done = result(trace_set([first, other]), f"link=0>1 down=true from=350ns {REROUTE}", where=where)
    # 150 B of each are out at 350; from 400 on 850 B of each share three links
    assert done.step_time == pytest.approx((400 + 300 + 1700) * NANOSECOND, abs=4000)


def test_planned_together_transfers_spread_over_ways():
    where = machine(dimension("torus", [3, 3]), switching=CUT)
    faults = [parse_fault("link=0>1 down=true from=0ns policy=replan detection=0ns")]
    closures = closures_of(where, faults, 1, one_message())
    left, dead = [Remaining(0, 1, 1000), Remaining(0, 1, 1000)], frozenset({where.fabric.link(0, 1)})
    alone, same = replan(left, closures, dead, together=False).values()
    one, other = replan(left, closures, dead, together=True).values()
    assert alone == same
    assert set(one).isdisjoint(other)
    assert (len(one), len(other)) == (2, 3)  # around the row; then, as that is loaded, by the next row


def test_an_all_reduce_survives_a_closing_ring():
    nodes = Nodes()
    nodes.collective(ALL_REDUCE, 4000)
    subject = trace_set([nodes] * 4)
    healthy = result(subject)
    broken = result(subject, f"link=1-2 down=true from=700ns {REROUTE}")
    assert broken.step_time > healthy.step_time
    assert broken.run.execution.records.sent == healthy.run.execution.records.sent


def closing_runs(lowered, where, texts, horizon):
    """Return what runs a program under faults on each engine, and returns its records."""
    faults = tuple(map(parse_fault, texts))
    program = with_timetables(lowered, where, faults, horizon, pace_of(lowered.traces, where))
    closures = closures_of(where, faults, horizon, lowered.traces)
    trail = program.fluid is None
    runs = (simpy_engine.run, compiled_engine.run)
    return [partial(run, program, closures=closures, trail=trail) for run in runs]


def drawn_faults(data, program, policies):
    """Up to three links that close for a while, and how long a run takes without that."""
    makespan = simpy_engine.run(program).makespan
    links = data.draw(st.lists(st.integers(0, program.links - 1), min_size=1, max_size=3, unique=True))
    faults = []
    for link in links:
        start = data.draw(st.integers(0, makespan // 1000 + 1))
        until = start + data.draw(st.integers(1, 2000))
        policy, detection = data.draw(st.sampled_from(policies)), data.draw(st.sampled_from([0, 7, 300]))
        times = f"from={start}ns until={until}ns detection={detection}ns"
        faults.append(f"link=#{link} down=true policy={policy} {times}")
    return faults, makespan


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_closing_what_nobody_uses_changes_nothing_to_the_tick(data):
    where = data.draw(machines(EVERY))
    lowered = lower(data.draw(traces(where.fabric.gpus)), where)
    program = lowered.program
    used = set(program.route_links.tolist())
    spare = sorted(set(range(program.links)) - used)
    plain = simpy_engine.run(program, trail=program.fluid is None)
    late = plain.makespan // 1000 + 10
    faults = [f"link=#{link} down=true from=0ns policy=reroute detection=1ns" for link in spare[:2]]
    faults.append(f"link=#0 down=true from={late}ns policy=reroute detection=1ns")
    for run in closing_runs(lowered, where, faults, plain.makespan):
        assert_same(plain, run())


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_the_engines_agree_on_what_closes_and_no_byte_is_lost(data):
    where = data.draw(machines(EVERY))
    lowered = lower(data.draw(traces(where.fabric.gpus)), where)
    faults, makespan = drawn_faults(data, lowered.program, ["reroute", "replan"])
    one, other = (run() for run in closing_runs(lowered, where, faults, 2 * makespan))
    assert one.finished  # every link comes back, so that nothing is cut off
    assert one.sent == one.received
    assert_same(one, other)
