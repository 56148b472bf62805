"""What a person sees while waiting, and what is left of a command after ^C."""

import io
import itertools
import sys
from threading import Event

import pytest

import validation
from rapid_des import simulation
from rapid_des.cli import main
from rapid_des.studies import collective_bench
from tests.cli.shell import call

BENCH = ("topology", "bench", "dgx_a100", "--sizes", "4KiB:64KiB")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def drawn(monkeypatch, title):
    """What stands on a terminal after a bar was told something, and how it was coloured."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    bar = main.Bar(title)
    bar.draw()
    bar(500, 1000)
    bar.close()
    return terminal.getvalue()


def test_a_bar_shows_what_and_how_much(monkeypatch):
    shown = drawn(monkeypatch, "a job on a machine")
    assert "a job on a machine" in shown
    assert "50 %" in shown


def test_a_bar_of_which_the_end_is_not_known_counts(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    bar = main.Bar("a study")
    bar.draw()
    bar.part("a study", 1234, 0)
    bar.close()
    assert "1,234" in terminal.getvalue() and "%" not in terminal.getvalue()


def test_no_color_is_honoured(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[38;" in drawn(monkeypatch, "x") or "\x1b[3" in drawn(monkeypatch, "x")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in drawn(monkeypatch, "x")


def test_nothing_is_drawn_in_a_pipe_and_nothing_before_it_takes_long(monkeypatch):
    monkeypatch.setattr(main, "AFTER_S", 0.0)
    monkeypatch.setattr(main.Bar, "draw", lambda _: pytest.fail("drawn"))
    answer = call(*BENCH)
    assert (answer.code, answer.err) == (0, "")


def test_a_command_without_a_terminal_says_now_and_then_what_it_does(monkeypatch):
    lines, ended = [], Event()

    def note(line):
        lines.append(line)
        ended.set()

    monkeypatch.setattr(main, "LINES_S", (0.0, 0.0))
    monkeypatch.setattr(main, "announce", note)
    bar = main.Bar("plan")
    bar.part("simulating", 3, 5)
    main._lines(bar, ended)
    assert lines == ["… simulating: 3 of 5"]


def test_rich_is_imported_only_to_draw():
    assert "rich" not in vars(main)


@pytest.mark.parametrize("as_json", [False, True])
def test_a_bench_that_is_interrupted_prints_what_is_finished(as_json, monkeypatch):
    numbers = itertools.count(1)

    def third_is_interrupted(*arguments, **options):
        if next(numbers) == 3:
            raise KeyboardInterrupt
        return simulation.replay(*arguments, **options)

    monkeypatch.setattr(collective_bench, "replay", third_is_interrupted)
    left = call(*BENCH, *(["--json"] if as_json else []))
    assert left.code == 130
    assert left.err.splitlines()[-1] == "interrupted"
    if as_json:
        assert [row["size_bytes"] for row in left.json["rows"]] == [4096, 16384]
    else:
        assert "16384" in left.out


def test_parts_ranked_before_ctrl_c_are_printed_and_the_code_is_130(monkeypatch):
    name = main.Bar.name

    def third_is_interrupted(bar, title):
        if title.startswith("3/"):
            raise KeyboardInterrupt
        name(bar, title)

    monkeypatch.setattr(main.Bar, "name", third_is_interrupted)
    job = ("llama2_7b_train", "--set", "model.layers=2", "--set", "training.global_batch=4")
    left = call("faults", "criticality", *job, "--on", "dgx_a100", "--kind", "gpus", "--every", "--json")
    assert (left.code, left.err.splitlines()[-1]) == (130, "interrupted")
    assert (len(left.json["rows"]), left.json["left"]) == (2, 6)


def test_ctrl_c_names_what_went_on_in_one_line():
    with pytest.raises(KeyboardInterrupt, match="bounds: 3 of 5"), main.progress("plan") as bar:
        bar.part("bounds", 3, 5)
        raise KeyboardInterrupt


def test_a_command_that_is_interrupted_says_where(monkeypatch):
    def interrupted(*_, **__):
        with main.progress("bench") as bar:
            bar.part("sizes", 3, 5)
            raise KeyboardInterrupt

    monkeypatch.setattr(collective_bench, "chosen", interrupted)
    left = call(*BENCH)
    assert left.code == 130 and "interrupted at: " in left.err and "3 of 5" in left.err


def test_a_validation_that_is_interrupted_prints_what_is_finished(monkeypatch):
    scored: list[str] = []

    def second_is_interrupted(topic, **_):
        if scored:
            raise KeyboardInterrupt
        scored.append(topic.name)
        return {"residuals": [], "calibration": {}}

    monkeypatch.setattr(validation, "score", second_is_interrupted)
    left = call("validate", "operators/gemm", "--json")
    assert left.code == 130
    assert list(left.json["topics"]) == scored
    assert left.json["unfinished"]


def test_outputs_that_are_there_are_kept_unless_forced(tmp_path):
    path = tmp_path / "links.csv"
    path.write_text("old")
    words = ("run", "llama2_7b_train", "--on", "dgx_a100", "--links", path)
    answer = call(*words)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == f"error: {path}: is there already; --force writes over it\n"
    assert path.read_text() == "old"
    assert call(*words, "--force").code == 0
    assert path.read_text() != "old"
