"""The examples run, and print what their page says they find."""

import runpy
from pathlib import Path

import pytest

import rapid_des as rd

EXAMPLES = Path(__file__).parents[1] / "examples"
FOUND = {
    "first_run": "bound by compute",
    "plan_explained": "the second layout spends more or less on",
    "fabric_study": "rails at half the rate",
    "size_a_server": "99 % have the first token in",
    "fault_campaign": "one slow GPU, 20 draws",
    "imagined_gpu": "memory 1.5 times as fast",
}


def test_every_example_is_on_the_page_and_here():
    page = (EXAMPLES / "README.md").read_text()
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    assert names == set(FOUND) == {name for name in names if f"[{name}.py]({name}.py)" in page}


@pytest.mark.parametrize("name", FOUND)
def test_an_example_runs(name, capsys, monkeypatch):
    whole = rd.load_job

    def of_few_layers(job, **given):
        return whole(job, **given) if given else whole(job, settings={"model.layers": 4})

    monkeypatch.setattr(rd, "load_job", of_few_layers)  # what an example shows does not depend on its layers
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert FOUND[name] in printed
    assert 3 <= len(printed.splitlines()) <= 20
