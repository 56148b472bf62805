"""Measured collectives: every topic there is, and those with a target within it on the test split."""

from __future__ import annotations

from functools import cache

import pytest

from rapid_des.device.calibration import is_calibration
from validation import all_topics
from validation.measurements import open_folder
from validation.scoring import score


@cache
def known():
    return {topic.name: topic for topic in all_topics(open_folder(None), ["network/"])}


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("network/nccl/A100-SXM4-80GB/all_gather/large", 8),
        ("network/nccl/A100-SXM4-80GB/alltoall/large", 8),
        ("network/nccl/A100-SXM4-80GB/reduce_scatter/large", 8),
        ("network/nccl/H100-SXM-80GB/alltoall/large", 8),
        ("network/nccl/H100-SXM-80GB/reduce_scatter/large", 8),
        ("network/nccl/GB200-NVL72/all_gather/large", 8),
        ("network/nccl/GB200-NVL72/all_reduce/large", 8),
        ("network/nccl/GB200-NVL72/alltoall/large", 8),
        ("network/nccl/A100-SXM4-80GB/all_gather/small", 15),
        ("network/nccl/H100-SXM-80GB/alltoall/small", 15),
        ("network/ndr/medium", 6),
        ("network/aws-p5/all_reduce", 12),
        ("network/aws-p5/all_gather", 12),
        ("network/aws-p5/alltoall", 12),
        ("network/custom-all-reduce/A100-SXM4-80GB", 15),
        ("network/custom-all-reduce/H100-SXM-80GB", 15),
        ("network/deepep/H100-SXM-80GB", 20),
        ("network/hybrid-ep/B200-SXM", 8),
        ("network/hybrid-ep/H100-SXM-80GB", 6),
        ("network/tc/all_reduce", 2),
        ("network/tc/broadcast", 10),
        ("network/tc/reduce", 10),
    ],
)
def test_a_target_is_reached_on_cases_that_no_fit_has_seen(name, most):
    figures = score(known()[name])
    assert figures["rows"] > 0
    assert figures["mean_abs_pct"] <= most
    assert all(not is_calibration(row["case_id"]) for row in figures["residuals"])


def test_rows_are_never_dropped_in_silence():
    folder = open_folder(None)
    rows = sum(
        len(topic.rows()) for name, topic in known().items() if name.startswith("network/custom-all-reduce")
    )
    assert rows == len(folder.read("collectives/custom_allreduce_aiconfigurator.csv"))


def test_constants_are_reported_with_their_file():
    assert "topologies/fabrics/h100_ndr.yaml" in known()["network/ndr/large"].constants
