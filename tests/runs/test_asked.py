"""Runs with failures that sweeps, searches and plans ask for."""

from typing import Any

import pytest

from rapid_des.errors import ConfigError, InputError
from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.report.plan_text import plan_report
from rapid_des.runs.asked import AskedRun
from rapid_des.runs.loading import load_reliability
from rapid_des.studies.plan import Wanted, plan
from rapid_des.studies.plan_runs import runs_of
from rapid_des.studies.results import Sweep
from rapid_des.studies.search import search
from rapid_des.studies.sweep import sweep
from tests.cli.shell import call, refused

OFTEN = {
    "detection": "2 min",
    "diagnosis": "5 min",
    "repair": "1 d",
    "checkpoint": {"interval": "auto", "storage": "2 GB/s"},
    "classes": [{"name": "GPU", "mtbf": "20 d", "takes": "nothing"}],
}
STUDY = {
    "job": "llama2_7b_train",
    "on": "dgx_a100",
    "axes": {"tp": [2, 4], "dp": [1, 2]},
    "where": "tp * dp * pp == 8",
    "mode": "analytical",
}


def test_points_of_a_sweep_have_runs_with_failures(tmp_path):
    study = STUDY | {"reliability": OFTEN, "days": 20, "objective": "tokens_per_day"}
    done = sweep(study, folder=tmp_path / "results", executor="local")
    best = done.best(2)
    assert best[0]["tokens_per_day"] > best[1]["tokens_per_day"] > 0
    plain = Sweep.opened(tmp_path / "results").as_json()
    assert plain["failures_matter"]["best"] == best[0]["id"]
    assert "tokens_per_day" not in sweep(STUDY, executor="local").columns
    again = sweep(study, folder=tmp_path / "results", executor="local")
    assert again.best(2) == best


def test_a_figure_of_runs_ranks_only_where_runs_are_asked_for():
    with pytest.raises(ConfigError, match="objective: 'tokens_per_day' is of a run with failures"):
        sweep(STUDY | {"objective": "tokens_per_day"}, executor="local")
    pytest.importorskip("optuna")
    with pytest.raises(InputError, match="--objective goodput is for runs with failures"):
        search(STUDY, objectives=["goodput"])


def test_rows_of_a_plan_are_played_as_runs():
    job, machine = load_job("llama2_7b_train"), load_machine("dgx_a100")
    vary: dict[str, list[Any]] = {"tp": [2, 4], "recompute": ["none"], "micro_batch": [1], "zero_stage": [0]}
    found = plan(job, machine, Wanted(top=2, vary=vary, mode="analytical"))
    runs = runs_of(found, machine, AskedRun(load_reliability(OFTEN), 20.0))
    first, second = runs["rows"]
    assert first["tokens_per_day"] > second["tokens_per_day"]
    healthy = job.tokens / (int(found.rows[first["id"] - 1].step_time) / 1e12) * 86_400
    assert first["tokens_per_day"] == pytest.approx(first["goodput"] * healthy, rel=0.01)
    text = " ".join(map(str, plan_report(found.as_json() | {"runs": runs}, job.name, machine.name)))
    assert "has the most tokens a day with failures" in text


@pytest.mark.parametrize("words", [["--days", "3"], ["--objective", "tokens_per_day"]])
def test_options_of_a_run_need_a_reliability_file(words):
    said = refused(call("plan", "llama2_7b_train", "--on", "dgx_a100", *words))
    assert f"{' '.join(words).replace(' 3', '')} is for runs with failures" in said
