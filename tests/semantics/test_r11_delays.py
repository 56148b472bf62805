"""R11: messages that come late do so by a draw of their own, and nothing else of them changes."""

from math import exp

import pytest

from rapid_des.errors import ConfigError, InputError, UnsupportedByEngine
from rapid_des.modes.execution import EngineChoice
from rapid_des.network.faults import parse_fault
from rapid_des.simulation import run_traces
from tests.program.machines import STORE, machine, ring, switch
from tests.program.tracing import Nodes, trace_set
from tests.semantics.messages import PARTS, hop, one_message, two_senders

MEAN = 10_000_000
MANY = 2_000


def late(*, seed=1, **keys):
    return {"seed": seed, "message_delay": {"exponential": "10 us", **keys}}


def many_messages():
    """GPU 0 sends so many messages to GPU 1, each asked for at once."""
    programs = [Nodes(), Nodes()]
    for tag in range(MANY):
        programs[0].send(1, 1, tag=tag, stream=f"s{tag}")
        programs[1].recv(0, 1, tag=tag, stream=f"r{tag}")
    return trace_set(programs)


def delays_of(replayed, traces, jitter, **keys):
    """How much later than without jitter GPU 1 has each message."""
    even = replayed(traces, machine(ring(2), **keys)).finish[1]
    drawn = replayed(traces, machine(ring(2), jitter=jitter, **keys)).finish[1]
    return [one - other for one, other in zip(drawn, even, strict=True)]


def test_delays_are_distributed_as_stated(replayed):
    delays = delays_of(replayed, many_messages(), late())
    assert min(delays) >= 0
    assert sum(delays) / MANY == pytest.approx(MEAN, rel=0.08)  # three standard deviations of the mean
    for tail in (1, 3):
        share = sum(delay > tail * MEAN for delay in delays) / MANY
        assert share == pytest.approx(exp(-tail), abs=3 * (exp(-tail) / MANY) ** 0.5)


def test_a_share_of_messages_alone_may_be_late(replayed):
    delays = delays_of(replayed, many_messages(), late(share=0.1))
    assert sum(map(bool, delays)) / MANY == pytest.approx(0.1, abs=0.02)


def test_half_of_lognormal_delays_are_longer_than_the_median(replayed):
    stated = {"seed": 1, "message_delay": {"lognormal": {"median": "10 us", "sigma": 1}}}
    delays = delays_of(replayed, many_messages(), stated)
    assert sum(delay > MEAN for delay in delays) / MANY == pytest.approx(0.5, abs=0.034)
    above = sum(delay > MEAN * exp(1) for delay in delays) / MANY
    assert above == pytest.approx(0.159, abs=0.025)


def test_a_link_is_free_when_the_last_byte_left_however_late_that_arrives(replayed):
    traces = two_senders(100, 100)
    first, second = delays_of(replayed, traces, late())
    assert first > 0 < second
    # without the delays the second waits for the first on the link alone
    assert replayed(traces, machine(ring(2))).finish[1] == [hop(100), hop(100) + 100_000]


def test_a_message_draws_the_same_whatever_else_runs(replayed):
    alone = one_message(100, peer=1, ranks=3)
    three = [Nodes() for _ in range(3)]
    three[0].send(1, 100)
    three[1].recv(0, 100)
    three[2].send(1, 100)
    three[1].recv(2, 100, stream="other")
    where = machine(ring(3), jitter=late())
    both = [replayed(traces, where).finish[1][0] for traces in (alone, trace_set(three))]
    assert both[0] == both[1] > hop(100)


@pytest.mark.parametrize("switching", [STORE, PARTS, {"mode": "fluid"}])
def test_every_kind_of_link_brings_messages_as_late(replayed, switching):
    (delay,) = delays_of(replayed, one_message(1000, peer=1, ranks=2), late(), switching=switching)
    assert (delay,) == tuple(delays_of(replayed, one_message(1000, peer=1, ranks=2), late()))


def test_messages_that_cross_no_link_are_in_time(replayed):
    nodes = Nodes()
    nodes.send(0, 100)
    nodes.recv(0, 100)
    traces = trace_set([nodes, Nodes()])
    assert (
        replayed(traces, machine(ring(2), jitter=late())).finish == replayed(traces, machine(ring(2))).finish
    )


def test_only_messages_over_a_stated_dimension_are_late(replayed):
    where = machine(ring(2), switch(2), jitter=late(dimensions=["d1"]))
    even = machine(ring(2), switch(2))
    inside, outside = (one_message(100, peer=peer, ranks=4) for peer in (1, 2))
    assert replayed(inside, where).finish == replayed(inside, even).finish
    assert replayed(outside, where).finish[2] > replayed(outside, even).finish[2]


def test_seeds_draw_differently(replayed):
    traces = one_message(100, peer=1, ranks=2)
    drawn = {replayed(traces, machine(ring(2), jitter=late(seed=seed))).finish[1][0] for seed in range(5)}
    assert len(drawn) == 5  # of some thousand values


def test_what_can_not_be_drawn_is_refused():
    with pytest.raises(
        ConfigError, match="jitter.message_delay: needs exactly one of exponential, lognormal"
    ):
        machine(ring(2), jitter={"seed": 1, "message_delay": {"share": 0.5}})
    with pytest.raises(
        ConfigError, match="jitter.message_delay.dimensions: no dimension 'rail'; allowed: d0"
    ):
        machine(ring(2), jitter=late(dimensions=["rail"]))
    fault = parse_fault("link=gpu0>gpu1 down=true from=1ns until=1us policy=replan detection=0ns")
    where = machine(ring(3), jitter=late()).with_faults([fault])
    with pytest.raises(UnsupportedByEngine, match="messages that draw delays do not go with policy=replan"):
        run_traces(one_message(100, peer=1, ranks=3), where, EngineChoice("simpy"))


LOSSY = "link=0-1 packet_loss=0.01 packet=1B timeout=10us seed=5 retransmission="
LEFT_GOING_BACK = "0.3300000"


def retries_of(replayed, words, size):
    """How much later each of many messages of `size` bytes is there than by the lossy links' rate alone."""
    programs = [Nodes(), Nodes()]
    for tag in range(MANY):
        programs[0].send(1, size, tag=tag, stream=f"s{tag}")
        programs[1].recv(0, size, tag=tag, stream=f"r{tag}")
    traces = trace_set(programs)
    late = replayed(traces, machine(ring(2)).with_faults([parse_fault(LOSSY + words)])).finish[1]
    left = 0.99 if words.startswith("selective") else LEFT_GOING_BACK
    slowed = machine(ring(2)).with_faults([parse_fault(f"link=0-1 bandwidth={left}")])
    even = replayed(traces, slowed).finish[1]
    return [one - other for one, other in zip(late, even, strict=True)]


def test_packets_are_sent_again_after_a_timeout_each_longer_than_the_one_before(replayed):
    delays = retries_of(replayed, "selective_repeat backoff=3", 10)
    assert set(delays) <= {0, MEAN, 4 * MEAN}
    # ten packets of a message are all there at once with 0.99 ** 10, after one timeout with (1 - 1e-4) ** 10
    for late, share in ((0, 1 - 0.99**10), (MEAN, 1 - 0.9999**10)):
        found = sum(delay > late for delay in delays) / MANY
        assert found == pytest.approx(share, abs=3 * (share / MANY) ** 0.5)


def test_going_back_waits_for_every_loss_by_itself(replayed):
    delays = retries_of(replayed, "go_back_n", 100)
    assert {delay % MEAN for delay in delays} == {0}
    # losses before a hundred successes: 100 * 0.01 / 0.99 on average, 1.02 of variance
    assert sum(delays) / MANY / MEAN == pytest.approx(100 / 99, abs=3 * (1.02 / MANY) ** 0.5)


def test_messages_that_cross_no_lossy_link_are_in_time(replayed):
    where = machine(ring(3)).with_faults([parse_fault(LOSSY.replace("0-1", "1-2") + "go_back_n")])
    traces = one_message(1000, peer=1, ranks=3)
    assert replayed(traces, where).finish[1] == [hop(1000)]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("link=0-1 timeout=1us seed=1 bandwidth=0.5", "timeout: only with packet_loss or bit_error_rate"),
        ("link=0-1 packet_loss=0.1 packet=1B retransmission=go_back_n timeout=1us", "timeout: needs seed"),
        (LOSSY + "go_back_n backoff=2", "backoff: only with selective_repeat"),
        (LOSSY + "go_back_n from=1us", "timeout: only with losses that are always there"),
    ],
)
def test_timeouts_without_what_they_need_are_refused(words, problem):
    with pytest.raises(ConfigError, match=problem):
        parse_fault(words)


def test_two_faults_with_timeouts_on_one_way_are_refused():
    where = machine(ring(4)).with_faults(
        [parse_fault(LOSSY + "go_back_n"), parse_fault(LOSSY.replace("0-1", "1-2") + "selective_repeat")]
    )
    with pytest.raises(InputError, match="a message crosses links of .* allowed: one for its route"):
        run_traces(one_message(100, peer=2, ranks=4), where, EngineChoice("simpy"))
