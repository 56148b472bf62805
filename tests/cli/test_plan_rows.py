"""What `plan` does with single rows: a command that runs one, a job file, why it is slower, a picture."""

import json
import shlex

import pytest

from tests.cli.shell import call, refused
from tests.studies.test_model_jobs import CONFIG

VARIED = ("tp=1", "pp=1", "cp=1", "micro_batch=1", "recompute=none", "zero_stage=0,1")
ASKED = ("--gpus", 2, "--mode", "hierarchical", "--top", 2, *(f"--vary={choice}" for choice in VARIED))


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """A plan of a model, with the folder of its files."""
    folder = tmp_path_factory.mktemp("plan")
    config = folder / "config.json"
    config.write_text(json.dumps(CONFIG))
    words = (config, "--tokens-per-batch", "32K", "--on", "dgx_a100", "--set", "job.fusion=eager")
    files = ("--write-job", folder / "second.yaml", "--row", 2, "--plot", folder / "rows.svg")
    return folder, call("plan", *words, *ASKED, *files, "--why", 2, "--json")


def step(*words):
    return call("run", *words, "--json").json["step_time_s"]


def test_the_command_of_a_row_gives_its_step(found):
    words = shlex.split(found[1].json["run"])
    assert words[:2] == ["rapid-des", "run"]
    assert step(*words[2:]) == found[1].json["rows"][1]["step_time_s"]


def test_any_row_is_written_as_a_job(found):
    written = step(found[0] / "second.yaml", "--on", "dgx_a100", "--mode", "hierarchical")
    assert written == found[1].json["rows"][1]["step_time_s"]


def test_why_a_row_is_slower_adds_up_to_the_difference(found):
    why, (first, second) = found[1].json["why"], found[1].json["rows"]
    assert why["row"] == 2
    assert sum(term["added_ps"] for term in why["terms"]) == why["added_ps"] > 0
    assert why["added_s"] == pytest.approx(second["step_time_s"] - first["step_time_s"])


def test_rows_are_drawn_as_bars(found):
    drawn = (found[0] / "rows.svg").read_text()
    assert all(f"<!-- {number}: " in drawn for number in (1, 2))  # the label of each row's bar


def test_rows_that_are_not_there_are_refused_at_once():
    words = ("plan", "llama2_7b_train", "--on", "dgx_a100", "--top", 2)
    assert "--why: there is no row 3: the last row is --top 2" in refused(call(*words, "--why", 3))
    assert "--row: there is no row 4: the last row is --top 2" in refused(call(*words, "--row", 4))
