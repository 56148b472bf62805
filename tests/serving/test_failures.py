"""Failures of a reliability file as outages of a server's replicas."""

from itertools import islice

import pytest

from rapid_des.errors import ConfigError, InputError
from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.runs.loading import load_reliability
from rapid_des.serving.failures import ServerFailures, replicas_held
from rapid_des.serving.outages import parse_outage
from rapid_des.serving.server import serve

S = 10**12
FILE = {
    "detection": "1 min",
    "diagnosis": "2 min",
    "repair": "10 h",
    "classes": [{"name": "GPU", "mtbf": "100 h", "takes": "nothing"}],
}


def of(replicas, **changed):
    machine = load_machine("dgx_a100")
    return ServerFailures(load_reliability(FILE | changed), machine, replicas)


def first(drawn, count, *, meets=lambda *_: True, seed=0):
    return [list(islice(events, count)) for events in drawn.outages(seed, meets)]


def test_a_replica_is_out_from_a_failure_until_its_diagnosis():
    found = first(of([range(4), range(4, 8)]), 200)
    assert {event.down for events in found for event in events} == {180 * S}
    for replica, events in enumerate(found):
        assert {event.replica for event in events} == {replica}
        assert events == sorted(events, key=lambda event: event.at)
        assert events[-1].at / 200 == pytest.approx(100 / 4 * 3600 * S, rel=0.25)  # four parts each


def test_a_unit_takes_all_replicas_in_it_and_a_job_is_each_replica():
    racks = [{"name": "rack", "per": "rack", "mtbf": "1 y"}]
    found = first(of([range(2), range(2, 4), range(4, 8)], classes=racks, domains={"rack": 4}), 3)
    assert [event.at for event in found[0]] == [event.at for event in found[1]]
    assert [event.at for event in found[0]] != [event.at for event in found[2]]
    software = [{"name": "software", "per": "job", "mtbf": "1 d", "takes": "nothing"}]
    one, two = first(of([range(4), range(4, 8)], classes=software), 3)
    assert [event.at for event in one] != [event.at for event in two]


def test_without_a_spare_a_replica_waits_for_a_repair():
    classes = [{"name": "node", "per": "node", "mtbf": "1000 h"}]
    ready = first(of([range(8)], classes=classes, spares={"hot": 1}), 1)
    none = first(of([range(8)], classes=classes, spares={}), 1)
    assert (ready[0][0].down, none[0][0].down) == (180 * S, 36_000 * S)


def test_a_slow_part_slows_the_replicas_that_meet_its_fault():
    classes = [{"name": "hot GPU", "mtbf": "100 h", "effect": "slows", "fault": "gpu={gpu} compute=0.5",
                "lasts": "1 h"}]  # fmt: skip
    drawn = of([range(4), range(4, 8)], classes=classes)
    found = first(drawn, 5, meets=lambda replica, fault: replica == int(fault[4]) // 4)
    assert all(
        int(event.fault[4]) // 4 == replica for replica, events in enumerate(found) for event in events
    )
    assert found[0][0].down == 3600 * S


def test_the_availability_is_that_of_the_mean_times():
    assert of([range(4), range(4, 8)]).availability(120 * S) == pytest.approx(1 / (1 + 4 * 300 / 360_000))


def test_a_server_meets_the_failures_of_a_file(tmp_path):
    file = tmp_path / "often.yaml"
    file.write_text("detection: 10 ms\ndiagnosis: 10 ms\nrepair: 1 h\n"
                    "classes: [{name: GPU, mtbf: 1 s, takes: nothing}]\n")  # fmt: skip
    settings = {"model.layers": 2, "parallelism.dp": 2, "serving.outages": [f"reliability={file} seed=3"]}
    job = load_job("llama2_7b_inference", settings=settings)
    result = serve(job, load_machine("dgx_a100"), arrivals="constant rate=50/s", requests=100)
    assert len(result.as_json()["outages"]) > 2
    with pytest.raises(ConfigError, match="mtbf: reliability goes with seed alone"):
        parse_outage(f"reliability={file} mtbf=1h")


def test_fleets_of_thousands_have_enough_replicas_and_those_that_hardly_run_are_refused():
    held = replicas_held(1000, 0.5, 0.99)
    assert 2000 < held < 2200 and replicas_held(1000, 0.5, 0.999) > held
    with pytest.raises(InputError, match="runs 0.10% of the time; allowed: 1% or more"):
        replicas_held(10, 0.001, 0.99)
