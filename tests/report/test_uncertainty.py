"""Intervals: residuals carried to a run, scaled by measured jobs; nothing where nothing was measured."""

import math
import random
from statistics import pstdev

import pytest

from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.report import evidence
from rapid_des.report.evidence import Origin, distinguishable, interval, quantiles, residuals, spread
from rapid_des.report.result_text import result_report
from rapid_des.report.tables import text
from rapid_des.simulation import simulate
from validation import all_topics, open_folder
from validation.fit_intervals import kernels

A100 = "A100-SXM4-80GB"
TRAINED = Origin(A100, "Megatron-LM 2025")


@pytest.fixture(scope="module")
def result():
    return simulate(load_job("llama2_7b_train"), load_machine("dgx_a100"))


def test_the_spread_of_one_class_is_that_of_its_residuals():
    sample = residuals()["kernels"]["gemm"][A100]
    assert spread({"gemm": 10**9}, A100) == pytest.approx(pstdev(sample), rel=0.25)  # 200 draws


def test_work_shared_between_classes_is_surer_than_all_of_it_in_the_less_sure_one():
    unsure = spread({"experts": 10**9}, A100)
    assert spread({"experts": 5 * 10**8, "gemm": 5 * 10**8}, A100) < unsure
    assert spread({"experts": 10**6, "gemm": 10**9}, A100) < unsure / 2


def test_the_spread_does_not_depend_on_how_long_the_work_is():
    assert spread({"gemm": 10**6, "vector": 10**6}, A100) == pytest.approx(
        spread({"gemm": 10**12, "vector": 10**12}, A100)
    )


def test_work_that_nobody_measured_has_no_spread_and_no_interval():
    assert spread({"unknown": 10**9}, A100) == 0
    assert interval(10**12, {"unknown": 10**9}, TRAINED) is None


@pytest.mark.parametrize("cases", [9, 20, 60])
def test_quantiles_hold_the_next_case_as_often_as_they_say(cases):
    drawn = random.Random(7)
    held = 0
    for _ in range(2000):
        low, high = quantiles([drawn.gauss(0, 1) for _ in range(cases)])
        held += low <= drawn.gauss(0, 1) <= high
    assert evidence.LEVEL - 0.03 < held / 2000 < evidence.LEVEL + 0.06


def test_a_run_on_a_measured_device_tells_where_its_measurement_is_expected(result):
    expected = result.intervals["step"]
    assert expected.low < expected.high < 1.5 * result.step_time
    assert expected.high > 0.8 * result.step_time
    assert result.as_json()["intervals"]["step"]["cases"] == expected.cases
    assert any(f"{expected.low} and {expected.high}" in line for line in text(result_report(result, "job")))
    assert result.light.intervals == result.intervals


def test_a_request_has_intervals_of_the_times_of_which_enough_were_measured():
    served = simulate(load_job("llama2_7b_inference"), load_machine("dgx_a100"))
    each = served.intervals["per_token"]
    assert each.time == served.figures.requests.per_output_token
    measured = {
        figure: sum(len(errors) for devices in software.values() for errors in devices.values())
        for figure, software in residuals()["jobs"].items()
    }
    enough = {figure for figure, count in measured.items() if count >= 9 and "experts" not in figure}
    assert set(served.intervals) == enough


def test_a_device_that_was_changed_has_none():
    settings = (("hbm.bandwidth", "3000 GB/s"),)
    machine = load_machine("dgx_a100", device_settings=settings)
    changed = simulate(load_job("llama2_7b_train"), machine, mode="analytical")
    assert changed.intervals == {}
    assert not any("interval" in line for line in text(result_report(changed, "job")))


def test_layouts_are_told_apart_from_some_difference_on():
    works = {"gemm": 10**9}, {"gemm": 10**9}
    ratios = (1.0, 1.001, 1.01, 1.1, 1.5, 3.0, 20.0)
    apart = [distinguishable((10**12, round(ratio * 10**12)), works, TRAINED) for ratio in ratios]
    assert apart == sorted(apart) and apart[0] is False and apart[-1] is True


def test_a_result_compares_itself_with_another(result):
    assert result.distinguishable(result) is False


def test_the_residuals_that_ship_are_those_of_calibration_cases():
    every = all_topics(open_folder(None), ["operators/norm"])
    topics = [topic for topic in every if topic.name.startswith("operators/norm/H100")]
    fitted = kernels(topics)["vector"]
    shipped = residuals()["kernels"]["vector"]
    for device, errors in fitted.items():
        assert set(errors) <= set(shipped[device]), device
    cases = {row.case_id for topic in topics for row in topic.rows()}
    assert 0 < sum(map(len, fitted.values())) < len(cases)
    assert all(math.isfinite(error) for errors in fitted.values() for error in errors)
