"""Folders of results that somebody has damaged: one line that names the file and the place."""

import json
import shutil

import pytest

from rapid_des.errors import InputError
from rapid_des.studies.store import ResultStore, read_part
from rapid_des.studies.sweep import rerun, sweep
from tests.cli.shell import call, refused

pyarrow = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.parquet")
STUDY = {"job": "llama2_7b_train", "on": "dgx_a100", "mode": "analytical", "axes": {"tp": [2, 4]}}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study") / "out"
    sweep(STUDY, folder=folder, executor="local")
    return folder


@pytest.fixture
def kept(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "größe 大")


def rewrite(folder, **keys):
    """Put keys of the manifest in the place of others; None leaves one out."""
    manifest = folder / "manifest.json"
    changed = json.loads(manifest.read_text(encoding="utf-8")) | keys
    changed = {key: value for key, value in changed.items() if value is not None}
    manifest.write_text(json.dumps(changed), encoding="utf-8")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"format": 2}, "format: 2; rapid_des"),
        ({"columns": 5}, "columns: no manifest of a study: 5 is not a mapping"),
        ({"columns": {"id": "text"}}, "columns.id: no manifest of a study: 'text' is not one of bool_"),
        ({"columns": {"id": "int64"}}, "columns: no column"),
        ({"columns": {"tp": "int64"}}, "columns: no column 'id'"),
        ({"columns": {"id": "string"}}, "columns: id: string is not int64"),
        ({"axes": ["nope"]}, "columns: no column 'nope'"),
        ({"axes": None}, "missing key 'axes'"),
        ({"objective": "bound"}, "'bound' ranks nothing"),
        ({"study": 5}, "study: no manifest of a study: 5 is not a mapping"),
        ({"study": {"stated": {}}}, None),
    ],
)
def test_a_manifest_that_is_none_is_named_with_the_place(kept, keys, said):
    rewrite(kept, **keys)
    command = ("show", kept) if said else ("show", kept, "--rerun", 1)
    answer = refused(call(*command))
    assert len(answer.splitlines()) == 1
    assert "manifest.json" in answer
    assert (said or "missing keys 'folder', 'files', 'source'") in answer


def test_a_manifest_with_a_figure_of_another_type_is_refused(kept):
    columns = json.loads((kept / "manifest.json").read_text(encoding="utf-8"))["columns"]
    rewrite(kept, columns=columns | {"mfu": "string"})
    assert "columns: mfu: string is not float64" in refused(call("show", kept))


def test_a_part_without_the_rows_of_a_study_is_named(kept):
    (part,) = (kept / "points").glob("*.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"other": [1]}), part)
    for command in (("show", kept), ("show", kept, "--point", 1), ("show", kept, "--rerun", 1)):
        answer = refused(call(*command))
        assert "part-00001.parquet" in answer
        assert "simulates its points again" in answer
    part.unlink()
    part.mkdir()
    assert "part-00001.parquet: cannot be read: it is no regular file" in refused(call("show", kept))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"gpus": 2**63 - 1}, "gpus: 9223372036854775807; allowed: 0 to 16,777,216"),
        ({"tokens": -(2**63)}, "tokens: -9223372036854775808; allowed: 0 to 9,007,199,254,740,992"),
        ({"memory_bytes": -5}, "memory_bytes: -5; allowed"),
        ({"step_time_ps": 2**63 - 1}, "step_time_s and step_time_ps are of different times"),
        ({"mfu": float("nan")}, "mfu: nan; allowed"),
        ({"tokens_per_s": float("inf")}, "tokens_per_s: inf; allowed"),
        ({"result": "[" * 200_000}, "the result of point 1: not valid JSON: nested too deep"),
        ({"result": f"[{'9' * 5000}]"}, "too long a number"),
    ],
)
def test_figures_that_no_simulation_has_are_refused(kept, change, said):
    (part,) = (kept / "points").glob("*.parquet")
    table = pyarrow.parquet.read_table(part)
    rows = [row | change for row in table.to_pylist()]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=table.schema), part)
    assert said in refused(call("show", kept, "--point", 1))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("step_time_ps", "<b>", "step_time_ps: values of type string; allowed: numbers"),
        ("step_time_s", [1.0], "step_time_s: values of type list"),
        ("gpus", "8", "gpus: values of type string; allowed: numbers"),
        ("step_time_ps", None, "step_time_s and step_time_ps are of different times"),
    ],
)
def test_figures_of_another_type_are_refused(kept, name, value, said):
    (part,) = (kept / "points").glob("*.parquet")
    table = pyarrow.parquet.read_table(part)
    changed = table.set_column(table.column_names.index(name), name, pyarrow.array([value] * len(table)))
    pyarrow.parquet.write_table(changed, part)
    assert said in refused(call("show", kept))


def test_a_part_of_twelve_million_rows_is_not_read(kept):
    (part,) = (kept / "points").glob("*.parquet")
    same = pyarrow.repeat(pyarrow.scalar(1, pyarrow.int64()), 12_000_000)
    pyarrow.parquet.write_table(pyarrow.table({"id": same}), part)
    assert part.stat().st_size < 1 << 20
    assert "says it holds 12,000,000 rows; allowed: up to 16,384" in refused(call("show", kept))


def test_texts_of_a_part_that_are_no_utf_8_are_refused(kept):
    (part,) = (kept / "points").glob("*.parquet")
    table = pyarrow.parquet.read_table(part)
    bad = pyarrow.array([b"\xe9("] * len(table)).view(pyarrow.string())
    changed = table.set_column(table.schema.get_field_index("bound"), "bound", bad)
    pyarrow.parquet.write_table(changed, part)
    assert "part-00001.parquet" in refused(call("show", kept))


def test_a_result_that_is_no_json_is_told_by_its_point(kept):
    (part,) = (kept / "points").glob("*.parquet")
    table = pyarrow.parquet.read_table(part)
    place = table.schema.get_field_index("result")
    pyarrow.parquet.write_table(table.set_column(place, "result", pyarrow.array(["{"] * 2)), part)
    assert "the result of point 1: not valid JSON" in refused(call("compare", f"{kept}#1", f"{kept}#2"))


def test_a_side_that_is_nothing_is_told_with_what_may_stand_there(whole):
    for side, why in {
        "llama2_7b_train --on 'x": "No closing quotation",
        "llama2_7b_train": "--on",
        "": "JOB",
    }.items():
        answer = refused(call("compare", f"{whole}#1", side))
        assert answer.startswith(f"error: {side!r}: ") and why in answer
        assert "FOLDER#POINT" in answer


def test_a_part_that_was_copied_counts_once(kept):
    (part,) = (kept / "points").glob("*.parquet")
    shutil.copy(part, part.with_name("part-00007.parquet"))
    assert call("show", kept, "--json").json["points"] == 2


def test_results_of_another_rapid_des_are_told_from_those_of_this_one(kept):
    study = json.loads((kept / "manifest.json").read_text(encoding="utf-8"))["study"]
    rewrite(kept, study=study | {"source": "another"})
    again = rerun(ResultStore.open(kept), 1)
    assert again.differs == ()
    assert not again.same_content


def test_a_part_whose_names_of_columns_are_no_text_is_named(tmp_path):
    part = tmp_path / "part.parquet"
    table = pyarrow.table({"id": [1], "name": ["x"]})
    pyarrow.parquet.write_table(table, part, store_schema=False)
    part.write_bytes(part.read_bytes().replace(b"name", b"\x80ame"))
    with pytest.raises(InputError, match=r"part\.parquet: .*utf-8"):
        read_part(part)
