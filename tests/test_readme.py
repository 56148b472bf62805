"""The README: its commands run, its snippet runs, and what it and SECURITY.md name is there."""

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.shell import call

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```console\n\$ rapid-des ([^\n|]+?)(?: \| head -\d+)?\n(.*?)```", README, re.DOTALL)

SETTINGS = re.findall(r"--set (?:'([^']+)'|([^\s\"]+))", README)


def masked(line):
    """Return a line as it is on any machine: which engine runs, and how long, depends on what is compiled."""
    return line.strip().split(", engine ")[0]


@pytest.mark.parametrize(("words", "shown"), BLOCKS, ids=[words for words, _ in BLOCKS])
def test_commands_of_the_readme_print_what_it_shows(words, shown):
    answer = call(*shlex.split(words))
    assert answer.code == 0, answer.err
    lines = shown.splitlines()
    printed = answer.out.splitlines()[: len(lines)]
    assert [masked(line) for line in printed] == [masked(line) for line in lines]


@pytest.mark.parametrize("setting", [bare or quoted for quoted, bare in SETTINGS])
def test_settings_of_the_readme_are_known(setting):
    job = "llama2_7b_inference" if "inference" in setting else "llama2_7b_train"
    answer = call("run", job, "--on", "dgx_a100", "--set", setting)
    assert answer.code == 0, answer.err


def test_the_python_snippet_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(re.search(r"```python\n(.*?)```", README, re.DOTALL)[1], {})  # noqa: S102
    assert "Duration" in capsys.readouterr().out
    assert (tmp_path / "step.perfetto.json").is_file()


@pytest.mark.parametrize(("text", "least"), [("README.md", 9), ("SECURITY.md", 2), ("CONTRIBUTING.md", 20)])
def test_files_that_it_names_are_there(text, least):
    written = (ROOT / text).read_text()
    named = re.findall(r"`((?:topologies|workloads|tests|validation|rapid_des)/[\w./-]*)`", written)
    named += re.findall(r"\]\((\w[\w/.]+)\)", written)
    assert len(named) >= least
    assert [name for name in named if not (ROOT / name).exists()] == []
