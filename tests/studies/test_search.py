"""Searches of a study's points: warm starts, samplers, several objectives, what cannot be asked."""

import json
import shutil
import sqlite3
from contextlib import closing
from typing import Any

import pytest
from click.testing import CliRunner

from rapid_des import BoundedCache
from rapid_des.cli.main import cli
from rapid_des.errors import InputError
from rapid_des.executors import InProcess
from rapid_des.studies.database import digest_of
from rapid_des.studies.search import search
from rapid_des.studies.sweep import sweep

pytest.importorskip("optuna")

STUDY: dict[str, Any] = {
    "job": "llama2_7b_train",
    "on": "dgx_a100",
    "axes": {"tp": [1, 2, 4], "pp": [1, 2, 4], "dp": [1, 2, 4]},
    "where": "tp * pp * dp == 4",
    "derive": {"job.parallelism.sequence_parallel": "tp > 1"},
    "set": {"job.training.global_batch": 16, "job.model.layers": 4},
    "mode": "analytical",
}


CREW = InProcess(BoundedCache(1 << 28))  # points that several tests ask for are simulated once


def test_all_trials_find_the_best_of_a_sweep_and_ask_no_point_twice():
    every = sweep(STUDY, executor=CREW)
    found = search(STUDY, trials=100, executor=CREW)
    assert found.best["id"] == every.best(1)[0]["id"]
    ids = [row["id"] for row in found.rows]
    assert len(ids) == len(set(ids)) <= found.points == len(every)


def test_the_best_estimate_is_asked_first():
    found = search(STUDY, trials=1, executor=CREW)
    assert found.rows[0]["id"] == min(found.estimates, key=found.estimates.get) == found.best["id"]


def test_several_objectives_give_a_front():
    found = search(
        STUDY, trials=100, objectives=["step_time_s", "memory_bytes"], sampler="nsga2", executor=CREW
    )
    front = [(row["step_time_s"], row["memory_bytes"]) for row in found.front]
    rows = [(row["step_time_s"], row["memory_bytes"]) for row in found.rows if row["status"] == "ok"]
    assert front == sorted(front) and len(front) > 1
    assert not any(other[0] <= own[0] and other[1] < own[1] for own in front for other in rows)


def test_a_storage_goes_on_where_it_was(tmp_path):
    storage = f"sqlite:///{tmp_path / 'kept.db'}"
    first = search(STUDY, trials=2, storage=storage, executor=CREW)
    more = search(STUDY, trials=4, storage=storage, executor=CREW)
    assert [row["id"] for row in more.rows[:2]] == [row["id"] for row in first.rows]
    assert len(more.rows) == 4


def test_a_storage_of_another_study_is_refused_by_what_differs(tmp_path):
    storage = f"sqlite:///{tmp_path / 'kept.db'}"
    search(STUDY, trials=1, warm=0, storage=storage, executor=CREW)
    changed = {**STUDY, "set": {"job.training.global_batch": 32}}
    with pytest.raises(InputError, match=r"another study \(stated.set.job.*batch: 16 there, 32 here"):
        search(changed, trials=1, warm=0, storage=storage, executor=CREW)


def test_estimates_may_join_a_storage_that_began_without_them(tmp_path):
    storage = f"sqlite:///{tmp_path / 'kept.db'}"
    little = {**STUDY, "set": {**STUDY["set"], "device.hbm.capacity": "8 GiB"}}
    search(little, trials=3, warm=0, storage=storage, executor=CREW)
    more = search(little, trials=100, storage=storage, executor=CREW)
    assert len(more.estimates) < more.points
    assert set(more.estimates) <= {row["id"] for row in more.rows}


@pytest.mark.parametrize("pruner", ["median", "percentile", "successive_halving", "hyperband"])
def test_pruners_find_what_a_sweep_finds(pruner):
    every = sweep(STUDY, executor=CREW)
    assert search(STUDY, trials=100, pruner=pruner, executor=CREW).best["id"] == every.best(1)[0]["id"]


def test_cmaes_which_knows_numbers_alone_draws_none_at_random(caplog):
    pytest.importorskip("cmaes")
    logging = pytest.importorskip("optuna").logging
    logging.enable_propagation()  # to where pytest looks
    try:
        found = search(STUDY, trials=100, warm=0, sampler="cmaes", executor=CREW)
    finally:
        logging.disable_propagation()
    assert len(found.rows) == found.points
    assert not caplog.records  # Optuna warns where it draws at random instead


def test_what_a_sampler_needs_is_said_before_anything_runs(monkeypatch):
    monkeypatch.setattr("rapid_des.studies.search.find_spec", lambda name: None)
    with pytest.raises(InputError, match="--sampler gp needs scipy: pip install scipy"):
        search(STUDY, sampler="gp")


def test_a_storage_that_can_not_be_had_is_said_before_anything_runs():
    class Idle(InProcess):
        def map(self, function, items, meanwhile=None):
            raise AssertionError("nothing is to be simulated")

    with pytest.raises(InputError, match="--storage sqlite:////dev/null/kept.db: .*unable to open"):
        search(STUDY, storage="sqlite:////dev/null/kept.db", executor=Idle())


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"sampler": "annealing"}, "--sampler 'annealing': allowed: tpe, random"),
        ({"objectives": ["speed"]}, "--objective 'speed': allowed: step_time_s"),
        ({"objectives": ["step_time_s", "mfu"], "sampler": "gp"}, "takes one objective"),
        ({"pruner": "median", "warm": 0}, "prunes by estimates"),
        ({"storage": "nonsense"}, "--storage nonsense"),
    ],
)
def test_what_optuna_can_not_do_is_refused(how, says):
    with pytest.raises(InputError, match=says):
        search(STUDY, **how)


def test_the_command_prints_the_best_point(tmp_path):
    file = tmp_path / "study.yaml"
    file.write_text(json.dumps(STUDY))
    asked = ["search", str(file), "--trials", "2", "--executor", "local"]
    asked += ["--storage", f"sqlite:///{tmp_path / 'kept.db'}"]
    shown = CliRunner().invoke(cli, asked, catch_exceptions=False, standalone_mode=False).stdout
    assert "2 of 6 points simulated" in shown and "step time" in shown


def forged(database, change, *, digest):
    """Change a row in a search's database, with its digest and its trial's value if the forger knows them."""
    with closing(sqlite3.connect(database)) as opened:
        attributes = "trial_user_attributes"
        ((trial, text),) = opened.execute(f"SELECT trial_id, value_json FROM {attributes} WHERE key = 'row'")
        ((identity,),) = opened.execute("SELECT value_json FROM study_user_attributes WHERE key = 'study'")
        row = json.loads(text) | change
        set_to = f"UPDATE {attributes} SET value_json = ? WHERE trial_id = ? AND key = ?"
        opened.execute(set_to, (json.dumps(row), trial, "row"))
        if digest:
            opened.execute(set_to, (json.dumps(digest_of(row, json.loads(identity))), trial, "digest"))
            opened.execute(
                "UPDATE trial_values SET value = ? WHERE trial_id = ?", (row["step_time_s"], trial)
            )
        opened.commit()


NANOSECOND = {"step_time_s": 1e-9, "step_time_ps": 1000}


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """The database of a search of one trial, which goes on as it is."""
    path = tmp_path_factory.mktemp("search") / "kept.db"
    for _ in range(2):
        found = search(STUDY, trials=1, storage=f"sqlite:///{path}", executor=CREW)
        assert found.best["step_time_s"] > 0.01
    return path


@pytest.mark.parametrize(
    ("change", "digest", "says"),
    [
        (NANOSECOND, False, "is not what its digest is of"),
        (NANOSECOND, True, r"step_time_(s|ps): .* there, .* here"),
        ({"mfu": 0.99}, True, "mfu: 0.99 there"),
        ({"tokens_per_s": 1.0}, False, "is not what its digest is of"),
        ({"gpus": 2**63 - 1}, True, "gpus: 9223372036854775807"),
        ({"status": "ConfigError"}, True, "error: None"),
        ({"key": "0" * 64}, True, 'key: "0000'),
    ],
)
def test_a_forged_row_of_a_storage_is_refused(tmp_path, database, change, digest, says):
    storage = f"sqlite:///{shutil.copy(database, tmp_path / 'kept.db')}"
    forged(tmp_path / "kept.db", change, digest=digest)
    with pytest.raises(InputError, match=f"a row is not as it was written: point .*{says}"):
        search(STUDY, trials=1, storage=storage, executor=CREW)


def test_a_row_of_another_study_is_refused(tmp_path):
    for name, batch in (("a", 16), ("b", 32)):
        changed = {**STUDY, "set": {"job.training.global_batch": batch}}
        search(changed, trials=1, warm=0, storage=f"sqlite:///{tmp_path / name}.db", executor=CREW)
    with closing(sqlite3.connect(tmp_path / "b.db")) as opened:
        opened.execute("ATTACH ? AS a", (str(tmp_path / "a.db"),))
        for key in ("row", "digest"):
            taken = "(SELECT value_json FROM a.trial_user_attributes WHERE key = ?)"
            opened.execute(f"UPDATE trial_user_attributes SET value_json = {taken} WHERE key = ?", (key, key))
        opened.commit()
    with pytest.raises(InputError, match="is not what its digest is of"):
        search(changed, trials=1, warm=0, storage=f"sqlite:///{tmp_path / 'b.db'}", executor=CREW)
