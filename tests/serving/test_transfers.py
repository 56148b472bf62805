"""Keys and values between replicas: as messages alone, one behind the other on links, and under faults."""

from typing import Any

import numpy as np
import pytest
import simpy

from rapid_des.errors import ConfigError, InfeasibleJobError
from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.network.faults import parse_fault
from rapid_des.program.collectives.plans import message_alone
from rapid_des.serving.outages import events, parse_outage
from rapid_des.serving.resharding import ReshardingTraffic, as_traces
from rapid_des.serving.server import serve
from rapid_des.serving.transfers import TransferLinks
from rapid_des.simulation import replay
from rapid_des.units import PS_PER_S
from tests.cli.shell import call, refused
from tests.serving.test_queues import SERVICE, Affine, from_columns, served

TOKENS, SIZE = 1024, 64_000_000


@pytest.fixture(scope="module")
def nodes():
    return load_machine("dgx_h100_x8")


def at_its_place(source, target, gpus):
    """Each GPU sends its part to that of its place."""
    return [(source * gpus + gpu, target * gpus + gpu, SIZE) for gpu in range(gpus)]


def arrivals(machine, *sends, gpus=8, begin=0):
    """When keys and values arrive that are sent at once, each (source, target)."""
    env, found = simpy.Environment(begin), []
    links = TransferLinks(machine, 16, lambda source, target, _: at_its_place(source, target, gpus))
    for source, target in sends:
        links.send(env, TOKENS, source, target).callbacks.append(lambda _: found.append(env.now - begin))
    env.run()
    return found


@pytest.mark.parametrize("name", ["dgx_h100_x8", "dgx_a100_x4", "hgx_a100_clos_16", "torus_2d_a100"])
def test_a_transfer_alone_takes_what_a_message_alone_does(name):
    machine = load_machine(name)
    gpus = machine.fabric.gpus // 2
    alone = max(message_alone(SIZE, machine, gpu, gpus + gpu) for gpu in range(gpus))
    (found,) = arrivals(machine, (0, 1), gpus=gpus)
    assert alone <= found  # where there are no NICs of their own they meet
    assert found == alone or name in ("hgx_a100_clos_16", "torus_2d_a100")


def test_transfers_to_one_replica_wait_for_its_links_as_messages_do(nodes):
    (alone,) = arrivals(nodes, (0, 2))
    both = arrivals(nodes, (0, 2), (1, 2))
    assert both[0] == alone and both[1] == pytest.approx(2 * alone, rel=0.01)
    assert arrivals(nodes, (0, 2), (1, 3)) == [alone, alone]  # other NICs, a fabric without a bottleneck
    moved = {(8 * source + gpu, 16 + gpu): SIZE for source in (0, 1) for gpu in range(8)}
    engine = replay(as_traces(ReshardingTraffic(moved, {}), 64, 10**12), nodes.native)  # no library's pace
    assert both[1] == pytest.approx(engine.step_time, rel=0.02)


def test_a_slowed_link_slows_what_crosses_it_while_it_is_slow(nodes):
    way = nodes.route(0, 16)
    slow = f"link={way[1]} bandwidth=0.25"  # NIC to switch: the slowest, and others are no wider than 1.3
    (alone,) = arrivals(nodes, (0, 2))
    (always,) = arrivals(nodes.with_faults([parse_fault(slow)]), (0, 2))
    assert always == pytest.approx(4 * alone, rel=0.01)
    timed = nodes.with_faults([parse_fault(f"{slow} from=10s until=20s")])
    moments = {begin: arrivals(timed, (0, 2), begin=begin * PS_PER_S)[0] for begin in (0, 12, 21)}
    assert moments == {0: alone, 12: pytest.approx(4 * alone, rel=0.01), 21: alone}


def test_a_link_that_is_down_is_waited_for_or_named_if_it_stays_so(nodes):
    down = f"link={nodes.route(0, 16)[1]} down=true from=1s"
    back = nodes.with_faults([parse_fault(f"{down} until=3s")])
    assert arrivals(back, (0, 2), begin=PS_PER_S)[0] > 2 * PS_PER_S
    with pytest.raises(InfeasibleJobError, match="is down and stays so"):
        arrivals(nodes.with_faults([parse_fault(down)]), (0, 2), begin=2 * PS_PER_S)


JOB = {"parallelism.tp": 8, "parallelism.dp": 4, "model.layers": 8, "serving.prefill_replicas": 2}


def test_requests_miss_their_limits_while_a_link_between_the_replicas_is_slow(nodes):
    job = load_job("llama3_1_70b_serve", settings=JOB)
    rails = nodes.with_faults(
        [
            parse_fault(f"link={nodes.route(gpu, 16 + gpu)[1]} bandwidth=0.001 from=3s until=6s")
            for gpu in (0,)
        ]
    )
    asked: dict[str, Any] = {
        "arrivals": "constant rate=20/s",
        "requests": 200,
        "prompt": "2048",
        "output": "16",
    }
    healthy, slow = serve(job, nodes, **asked), serve(job, rails, **asked)
    arrival = healthy.requests["arrival"]
    within = (arrival > 3 * PS_PER_S) & (arrival < 5.5 * PS_PER_S)
    assert (slow.requests["transfer"][within] > 5 * healthy.requests["transfer"].max()).sum() > 5
    assert slow.e2e[within].mean() > 1.2 * healthy.e2e[within].mean()
    assert (slow.e2e[arrival < 2.5 * PS_PER_S] == healthy.e2e[arrival < 2.5 * PS_PER_S]).all()
    assert healthy.as_json()["transfer_s"]["mean"] > 0


def test_faults_that_no_transfer_would_meet_are_refused(nodes):
    job = load_job("llama3_1_70b_serve", settings=JOB)
    whole = load_job(job, settings={"serving.prefill_replicas": None})
    for asked, fault, words in (
        (whole, "link=0-nic0 bandwidth=0.5 from=1s", "--outage"),
        (job, "gpu=0 compute=0.5 from=1s", "--outage"),
        (job, "link=0-nic0 bandwidth=0.5 from_step=1", "no steps"),
    ):
        with pytest.raises(ConfigError, match=words):
            serve(asked, nodes.with_faults([parse_fault(fault)]), requests=2)
    command = ("serve", "llama3_1_70b_serve", "--on", "dgx_h100", "--fault", "gpu=0 compute=0.5 from=1s")
    assert "--outage" in refused(call(*command))


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_replicas_that_fail_with_prompts_apart_lose_no_request(lost):
    # 0 and 1 compute prompts, 2 and 3 decode
    work = from_columns(np.arange(200) * 10, [200] * 200, [30] * 200)
    keys = {"replicas": 4, "prompting": 2, "transfer": lambda env, *_: env.timeout(5 * SERVICE)}
    stated = [parse_outage(f"replica={lost} at={0.5115 if lost == 1 else 0.5015}s down=0.4s")]
    fleet, result = served(work, 0, costs=Affine(token=10**7), outages=events(stated, 4, 0), **keys)
    assert len(result) == 200 and [member.sizes for member in fleet.members] == [(0, 0, 0)] * 4
    assert (result.requests["retries"] > 0).any()
    assert [int(load["decodes"].sum()) for load in result.loads[:2]] == [0, 0]


def test_computed_prompts_wait_for_a_replica_that_decodes_to_come_back():
    work = from_columns(np.arange(20) * 10, [20] * 20, [3] * 20)
    stated = [parse_outage("replica=1 at=0.1001s down=0.4s")]
    fleet, result = served(
        work, 0, replicas=2, prompting=1, outages=events(stated, 2, 0),
        transfer=lambda env, *_: env.timeout(SERVICE),
    )  # fmt: skip
    assert result.requests["finished"].max() > 0.5 * PS_PER_S
    # prompts are computed once each, but of those that the replica had
    again = int(result.requests["retries"].sum())
    assert result.loads[0]["prompt_tokens"].sum() == 20 * (20 + again) and again <= 2
