"""Energy of a job: what the FLOPs and bytes of its trace cost, idle boards, and real ones beside that."""

import pytest

import rapid_des as rd
from rapid_des.device.device import load_device
from rapid_des.device.operators import Gemm
from rapid_des.device.pricing import estimate
from rapid_des.device.spec import Energy, operator_energy
from rapid_des.modes.pricing import price
from rapid_des.report.figures import energy_figures
from tests.cli.shell import call

ONE_A_FLOP = {"fp32": 1.0, "tf32": 1.0, "fp16": 1.0, "bf16": 1.0}
ONE_A_BYTE_OF_HBM = {"energy.l2_pj_per_byte": "0", "energy.shared_pj_per_byte": "0"} | {
    "energy.hbm_pj_per_byte": "1"
}
UNITS = ONE_A_BYTE_OF_HBM | {f"energy.flop_pj.{dtype}": "1" for dtype in ONE_A_FLOP}
TRAIN, SERVE = "llama2_7b_train", "llama2_7b_inference"


def test_an_operator_takes_its_flops_and_bytes_at_the_prices_of_the_file():
    constants = Energy({"bf16": 0.5}, 1, 4, 30)
    known = operator_energy(constants, "bf16", 1000, {"hbm": 10, "l2": 20, "shared": 40})
    assert (known.arithmetic, known.memory) == (500, 10 * 30 + 20 * 4 + 40 * 1)
    assert operator_energy(constants, "fp8", 1000, {}) is None
    assert operator_energy(None, "bf16", 1000, {}) is None


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        (TRAIN, {}),
        (TRAIN, {"parallelism.chunks": 2, "training.schedule": "interleaved_1f1b"}),
        (TRAIN, {"training.recompute": "full", "parallelism.pp": 1, "training.zero_stage": 2}),
        (TRAIN, {"training.schedule": "zb_v"}),
        (
            TRAIN,
            {
                "training.schedule": "dualpipe",
                "parallelism.tp": 1,
                "parallelism.pp": 8,
                "parallelism.dp": 1,
                "parallelism.sequence_parallel": False,
            },
        ),
        (SERVE, {"inference.output_length": 6, "inference.decode_steps": "all"}),
    ],
)
def test_the_kernels_counted_are_those_of_the_trace(name, settings):
    # At 1 pJ a FLOP and 1 pJ a byte of HBM the parts are the sums over the nodes of all ranks' tables.
    job, machine = rd.load_job(name, settings=settings), rd.load_machine("dgx_a100", device_settings=UNITS)
    trace = price(job, machine)
    nodes = [rank.nodes for rank in trace.traces.ranks]
    energy = energy_figures(trace, machine.device, 10**12)
    assert energy.arithmetic_j * 1e12 == pytest.approx(
        sum(int(t.flops.clip(0).sum()) for t in nodes), rel=1e-9
    )
    assert energy.memory_j * 1e12 == pytest.approx(
        sum(int(t.tensor_bytes.clip(0).sum()) for t in nodes), rel=1e-9
    )
    assert energy.idle_j == pytest.approx(80 * 1.0 * job.gpus)  # 80 W a board for a second


def test_steps_in_between_count_too():
    words = {"inference.output_length": 9, "inference.decode_steps": 2}
    some, every = (
        rd.simulate(rd.load_job(SERVE, settings=words | more), rd.load_machine("dgx_a100")).figures.energy
        for more in ({}, {"inference.decode_steps": "all"})
    )
    assert some.memory_j == pytest.approx(every.memory_j, rel=0.01)
    assert some.arithmetic_j == pytest.approx(every.arithmetic_j, rel=0.01)


def test_run_states_energy_in_every_mode_as_modelled():
    words = ["run", TRAIN, "--on", "dgx_a100", "--mode", "analytical"]
    plain, flattened = call(*words, "--json").json, call(*words[:-2], "--json").json
    energy = plain["energy"]
    assert energy["modelled"] is True
    assert energy["joules"] == pytest.approx(sum(energy["joules_by_part"].values()))
    assert energy["average_power_w"] == pytest.approx(energy["joules"] / (8 * plain["step_time_s"]))
    assert energy["tokens_per_joule"] == pytest.approx(plain["tokens"] / energy["joules"])
    assert energy["constants"]["hbm_pj_per_byte"] == 31
    for part in ("arithmetic", "memory"):
        assert energy["joules_by_part"][part] == flattened["energy"]["joules_by_part"][part]
    assert " of 400 W a GPU" in call(*words).out


def test_a_device_that_states_no_energy_has_none_reported():
    for machine, words in (("dgx_a100", ["--set", "machine.device=l40s"]), ("dgx_a100", [])):
        answer = call("run", SERVE, "--on", machine, *words, "--mode", "analytical", "--json").json
        assert (answer["energy"] is None) == bool(words)  # L40S states no idle power


def test_more_than_the_board_may_draw_is_a_note():
    words = ["run", TRAIN, "--on", "dgx_a100", "--mode", "analytical"]
    above = call(*words, "--set", "device.energy.flop_pj.bf16=5").out
    assert "above the board's limit of 400 W" in above
    assert "above the board's limit" not in call(*words).out


@pytest.mark.parametrize(("preset", "share"), [("a100_sxm_80gb", 0.62), ("h100_sxm", 0.64), ("b200", 0.60)])
def test_boards_at_their_limit_are_modelled_below_it(preset, share):
    # The README states how far: the sustained clock is the one that the limit holds a long product at.
    device = load_device(preset).under(clock="sustained")
    known = estimate(Gemm(8192, 8192, 8192), device)
    watts = known.detail["energy_pj"] / known.duration + int(device.spec.idle_power) / 1000
    assert watts / (int(device.spec.power) / 1000) == pytest.approx(share, abs=0.01)
