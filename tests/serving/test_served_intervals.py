"""Intervals of a server's means: of measured servers' errors, and none where these say nothing."""

import math

import numpy as np
import pytest

from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.report.evidence import quantiles
from rapid_des.serving.server import serve
from rapid_des.serving.uncertainty import intervals, residuals


def test_an_interval_is_the_mean_times_the_quantiles_of_measured_errors():
    errors = residuals()["errors"]["per_token"]
    low, high = quantiles(errors)
    found = intervals({"per_token": 10**10}, "H100-SXM-80GB")["per_token"]
    assert (found.low, found.high) == (round(10**10 * math.exp(low)), round(10**10 * math.exp(high)))
    assert found.low < found.median < found.high
    inside = np.mean([low <= error <= high for error in errors])
    assert inside == pytest.approx(0.8, abs=0.03)


def served(machine, arrivals):
    job = load_job("llama2_7b_inference", settings={"model.layers": 2})
    return serve(job, load_machine(machine), arrivals=arrivals, requests=200, prompt="512", output="8")


def test_devices_without_measured_servers_have_none():
    assert served("dgx_a100", "clients count=2").intervals == {}
    assert set(served("dgx_h100", "clients count=1").intervals) == {"first_token", "per_token"}


def test_first_tokens_that_are_mostly_queue_have_none():
    plain = served("dgx_h100", "constant rate=100000/s").as_json()
    assert set(plain["intervals"]) == {"per_token"}
    per_token = plain["forecast_s"]["tpot"]
    assert plain["forecast_s"]["ttft"] is None and per_token["low"] < per_token["median"] < per_token["high"]
