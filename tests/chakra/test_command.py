"""The trace command: what it prints, and its exit codes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from rapid_des.cli.trace import trace
from rapid_des.errors import InputError, TraceError
from tests.chakra.writing import all_reduce, node, one_rank, ranks, recv, send


def run(*arguments):
    """Run a command; errors of rapid_des come out as they are, for `main` to turn into a line and a code."""
    result = CliRunner().invoke(trace, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def shell(*arguments):
    command = [sys.executable, "-m", "rapid_des.cli.main", "trace", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_show_prints_a_window_and_what_reading_decided(tmp_path):
    folder = one_rank(tmp_path, *(node(i, f"n{i}", us=1) for i in range(9)))
    text = run("show", folder, "--first", 2, "--count", 3)
    assert "note: dialect: plain" in text
    assert "rank 0: 3 of 9 nodes" in text
    assert "n4" in text
    assert "n5" not in text


def test_show_as_json_has_units_of_picoseconds_and_bytes(tmp_path):
    shown = json.loads(run("show", one_rank(tmp_path, node(1, us=2), all_reduce(2, 64)), "--json"))
    assert [entry["duration"] for entry in shown["nodes"]] == [2_000_000, None]
    assert [entry["size"] for entry in shown["nodes"]] == [0, 64]


def test_show_draws(tmp_path):
    pytest.importorskip("matplotlib")
    run("show", one_rank(tmp_path, node(1, us=2)), "--plot", tmp_path / "x.svg")
    assert (tmp_path / "x.svg").read_text().startswith("<?xml")


def test_check_of_a_clean_set_succeeds(tmp_path):
    assert "0 findings in 1 file" in run("check", one_rank(tmp_path, node(1, us=1)))


def test_check_exits_2_with_findings_on_stderr_only(tmp_path):
    result = shell("check", ranks(tmp_path, [send(1, to=1, tag=1)], [recv(1, 0, tag=2)]))
    assert result.returncode == 2
    assert 1 <= len(result.stderr.splitlines()) <= 40
    assert "unmatched message" in result.stderr
    assert "Traceback" not in result.stderr


def test_check_never_says_more_than_forty_lines(tmp_path):
    result = shell("check", ranks(tmp_path, *([send(1, to=60 + rank)] for rank in range(45))))
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 40
    assert "more (--json lists all)" in result.stderr


def test_check_as_json_lists_findings_and_repairs(tmp_path):
    result = shell("check", one_rank(tmp_path, node(1, us=1, needs=[9])), "--json", "--repairs")
    listed = json.loads(result.stdout)
    assert result.returncode == 2
    assert [finding["kind"] for finding in listed["findings"]] == ["dangling dependency"]
    assert listed["repairs"] == ["rank 0: dropped dangling dependency: node 1 needs 9"]


def test_a_missing_set_is_one_line_and_code_2(tmp_path):
    result = shell("stats", tmp_path / "nothing")
    assert (result.returncode, len(result.stderr.splitlines())) == (2, 1)


def test_stats_counts(tmp_path):
    folder = one_rank(tmp_path, node(1, us=1), all_reduce(2, 4096))
    assert "all_reduce       1 collectives, 4 KiB of input" in run("stats", folder)
    assert json.loads(run("stats", folder, "--json"))["total"]["nodes"] == 2


@pytest.mark.parametrize(
    ("form", "name"), [("et", "job.0.et"), ("json", "job.0.json"), ("rapid", "job.0.et")]
)
def test_convert_writes_each_form(tmp_path, form, name):
    folder = one_rank(tmp_path / "in", node(1, us=1), all_reduce(2, 64))
    run("convert", folder, "-o", tmp_path / "out", "--to", form)
    assert (tmp_path / "out" / name).is_file()
    assert json.loads(run("stats", tmp_path / "out", "--json"))["total"]["nodes"] == 2


def test_options_reach_the_reader(tmp_path):
    folder = one_rank(tmp_path, node(1, us=5, needs=[3]))
    assert json.loads(run("show", folder, "--time-unit", "ns", "--json"))["nodes"][0]["duration"] == 5_000
    with pytest.raises(TraceError, match="dangling"):
        run("show", folder, "--strict")
    assert "'x' is no whole number" in run("show", folder, "--dimensions", "2,x")


@pytest.mark.parametrize("form", ["et", "json", "rapid"])
def test_convert_writes_over_nothing_unless_told(tmp_path, form):
    folder = one_rank(tmp_path / "in", node(1, us=1))
    convert = ("convert", folder, "-o", tmp_path / "out", "--to", form)
    run(*convert)
    first = min((tmp_path / "out").glob("job.0.*"))
    first.write_text("mine")
    with pytest.raises(InputError, match="is there already; --force writes over it"):
        run(*convert)
    assert first.read_bytes() == b"mine"
    run(*convert, "--force")
    assert first.read_bytes() != b"mine"


def test_write_writes_over_nothing_unless_told(tmp_path):
    write = ("write", "llama2_7b_train", "--on", "dgx_a100", "-o", tmp_path, "--set", "job.model.layers=2")
    prefix = json.loads(run(*write, "--json"))["prefix"]
    last = Path(f"{prefix}.7.et")
    content = last.read_bytes()
    last.write_text("mine")
    for path in tmp_path.iterdir():
        if path != last:
            path.unlink()
    with pytest.raises(InputError, match=r"\.7\.et: is there already; --force writes over it"):
        run(*write)
    assert [path.name for path in tmp_path.iterdir()] == [last.name]
    run(*write, "--force")
    assert last.read_bytes() == content
