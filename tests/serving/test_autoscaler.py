"""Fleets that grow and shrink by their load: when, how many, and what becomes of requests."""

import numpy as np
import pytest

from rapid_des.errors import ConfigError
from rapid_des.frontend import load_job
from rapid_des.frontend.servers import AutoscalerSpec
from rapid_des.machine import load_machine
from rapid_des.serving.server import serve
from rapid_des.serving.workload import Workload
from rapid_des.units import PS_PER_S, Duration
from tests.serving.test_queues import SERVICE, Affine, served


def seconds(number):
    return Duration(round(number * PS_PER_S))


STEP = 24 * SERVICE


def busy(rates, output=20):
    """Return requests at so many a second, a rate after the other, each for 100 seconds."""
    times = [100 * place + (n + 0.5) / rate for place, rate in enumerate(rates) for n in range(100 * rate)]
    ones = np.ones(len(times), np.int64)
    return Workload(ones, output * ones, (np.array(times) * PS_PER_S).astype(np.int64))


def scaled(work, *, startup=10, replicas=8, **spec):
    """Serve requests of half a second, eight at a time: sixteen a second of a replica."""
    stated = {"target": 4, "interval": seconds(5), "stabilization": seconds(30)} | spec
    fleet, result = served(
        work, 0, replicas=replicas, router="least_requests", max_sequences=8, costs=Affine(STEP),
        autoscaler=AutoscalerSpec(**stated), startup=int(seconds(startup)),
    )  # fmt: skip
    (size,) = result.sizes
    return fleet, result, size


def at(size, moment):
    """Return the number of replicas at a moment in seconds."""
    return [count for now, count in size.changes if now <= moment * PS_PER_S][-1]


def test_a_fleet_has_as_many_replicas_as_bring_the_load_to_its_target():
    # 12 requests a second of 20 steps of 24 milliseconds are six at a time (Little): two replicas of three
    # each, of a target of four; at 1 a second one of half a request
    _, result, size = scaled(busy([12, 1]))
    assert at(size, 90) == 2 and at(size, 199) == 1
    assert len(result) == 1300
    # up at the first interval, down when no more was wanted for the window of thirty seconds
    (_, up, down) = [now / PS_PER_S for now, _ in size.changes]
    assert up == 5 and 130 <= down <= 140
    queue = result.queue / STEP
    arrival = result.requests["arrival"] / PS_PER_S
    assert queue[(arrival > 40) & (arrival < 100)].max() < 1  # at most the iteration that runs


def test_time_of_gpus_is_that_of_replicas_that_are_up_or_start():
    _, result, size = scaled(busy([12, 1]))
    whole = result.gpus * 8 * result.elapsed / PS_PER_S
    assert result.gpu_seconds == pytest.approx(size.replica_time(result.elapsed) / PS_PER_S)
    assert 0.125 * whole < result.gpu_seconds < 0.25 * whole
    plain = result.as_json()["autoscaling"][0]
    assert plain["least"] == 1 and plain["started"] == size.started
    assert "replicas" in str(result)


def test_load_within_the_tolerance_changes_nothing():
    # 10 requests a second: 4.9 at a time, 22 % above the target
    assert at(scaled(busy([10]), tolerance=0.3)[2], 99) == 1
    assert at(scaled(busy([10]), tolerance=0.1)[2], 99) == 2


def test_requests_of_a_replica_that_drains_are_answered_and_none_is_sent_there():
    # long answers: two replicas at first, of which one drains for seconds
    work = busy([1], output=800)
    fleet, result, size = scaled(work, minimum=1, replicas=2, stabilization=seconds(0), target=100)
    assert len(result) == 100 and (result.requests["retries"] == 0).all()
    fleet, result, size = scaled(busy([30, 1], output=160), replicas=4, target=40, stabilization=seconds(5))
    assert len(result) == 3100 and (result.requests["retries"] == 0).all()
    assert any(not member.alive for member in fleet.members)


JOB = {"model.layers": 2, "parallelism": "{dp: 2}"}


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"serving.autoscaler": "{target: 4, minimum: 3}"}, "minimum 3 is above the job's dp 2"),
        ({"serving.autoscaler": "{target: 4}", "serving.outages": "[replica=0 at=1s down=1s]"}, "no outages"),
        ({"serving.autoscaler": "{target: 0}"}, "target"),
        ({"serving.autoscaler": "{target: 2, measure: kv_occupancy}"}, "a share of the pages is at most 1"),
        ({"serving.autoscaler": "{target: 2, interval: 0 s}"}, "above 0 s"),
    ],
)
def test_what_can_not_scale_is_refused(settings, problem):
    with pytest.raises(ConfigError, match=problem):
        job = load_job("llama2_7b_inference", settings=JOB | settings)
        serve(job, load_machine("dgx_a100"), arrivals="poisson rate=4/s")


def test_a_server_of_a_job_file_scales():
    settings = JOB | {"serving.autoscaler": "{target: 4, interval: 1 s, stabilization: 2 s}"}
    settings |= {"serving.startup": "{initialise: 1 s, storage: 10 GB/s}"}
    job = load_job("llama2_7b_inference", settings=settings)
    result = serve(job, load_machine("dgx_a100"), arrivals="poisson rate=40/s", requests=400, output="200")
    assert len(result) == 400 and result.sizes[0].started >= 1
