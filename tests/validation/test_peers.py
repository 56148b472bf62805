"""Other simulators' predictions beside ours."""

from validation.measurements import open_folder
from validation.peers import PREDICTIONS, _rows, topics
from validation.scoring import Row


def test_each_tool_has_its_rows_and_ours_of_the_same_measurements():
    names = [topic.name for topic in topics(open_folder(None))]
    assert {name.split("/")[1] for name in names} == {
        "Calculon", "GenZ", "LLMCompass", "MLSynth", "STAGE", "STG", "Vidur",
    }  # fmt: skip
    assert all(f"{name}/rapid_des" in names for name in names if not name.endswith("rapid_des"))


def test_rows_are_matched_by_case_and_by_measurement_where_stated():
    records = [record for record in open_folder(None).read(PREDICTIONS) if record["tool"] == "GenZ"]
    (first, other) = [each for each in records if each["topic"] == "inference/nim/itl/clients"][:2]
    measured = first.time("measured")
    ours = [Row(first["case_id"], measured, 1.0, null=3.0), Row(first["case_id"], measured + 1, 2.0)]
    ((theirs, mine),) = _rows(lambda: ours, [first])
    assert (theirs.predicted, theirs.measured) == (first.time("predicted"), measured)
    assert (mine.predicted, mine.null) == (1.0, None)
    assert other["measured"] != first["measured"]


def test_a_folder_without_predictions_has_no_topics(tmp_path):
    assert list(topics(open_folder(tmp_path))) == []
