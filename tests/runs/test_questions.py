"""Questions about a run: what changes are worth, and the best values of keys."""

from math import sqrt

import pytest

from rapid_des.bounded_cache import BoundedCache
from rapid_des.errors import InputError
from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.runs.goodput import Replications, play, requested
from rapid_des.runs.questions import Asking, optimize, worth
from rapid_des.units import LongDuration
from tests.cli.shell import call

FILE = {
    "classes": [
        {"name": "often", "per": "job", "mtbf": "5 h", "takes": "nothing"},
        {"name": "seldom", "per": "job", "mtbf": "500 h", "takes": "nothing"},
    ],
    "detection": "10 min", "diagnosis": "30 s", "repair": "10 h", "restart": {"start": "5 min"},
    "checkpoint": {"interval": "3 h", "stall": "2 min"},
}  # fmt: skip
ASKING = Asking(Replications(10), cache=BoundedCache())


@pytest.fixture(scope="module")
def request_():
    where = load_job("llama2_7b_train"), load_machine("dgx_a100")
    return requested(*where, FILE, days=12, mode="analytical")


def test_what_changes_are_worth_is_ranked_by_goodput(request_):
    found = worth(request_, play(request_, Replications(10), cache=ASKING.cache), ASKING)
    gains = {each.change: each.gain for each in found}
    assert [*gains] == sorted(gains, key=lambda name: -gains[name].mean)
    # a failure in 5 h: a minute of them is 0.33 %, times the share of the time that trains
    assert gains["detection a minute faster"].mean == pytest.approx(1 / 300, rel=0.5)
    assert gains["diagnosis a minute faster"].mean < gains["detection a minute faster"].mean
    assert gains["half the failures: often"].low > gains["half the failures: seldom"].mean
    assert gains["the best checkpoint interval"].low > 0


def test_the_best_interval_is_found_with_todays_regret(request_):
    best = optimize(request_, ["checkpoint.interval"], ASKING)
    young = sqrt(2 * 120 * 5 * 3600)
    interval = int(LongDuration.parse(best.values["checkpoint.interval"])) / 1e6
    assert young / 1.6 < interval < young * 1.6
    assert best.regret.low > 0


def test_keys_that_nothing_optimizes_are_refused(request_):
    for keys in (["repair"], [], ["spares.hot", "spares.hot"]):
        with pytest.raises(InputError, match="optimize: .*; allowed: checkpoint.interval"):
            optimize(request_, keys, ASKING)


def test_the_command_prints_both():
    answer = call(
        "goodput", "llama2_7b_train", "--on", "dgx_a100", "--mode", "analytical", "--days", 10, "--worth",
        "--reliability", "llama3_h100", "--replications", 3, "--optimize", "checkpoint.interval",
    )  # fmt: skip
    assert "what a change is worth" in answer.out
    assert "today's regret" in answer.out
