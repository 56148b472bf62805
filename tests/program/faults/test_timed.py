"""Rule R6 through the front door: faults that come and go, on both engines, against closed forms.

The ring has links of 1 byte a nanosecond and 100 ns; messages are stored and forwarded whole.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapid_des.errors import DeadlockError
from rapid_des.modes.execution import ENGINES
from rapid_des.network.faults import parse_fault
from rapid_des.simulation import replay
from tests.program.machines import machine, ring
from tests.program.tracing import NANOSECOND, Nodes, trace_set


@pytest.fixture(params=ENGINES)
def engine(request):
    return request.param


def one_message(size=1000, *, hops=1):
    """Rank 0 sends `size` bytes to the rank `hops` on."""
    sender, receiver = Nodes(), Nodes()
    sender.send(hops, size)
    receiver.recv(0, size)
    others = [Nodes() for _ in range(hops - 1)]
    for nodes in others:
        nodes.compute(0)
    return trace_set([sender, *others, receiver], {"world": tuple(range(hops + 1))})


def step(traces, *faults, engine="auto", where=None):
    """The step time in nanoseconds."""
    broken = (where or machine(ring(5))).with_faults([parse_fault(text) for text in faults])
    result = replay(traces, broken, engine=engine)
    assert result.step_time % NANOSECOND == 0
    return result.step_time // NANOSECOND


def test_a_link_that_slows_in_mid_flight_stretches_what_is_left(engine):
    # 1000 B: 400 ns at full rate, 600 ns of work at a half take 1200 ns, then 100 ns of latency
    assert step(one_message(), "link=0>1 bandwidth=0.5 from=400ns", engine=engine) == 400 + 1200 + 100


def test_a_derating_that_ends_costs_only_while_it_lasts(engine):
    # from 200 to 600 ns half rate does 200 ns of work: 200 ns are lost
    assert step(one_message(), "link=0>1 bandwidth=0.5 from=200ns until=600ns", engine=engine) == 1300


def test_traffic_waits_out_a_link_that_is_down(engine):
    # 300 ns are served, 500 ns waited
    assert step(one_message(), "link=0>1 down=true from=300ns until=800ns", engine=engine) == 1600


def test_a_flapping_link_serves_in_its_gaps(engine):
    # down for 50 of every 100 ns: 1000 ns of work end with the 20th gap, at 2000 ns
    assert step(one_message(), "link=0>1 down=true every=100ns for=50ns", engine=engine) == 2100


def test_flaps_go_on_beyond_the_first_horizon(engine):
    # down for 90 of every 100 ns: 10 ns of work a period, the 100th ends at 10,000 ns
    assert step(one_message(), "link=0>1 down=true every=100ns for=90ns", engine=engine) == 10_100


def test_added_latency_counts_for_hops_that_begin_under_it(engine):
    assert step(one_message(), "link=0>1 latency=70ns from=0ns until=1ns", engine=engine) == 1170
    assert step(one_message(), "link=0>1 latency=70ns from=1ns until=900ns", engine=engine) == 1100


def test_progress_is_placed_by_a_run_without_the_fault(engine):
    # healthy 1100 ns, so half is 550 ns: 450 ns of work at half rate take 900 ns
    assert step(one_message(), "link=0>1 bandwidth=0.5 from_progress=0.5", engine=engine) == 550 + 900 + 100


def test_a_gpu_computes_at_the_smaller_of_its_rates(engine):
    nodes = Nodes()
    nodes.compute(1000 * NANOSECOND)
    # 500 ns at full rate, the other 500 ns of work at a quarter
    faults = "gpu=0 compute=0.5 hbm=0.25 from=500ns"
    assert step(trace_set([nodes]), faults, engine=engine) == 500 + 2000


def test_a_link_that_never_comes_back_is_named(engine):
    with pytest.raises(DeadlockError, match="gpu0>gpu1 is down from 300 ns on and stays down") as caught:
        step(one_message(), "link=0>1 down=true from=300ns", engine=engine)
    assert caught.value.exit_code == 3


@settings(max_examples=25, deadline=None)
@given(
    start=st.integers(0, 1500),
    lasts=st.integers(1, 1500),
    share=st.sampled_from([0.25, 0.5, 0.75]),
    period=st.integers(60, 400),
    hops=st.integers(1, 2),
)
def test_engines_agree_on_whatever_comes_and_goes(start, lasts, share, period, hops):
    faults = [
        f"link=0>1 bandwidth={share} from={start}ns until={start + lasts}ns",
        f"link=1>2 down=true every={period}ns for={period // 3}ns",
        f"gpu=1 compute={share} from={start}ns",
    ]
    broken = machine(ring(5)).with_faults([parse_fault(text) for text in faults])
    one, other = (replay(one_message(777, hops=hops), broken, engine=name) for name in ENGINES)
    assert one.step_time == other.step_time
    assert one.finish == other.finish
