"""`rapid-des report` and `--report`: pages of runs, of saved results, of two side by side."""

import json
import re

import pytest

from tests.cli.shell import call

RUN = ("llama2_7b_train", "--on", "dgx_a100", "--set", "job.model.layers=4", "--mode", "analytical")


def test_a_run_leaves_a_page_with_its_command(tmp_path):
    answer = call("run", *RUN, "--report", tmp_path / "a.html")
    assert answer.code == 0, answer.err
    text = (tmp_path / "a.html").read_text()
    assert "rapid-des run llama2_7b_train --on dgx_a100 --set job.model.layers=4" in text
    assert "What helps most" in text
    assert call("run", *RUN, "--report", tmp_path / "a.html").err.endswith("--force writes over it\n")
    assert call("run", *RUN, "--report", tmp_path / "a.pdf").err.endswith("ends in .html\n")


def test_a_saved_result_and_two_sides_are_pages(tmp_path):
    saved = tmp_path / "a.json"
    saved.write_text(call("run", *RUN, "--json").out)
    assert call("report", saved, "-o", tmp_path / "one.html").code == 0
    assert call("report", saved, " ".join(RUN), "-o", tmp_path / "two.html").code == 0
    step = json.loads(saved.read_text())["step_time_s"]
    assert f'"step_time_s":{step!r}' in (tmp_path / "one.html").read_text()
    assert f'"before_s":{step!r},"after_s":{step!r}' in (tmp_path / "two.html").read_text()


def test_a_file_without_memory_capacity_is_refused(tmp_path):
    saved = tmp_path / "a.json"
    plain = json.loads(call("run", *RUN, "--json").out)
    saved.write_text(json.dumps(plain | {"memory_capacity_bytes": 0}))
    answer = call("report", saved, "-o", tmp_path / "one.html")
    assert answer.code == 2
    assert "a.json: not a result as `run --json` prints it: memory_capacity_bytes: " in answer.err


@pytest.mark.parametrize(
    ("content", "says"), [('{"step_time_ps": 1}', "missing key"), ("[1]", "not a result"), ("{", "a.json")]
)
def test_a_file_that_is_no_result_is_refused(tmp_path, content, says):
    (tmp_path / "a.json").write_text(content)
    answer = call("report", tmp_path / "a.json", "-o", tmp_path / "one.html")
    assert answer.code == 2
    assert says in answer.err
    assert not (tmp_path / "one.html").exists()


PAGES = {
    "plan": (
        "plan",
        *RUN[:5],
        "--mode",
        "analytical",
        "--top",
        "2",
        "--sensitivity",
        "0",
        "--executor",
        "local",
    ),
    "sweep": ("sweep", "llama2_7b_splits", "--limit", "2", "--executor", "local"),
    "compare": ("compare", " ".join(RUN), " ".join(RUN).replace("a100", "h100")),
    "faults": (
        "faults",
        "sample",
        *RUN,
        "--draws",
        "2",
        "--executor",
        "local",
        "--fault",
        "random=gpus count=1 compute=uniform(0.5,0.9)",
    ),
}


@pytest.mark.parametrize("name", PAGES)
def test_studies_leave_a_page_with_their_numbers(name, tmp_path):
    path = tmp_path / "a.html"
    answer = call(*PAGES[name], "--report", path, "--json")
    assert answer.code == 0, answer.err
    embedded = re.search(r'id="plain">(.*?)</script>', path.read_text(), re.DOTALL)[1]
    shown = json.loads(embedded)
    assert shown.items() <= answer.json.items() or shown.keys() == answer.json.keys()
    assert "In pictures" in path.read_text() or name == "compare"
