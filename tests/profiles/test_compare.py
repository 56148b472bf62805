"""A profiled step beside the prediction of its job."""

import pytest

import rapid_des as rd
from tests.cli.shell import call, refused
from tests.profiles.test_profiles import event, launch, step_of, written

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


def test_products_are_matched_by_their_size(tmp_path):
    job = rd.load_job("llama2_7b_train", settings={"model.layers": 2, "training.global_batch": 2})
    rows = {row.operator: row for row in rd.simulate(job, rd.load_machine("dgx_a100")).operators()}
    size = rows["forward.ffn.out"].flops // rows["forward.ffn.out"].runs
    k, n = 64, 64
    events = []
    for number, (m, least) in enumerate([(size // 2 // k // n, 4e-6), (3, 1e-6)]):
        matrices = {"Input Dims": [[m, k], [k, n]], "Input type": ["c10::BFloat16"] * 2}
        events += [
            event("aten::mm", 1000 + 50 * number, 5, "cpu_op", **{"External id": number + 1}, **matrices),
            launch(number + 1, 1001 + 50 * number),
            event(
                "sgemm",
                1003 + 50 * number,
                least * 1e6,
                stream=7,
                correlation=number + 1,
                **{"External id": number + 1},
            ),
        ]
    words = ("profile", "compare", str(written(tmp_path, events)), *JOB)
    products = {tuple(each["operators"]): each for each in call(*words, "--json").json["products"]}
    (found,) = (each for names, each in products.items() if "forward.ffn.out" in names)
    assert (found["flops"], found["measured_count"]) == (size, 1)
    assert found["measured_s"] == pytest.approx(4e-6) and found["predicted_count"] % 3 == 0
    assert found["predicted_s"] >= rows["forward.ffn.out"].time_s
    lacking = products[()]
    assert (lacking["flops"], lacking["predicted_count"], lacking["ratio"]) == (2 * 3 * k * n, 0, 0)
    out = call(*words).out
    assert "the model has none" in out and out.count("ffn.out") == 1
