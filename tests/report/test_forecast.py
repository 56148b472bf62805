"""Forecasts: effects shrunk to what sources have in common, nothing where nothing was measured."""

import math
import random

import pytest
from msgspec import structs

from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.report.forecast import (
    Cell,
    JobKind,
    Published,
    Scales,
    kind_of,
    posterior_of,
    step_interval,
    table,
)
from rapid_des.report.memory_forecast import memory_forecast
from rapid_des.simulation import simulate
from rapid_des.studies.plan import PlanRow
from validation.fit_forecast import Measured, cells_of, fitted, left_out, width_of, widths_of

SCALES = Scales(
    slope=0.05, software=0.1, family=0.03, format=0.03, experts=0.03, source=0.05, rest=0.05, within=0.03
)
KIND = JobKind("A", "hopper", "bf16", False, {"tp": 0.1})


def cell(source, error, software="A", jobs=10, **shares):
    return Cell(source, JobKind(software, "hopper", "bf16", False, shares), jobs, error)


def test_many_sources_that_agree_leave_their_mean_and_few_are_drawn_to_the_others():
    others = [cell(f"s{number}", 0.1, "A") for number in range(12)]
    posterior = posterior_of(Published(SCALES, (*others, cell("t", 0.5, "B"))))
    assert posterior.ratio(KIND)[0] == pytest.approx(0.1, abs=0.03)
    alone, spread = posterior.ratio(JobKind("B", "hopper", "bf16", False, {}))
    unseen, wider = posterior.ratio(JobKind("C", "hopper", "bf16", False, {}))
    assert unseen < alone < 0.5 and spread < wider


def test_rows_of_one_source_count_about_once_whatever_their_number():
    many = tuple(cell("large", 0.3, jobs=100) for _ in range(50))
    few = tuple(cell(f"s{number}", 0.0) for number in range(5))
    assert posterior_of(Published(SCALES, many + few)).ratio(KIND)[0] < 0.12


def test_a_source_that_is_left_out_has_no_say():
    cells = tuple(cell(f"s{number}", 0.1) for number in range(6)) + (cell("odd", 2.0),)
    without = posterior_of(Published(SCALES, cells), without=["odd"])
    assert without.ratio(KIND)[0] == posterior_of(Published(SCALES, cells[:-1])).ratio(KIND)[0]


def test_sources_drawn_from_one_field_are_forecast_as_well_as_they_differ():
    drawn = random.Random(3)
    jobs = []
    for number in range(10):
        offset = 0.12 + drawn.gauss(0, 0.05)
        jobs += [Measured(f"s{number}", f"{part}", KIND, offset + drawn.gauss(0, 0.03)) for part in range(6)]
    found = list(left_out(jobs))
    assert abs(sum(middle - job.error for job, middle, _ in found)) / len(found) < 0.02
    assert 0.7 < width_of(found) < 2.0
    cells, within = cells_of(jobs)
    assert 0.03 < math.hypot(fitted(cells, within).source, fitted(cells, within).software) < 0.15


def test_experts_have_a_width_of_their_own():
    experts = structs.replace(KIND, experts=True)
    found = [(Measured("s", "m", kind, error), 0.0, 0.1) for kind, error in ((KIND, 0.1), (experts, 0.3))]
    widths = widths_of(found)
    assert widths["width"] == pytest.approx(1.0) and widths["experts_width"] == pytest.approx(3.0)
    scales = structs.replace(SCALES, **widths)
    assert scales.half(experts, 0.1) == pytest.approx(3 * scales.half(KIND, 0.1))


def test_the_forecast_of_a_run_lies_in_its_interval_and_stands_beside_what_is_simulated():
    result = simulate(load_job("llama2_7b_train"), load_machine("dgx_a100"))
    expected = result.forecast
    assert expected.low < expected.median < expected.high
    assert result.as_json()["forecast_s"]["median"] == pytest.approx(expected.median / 1e12)
    assert result.as_json()["step_time_ps"] == result.step_time
    row = PlanRow(load_job("llama2_7b_train"), {}, result, True).as_json(2.0)
    slower = expected.median / result.step_time
    assert row["cost_forecast"]["median"] == pytest.approx(slower * row["cost"])
    assert row["mfu_forecast"]["median"] == pytest.approx(row["mfu"] / slower)
    assert row["tokens_per_s_forecast"]["low"] == pytest.approx(
        row["tokens_per_s"] * result.step_time / expected.high
    )
    assert result.light.forecast == expected
    assert expected.cases == table().jobs and len(table().cells) > 100
    hypothetical = load_machine("dgx_a100", device_settings=[("hbm.bandwidth", "9 TB/s")])
    unknown = simulate(load_job("llama2_7b_train"), hypothetical)
    assert unknown.forecast is None and unknown.as_json()["forecast_s"] is None


def test_a_peak_is_forecast_by_software_and_fits_with_the_probability_that_it_has_room():
    result = simulate(load_job("llama2_7b_train"), load_machine("dgx_a100"))
    figures, plain = result.figures, result.as_json()
    peak = figures.memory_forecast
    assert peak.low < figures.memory.fullest.peak < peak.median < peak.high  # peaks are more than simulated
    assert plain["memory_forecast_bytes"]["median"] == peak.median and plain["fits"] == peak.fits
    whole = memory_forecast(figures.memory, peak.median, "Megatron-LM 2025")
    assert whole.fits == pytest.approx(0.5, abs=0.01)
    assert memory_forecast(figures.memory, peak.high, "Megatron-LM 2025").fits == pytest.approx(0.9, abs=0.01)
    known = memory_forecast(figures.memory, peak.high, "nanotron")
    assert known.high - known.low < peak.high - peak.low  # its own peaks are published


def test_kinds_of_devices_without_measured_jobs_have_no_forecast():
    assert step_interval(10**12, JobKind("A", "tpu", "bf16", False, {})) is None
    assert kind_of(None, {}, {}) is None
