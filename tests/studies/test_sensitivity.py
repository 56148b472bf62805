"""Elasticities: together as dimensions demand, idle where nothing depends, as the command tells them."""

import json

import pytest
from click.testing import CliRunner

from rapid_des.cli.main import cli
from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.studies.sensitivity import How, knobs, sensitivity

SMALL = {"model.layers": "4", "training.global_batch": "8", "training.sequence_length": "2048"}


@pytest.fixture(scope="module")
def found():
    machine = load_machine("dgx_a100", device_settings=[("operators", "roofline")])
    return sensitivity(load_job("llama2_7b_train", settings=SMALL), machine, How(change=0.01))


def test_rates_and_times_add_up_as_dimensions_demand(found):
    # a roofline has no constants of kernels: rates c times as high and times 1/c make the step 1/c, and the
    # elasticities of rates less those of times are then -1 (Euler), but for steps of algorithms
    assert found.scaled == pytest.approx(1, abs=1e-4)
    assert found.sums["rate"] - found.sums["time"] == pytest.approx(-1, abs=0.01)


def test_what_a_step_does_not_depend_on_is_idle_and_not_nothing(found):
    # nothing is offloaded to the host, a roofline looks at no registers
    assert {"device.host.to_host", "device.registers.bandwidth"} <= set(found.idle)
    assert all(row.lower != row.higher or row.lower != found.step_time for row in found.rows)
    assert "clock.peak" in found.refused["device.clock.peak"]


def test_knobs_that_stand_for_one_thing_move_together(found):
    machine = load_machine("dgx_a100")
    by_name = {knob.name: knob for knob in knobs(load_job("llama2_7b_train"), machine)}
    assert len(by_name["device.tensor_peak"].keys) == len(machine.device.spec.tensor_peak)
    strongest = found.rows[0]
    assert strongest.knob in {"device.tensor_peak", "device.clock.sustained", "device.sms"}
    assert strongest.higher < found.step_time < strongest.lower


def test_the_command_draws_what_it_tells(tmp_path):
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
