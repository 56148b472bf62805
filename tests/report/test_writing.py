"""Output files: whole or not at all, and refused before the work."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from rapid_des.errors import InputError
from rapid_des.machine import load_machine
from rapid_des.report.writing import check_outputs, replacing, write_text
from tests.cli.shell import call, refused

RUN = ("run", "llama2_7b_train", "--on", "dgx_a100")


def test_a_file_takes_its_place_only_when_it_is_whole(tmp_path):
    path = tmp_path / "links.csv"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), replacing(path) as beside:
        beside.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    with replacing(path) as beside:
        beside.write_text("new")
    assert path.read_text() == "new"
    assert [file.name for file in tmp_path.iterdir()] == ["links.csv"]


def test_escapes_in_a_file_are_spelled_not_obeyed(tmp_path):
    machine = tmp_path / "m.yaml"
    preset = load_machine("hgx_a100_x4").as_yaml()
    machine.write_text(re.sub("(?m)^name: .*$", r'name: "red \\e[31m, back \\u202e"', preset))
    shown = call("topology", "show", machine)
    assert shown.out.splitlines()[0] == r"red \x1b[31m, back \u202e"
    said = call("topology", "route", machine, "0", "\x1b[2J")
    assert (said.code, "\x1b" in said.err, r"\x1b[2J" in said.err) == (2, False, True)


def test_what_is_no_file_is_written_itself():
    with replacing(Path("/dev/null")) as beside:
        assert str(beside) == "/dev/null"


def test_a_link_keeps_pointing_where_it_did(tmp_path):
    (tmp_path / "link.csv").symlink_to("real.csv")
    with replacing(tmp_path / "link.csv") as beside:
        beside.write_text("rows")
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "real.csv").read_text() == "rows"


def test_folders_that_are_not_there_are_made(tmp_path):
    write_text(tmp_path / "new" / "folder" / "x.txt", "text")
    assert (tmp_path / "new" / "folder" / "x.txt").read_text() == "text"
    check_outputs([tmp_path / "other" / "x.csv"])
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--timeline", "/dev/null/x.json"), "/dev/null/x.json: cannot be written: /dev/null is no folder"),
        (("--links", "."), ".: cannot be written: it is a folder"),
        (("--links-plot", "x.docx"), "x.docx: allowed: a name that ends in .png, .svg or .pdf"),
    ],
)
def test_outputs_that_can_not_be_written_are_refused_before_the_simulation(
    arguments, said, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    # the job's file is not there: it is opened after the outputs are looked at
    assert said in refused(call("run", "nowhere.yaml", "--on", "dgx_a100", *arguments))


@pytest.mark.parametrize(
    "asked",
    [
        "plan {no} --write-job {place}/x.yaml",
        "sweep {no} --plot {place}/x.svg",
        "faults sample {no} --fault 'gpu=0 compute=0.5' --plot {place}/x.png",
        "run {no} --timeline {place}/x.json",
        "serve {no} --rows {place}/x.csv",
        "trace write {no} -o {place}/out",
        "validate nothing --plot {place}/out",
    ],
)
@pytest.mark.parametrize("place", ["/proc/self", "{long}"])
def test_what_a_place_takes_is_tried_before_the_work(asked, place, tmp_path):
    # permissions say that root may write below /proc, and nothing of how long names may be
    place = place.format(long=tmp_path / ("x" * 300))
    words = shlex.split(asked.format(no="nowhere.yaml", place=place))
    machine = ["--on", "dgx_a100"] if words[0] not in ("sweep", "validate") else []
    said = refused(call(*words, *machine))
    assert "cannot be written" in said or "name too long" in said
    assert len(said.splitlines()) == 1 and "nowhere.yaml" not in said


@pytest.mark.parametrize(("name", "package"), [("x.parquet", "pyarrow"), ("x.png", "matplotlib")])
def test_an_extra_that_is_not_there_is_named_before_the_simulation(name, package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    paths, pictures = ([tmp_path / name], []) if package == "pyarrow" else ([], [tmp_path / name])
    with pytest.raises(InputError, match=f"needs {package}: pip install {package}"):
        check_outputs(paths, pictures=pictures)


def test_numbers_are_written_as_people_write_them():
    lines = call(*RUN).out.splitlines()
    (idle,) = [line.split() for line in lines if line.startswith("    idle")]
    assert idle == ["idle", "0", "0.0%"]
