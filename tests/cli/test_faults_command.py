"""`rapid-des faults`, and faults and link tables of `run` and `replay`."""

import csv
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from rapid_des.cli.main import cli
from rapid_des.errors import InputError

JOB = ["llama2_7b_train", "--on", "dgx_a100_x8", "--set", "job.training.global_batch=8"]
TRACES = str(Path(__file__).parents[2] / "workloads" / "traces" / "all_reduce_4")
RING = ["--on", "hgx_a100_x4"]


def invoke(*arguments):
    return CliRunner().invoke(cli, list(arguments), catch_exceptions=False, standalone_mode=False)


def printed(*arguments):
    return json.loads(invoke(*arguments, "--json").stdout)


def test_faults_run_compares_with_the_healthy_step():
    found = printed("faults", "run", *JOB, "--fault", "gpu=0 compute=0.5")
    assert found["slowdown"] > 1 and found["faster"] == ""
    assert found["faulty"]["step_time_s"] > found["healthy"]["step_time_s"]
    assert found["ranks"][0]["faulty_s"] > found["ranks"][0]["healthy_s"]
    text = invoke("faults", "run", *JOB, "--fault", "gpu=0 compute=0.5").stdout
    assert "with faults" in text and "waiting for peers" in text


def test_a_slow_link_changes_no_rank_s_compute():
    subject = ["llama2_7b_train", "--on", "torus_2d_a100"]
    found = printed("faults", "run", *subject, "--fault", "link=0-1 bandwidth=0.25")
    # another rank is critical without the fault, and computes for another time: 0 is compared with itself
    assert found["faulty"]["critical_rank"] == found["rank"] == 0 != found["healthy"]["critical_rank"]
    assert {row["name"] for row in found["kinds"]} == {"tp", "dp", "pp", "bubble"}


def test_in_blocks_too_a_rank_is_compared_with_itself():
    subject = ["llama3_1_70b_train_64", "--on", "torus2d_ring_a100_64", "--mode", "hierarchical"]
    found = printed("faults", "run", *subject, "--fault", "gpu=63 compute=0.5")
    critical = found["faulty"]["critical_rank"]
    assert found["rank"] == critical != found["healthy"]["critical_rank"]
    ends = {row["name"]: row["faulty_s"] for row in found["kinds"]}
    assert {name: found["faulty"]["breakdown_s"][name] for name in ends} == ends


def test_faults_run_without_a_fault_is_an_error():
    with pytest.raises(InputError, match="at least one --fault"):
        invoke("faults", "run", *JOB)


def test_criticality_ranks_and_draws(tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "heat.png"
    arguments = ("faults", "criticality", *JOB, "--kind", "gpus", "--top", "2")
    found = printed(*arguments, "--plot", str(picture))
    assert len(found["rows"]) == 2
    assert {row["kind"] for row in found["rows"]} == {"gpu"}
    assert found["rows"][0]["cost_s"] >= found["rows"][1]["cost_s"] >= 0
    assert picture.stat().st_size > 10_000
    said = invoke(*arguments).stdout
    assert "gpu4, gpu5, … gpu7" in said  # four GPUs of one cost in one row
    assert "simulations for 8 parts; parts in one row cost the same" in said


def test_criticality_ranks_switches_and_nics(tmp_path):
    pytest.importorskip("matplotlib")
    subject = ["llama2_7b_train", "--on", "dgx_a100_x2", "--set", "job.training.global_batch=8"]
    arguments = ["--kind", "switches", "--kind", "nics", "--plot", str(tmp_path / "heat.svg")]
    rows = printed("faults", "criticality", *subject, *arguments)["rows"]
    # the job fills one node: its crossbar carries all; 16 NICs, eight rails and the other crossbar nothing
    assert [(row["kind"], row["name"]) for row in rows[:1]] == [("switch", "switch0")]
    assert rows[0]["cost_s"] > 0
    assert [row["source"] for row in rows[1:]] == ["carries nothing"] * (16 + 8 + 1)
    with pytest.raises(InputError, match="has no nics or switches"):
        invoke("faults", "criticality", *subject, *arguments, "--force", "--on", "torus_2d_a100")


def test_astra_sims_own_files_take_no_faults(tmp_path):
    files = ["--astra-network", "n.yml", "--astra-system", "s.json"]
    with pytest.raises(InputError, match="--fault does not go with --astra-network"):
        invoke("replay", TRACES, *files, "--fault", "link=0-1 bandwidth=0.5")


def test_replay_takes_faults():
    healthy = printed("replay", TRACES, *RING)["step_time_ps"]
    assert (
        printed("replay", TRACES, *RING, "--fault", "dimension=nvlink bandwidth=0.5")["step_time_ps"]
        > healthy
    )


def test_link_tables_are_csv_or_parquet_by_the_suffix(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    text, binary = tmp_path / "links.csv", tmp_path / "links.parquet"
    invoke("replay", TRACES, *RING, "--links", str(text))
    invoke("replay", TRACES, *RING, "--links", str(binary))
    with text.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    table = parquet.read_table(binary).to_pylist()
    assert [row["link"] for row in rows] == [row["link"] for row in table]
    assert [int(row["bytes"]) for row in rows] == [row["bytes"] for row in table]


def test_links_are_drawn_by_their_utilisation(tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "links.png"
    invoke("replay", TRACES, *RING, "--links-plot", str(picture))
    assert picture.stat().st_size > 10_000


def test_a_random_fault_names_what_it_drew():
    subject = [
        "llama2_7b_train",
        "--on",
        "torus_2d_a100",
        "--fault",
        "random=gpus count=2 seed=1 compute=0.5",
        "--set",
        "job.model.layers=4",
    ]
    found = printed("faults", "run", *subject)
    assert len(found["drawn"]) == 2
    assert all(name.startswith("gpu") for name in found["drawn"])
    assert f"drawn at random: {', '.join(found['drawn'])}" in invoke("faults", "run", *subject).stdout


def test_a_run_and_a_replay_name_what_a_random_fault_drew_too():
    fault = ("--fault", "random=links count=1 seed=1 bandwidth=0.5")
    for command in (("run", *JOB), ("replay", TRACES, *RING)):
        notes = printed(*command, *fault)["notes"]
        assert [note for note in notes if re.match(r"drawn at random: \w+>\w+, \w+>\w+$", note)]
        assert not [note for note in printed(*command)["notes"] if "drawn" in note]


def test_faults_that_speed_a_job_up_say_how_they_can():
    subject = ["llama2_7b_train", "--on", "king_mesh_a100", "--set", "job.training.global_batch=8"]
    subject += ["--set", "job.model.layers=4"]
    # rings that were replanned around three dead links overlap less than the rings of the whole mesh
    faults = "random=links count=3 seed=4 down=true policy=replan"
    found = printed("faults", "run", *subject, "--fault", faults)
    assert found["slowdown"] < 1
    assert found["faster"].startswith("collectives are planned for what survives")
    text = invoke("faults", "run", *subject, "--fault", faults).stdout
    assert f"faster with the faults: {found['faster']}" in text


def test_a_study_leaves_stderr_alone_where_nobody_watches():
    ended = invoke("faults", "criticality", *JOB, "--kind", "gpus")
    assert [
        line for line in ended.stderr.splitlines() if "simulat" not in line and "kernel" not in line
    ] == []


def test_faults_study_says_which_points_are_no_jobs_and_runs_the_others(tmp_path):
    file = tmp_path / "study.yaml"
    said = {"job": "llama2_7b_train", "on": "torus_2d_a100", "mode": "analytical", "axes": {"dp": [1, 2, 3]}}
    file.write_text(json.dumps(said))
    asked = ["faults", "study", str(file), "--fault", "random=gpus count=1 compute=0.5", "--draws", "2"]
    found = CliRunner().invoke(cli, [*asked, "--executor", "local", "--json"], standalone_mode=False)
    plain = json.loads(found.stdout)
    assert set(plain["refused"]) == {"dp=3"} and "is not divisible" in plain["refused"]["dp=3"]
    assert [one["configuration"] for one in plain["configurations"]] == ["dp=1", "dp=2"]
