"""Every command: it has --json and help, its JSON is JSON, and it ends well when it is interrupted."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from importlib.util import find_spec

import click
import pytest

from rapid_des.cli import main as command_line
from rapid_des.cli.main import COMMANDS, cli
from tests.cli.shell import ROOT, call, refused

TRACE = ROOT / "workloads" / "traces" / "two_stages"


def leaves(command, path=()):
    """Yield every command below a group with the words that call it."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in set(command.list_commands(context)) - MISSING:
        yield from leaves(command.get_command(context, name), (*path, name))


MISSING = {name for name, (place, _) in COMMANDS.items() if find_spec(place.split(":")[0]) is None}
LEAVES = dict(sorted((" ".join(path), command) for path, command in leaves(cli)))


def test_every_command_of_the_table_has_its_module():
    assert set() == MISSING


@pytest.mark.parametrize("name", LEAVES)
def test_every_command_prints_json_on_demand_and_explains_itself(name):
    options = {word for parameter in LEAVES[name].params for word in parameter.opts}
    assert "--json" in options
    answer = call(*name.split(), "--help")
    assert (answer.code, answer.err) == (0, "")
    assert "--json" in answer.out
    assert r"\b" not in answer.out  # click's mark of lines to keep


@pytest.mark.parametrize("name", LEAVES)
def test_examples_of_a_help_page_are_what_the_command_takes(name):
    page = (LEAVES[name].help or "").replace("\\\n", "")
    examples = [line for line in page.splitlines() if line.strip().startswith("rapid-des ")]
    assert examples or name.startswith(("operator vector ", "import "))  # made from a table
    for line in examples:
        words, path = shlex.split(line)[1:], name.split()
        assert words[: len(path)] == path
        LEAVES[name].make_context(name, words[len(path) :])  # raises what a user would be told


def test_a_missing_argument_is_answered_with_an_example():
    assert "as in: rapid-des why llama2_7b_train --on dgx_a100; " in call("why", "llama2_7b_train").err


def test_a_mistyped_command_is_answered_with_those_that_are_near_or_there():
    assert "did you mean 'topology'?" in call("toplogy").err
    assert "allowed: criticality, run, sample, study" in call("faults", "llama2_7b_train").err


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("presets", "machine"),
        ("schema job", "$defs"),
        ("schema family", "$defs"),
        ("topology show dgx_a100", "links"),
        ("topology route dgx_a100 0 1", "hops"),
        ("topology check dgx_a100", "gpus"),
        ("topology bench dgx_a100 --sizes 1KiB:4KiB", "rows"),
        (f"trace show {TRACE}", "nodes"),
        (f"trace check {TRACE}", "findings"),
        (f"trace stats {TRACE}", "total"),
        (f"replay {TRACE} --on dgx_a100", "ranks"),
        ("run llama2_7b_train --on dgx_a100 --mode analytical", "step_time_s"),
        ("run llama2_7b_train --on dgx_a100 --set job.model.layers=4 --compare-modes", "analytical"),
        ("device show a100_sxm_80gb", "sms"),
        ("operator gemm 1024 1024 1024 --device a100_sxm_80gb", ""),
    ],
)
def test_json_is_one_document_on_stdout(words, key):
    answer = call(*words.split(), "--json")
    assert answer.code == 0, answer.err
    assert key in json.dumps(answer.json)


def shell(*arguments, **more):
    command = [sys.executable, str(ROOT / "cli.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)


def test_a_checkout_runs_without_being_installed(tmp_path):
    done = shell("presets", "--json", cwd=tmp_path)
    assert "dgx_a100" in json.loads(done.stdout)["machine"]


def test_a_reader_that_leaves_early_is_no_error():
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, str(ROOT / "cli.py"), "trace", "show", str(TRACE), "--json"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


RUN = "run llama2_7b_train --on dgx_a100"


@pytest.mark.parametrize(
    ("words", "closed"), [("presets", ">&-"), ("presets", "<&-"), (RUN, "2>&-"), (RUN, "<&- >&- 2>&-")]
)
def test_streams_that_the_caller_closed_are_done_without(words, closed, tmp_path):
    links = tmp_path / "links.csv"
    more = ["--links", str(links)] if words.startswith("run") else []
    command = [sys.executable, str(ROOT / "cli.py"), *words.split(), *more]
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" "$@" {closed}', *command], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert bool(done.stdout) == (">&-" not in closed.replace("2>&-", ""))
    if more:
        assert links.read_text().startswith("link,")  # what is printed did not go there


def test_ctrl_c_is_one_line_and_code_130():
    command = [sys.executable, str(ROOT / "cli.py"), "run", "llama3_1_70b_train_1024", "--engine", "simpy"]
    slow = subprocess.Popen(
        [*command, "--on", "dgx_h100_superpod_128"], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with pytest.raises(subprocess.TimeoutExpired):
        slow.wait(1.5)
    slow.send_signal(signal.SIGINT)
    out, err = slow.communicate(timeout=60)
    assert (slow.returncode, out, err.strip()) == (130, "", "interrupted")


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (PermissionError(13, "Permission denied", "/x/y"), 2, "error: /x/y: Permission denied"),
        (OSError(28, "No space left on device"), 2, "No space left on device"),
        (MemoryError(), 3, "out of memory"),
        (KeyError("lost"), 1, "a defect of rapid_des, please report it: KeyError: 'lost'"),
    ],
)
def test_what_nobody_expected_is_still_a_few_lines(monkeypatch, raised, code, said):
    def fail(*_, **__):
        raise raised

    monkeypatch.setattr(command_line, "cli", fail)
    answer = call("presets")
    assert answer.code == code
    assert said in answer.err
    assert len(answer.err.splitlines()) <= 40
    if code != 1:
        refused(answer, code)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("device show a100_sxm_80gb", "HBM              80 GiB, 2.039 TB/s"),
        ("topology show dgx_h100_superpod_128", "1,024 GPUs, 1,024 NICs, 176 switches"),
        ("trace stats two_stages", "600 us stated, 0 FLOP"),
        ("trace stats all_reduce_4", "40 us stated"),
        (
            "faults run llama2_7b_train --on torus_2d_a100 --fault 'link=0-1 bandwidth=0.25'",
            "all_gather of 16 MiB by ring",
        ),
    ],
)
def test_numbers_are_written_as_people_write_them(words, shown):
    answer = call(*shlex.split(words))
    assert shown in answer.out
    assert re.findall(r"(?<![\w.,])\d{6,}(?![\w.,])|\de[+-]?\d", answer.out) == []
