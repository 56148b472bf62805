"""README and docs: commands print what is shown, snippets run, what is named is there, the site builds."""

import re
import runpy
import shlex
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import click
import pytest

from rapid_des.cli.main import cli
from rapid_des.version import __version__
from tests.cli.shell import call
from validation.refresh_docs import write_files

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = {path: path.read_text(encoding="utf-8") for path in PAGES if "generated" not in path.parts}
CONSOLE = re.compile(r"```console\n\$ rapid-des ([^\n|]+?)(?: \| head -\d+)?\n(.*?)```", re.DOTALL)
SHOWN = [(words, shown, path) for path, text in TEXTS.items() for words, shown in CONSOLE.findall(text)]
BLOCKS = {words: list(found) for words, found in groupby(sorted(SHOWN), key=lambda each: each[0])}
"""The pages that show a command, by the command, which runs once."""
REST = "\n".join(CONSOLE.sub("", text) for text in TEXTS.values())
_SETTING = r"--set (?:'((?:job|machine|device)\.[^']+)'|((?:job|machine|device)\.[\w.]+=[a-z\d][^\s\"`]*))"
SETTINGS = dict.fromkeys(quoted or bare for quoted, bare in re.findall(_SETTING, REST))
BLOCK = re.compile(r"```(?:sh|text)\n(.*?)```", re.DOTALL)
COMMANDS = [
    line.strip("$ ").partition(" | ")[0]
    for block in BLOCK.findall(REST)
    for line in block.replace("\\\n", " ").splitlines()
    if re.match(r"(\$ )?rapid-des [a-z]", line)
]


def masked(line):
    """Return a line as it is on any machine: which engine runs, and how long, depends on what is compiled."""
    return line.strip().split(", engine ")[0]


def with_its_files(page, folder):
    """Write the files that a page shows under their names, and install the package that they make."""
    (folder / "validation").symlink_to(ROOT / "validation")  # whose data commands read
    write_files(TEXTS[page], folder)


@pytest.mark.parametrize("words", BLOCKS)
def test_commands_print_what_is_shown(words, tmp_path, monkeypatch):
    with_its_files(BLOCKS[words][0][2], tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    answer = call(*shlex.split(words))
    assert answer.code == 0, answer.err
    printed = [masked(line) for line in answer.out.splitlines()]
    for _, shown, page in BLOCKS[words]:
        lines = [masked(line) for line in shown.splitlines()]
        assert lines, f"{page}: python -m validation.refresh_docs fills in what {words!r} prints"
        assert printed[: len(lines)] == lines, page


@pytest.mark.parametrize(
    "page", [page for page in TEXTS if page.name.startswith("own-")], ids=lambda page: page.stem
)
def test_the_parts_that_pages_show_pass_their_own_tests(page, tmp_path, monkeypatch):
    with_its_files(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for test in tmp_path.glob("test_my_*.py"):
        for name, function in runpy.run_path(str(test)).items():
            if name.startswith("test_"):
                function(**{"tmp_path": tmp_path} if function.__code__.co_argcount else {})


@pytest.mark.parametrize("setting", SETTINGS)
def test_settings_are_known(setting):
    job = "llama2_7b_inference" if "inference" in setting else "llama2_7b_train"
    few = "job.model.layers=2"
    answer = call("run", job, "--on", "dgx_a100", "--mode", "analytical", "--set", few, "--set", setting)
    assert answer.code == 0, answer.err


@pytest.mark.parametrize("line", dict.fromkeys(COMMANDS))
def test_commands_that_are_not_run_have_the_options_that_they_use(line):
    context, words = click.Context(cli), shlex.split(line)[1:]
    command: click.Command = cli
    while isinstance(command, click.Group):
        command = command.get_command(context, words.pop(0))
        assert command is not None, line
    command.make_parser(click.Context(command)).parse_args(words)


@pytest.mark.parametrize("page", [path for path, text in TEXTS.items() if "```python\n" in text], ids=str)
def test_python_snippets_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec("".join(re.findall(r"```python\n(.*?)```", TEXTS[page], re.DOTALL)), {})  # noqa: S102
    printed = capsys.readouterr().out
    assert "Duration" in printed or "step time" in printed
    assert (tmp_path / "step.perfetto.json").is_file()


@pytest.mark.parametrize("path", [*TEXTS, ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md"], ids=str)
def test_files_that_are_named_are_there(path):
    written = path.read_text(encoding="utf-8")
    named = re.findall(r"`((?:topologies|workloads|tests|validation|rapid_des|docs)/[\w./-]*)`", written)
    missing = [name for name in named if not (ROOT / name).exists()]
    links = re.findall(r"\]\(([\w./-]+)(?:#[\w-]+)?\)", written)
    missing += [link for link in links if "generated/" not in link and not (path.parent / link).exists()]
    assert missing == []


def test_the_readme_is_short():
    assert len(TEXTS[ROOT / "README.md"].splitlines()) <= 180


def test_the_version_is_stated_alike():
    newest = re.search(r"^## (\S+) \(", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest[1] == cited[1] == __version__


def test_the_site_builds_without_a_warning(tmp_path):
    for package in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(package)
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", "-b", "dummy", "-qW", "--keep-going", "docs", tmp_path],  # no HTML
        cwd=ROOT, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    assert "global_batch" in (ROOT / "docs" / "generated" / "files" / "job.md").read_text(encoding="utf-8")
