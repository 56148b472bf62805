"""Services of several models, machines and classes of requests: who answers, who is turned away."""

import numpy as np
import pytest

from rapid_des.errors import ConfigError
from rapid_des.frontend import load_job
from rapid_des.frontend.servers import AutoscalerSpec
from rapid_des.machine import load_machine
from rapid_des.serving.classes import RequestClass
from rapid_des.serving.energy import served_energy
from rapid_des.serving.engine import Engine
from rapid_des.serving.groups import ReplicaGroup
from rapid_des.serving.policies import POLICIES
from rapid_des.serving.server import serve
from rapid_des.serving.slo import Slo
from rapid_des.serving.workload import ClassDraw, Fixed, Marks, Workload, draw, parse_arrivals
from rapid_des.units import PS_PER_S, Duration
from tests.serving.test_queues import SERVICE, Affine, served

ONE = Fixed(1), Fixed(1)


def engine(base=SERVICE, sequences=256):
    """Return an engine whose iterations take so long."""
    return Engine(policy=POLICIES["vllm_v1"], costs=Affine(base), pages=10**6, page_size=16,
                  max_batched_tokens=8192, max_sequences=sequences)  # fmt: skip


def drawn(arrivals, count, kinds, lengths=ONE, seed=1):
    return draw(parse_arrivals(arrivals), lengths, count, seed, Marks(kinds=kinds))


def test_replicas_beside_those_of_the_same_engine_are_as_more_of_them():
    work = drawn("poisson rate=1500/s", 400, (), (Fixed(1), Fixed(20)))
    _, many = served(work, 0, replicas=3, max_sequences=8)
    beside = [ReplicaGroup(engine(sequences=8), 2)]
    _, apart = served(work, 0, replicas=1, max_sequences=8, beside=beside)
    assert all((many.requests[name] == apart.requests[name]).all() for name in many.requests)
    assert [row["replicas"] for row in apart.as_json()["groups"]] == [1, 2]


def test_requests_go_to_the_replicas_of_their_model():
    work = drawn("poisson rate=500/s", 600, (ClassDraw(3.0), ClassDraw(1.0, output=Fixed(2))))
    classes = RequestClass("a", "large"), RequestClass("b", "small")
    beside = [ReplicaGroup(engine(), 2, takes=(1,))]
    _, result = served(work, 0, replicas=2, takes=(0,), classes=classes, beside=beside)
    kind, replica = result.requests["kind"], result.requests["replica"]
    assert (replica[kind == 0] < 2).all() and (replica[kind == 1] >= 2).all()
    assert (result.requests["output"] == 1 + kind).all()
    assert 0.72 < (kind == 0).mean() < 0.78  # three of four
    # in turn among those of each class
    assert abs((replica == 2).sum() - (replica == 3).sum()) <= 1
    rows = result.as_json()["classes"]
    assert [row["requests"] for row in rows] == [int((kind == place).sum()) for place in (0, 1)]


def test_the_least_time_gives_a_machine_of_half_the_speed_a_third_of_the_requests():
    # 2,700 a second where replicas of one request a time answer 2,000 and 1,000: both are nearly always busy
    work = drawn("poisson rate=2700/s", 1500, ())
    beside = [ReplicaGroup(engine(2 * SERVICE, sequences=1), 1)]
    _, result = served(
        work, 0, router="least_time", max_sequences=1, costs=Affine(SERVICE // 2), beside=beside
    )
    assert (result.requests["replica"] == 1).mean() == pytest.approx(1 / 5, abs=0.04)  # 500 of 2,500
    quick = served(work, 0, router="least_tokens", max_sequences=1, costs=Affine(SERVICE // 2), beside=beside)
    assert result.queue.mean() < quick[1].queue.mean()


def test_the_least_time_knows_that_tokens_of_prompts_pass_together():
    # 2,000 tokens of a prompt and 2 to make are soon done, 20 and 1,900 to make are not: the third goes
    # where more tokens are left
    lengths = np.array([2000, 20, 5]), np.array([2, 1900, 5])
    work = Workload(*lengths, np.array([0, 1, 2]))
    places = {
        name: served(work, 0, router=name, replicas=2, costs=Affine(token=SERVICE // 100))[1].requests[
            "replica"
        ]
        for name in ("least_time", "least_tokens")
    }
    assert [place.tolist() for place in places.values()] == [[0, 1, 0], [0, 1, 1]]


def test_requests_are_turned_away_as_in_a_queue_with_one_place():
    # M/D/1 with room for one that waits, at full load: of 1 + 1/(rho + e^-rho) … 26.9 % are turned away
    # (Gross and Harris, Fundamentals of Queueing Theory, section 5.1.8: 1 - 1 / (pi_0 + rho), pi_0 = e^-rho)
    work = drawn("poisson rate=1000/s", 6_000, ())
    _, result = served(work, 0, max_sequences=1, classes=(RequestClass("", "", max_queued=1),))
    lost = 1 - 1 / (np.exp(-1) + 1)
    assert len(result.shed) / 6_000 == pytest.approx(lost, rel=0.06)
    assert len(result) + len(result.shed) == 6_000
    assert result.queue.max() <= SERVICE
    assert result.attained(Slo.parse("ttft=1s"))["all"] == pytest.approx(1 - lost, rel=0.02)


def test_clients_that_are_turned_away_go_on():
    work = drawn("clients count=2000", 4000, ())
    _, result = served(work, 0, max_sequences=1, classes=(RequestClass("", "", max_queued=1),))
    assert len(result) + len(result.shed) == 4000 and len(result.shed) > 1900


def test_classes_have_their_own_limits_and_their_own_length_of_queue():
    kinds = ClassDraw(1.0, priority=1), ClassDraw(1.0)
    classes = (
        RequestClass("chat", "m", Slo.parse("ttft=6ms")),
        RequestClass("batch", "m", Slo.parse("ttft=6ms"), max_queued=4),
    )
    work = drawn("poisson rate=1300/s", 1500, kinds)
    _, result = served(work, 0, max_sequences=1, order="priority", classes=classes)
    chat, batch = result.as_json()["classes"]
    assert chat["shed"] == 0 and batch["shed"] > 100
    assert chat["attained"] > 0.95 and batch["attained"] < 0.6
    assert chat["requests"] + batch["requests"] + batch["shed"] == 1500
    text = str(result)
    assert "by class" in text and "turned away" in text


def scaled(arrivals, count, startup=10, replicas=8, **spec):
    """Serve requests of a second, eight at a time: eight a second of a replica."""
    stated = {"interval": Duration(5 * PS_PER_S), "stabilization": Duration(30 * PS_PER_S)} | spec
    _, result = served(
        drawn(arrivals, count, (), (Fixed(1), Fixed(1000))), 0, replicas=replicas, router="least_requests",
        max_sequences=8, autoscaler=AutoscalerSpec(**stated), startup=startup * PS_PER_S,
    )  # fmt: skip
    return result


def test_a_fleet_scales_by_the_rate_of_requests():
    # 6 a second for a target of 4 are two replicas; the load is exact, so there are never three
    result = scaled("constant rate=6/s", 150, measure="rate", target=4)
    assert [count for _, count in result.sizes[0].changes] == [1, 2]


def test_a_fleet_that_looks_ahead_is_in_time_for_a_rising_load():
    # 8 requests a second are what a replica takes: they come from second 24 on
    late, early = (
        scaled("diurnal rate=6/s swing=0.9 period=400s", 400, 15, measure="rate", target=7.5, ahead=ahead)
        for ahead in (None, Duration(20 * PS_PER_S))
    )
    slo = Slo.parse("ttft=200ms")
    assert early.attained(slo)["all"] > 2 * late.attained(slo)["all"]
    (_, (before, _)), (_, (after, _)) = early.sizes[0].changes, late.sizes[0].changes
    assert before + 15 * PS_PER_S <= after


def test_a_fleet_grows_until_its_limits_are_kept():
    # a replica is full at 8 a second: at 12 the wait grows until more have worked off what waits; then they
    # stop one by one
    result = scaled(
        "constant rate=12/s", 600, measure="slo", target=0.5, slo="ttft=500ms", startup=1, replicas=3
    )
    arrival, limit = result.requests["arrival"] / PS_PER_S, PS_PER_S // 2
    assert (result.ttft[arrival < 5] > limit).mean() > 0.3
    assert (result.ttft[arrival > 20] <= limit).mean() > 0.85
    assert [count for _, count in result.sizes[0].changes][:3] == [1, 3, 2]


@pytest.mark.parametrize("ahead", [None, Duration(30 * PS_PER_S)], ids=["now", "ahead"])
def test_a_fleet_asks_for_no_more_while_what_it_asked_for_starts(ahead):
    # one replica takes 8 of 30 a second: after 5 s, 10 are wanted; the wait grows until they are there, and
    # requests of before met one replica. All 16 were started when such requests counted.
    result = scaled(
        "constant rate=30/s", 900, measure="slo", target=0.7, slo="ttft=500ms", startup=12, replicas=16,
        ahead=ahead,
    )  # fmt: skip
    assert [count for _, count in result.sizes[0].changes] == [1, 10]


JOB = {"model.layers": 2}
SMALL = "{job: llama2_7b_inference, machine: dgx_a100, settings: {model.layers: 1}}"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"beside": "[{job: nothing, machine: dgx_a100}]"}, r"serving.beside\[0\]"),
        ({"beside": "[{job: llama2_7b_inference, machine: nowhere}]"}, r"serving.beside\[0\]"),
        ({"beside": "[{job: llama3_1_70b_serve, machine: dgx_h100}]"}, "no class of requests has the model"),
        (
            {"classes": "[{name: a, model: other}]"},
            "'other' is the model of no replicas; these are of llama2_7b",
        ),
        ({"classes": "[{name: a}, {name: a}]"}, "'a' stands twice"),
        ({"classes": "[{name: a, priority: 1}]"}, "order: priority"),
        ({"classes": "[{name: a, slo: soon}]"}, r"serving.classes\[0\].slo"),
        ({"beside": f"[{SMALL}]", "outages": "[replica=0 at=1s down=1s]"}, "outages and faults are of"),
        ({"autoscaler": "{target: 1, measure: slo}"}, "needs `slo`"),
        ({"autoscaler": "{target: 1, slo: ttft=1s}"}, "reads no `slo`"),
    ],
)
def test_services_that_can_not_be_are_refused(settings, problem):
    stated = JOB | {f"serving.{name}": text for name, text in settings.items()}
    with pytest.raises(ConfigError, match=problem):
        serve(load_job("llama2_7b_inference", settings=stated), load_machine("dgx_a100"),
              arrivals="poisson rate=4/s", requests=5)  # fmt: skip


def test_a_service_of_two_machines_is_read_from_a_job_file():
    job = load_job("llama2_7b_inference", settings=JOB | {"serving.beside": f"[{SMALL}]"})
    result = serve(job, load_machine("dgx_a100"), arrivals="poisson rate=4/s", requests=20, output="4")
    assert [row["requests"] for row in result.as_json()["groups"]] == [10, 10]
    assert "by replicas" in str(result)
    spent = served_energy(result, job, load_machine("dgx_a100"))
    assert spent is not None and spent.gpu_seconds == pytest.approx(result.gpu_seconds)
    # each of them alone has kernels of its own ten requests
    node, alone = load_machine("dgx_a100"), list[float]()
    for layers in (2, 1):
        single = load_job("llama2_7b_inference", settings={"model.layers": layers})
        found = served_energy(
            serve(single, node, arrivals="constant rate=2/s", requests=10, output="4"), single, node
        )
        assert found is not None
        alone.append(found.kernels_j)
    assert spent.kernels_j == pytest.approx(sum(alone), rel=0.02)
    assert spent.output_tokens == 80


def test_a_trace_may_name_classes(tmp_path):
    trace = tmp_path / "requests.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens,class\n0,8,4,1\n1,8,4,0\n2,8,4,1\n")
    classes = "[{name: a}, {name: b, slo: ttft=1s}]"
    job = load_job("llama2_7b_inference", settings=JOB | {"serving.classes": classes})
    machine, arrivals = load_machine("dgx_a100"), f"trace file={trace}"
    assert serve(job, machine, arrivals=arrivals).requests["kind"].tolist() == [1, 0, 1]
    alone = load_job(job, settings={"serving.classes": "[{name: a}]"})
    with pytest.raises(ConfigError, match="class 1; the job states 1, from 0 on"):
        serve(alone, machine, arrivals=arrivals)
