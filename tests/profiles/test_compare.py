"""A profiled step beside the prediction of its job."""

import pytest

from tests.cli.shell import call, refused
from tests.profiles.test_profiles import event, step_of, written

JOB = (
    "--job",
    "llama2_7b_train",
    "--on",
    "dgx_a100",
    "--set",
    "job.model.layers=2",
    "--set",
    "job.training.global_batch=2",
)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    events = [*step_of(10, 1000), *step_of(20, 1100), *step_of(30, 1200), event("mystery", 1290, 1, stream=7)]
    path = written(tmp_path_factory.mktemp("profile"), events)
    return path, call("profile", "compare", str(path), *JOB, "--json").json


def test_parts_add_up_to_both_steps_and_to_their_difference(compared):
    _, plain = compared
    parts = plain["parts"].values()
    assert plain["measured_s"] == pytest.approx(100e-6)
    for side in ("measured_s", "predicted_s", "difference_s"):
        assert sum(part[side] for part in parts) == pytest.approx(plain[side])
    run = call("run", *JOB[1:], "--json").json
    assert plain["predicted_s"] == pytest.approx(run["step_time_s"])


def test_classes_have_the_kernels_of_both_sides(compared):
    _, plain = compared
    gemm, unknown = plain["classes"]["gemm"], plain["classes"]["unknown"]
    assert (gemm["measured_s"], gemm["measured_count"]) == (pytest.approx(20e-6), 1)
    assert gemm["predicted_count"] > 10 and gemm["ratio"] > 1
    assert (unknown["predicted_s"], unknown["ratio"]) == (0, 0)


def test_the_report_says_what_each_part_adds(compared):
    path, _ = compared
    lines = call("profile", "compare", str(path), *JOB).out.splitlines()
    assert any(line.split()[:1] == ["compute"] and line.endswith("%") for line in lines)
    assert "no job file" in refused(
        call("profile", "compare", str(path), "--job", "nothing", "--on", "dgx_a100")
    )
