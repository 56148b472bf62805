"""Training runs with failures beside what documents report of them."""

import pytest

from validation import open_folder, validate


def test_useful_time_of_reported_runs_is_nearer_than_no_failures():
    names = ["llama3", "meta-rsc", "bloom", "megascale"]
    topics = validate(open_folder(None), [f"goodput/{name}" for name in names])["topics"]
    assert len(topics) == len(names)
    for topic in topics.values():
        assert topic["mean_abs_pct"] < topic["null_mean_abs_pct"]


def test_a_document_without_a_rate_of_failures_predicts_nothing():
    topics = validate(open_folder(None), ["goodput/gemini", "goodput/byterobust"])["topics"]
    assert [topic["rows"] for topic in topics.values()] == [0, 0]


def test_the_rate_of_a_node_predicts_the_projected_times_to_failure():
    (topic,) = validate(open_folder(None), ["goodput/mttf"])["topics"].values()
    predicted = {each["case_id"]: each["predicted"] for each in topic["residuals"]}
    # 2,048 nodes of 6.5e-3 failures a day: 24 h / 13.3
    assert predicted["meta-rsc/mttf_16384gpu"] == pytest.approx(1.80, abs=0.01)
