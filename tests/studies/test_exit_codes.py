"""What a study ends with where nothing of it could be run, or ^C came: scripts look at the code alone."""

import json

import pytest

from rapid_des.cli.main import Bar
from tests.cli.shell import call, refused

pytest.importorskip("pyarrow")
BASE = {"job": "llama2_7b_train", "on": "torus_2d_a100", "mode": "analytical"}
UNEVEN = {"job.training.micro_batch": [3, 5]}
FEW = {"job.model.layers": 4, "machine.collectives": {"default": "ring"}}
ON = ("--on", BASE["on"], "--mode", "analytical", "--executor", "local")
SMALL = ("--set", "job.model.layers=4", "--set", "machine.collectives={default: ring}")
SAMPLE = ("faults", "sample", BASE["job"], *ON, *SMALL)
LINK = ("--fault", "random=links count=1 bandwidth=0.5", "--draws", 3, "--executor", "local")


def study(folder, **stated):
    file = folder / "study.yaml"
    file.write_text(json.dumps(BASE | {"set": FEW} | stated))
    return file


def test_a_sweep_without_a_point_that_ran_ends_as_its_points_do(tmp_path):
    uneven = call("sweep", study(tmp_path, axes=UNEVEN), "--executor", "local", "--json")
    assert refused(uneven, 2) == "error: none of the 2 points could be run\n"
    assert uneven.json["failed"][0]["points"] == 2  # the report is printed all the same
    small = {"device.hbm.capacity": "2 GiB"}
    refused(call("sweep", study(tmp_path, axes={"pp": [1, 2]}, set=small), "--executor", "local"), 4)
    mixed = {"axes": {"job.training.micro_batch": [1, 3]}, "set": small}
    refused(call("sweep", study(tmp_path, **mixed), "--executor", "local"), 2)  # one too large, one uneven


def test_a_sweep_of_which_some_points_ran_is_done(tmp_path):
    assert call("sweep", study(tmp_path, axes={"job.training.micro_batch": [1, 3]})).code == 0


def test_a_search_without_a_point_that_ran_says_so(tmp_path, monkeypatch):
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    answer = call("search", study(tmp_path, axes=UNEVEN), "--trials", 2, "--executor", "local")
    assert refused(answer) == "error: none of the 2 points asked for could be run\n"


def test_a_search_that_was_interrupted_prints_what_it_has(tmp_path, monkeypatch):
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)

    def interrupt(self, title, number, parts):
        if title == "search":
            raise KeyboardInterrupt

    monkeypatch.setattr(Bar, "part", interrupt)
    pipelines = study(tmp_path, axes={"pp": [1, 2]})
    answer = call("search", pipelines, "--trials", 2, "--executor", "local", "--json")
    assert (answer.code, answer.err.strip()) == (130, "interrupted")
    assert answer.json["interrupted"] and answer.json["simulated"] == 1


def test_draws_of_which_none_can_be_run_end_as_they_do():
    cut = call(*SAMPLE, "--fault", "random=links count=110 down=true", "--draws", 3)
    assert refused(cut, 3) == "error: none of the 3 draws could be run\n"
    assert "FabricCutError" in cut.out
    dead = call(*SAMPLE, "--fault", "random=gpus count=60 down=true", "--draws", 2, "--json")
    refused(dead, 2)
    assert dead.json["configurations"][0]["failed"] == 2


def test_draws_on_points_that_are_no_jobs_say_why_none_was_run(tmp_path):
    answer = call("faults", "study", study(tmp_path, axes=UNEVEN), *LINK)
    assert refused(answer) == "error: none of the 2 configurations could be run\n"
    assert "2 configurations cannot be made a job; the first, micro_batch=3:" in answer.out
    some = call("faults", "study", study(tmp_path, axes={"job.training.micro_batch": [1, 3]}), *LINK)
    assert (some.code, some.err) == (0, "")


def test_draws_go_on_only_with_the_source_that_made_the_folder(tmp_path):
    out = tmp_path / "out"
    asked = ("faults", "study", study(tmp_path, axes={"pp": [1, 2]}), *LINK, "-o", out)
    assert call(*asked).code == 0
    manifest = json.loads((out / "manifest.json").read_text())
    manifest["study"]["source"] = "of another day"
    (out / "manifest.json").write_text(json.dumps(manifest))
    answer = refused(call(*asked))
    assert 'holds the results of another study (source: "of another day" there,' in answer
