"""Sweeps: what a study file's axes come to, what is kept of every point, and that it is the same any way."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rapid_des as rd
from rapid_des.report.charts.studies import sweep_charts
from rapid_des.report.sweep_text import mark_lines, marks, sweep_report
from rapid_des.report.tables import Table
from rapid_des.studies.effects import front, interactions, main_effects
from rapid_des.studies.expressions import Expression
from rapid_des.studies.spaces import load_study
from rapid_des.studies.store import ResultStore
from rapid_des.studies.sweep import Points, rerun, sweep
from rapid_des.studies.ties import marked
from tests.cli.shell import call, refused
from tests.workers import until, workers

pytest.importorskip("pyarrow")
ROOT = Path(__file__).parents[2]
BASE = {"job": "llama2_7b_train", "on": "dgx_a100", "mode": "analytical"}
SPLITS = BASE | {"axes": {"tp": [1, 2, 4, 8], "pp": [1, 2], "dp": [1, 2, 4]}, "where": "tp * pp * dp == 8"}
SPLITS |= {
    "derive": {"job.parallelism.sequence_parallel": "tp > 1"},
    "set": {"device.hbm.capacity": "14 GiB", "job.model.layers": 8},
}
"""Six points, of which the first does not fit into memory."""
SMALLER = "--set device.hbm.capacity=14GiB --set job.model.layers=8"


def labels(**stated):
    return [case.labels for case in load_study(BASE | stated).cases()]


def settings(**stated):
    return [dict(case.point.settings) for case in load_study(BASE | stated).cases()]


def test_a_condition_leaves_the_combinations_that_meet_it():
    found = [tuple(case.labels.values()) for case in load_study(SPLITS).cases()]
    expected = [(tp, pp, dp) for tp in (1, 2, 4, 8) for pp in (1, 2) for dp in (1, 2, 4) if tp * pp * dp == 8]
    assert found == expected == [(1, 2, 4), (2, 1, 4), (2, 2, 2), (4, 1, 2), (4, 2, 1), (8, 1, 1)]
    assert load_study(SPLITS).count() == 6


def test_ranges_rows_and_bundles_are_axes():
    bandwidth = "machine.fabric.0.bandwidth"
    ranged = {
        "tp": {"from": 1, "to": 8, "factor": 2},
        bandwidth: {"from": "50 GB/s", "to": "200 GB/s", "count": 4},
    }
    assert [row["bandwidth"] for row in labels(axes=ranged)][:4] == [
        "50 GB/s",
        "100 GB/s",
        "150 GB/s",
        "200 GB/s",
    ]
    assert len(labels(axes=ranged)) == 4 * 4
    rows = {"tp, dp": [[2, 2], [4, 1]]}
    assert labels(axes=rows) == [{"tp": 2, "dp": 2}, {"tp": 4, "dp": 1}]
    bundles = {"variant": {"base": {}, "big": {"device.hbm.capacity": "160 GiB", "dp": 4}}}
    assert labels(axes=bundles) == [{"variant": "base"}, {"variant": "big"}]
    assert settings(axes=bundles) == [{}, {"device.hbm.capacity": "160 GiB", "job.parallelism.dp": "4"}]
    named = {"faults": {"none": "none", "half": "link=gpu0-switch0 bandwidth=0.5"}}
    assert labels(axes=named) == [{"faults": "none"}, {"faults": "half"}]


def test_what_follows_from_a_combination_is_set_for_it():
    derived = {"job.training.global_batch": "16 * dp", "job.parallelism.sequence_parallel": "tp > 1"}
    found = settings(axes={"tp, dp": [[1, 4], [2, 2]]}, derive=derived)
    assert [one["job.training.global_batch"] for one in found] == ["64", "32"]
    assert [one["job.parallelism.sequence_parallel"] for one in found] == ["false", "true"]


def test_repeats_move_the_seeds_of_faults_on():
    drawn = "random=links seed=7 count=1 bandwidth=0.5"
    cases = list(load_study(BASE | {"axes": {"tp": [2]}, "faults": drawn, "repeat": 3}).cases())
    assert [case.point.faults[0].seed for case in cases] == [7, 8, 9]
    assert [case.labels["repeat"] for case in cases] == [0, 1, 2]


def test_expressions_are_arithmetic_and_comparisons_and_nothing_else():
    assert Expression.parse("2 <= tp < 8 and not dp % 2 and kind in ('a', 'b')")(
        {"tp": 2, "dp": 4, "kind": "b"}
    )
    assert Expression.parse("max(tp, 2) ** 2 // 3 == -(-1)")({"tp": 1})
    for bad in ("f()", "tp.__class__.mro()", "[x for x in y]", "lambda: 1", "tp[0]", "(tp := 2)", "f'{tp}'"):
        with pytest.raises(rd.ConfigError, match="allowed: numbers"):
            Expression.parse(bad)
    for huge in ("9**9**9", "2**64**2", "'a' * 10**9"):
        with pytest.raises(rd.ConfigError):
            Expression.parse(huge)({})


BAD: dict[str, dict[str, Any]] = {
    "unknown key 'axis'": {"axis": {"tp": [1]}, "axes": {"tp": [1]}},
    "no key 'tq' to vary": {"axes": {"tq": [1]}},
    "unknown key 'tq'; keys of parallelism": {"axes": {"job.parallelism.tq": [1]}},
    "needs values": {"axes": {"tp": []}},
    "'two' is not a whole number from 1": {"axes": {"tp": [1, "two"]}},
    "is not one of 1f1b": {"axes": {"job.training.schedule": ["2f2b"]}},
    "has unit 'GB'": {"axes": {"machine.fabric.0.bandwidth": ["3 GB"]}},
    "'half' is not one of": {"axes": {"mode": ["half"]}},
    "2 stands twice": {"axes": {"tp": [2, 2]}},
    "'tp' is varied twice": {"axes": {"tp": [2], "tp, dp": [[1, 2]]}},
    "'job.parallelism.tp' is varied twice": {"axes": {"tp": [2], "job.parallelism.tp": [4]}},
    "set.tp: the axis tp varies it": {"axes": {"tp": [2]}, "set": {"tp": 4}},
    "study.yaml: job: no job file 'llama9'": {"axes": {"tp": [2]}, "job": "llama9"},
    "no 'tpp' here; did you mean 'tp'": {"axes": {"tp": [2]}, "where": "tpp == 2"},
    "equal is ==": {"axes": {"tp": [2]}, "where": "tp = 2"},
    "no combination": {"axes": {"tp": [2]}, "where": "tp == 3"},
    "nothing here is drawn": {"axes": {"tp": [2]}, "repeat": 2},
    "'key' ranks nothing": {"axes": {"tp": [2]}, "objective": "key"},
    "'job.model' replaces what 'job.model.layers' varies: state it before that": {
        "axes": {"job.model.layers": [2, 4], "model": ["llama2_7b"]}
    },
    "axes: 'tp' is varied twice": {"axes": {"tp, tp": [[1, 2]]}},
    "an axis without a name": {"axes": {"": {"a": {"tp": 2}}}},
    "study.yaml: where[0]: '1 / (tp - 2) > 0' with tp 2": {"axes": {"tp": [2]}, "where": "1 / (tp - 2) > 0"},
    "did you mean 'mfu'": {"axes": {"tp": [2]}, "objective": "mfus"},
    "no machine file 'dgx_a1000'": {"axes": {"machine": ["dgx_a1000"]}},
    "a column of every result": {"axes": {"mfu": {"a": {}, "b": {"tp": 4}}}},
}


@pytest.mark.parametrize("said", BAD)
def test_a_study_that_can_not_be_meant_is_one_clear_line(said, tmp_path):
    file = tmp_path / "study.yaml"
    file.write_text(json.dumps(BASE | BAD[said]))
    answer = refused(call("sweep", file, "-o", tmp_path / "out"))
    assert said in answer
    assert len(answer.splitlines()) == 1
    assert not (tmp_path / "out").exists()  # nothing was begun


def test_results_that_can_not_be_kept_are_refused_before_the_work(tmp_path):
    file = tmp_path / "study.yaml"
    file.write_text(json.dumps(SPLITS))
    assert "holds other files" in refused(call("sweep", file, "-o", tmp_path))
    assert "is no folder" in refused(call("sweep", file, "--plot", file / "x.png"))
    call("sweep", file, "-o", tmp_path / "out", "--executor", "local", "--limit", 1)
    file.write_text(json.dumps(SPLITS | {"mode": "hierarchical"}))
    answer = refused(call("sweep", file, "-o", tmp_path / "out"))
    assert (
        'holds the results of another study (stated.mode: "analytical" there, "hierarchical" here)' in answer
    )


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study") / "out"
    return sweep(SPLITS, folder=folder, executor="local")


def digits(done):
    names = [name for name in done.columns if name != "wall_s"]
    return {name: [str(value) for value in done.columns[name].tolist()] for name in names}


def test_every_executor_and_memory_hold_the_same_digits(kept, tmp_path):
    in_memory = sweep(SPLITS, executor="local")
    in_processes = sweep(SPLITS, folder=tmp_path / "out", executor="processes", workers=2)
    assert digits(in_processes) == digits(kept)
    assert digits(in_memory)["step_time_ps"] == digits(kept)["step_time_ps"]
    assert in_memory.best(3) == kept.best(3)
    assert in_memory.result(2)["result"]["step_time_ps"] == kept.result(2)["result"]["step_time_ps"]


def test_a_row_is_what_a_run_with_these_settings_gives(kept):
    row = kept.result(kept.best(1)[0]["id"])
    chosen = [word for key, text in json.loads(row["point_settings"]) for word in ("--set", f"{key}={text}")]
    result = call("run", BASE["job"], "--on", BASE["on"], "--mode", BASE["mode"], *chosen, "--json").json
    assert row["step_time_ps"] == result["step_time_ps"]
    assert row["result"]["attribution_ps"] == result["attribution_ps"]
    assert row["memory_bytes"] == result["memory_bytes"]
    assert row["mfu"] == result["mfu"]


def test_a_point_is_made_again_from_the_manifest_with_the_same_digits(kept):
    for number in (1, 3):  # the first does not fit into memory
        found = rerun(kept.store, number)
        assert found.same_content
        assert found.differs == ()
    assert kept.result(1)["status"] == "InfeasibleJobError"


def test_every_list_of_points_marks_devices_without_measurements(tmp_path):
    unmeasured = {"machine.device": "a40", "device.hbm.capacity": "80 GiB"}
    sweep(BASE | {"set": unmeasured, "axes": {"tp": [2]}}, folder=tmp_path / "out", executor="local")
    for asked in ((), ("--sort", "mfu"), ("--point", 1)):
        shown = call("show", tmp_path / "out", *asked).out
        assert "not validated: there are no measurements of A40 as stated here" in shown


MANY = {
    "job.training.global_batch": {"from": 8, "to": 80_000, "step": 8},
    "job.training.sequence_length": {"from": 1, "to": 9000, "step": 1},
}
HUGE = BASE | {"axes": MANY, "where": "sequence_length * global_batch > 8"}
"""Counting these would take minutes."""


def test_the_first_points_of_a_huge_study_do_not_wait_for_all():
    assert load_study(BASE | {"axes": MANY}).count() == 10_000 * 9000
    assert len(sweep(HUGE, executor="local", limit=2)) == 2


def test_an_interrupt_before_all_points_are_counted_tells_what_is_known():
    told = []

    def tell(_, done, expected):
        told.append((done, expected))
        if len(told) == 2:
            raise KeyboardInterrupt

    first = sweep(HUGE, executor="local", on_progress=tell)
    assert told == [(1, 0), (2, 0)]  # how many there are is not known yet
    assert len(first) == 1 and first.left > 1 and first.left_at_least
    assert f"0 failed; at least {first.left:,} not reached" in str(
        next(sweep_report(first.as_json(), "huge"))
    )


def test_conditions_are_counted_as_they_are_met():
    axes = {"tp": [1, 2, 4, 8], "pp": [1, 2], "job.training.micro_batch": [1, 2, 4], "ep": [1, 2]}
    conditions = (
        "tp * pp <= 4",
        "tp + pp > 2 or tp < 1",
        "2 ** pp >= 2 < 5",
        "not tp == 4",
        "max(tp, pp) in [1, 2]",
    )
    for where in ((), conditions[:1], conditions, "micro_batch % 2 == 0", "ep * tp - -pp > 3"):
        study = load_study(BASE | {"axes": axes, "where": where, "repeat": 1})
        assert study.count() == sum(1 for _ in study.cases()) > 0
    asked = Points(load_study(BASE | {"axes": axes}), limit=7)
    assert (asked.count_on(1.0), asked.counted) == (False, 7)


def test_columns_and_limits_that_are_none_are_refused(kept):
    for asked in (lambda: kept.front("nope", "mfu"), lambda: kept.best_by("nope")):
        with pytest.raises(rd.InputError, match="no column 'nope'; there are id, tp"):
            asked()
    with pytest.raises(rd.InputError, match="limit 0; allowed: from 1 on"):
        sweep(SPLITS, executor="local", limit=0)


def test_points_that_differ_in_nothing_that_matters_share_a_key(tmp_path):
    small = BASE | {"set": {"job.model.layers": 8}}
    done = sweep(small | {"axes": {"machine.name": ["one", "two"]}}, executor="local")
    assert len(set(done.columns["key"])) == 1
    other = sweep(small | {"axes": {"device.hbm.bandwidth": ["1x", "0.9x"]}}, executor="local")
    assert len(set(other.columns["key"])) == 2
    assert done.columns["key"][0] == other.columns["key"][0]


def test_other_tools_read_the_parts(kept):
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_parquet(kept.store.folder / "points")
    assert sorted(frame["id"]) == list(range(1, 7))
    assert frame.set_index("id")["step_time_ps"].dropna().astype(int).to_dict() == {
        number: kept.result(number)["step_time_ps"]
        for number in frame["id"]
        if frame["status"][number - 1] == "ok"
    }
    assert list(kept.to_pandas()["tp"]) == [1, 2, 2, 4, 4, 8]


@pytest.mark.parametrize("tool", ["polars", "duckdb"])
def test_polars_and_duckdb_read_the_parts(tool, kept):
    module, parts = pytest.importorskip(tool), str(kept.store.folder / "points" / "*.parquet")
    columns = ["id", "step_time_ps"]
    rows = (
        module.read_parquet(parts, columns=columns).rows()
        if tool == "polars"
        else module.sql(f"select {', '.join(columns)} from '{parts}'").fetchall()
    )
    assert sorted(rows) == [(number, kept.result(number)["step_time_ps"]) for number in range(1, 7)]


def test_an_interrupt_keeps_what_is_finished_and_the_same_study_goes_on(kept, tmp_path):
    told = []

    def tell(title, done, expected):
        told.append((done, expected))
        if len(told) == 3:
            raise KeyboardInterrupt

    first = sweep(SPLITS, folder=tmp_path / "out", executor="local", on_progress=tell)
    assert (len(first), first.left) == (2, 4)  # the third was not yet handed over
    assert told == [(1, 6), (2, 6), (3, 6)]
    rest = sweep(
        SPLITS, folder=tmp_path / "out", executor="local", on_progress=lambda *said: told.append(said[1:])
    )
    assert told[3:] == [(3, 6), (4, 6), (5, 6), (6, 6)]
    assert digits(rest) == digits(kept)


def test_a_sweep_that_is_killed_leaves_whole_results_and_the_same_command_goes_on(kept, tmp_path):
    file, folder = tmp_path / "study.yaml", tmp_path / "out"
    file.write_text(json.dumps(SPLITS))
    command = [sys.executable, "-m", "rapid_des.cli.main", "sweep", str(file), "-o", str(folder)]
    process = subprocess.Popen([*command, "--workers", "2"], cwd=ROOT)
    until(lambda: len(workers(process.pid)) == 2)
    process.kill()
    process.wait()
    assert call("sweep", file, "-o", folder, "--executor", "local", "--json").json["points"] == 6
    again = ResultStore.open(folder).table(["id", "step_time_ps"])
    assert again["id"].to_pylist() == list(range(1, 7))
    assert [str(float(v or "nan")) for v in again["step_time_ps"].to_pylist()] == digits(kept)["step_time_ps"]


def test_a_damaged_part_is_named_and_its_points_are_simulated_again_without_it(kept, tmp_path):
    folder = tmp_path / "out"
    shutil.copytree(kept.store.folder, folder)
    part = min((folder / "points").glob("*.parquet"))
    whole = part.read_bytes()
    said = f"{part.name}: .*; without this file the same study simulates its points again"
    for content in (b"", b"no table", whole[: len(whole) // 2]):
        part.write_bytes(content)
        for command in (("show", folder), ("compare", f"{folder}#1", f"{folder}#2")):
            # rows are looked for part by part, the damaged one first
            assert re.search(said, refused(call(*command)))
        with pytest.raises(rd.InputError, match=said):
            sweep(SPLITS, folder=folder, executor="local")
    part.unlink()
    assert digits(sweep(SPLITS, folder=folder, executor="local")) == digits(kept)


def test_parts_without_the_manifest_that_says_of_what_are_not_gone_on_with(kept, tmp_path):
    folder = tmp_path / "out"
    shutil.copytree(kept.store.folder, folder)
    (folder / "manifest.json").write_text('{"format": 1, "kind": "sweep"}')
    assert "missing keys 'study', 'columns'" in refused(call("show", folder))
    (folder / "manifest.json").unlink()
    with pytest.raises(rd.InputError, match="results without the manifest"):
        sweep(SPLITS, folder=folder, executor="local")


def test_a_worker_that_is_killed_in_a_sweep_loses_nothing(kept):
    killed: list[int] = []

    def tell(title, done, expected):
        if not killed:
            killed.extend(workers())
            os.kill(killed[0], signal.SIGKILL)

    done = sweep(SPLITS, executor="processes", workers=2, on_progress=tell)
    assert killed
    assert digits(done)["step_time_ps"] == digits(kept)["step_time_ps"]


def test_the_front_is_what_nothing_beats_in_both():
    columns = {
        "step_time_s": np.array([3.0, 1.0, 2.0, 2.0, np.nan]),
        "mfu": np.array([0.9, 0.5, 0.4, 0.7, np.nan]),
    }
    assert front(columns, "step_time_s", "mfu").tolist() == [1, 3, 0]  # less time, more MFU


def test_values_of_an_axis_are_compared_by_their_best_points(tmp_path):
    gpus = {"now": {"device.hbm.capacity": "18 GB"}, "more": {"device.hbm.capacity": "36 GB"}}
    axes = {"gpu": gpus, "job.training.recompute": ["none", "full"], "tp, pp, dp": [[8, 1, 1]]}
    stated = {**BASE, "axes": axes, "compare": "gpu"}
    done = sweep(stated, executor="local", folder=tmp_path / "kept")
    rows = done.compared()
    best = {value: done.where(f"gpu == '{value}'").best(1)[0] for value in ("now", "more")}
    assert [(row["gpu"], row["id"]) for row in rows] == [(value, best[value]["id"]) for value in best]
    assert [row["recompute"] for row in rows] == ["full", "none"]
    assert rows[0]["gain"] == 1
    assert rows[1]["gain"] == rows[0]["step_time_s"] / rows[1]["step_time_s"] > 1
    assert sum(rows[1]["breakdown_s"].values()) == pytest.approx(rows[1]["step_time_s"])
    _, compared, *_ = sweep_report(done.as_json(), "study")
    assert isinstance(compared, Table) and "the best for each gpu" in compared.title
    tiles, first, *_ = sweep_charts(done.as_json(), done.columns)
    assert tiles.tiles[0].label == "Best step time"
    assert [bar.text for bar in first.bars][1].endswith("x")
    assert [sum(time for _, time in bar.parts) for bar in first.bars] == pytest.approx(
        [bar.value for bar in first.bars]
    )
    assert done.plot().axes[0].get_title() == first.title
    idle = sweep({**stated, "objective": "idle_s"}, executor="local").compared()
    assert [row["gain"] for row in idle] == [None, None]  # of times of 0
    with pytest.raises(
        rd.ConfigError, match=r"compare: 'cp' is no axis; allowed: gpu, recompute, tp, pp, dp"
    ):
        load_study({**stated, "compare": "cp"})


def test_effects_share_out_what_the_logarithm_of_the_objective_varies():
    # time = 2^a * 4^b: its logarithm varies by 1 with a and by 2 with b: shares 1 and 4 of 5
    a, b = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
    columns = {"a": a, "b": b, "step_time_s": 2.0**a * 4.0**b}
    found = {one.axis: one.share for one in main_effects(columns, ["a", "b"], "step_time_s")}
    assert found == pytest.approx({"b": 0.8, "a": 0.2})
    assert interactions(columns, ["a", "b"], "step_time_s")[0].share == pytest.approx(0, abs=1e-12)
    crossed = columns | {"step_time_s": 2.0 ** (a ^ b)}  # neither alone says anything
    assert interactions(crossed, ["a", "b"], "step_time_s")[0].share == pytest.approx(1)


def test_show_lists_filters_draws_and_makes_again(kept, tmp_path):
    folder = kept.store.folder
    answer = call("show", folder, "--json", "--plot", tmp_path / "study.png")
    assert answer.json["best"][0]["id"] == kept.best(1)[0]["id"]
    assert answer.json["failed"][0]["error"] == "InfeasibleJobError"
    assert (tmp_path / "study.png").stat().st_size > 10_000
    rows = call("show", folder, "--where", "tp >= 4", "--sort=-mfu", "--columns", "tp,mfu", "--json").json
    assert [row["mfu"] for row in rows] == sorted((row["mfu"] for row in rows), reverse=True)
    assert {row["tp"] for row in rows} == {4, 8}
    assert call("show", folder, "--rerun", 3, "--json").json["same_digits"]
    assert call("show", folder, "--point", 3, "--json").json["result"]["mode"] == "analytical"
    assert "no point 99" in refused(call("show", folder, "--point", 99))
    assert "did you mean 'tp'" in refused(call("show", folder, "--where", "tpp == 1"))


def test_compare_takes_points_files_and_settings(kept, tmp_path):
    folder = kept.store.folder
    row = kept.result(3)
    words = f"llama2_7b_train --on dgx_a100 --mode analytical {SMALLER}"
    (tmp_path / "a.json").write_text(call("run", *words.split(), "--json").out)
    plain = call("compare", tmp_path / "a.json", f"{folder}#3", "--json").json
    assert plain["added_ps"] == 0  # the job's own split is the third point
    other = call("compare", words, f"{folder}#4", "--json").json
    assert other["added_ps"] == kept.result(4)["step_time_ps"] - row["step_time_ps"] != 0
    assert sum(term["added_ps"] for term in other["terms"]) == other["added_ps"]
    assert "this point failed" in refused(call("compare", f"{folder}#1", f"{folder}#3"))
    assert "Missing option '--on'" in refused(call("compare", "llama2_7b_train", f"{folder}#3"))
    assert f"name a point, as in {folder}#1" in refused(call("compare", folder, f"{folder}#3"))


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        '{"step_time_ps": "x", "breakdown_s": {}}',
        '{"step_time_ps": 1, "breakdown_s": [1]}',
        '{"step_time_ps": 1, "breakdown_s": {"compute": null}}',
        '{"step_time_ps": 1, "breakdown_s": {}, "attribution_ps": {"compute": 1}}',
        '{"step_time_ps": 1, "breakdown_s": {}, "mfu": "x"}',
        '{"step_time_ps": 1, "breakdown_s": {}, "priced_with": {"device": []}}',
    ],
)
def test_what_is_no_result_is_named_by_its_file(text, tmp_path):
    file = tmp_path / "a.json"
    file.write_text(text)
    assert f"{file}: not a result" in refused(call("compare", file, file))


def test_the_best_points_are_marked_where_they_can_not_be_told_apart():
    def whole(number):
        ends = {"low": 1.0, "high": 1.2} if number == 3 else None
        step = {1: 1000, 2: 1001, 3: 2000}[number]
        known = {"spread": 0.02, "priced_with": {"software": "Megatron-LM 2025"}, "mode_bound_s": ends}
        return {"result": {"step_time_ps": step, "step_time_s": step / 1000, "mode": "flattened"} | known}

    rows = marked([{"id": number} for number in (1, 2, 3)], whole)
    assert [row["told_apart"] for row in rows] == [None, False, True]  # 0.1 % and 100 % longer
    assert [marks(row) for row in rows] == ["", "~", ""]
    assert "~ measurements do not distinguish" in next(mark_lines(rows))
