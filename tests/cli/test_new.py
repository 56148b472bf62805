"""`new`: files to edit that run as they are."""

from pathlib import Path

import pytest

from rapid_des.config.documents import load_document
from rapid_des.device import load_device
from rapid_des.frontend import load_job
from tests.cli.shell import call, refused

STARTS = {"job": "llama2_7b_train", "machine": "dgx_h100_x8", "study": "splits_64"}


@pytest.mark.parametrize("kind", STARTS)
def test_a_new_file_holds_what_its_preset_holds(kind, tmp_path):
    path = tmp_path / "new.yaml"
    assert call("new", kind, "-o", path).code == 0
    preset = call("presets", "show", STARTS[kind], "--json").json["file"]
    assert load_document(path).tree == load_document(Path(preset)).tree


def test_every_key_of_a_job_stands_in_the_file_with_its_meaning(tmp_path):
    path = tmp_path / "job.yaml"
    call("new", "job", "-o", path)
    lines = path.read_text().splitlines()
    schema = call("schema", "job", "--json").json["$defs"]
    for spec, start in (("JobSpec", ""), ("TrainingSpec", "  "), ("ParallelismSpec", "  ")):
        for key in schema[spec]["properties"]:
            place = next(
                n for n, line in enumerate(lines) if line.startswith((f"{start}{key}:", f"{start}# {key}:"))
            )
            assert lines[place - 1].lstrip().startswith("# ")


def test_a_default_that_is_uncommented_changes_nothing(tmp_path):
    path = tmp_path / "job.yaml"
    call("new", "job", "-o", path)
    text = path.read_text()
    for line in ("# order: [tp, cp, ep, dp, pp]", "# recompute: none", "# cp: 1"):
        assert f"  {line}\n" in text
        text = text.replace(f"  {line}\n", f"  {line[2:]}\n")
    path.write_text(text)
    assert load_job(path).spec == load_job("llama2_7b_train").spec


def test_values_come_from_flags_and_answers(tmp_path, monkeypatch):
    path = tmp_path / "job.yaml"
    call("new", "job", "-o", path, "--set", "model=llama3_2_1b", "--set", "training.sequence_length=1024")
    assert load_job(path).spec.training.sequence_length == 1024
    answers = iter(["gpt2", "training", "1", "1", "4", "false", "8", "1", "512", "1f1b", "0"])
    monkeypatch.setattr("click.prompt", lambda *_, **__: next(answers))
    assert call("new", "job", "-o", path, "--ask", "--force").code == 0
    job = load_job(path)
    assert (job.gpus, job.spec.training.sequence_length) == (4, 512)


def test_a_mapping_of_one_list_stays_a_mapping(tmp_path):
    path = tmp_path / "study.yaml"
    assert call("new", "study", "-o", path, "--set", "axes={tp: [1, 2]}", "--set", "where=tp > 0").code == 0
    assert load_document(path).tree["axes"] == {"tp": [1, 2]}


def test_inference_begins_with_a_job_that_serves(tmp_path):
    path = tmp_path / "job.yaml"
    assert call("new", "job", "-o", path, "--set", "phase=inference").code == 0
    assert load_job(path).spec.inference is not None


def test_a_device_is_another_one_with_changes(tmp_path):
    path = tmp_path / "device.yaml"
    assert call("new", "device", "-o", path).code == 0
    assert load_device(path).spec.hbm.bandwidth > load_device("h100_sxm").spec.hbm.bandwidth


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--set", "parallelism.tpp=2"), "unknown key 'tpp'"),
        (("--set", "parallelism.tp=0"), "--set parallelism.tp=0"),
        (("--set", "tp"), "'tp' is not of the form KEY=VALUE"),
        (("--from", "nothing"), "no job file 'nothing'"),
    ],
)
def test_nothing_is_written_that_would_not_run(arguments, said, tmp_path):
    path = tmp_path / "job.yaml"
    assert said in refused(call("new", "job", "-o", path, *arguments))
    assert not path.exists()


def test_a_file_that_is_there_stays(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("mine")
    assert "job.yaml" in refused(call("new", "job", "-o", path))
    assert path.read_text() == "mine"


def test_a_model_where_a_job_is_wanted_gets_the_command_that_makes_one(tmp_path):
    model = tmp_path / "mine.yaml"
    model.write_text(call("presets", "show", "llama3_1_8b").out)
    for name in ("llama3_1_8b", model):
        said = refused(call("run", name, "--on", "dgx_h100"))
        assert f"`rapid-des new job --set model={name} -o job.yaml`" in said
