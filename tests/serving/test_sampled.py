"""Windows that stand for a long time: beside the run of every request, and what has no windows."""

from typing import Any

import pytest

from rapid_des.bounded_cache import BoundedCache
from rapid_des.errors import ConfigError
from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.serving.sampled import Windows, serve_sampled
from rapid_des.serving.server import serve
from rapid_des.serving.slo import Slo

MODEL = {"hidden": 4096, "layers": 4, "attention": {"heads": 32, "kv_heads": 8},
         "feed_forward": {"activation": "swiglu", "hidden": 14336}, "norm": "rms_norm", "position": "rope",
         "vocabulary": 32000, "max_positions": 4096, "tied_embeddings": False}  # fmt: skip
JOB = {"model": MODEL, "phase": "inference", "software": "vllm-0.12", "parallelism": {"tp": 1, "dp": 2},
       "inference": {"batch": 1, "prompt_length": 512, "output_length": 8}, "host": None,
       "serving": {"router": "least_requests"}}  # fmt: skip
MACHINE = load_machine("dgx_h100")
ASKED: dict[str, Any] = {"arrivals": "diurnal rate=150/s swing=0.9 period=20s", "requests": 3000,
         "prompt": "uniform low=100 high=1000", "output": "uniform low=2 high=20"}  # fmt: skip
CACHE = BoundedCache()
WINDOWS = "every=1s window=200ms warmup=100ms"
SLO = Slo.parse("e2e=17ms")


@pytest.fixture(scope="module")
def day():
    return serve_sampled(load_job(JOB), MACHINE, Windows.parse(WINDOWS), slo=SLO, **ASKED).as_json()


def test_windows_say_what_the_run_of_every_request_does(day):
    whole = serve(load_job(JOB), MACHINE, cache=CACHE, **ASKED)
    exact = whole.as_json(SLO)
    assert day["simulated"] < 0.5 * day["requests"]
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        # 95 % intervals of three means, of which one may be beyond; the midpoint rule adds to them
        assert abs(day[name]["mean"] - exact[name]["mean"]) < 1.5 * day["ci95"][name]
        assert day[name]["p90"] == pytest.approx(exact[name]["p90"], rel=0.05)
    assert 0.2 < exact["goodput"]["attained"]["all"] < 0.98
    assert (
        abs(day["goodput"]["attained"] - exact["goodput"]["attained"]["all"]) < 1.5 * day["goodput"]["ci95"]
    )


def test_every_request_is_stood_for_once(day):
    stood_for = sum(window["measured"] * window["stands_for"] for window in day["windows"])
    assert stood_for == pytest.approx(day["requests"])
    assert len({window["from_s"] for window in day["windows"]}) == len(day["windows"]) >= 20


def test_gpus_of_a_fleet_that_shrinks_are_counted_within_windows():
    settings = {"serving.autoscaler": {"target": 1, "interval": "30ms", "stabilization": "60ms"}}
    job = load_job(JOB, settings=settings)
    sampled = serve_sampled(job, MACHINE, Windows.parse(WINDOWS), **ASKED).as_json()
    whole = serve(job, MACHINE, cache=CACHE, **ASKED)
    assert sampled["gpu_s"] == pytest.approx(whole.gpu_seconds, rel=0.05)
    assert sampled["gpu_s"] < 0.98 * 2 * whole.elapsed / 1e12


@pytest.mark.parametrize(
    ("settings", "windows", "says"),
    [
        ({"serving.sessions": 4}, WINDOWS, "sessions.*lasts longer"),
        ({"serving.max_queued": 4}, WINDOWS, "max_queued.*turned away"),
        ({"serving.order": "fair"}, WINDOWS, "order.*allowed: fcfs, priority"),
        (
            {
                "serving.autoscaler": {"target": 1, "interval": "30ms", "stabilization": "60ms"},
                "serving.startup": {"initialise": "1s", "weights": "peer"},
            },
            WINDOWS,
            "start-up included",
        ),
        ({}, "every=40s window=1s warmup=1s", "less than two times"),
        ({}, "every=1s window=1us warmup=1ms", "is in the window: state a longer one"),
        ({}, "every=1s window=800ms warmup=200ms", "more than `every`"),
        ({"serving.prefix_cache": {}}, WINDOWS, "prefix_cache.*lasts longer"),
        ({"serving.autoscaler": {"target": 3}}, WINDOWS, "looks back 315 s"),
        ({}, "every=1s window=2s warmup=1s", "at most that of `every`"),
        ({}, "every=1s window=500ms", "warmup"),
    ],
)
def test_what_has_no_windows_is_refused(settings, windows, says):
    with pytest.raises(ConfigError, match=says):
        serve_sampled(load_job(JOB, settings=settings), MACHINE, Windows.parse(windows), **ASKED)


def test_clients_have_no_windows():
    with pytest.raises(ConfigError, match="at a rate"):
        serve_sampled(load_job(JOB), MACHINE, Windows.parse(WINDOWS), arrivals="clients count=3", requests=5)
