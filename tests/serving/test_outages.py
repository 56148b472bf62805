"""Replicas that fail: what becomes of their requests, how long they need to come back, what slow ones do."""

from itertools import islice

import numpy as np
import pytest

from rapid_des.errors import ConfigError, DeadlockError
from rapid_des.frontend import load_job, memory
from rapid_des.machine import load_machine
from rapid_des.serving.engine import Engine
from rapid_des.serving.fleet import Fleet
from rapid_des.serving.outages import events, located, parse_outage, startup_time
from rapid_des.serving.policies import POLICIES
from rapid_des.serving.pools import of_replica, pools_of
from rapid_des.serving.result import ServeResult
from rapid_des.serving.routers import ROUTERS
from rapid_des.serving.server import serve
from rapid_des.serving.slo import Slo
from rapid_des.serving.workload import draw, parse_arrivals, parse_lengths
from rapid_des.units import PS_PER_S
from tests.serving.test_queues import SERVICE, Affine

COUNT = 400


def served(*outages, replicas=2, startup=0, arrivals="constant rate=100/s", lose=False, slow=1):
    """Requests of 16 iterations of a millisecond; a replica takes `slow` times as long for each fault."""

    def priced(_, faults):
        return Affine(slow ** len(faults) * SERVICE)

    engine = Engine(POLICIES["vllm_v1"], Affine(), 10**4, 16, 8192, 256)
    lengths = parse_lengths("8", "p"), parse_lengths("16", "o")
    work = draw(parse_arrivals(arrivals), lengths, COUNT, 1)
    stated = [parse_outage(text) for text in outages]
    fleet = Fleet(
        engine, work, ROUTERS["round_robin"], replicas=replicas, lose=lose, startup=startup,
        outages=tuple(events(stated, replicas, startup)), priced=priced,
    )  # fmt: skip
    assert fleet.run()
    return ServeResult.of(fleet, name="test", gpus=replicas)  # which holds Little's law to the picosecond


def test_requests_of_a_replica_that_stops_are_answered_by_another_from_the_start():
    result = served("replica=1 at=1.0005s down=1s")
    again = result.requests["retries"] > 0
    # every 20 ms one comes to replica 1 and stays 16 ms: at 1.0005 s it is the one of 1.0 s
    assert result.requests["arrival"][again].tolist() == pytest.approx([PS_PER_S], abs=10)
    assert result.requests["replica"][again].tolist() == [0]
    assert len(result) == COUNT and result.stops == ((1, 1_000_500_000_000, 2_000_500_000_000, None),)
    out = (result.requests["arrival"] > PS_PER_S) & (result.requests["arrival"] < 2 * PS_PER_S)
    assert set(result.requests["replica"][out].tolist()) == {0}
    assert set(result.requests["replica"][result.requests["arrival"] > 2.1 * PS_PER_S].tolist()) == {0, 1}


def test_lost_requests_are_counted_and_not_answered():
    result = served("replica=1 at=1.0005s down=1s", lose=True)
    assert len(result.lost) == 1 and len(result) == COUNT - 1


def test_clients_of_lost_requests_send_their_next_ones():
    result = served("replica=0 at=100.5ms down=10ms", arrivals="clients count=8", lose=True, replicas=1)
    assert len(result.lost) == 8 and len(result) == COUNT - 8


def test_while_no_replica_lives_requests_wait_for_the_first_that_is_back():
    result = served("replica=0 at=1.005s down=0.5s", "replica=1 at=1.005s down=1s", startup=10**11)
    arrival, started = result.requests["arrival"], result.requests["started"]
    held = (arrival > 1.005 * PS_PER_S) & (arrival < 1.6 * PS_PER_S)
    assert started[held].min() == int(1.605 * PS_PER_S)  # 1.005 + 0.5 + 0.1 s of startup
    assert set(result.requests["replica"][held].tolist()) == {0}


def test_a_fault_slows_the_replica_for_as_long_as_it_lasts():
    result = served("replica=0 at=1s down=1s fault='gpu=0 compute=0.5'", replicas=1, slow=2)
    arrival, e2e = result.requests["arrival"], result.e2e
    before, within = arrival < 0.95 * PS_PER_S, (arrival > 1.01 * PS_PER_S) & (arrival < 1.95 * PS_PER_S)
    # a request stays 16 iterations, and waits for the end of the one that runs when it comes
    assert 16 * SERVICE <= e2e[before].min() <= e2e[before].max() <= 17 * SERVICE
    assert 32 * SERVICE <= e2e[within].min() <= e2e[within].max() <= 34 * SERVICE
    assert e2e[arrival > 2.05 * PS_PER_S].max() <= 17 * SERVICE


def test_of_two_faults_at_a_time_the_first_to_end_leaves_the_other():
    result = served("replica=0 at=1s down=2s fault='gpu=0 compute=0.5'",
                    "replica=0 at=1.5s down=0.5s fault='gpu=1 compute=0.5'", replicas=1, slow=2)  # fmt: skip
    arrival, e2e = result.requests["arrival"], result.e2e
    both, one = (
        (arrival > begin * PS_PER_S) & (arrival < end * PS_PER_S) for begin, end in ((1.51, 1.9), (2.1, 2.9))
    )
    assert (
        e2e[both].min() >= 64 * SERVICE and 32 * SERVICE <= e2e[one].min() <= e2e[one].max() <= 34 * SERVICE
    )


def test_requests_that_an_outage_met_are_told_from_the_others():
    result = served("replica=0 at=1s down=1s fault='gpu=0 compute=0.5'", replicas=1, slow=2)
    kept = result.attained(Slo.parse("e2e=20ms"))
    # 100 a second for 4 s: of the second in which it is slow nobody is within 20 ms, of the others all
    assert (
        kept["otherwise"] == 1
        and kept["during_outages"] < 0.05
        and kept["all"] == pytest.approx(0.75, abs=0.02)
    )
    lost = served("replica=0 at=1s down=1s", replicas=1, lose=True)
    assert lost.attained(Slo.parse("e2e=10s"))["all"] == len(lost) / COUNT


def test_outages_that_leave_no_time_for_an_answer_are_named():
    with pytest.raises(DeadlockError, match=r"1,000 outages stopped requests, and not one"):
        served("mtbf=1us down=10s", replicas=1, arrivals="clients count=4")
    assert len(served("mtbf=20ms down=1ms", replicas=1)) == COUNT  # a request takes 16 ms
    with pytest.raises(ConfigError, match="mtbf: 20,000 outages of replica 0 in .* ns: state a longer mtbf"):
        served("mtbf=1ps down=1ps", replicas=1)  # before the first request comes


def test_a_gpu_that_dies_stops_the_replica_that_it_is_of():
    apart = {"tp": 4, "dp": 1}
    job = load_job("llama2_7b_inference", settings={"parallelism.dp": 2, "parallelism.tp": 2})
    pools = pools_of(load_job(job, settings={"serving.prefill_parallelism": apart}))
    # GPUs 0 to 3 compute prompts, 4 and 5 are of replica 1, 6 and 7 of replica 2
    assert [located(parse_outage(f"gpu={gpu} at=1s"), pools).replica for gpu in (0, 3, 4, 7)] == [0, 0, 1, 2]
    with pytest.raises(ConfigError, match="no replica has gpu8; theirs are 0 to 7"):
        located(parse_outage("gpu=8 at=1s"), pools)


def test_a_fault_slows_the_replicas_whose_gpus_or_links_it_is_of():
    settings = {"model.layers": 2, "parallelism.tp": 2, "parallelism.dp": 2}
    job, machine = load_job("llama2_7b_inference", settings=settings), load_machine("dgx_a100")

    def times(*faults):
        slowed = machine.with_faults([parse_fault_of(fault) for fault in faults])
        result = serve(job, slowed, arrivals="constant rate=10/s", requests=4)
        return result.e2e.tolist()  # round robin: of replicas 0, 1, 0, 1

    healthy, first, second = times(), times("gpu=1 compute=0.5"), times("gpu=2 compute=0.5")
    assert first[1::2] == healthy[1::2] and second[::2] == healthy[::2]
    assert second[1] == first[0] > healthy[0]
    links = times("link=3-switch0 bandwidth=0.1")
    assert links[::2] == healthy[::2] and links[1] > healthy[1]
    with pytest.raises(ConfigError, match=r"replica 1 \(GPUs 2 to 3\) meets nothing of 'gpu=1"):
        outage = "replica=1 at=0s down=1s fault='gpu=1 compute=0.5'"
        serve(load_job(job, settings={"serving.outages": [outage]}), machine, arrivals="constant rate=10/s")


def test_a_faults_cost_is_that_of_the_machine_with_it():
    settings = {"model.layers": 2, "parallelism.dp": 1, "serving.outages": [
        "replica=0 at=0s down=1h fault='gpu=0 compute=0.5'"]}  # fmt: skip
    job, machine = load_job("llama2_7b_inference", settings=settings), load_machine("dgx_a100")
    whole = load_job(job, settings={"serving.outages": []})
    slow, fast, other = (
        serve(each, node, arrivals="constant rate=10/s", requests=3).e2e.tolist()
        for each, node in (
            (job, machine),
            (whole, machine),
            (whole, machine.with_faults([*map(parse_fault_of, ["gpu=0 compute=0.5"])])),
        )
    )
    assert slow == other and sum(slow) > sum(fast)


def parse_fault_of(text):
    from rapid_des.network.faults import parse_fault

    return parse_fault(text)


def test_drawn_outages_follow_from_the_seed_and_are_as_far_apart_as_stated():
    drawn = [
        [
            event.at
            for event in islice(next(events([parse_outage(f"mtbf=1h down=1min seed={seed}")], 3, 0)), 2000)
        ]
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert np.diff(drawn[0]).mean() / PS_PER_S == pytest.approx(3660, rel=0.05)  # an hour and a minute
    assert len(list(events([parse_outage("mtbf=1h down=1min")], 3, 0))) == 3  # each replica by itself


def test_weights_come_from_storage_at_what_a_node_reads():
    startup = {"initialise": "20 s", "storage": "2 GB/s"}
    job = load_job("llama2_7b_inference", settings={"parallelism.dp": 2, "serving.startup": startup})
    alone = of_replica(job)
    each = memory(alone).stages[0].categories["weights"]
    expected = 20 + 2 * each / 2e9  # both tp ranks on one node
    found = startup_time(job, load_machine("dgx_a100"), job.spec.serving.startup, alone, None)
    assert found / PS_PER_S == pytest.approx(expected, rel=1e-9)


def test_weights_from_a_peer_take_the_links_between_the_replicas():
    startup = {"initialise": "1 s", "weights": "peer"}
    job = load_job("llama2_7b_inference", settings={"parallelism.dp": 2, "serving.startup": startup})
    each = memory(of_replica(job)).stages[0].categories["weights"]
    found = startup_time(job, load_machine("dgx_a100"), job.spec.serving.startup, of_replica(job), None)
    # NVLink 3 carries 300 GB/s a GPU and direction; NCCL's messages reach some 3/4 of it
    assert each / 300e9 < found / PS_PER_S - 1 < 1.6 * each / 300e9


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("replica=0 down=1s", "one of at=… and mtbf=…"),
        ("at=1s down=1s", "must say which one"),
        ("replica=0 gpu=1 at=1s down=1s", "one of replica=… and gpu=…"),
        ("replica=0 at=1 down=1s", "1 is not a quantity"),
        ("replica=0 at=1s fault='gpu=0 compute=0.5'", "how long the fault lasts"),
        ("replica=0 at=1s down=1s fault='gpu=0 compute=7'", "compute"),
        ("replica=0 at=1s dwn=1s", "dwn"),
        ("mtbf=0s down=1s", "above 0"),
    ],
)
def test_outages_that_make_no_sense_are_refused(text, words):
    with pytest.raises(ConfigError, match=words):
        parse_outage(text)


def test_a_replica_that_is_not_there_can_not_fail():
    with pytest.raises(ConfigError, match="there is no replica 2, there are 2"):
        list(events([parse_outage("replica=2 at=1s down=1s")], 2, 0))
