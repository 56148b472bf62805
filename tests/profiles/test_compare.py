"""A profiled step beside the prediction of its job."""

import numpy as np
import pytest

import rapid_des as rd
from rapid_des.report.kernel_matching import Kernel, matched
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


def product(number, start, time, m, k, n):
    """Return a product's operator, launch and kernel."""
    keys = {"External id": number}
    shapes = {"Input Dims": [[m, k], [k, n]], "Input type": ["c10::BFloat16"] * 2}
    return [
        event("aten::mm", start, 5, "cpu_op", **keys, **shapes),
        launch(number, start + 1),
        event("sgemm", start + 3, time, stream=7, correlation=number, **keys),
    ]


def test_kernels_are_matched_one_by_one_and_add_up(tmp_path):
    wanted = {"model.layers": 1, "inference.output_length": 1, "inference.prompt_length": 256}
    job = rd.load_job("llama2_7b_inference", settings=wanted)
    rows = {row.operator: row for row in rd.simulate(job, rd.load_machine("dgx_a100")).operators()}
    (fused, size), k = (rows[f"forward.{name}"].flops for name in ("ffn.in", "ffn.out")), 64
    half = (fused // 2 // 2 // k // k, k, k)  # gate and up are one product of the model
    events = [
        *product(1, 1000, 4, *half),
        *product(2, 1010, 3, *half),
        event("silu", 1020, 2, stream=7),
        event("mystery", 1024, 1, stream=7),
        *product(3, 1030, 5, size // 2 // k // k, k, k),
    ]
    settings = [word for key, value in wanted.items() for word in ("--set", f"job.{key}={value}")]
    path = str(written(tmp_path, events))
    words = ("profile", "compare", path, "--job", "llama2_7b_inference", "--on", "dgx_a100", *settings)
    plain = call(*words, "--json").json
    found = {tuple(each["operators"]): each for each in plain["operators"] if each["measured_count"]}
    both = found["forward.ffn.in",]
    assert (both["measured_count"], both["predicted_count"]) == (2, 1)
    assert both["measured_s"] == pytest.approx(7e-6) and both["predicted_s"] == pytest.approx(
        rows["forward.ffn.in"].time_s
    )
    assert found["forward.ffn.activation",]["measured_s"] == pytest.approx(2e-6)
    assert found["forward.ffn.out",]["measured_s"] == pytest.approx(5e-6)
    assert (found[()]["classes"], found[()]["predicted_s"]) == (["unknown"], 0)
    difference = sum(each["difference_s"] for each in plain["operators"]) - plain["at_once"]["difference_s"]
    assert difference == pytest.approx(plain["parts"]["compute"]["difference_s"])
    assert "the model has none" in call(*words).out


def test_the_longest_order_that_both_sides_have_is_matched():
    """Attentions anchor two layers; a norm that is written out stands for the one that the model has."""

    def row(text):
        kinds = {"a": "attention", "n": "norm", "e": "elementwise", "p": "gemm"}
        return [Kernel(each, kinds[each[0]], 1.0, int(each[1:] or 0)) for each in text.split()]

    measured = row("p8 p2 p2 p2 a a p2 e e e p9 p6 a p2 n")
    predicted = row("p6 a p2 n p6 a p2 n")
    pairs = [
        tuple(" ".join(each.name for each in side) for side in pair) for pair in matched(measured, predicted)
    ]
    assert pairs == [
        ("p8", ""), ("p2 p2 p2", "p6"), ("a a", "a"), ("p2", "p2"), ("e e e p9", "n"),
        ("p6", "p6"), ("a", "a"), ("p2", "p2"), ("n", "n"),
    ]  # fmt: skip


def test_every_kernel_stands_in_one_pair_whatever_the_order():
    random = np.random.default_rng(3)
    for _ in range(30):
        sides = [
            [
                Kernel(str(place), kind, 1.0, int(flops))
                for place, (kind, flops) in enumerate(
                    zip(
                        random.choice(["gemm", "attention", "norm", "elementwise"], 20),
                        random.integers(0, 3, 20),
                        strict=True,
                    )
                )
            ]
            for _ in range(2)
        ]
        pairs = list(matched(*sides))
        for side, kernels in enumerate(sides):
            assert sorted(int(each.name) for pair in pairs for each in pair[side]) == list(
                range(len(kernels))
            )
