"""Elasticities: together as dimensions demand, idle where nothing depends, as the command tells them."""

import json
from typing import Any

import pytest
from click.testing import CliRunner

from rapid_des.cli.main import cli
from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.report.plan_text import part_speedup_report
from rapid_des.simulation import simulate
from rapid_des.studies.parameters import Parameter, ParameterScaler, grouped_by_library, parameters_of
from rapid_des.studies.points import Point
from rapid_des.studies.sensitivity import MACHINE_PARTS, SensitivityOptions, sensitivity

SMALL = {"model.layers": "1", "training.global_batch": "4", "training.sequence_length": "2048"}
SMALL |= {"parallelism": "{dp: 2}"}


def test_elasticities_are_what_dimensions_demand_and_as_the_command_draws_them(tmp_path, monkeypatch):
    machine = load_machine("dgx_a100", device_settings=[("operators", "roofline")])
    job = load_job("llama2_7b_train", settings=SMALL)
    found = sensitivity(job, machine, SensitivityOptions(change=0.01))
    # a roofline has no constants of kernels: rates c times as high and times 1/c make the step 1/c, and the
    # elasticities of rates less those of times are then -1 (Euler), but for steps of algorithms
    assert found.scaled == pytest.approx(1, abs=1e-4)
    assert found.sums["rate"] - found.sums["time"] == pytest.approx(-1, abs=0.01)
    # nothing is offloaded to the host, a roofline looks at no registers: both are idle
    assert {"device.host.to_host", "device.registers.bandwidth"} <= set(found.idle)
    assert all(row.lower != row.higher or row.lower != found.step_time for row in found.rows)
    assert "clock.peak" in found.refused["device.clock.peak"]
    strongest = found.rows[0]
    assert strongest.parameter in {"device.tensor_peak", "device.clock.sustained", "device.sms"}
    assert strongest.higher < found.step_time < strongest.lower
    draws_what_it_tells(tmp_path, found, monkeypatch)  # here, as it takes seconds to find


def test_parameters_that_stand_for_one_thing_move_together():
    machine = load_machine("dgx_a100")
    by_name = {parameter.name: parameter for parameter in parameters_of(load_job("llama2_7b_train"), machine)}
    assert len(by_name["device.tensor_peak"].keys) == len(machine.device.spec.tensor_peak)


def test_every_constant_is_a_parameter_or_a_choice(tmp_path):
    job, machine = load_job("llama2_7b_train"), load_machine("dgx_a100")
    every = parameters_of(job, machine)
    by_name = {parameter.name: parameter for parameter in every}
    assert by_name["device.family.constants.gemm.default.tensor"].kind == "ratio"
    assert by_name["machine.collectives.measured.nccl.node.simple.hop"].kind == "time"
    assert by_name["device.l2.capacity"].at(0.5) == 0.5
    assert "device.family.constants.attention.default.tile_q" not in by_name  # a tile is chosen
    mover = ParameterScaler(machine, tmp_path)
    for parameter in every:
        if not parameter.name.startswith("device.clock"):  # of which none passes another
            Point(job, machine, mover.settings(parameter, 0.99)).resolved()


@pytest.mark.parametrize("machine", ["dgx_a100", "dgx_h100", "hgx_b200", "gb300_nvl72_x8"])
def test_every_part_of_a_machine_can_be_faster_and_its_clock_moves_alone(machine, tmp_path):
    job, where = load_job("llama2_7b_train"), load_machine(machine)
    every, mover = grouped_by_library(parameters_of(job, where)), ParameterScaler(where, tmp_path)
    for names in MACHINE_PARTS.values():
        some = [parameter for parameter in every if parameter.name.startswith(names)]
        Point(job, where, mover.all_faster(some)).resolved()
    clock = next(parameter for parameter in every if parameter.name == "device.clock.sustained")
    _, moved = Point(job, where, mover.settings(clock, 1.02)).resolved()
    before, after = where.device.spec.clock, moved.device.spec.clock
    rates = {dtype: 1.02 * rate for dtype, rate in before.sustained_by_dtype.items()}
    assert after.sustained_by_dtype == pytest.approx(rates)
    assert after.sustained == pytest.approx(1.02 * before.sustained)


def test_a_library_moves_as_a_whole_unless_constants_are_asked_for():
    every = parameters_of(load_job("llama2_7b_train"), load_machine("dgx_a100"))
    wholes = {parameter.name: parameter for parameter in grouped_by_library(every) if parameter.file}
    rates = wholes["machine.collectives.measured.nccl: its rates"]
    assert len(rates.keys) == sum(
        parameter.file == rates.file and parameter.kind == "rate" for parameter in every
    )


def test_a_whole_number_moves_by_one_at_least():
    header = Parameter("header", "size", ("header",), whole=16)
    assert (header.at(0.99), header.at(1.01)) == (15 / 16, 17 / 16)


def test_what_can_move_one_way_alone_is_moved_that_way():
    settings = [("constants.gemm.default.tensor", "1.0")]
    machine = load_machine("dgx_a100", device_settings=settings)
    job = load_job("llama2_7b_train", settings=SMALL)
    with pytest.MonkeyPatch.context() as patched:
        only = [Parameter("tensor", "ratio", ("device.constants.gemm.default.tensor",))]
        patched.setattr("rapid_des.studies.sensitivity.parameters_of", lambda *_: only)
        (row,) = sensitivity(job, machine, SensitivityOptions(constants=True)).rows
    assert row.higher is None
    assert row.lower > sensitivity_step(job, machine)
    assert -1 < row.value < 0


def sensitivity_step(job, machine):
    return simulate(job, machine, mode="analytical").step_time


def draws_what_it_tells(tmp_path, found, monkeypatch):
    monkeypatch.setattr("rapid_des.cli.plan.sensitivity", lambda *_: found)
    target = tmp_path / "tornado.png"
    sets = [part for key, value in SMALL.items() for part in ("--set", f"job.{key}={value}")]
    asked = [
        "sensitivity",
        "llama2_7b_train",
        "--on",
        "dgx_a100",
        "--executor",
        "local",
        "--plot",
        str(target),
    ]
    done = CliRunner().invoke(
        cli,
        [*asked, *sets, "--set", "device.operators=roofline", "--json"],
        catch_exceptions=False,
        standalone_mode=False,
    )
    plain = json.loads(done.stdout)
    assert target.read_bytes().startswith(b"\x89PNG")
    assert abs(plain["rows"][0]["elasticity"]) == max(abs(row["elasticity"]) for row in plain["rows"])


def test_a_part_that_can_not_be_faster_is_named_with_the_reason():
    parts: list[dict[str, Any]] = [
        {"part": "memory", "step_time_s": 0.9, "change": -0.1, "refused": ""},
        {"part": "arithmetic", "step_time_s": None, "change": None, "refused": "its clock has no number"},
    ]
    first, second = part_speedup_report(parts)
    assert "of one part changes the first by: memory -10.0% (" in first
    assert second.strip() == "arithmetic cannot be moved: its clock has no number"
