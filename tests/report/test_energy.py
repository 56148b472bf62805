"""Energy of a job: what the FLOPs and bytes of its trace cost, idle boards, and real ones beside that."""

import pytest

import rapid_des as rd
from rapid_des.chakra.trace import CollectiveType
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
    energy = energy_figures(trace, machine.device, machine, 10**12)
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
        short = ["--set", "job.inference.output_length=4", "--mode", "analytical"]
        answer = call("run", SERVE, "--on", machine, *words, *short, "--json").json
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
    watts = float(str(known.detail["energy_pj"])) / known.duration + int(device.spec.idle_power) / 1000
    assert watts / (int(device.spec.power) / 1000) == pytest.approx(share, abs=0.01)


LINKS = {"fabric.0.energy": "{pj_per_bit: 2, idle_pj_per_bit: 10, switch_power: 100 W}", "host_power": "1 kW"}


def _tensor_parallel(shape, size, **settings):
    """Return the energy of a job of tensor parallelism alone on one dimension, and what its ranks send."""
    sizes = {"parallelism.tp": 4, "parallelism.pp": 1, "parallelism.dp": 1, "training.global_batch": 2}
    job = rd.load_job(TRAIN, settings=sizes | {"model.layers": 2, "parallelism.sequence_parallel": False})
    stated = {"name": "net", "shape": shape, "size": size, "bandwidth": "100 GB/s", "latency": "1 us"}
    machine = rd.load_machine(
        {"name": "m", "device": "a100_sxm_80gb", "gpus_per_node": 2, "fabric": [stated]},
        settings=LINKS | settings,
    )
    nodes = price(job, machine).traces.ranks[0].nodes
    return job, machine, int(nodes.size[nodes.collective == int(CollectiveType.ALL_REDUCE)].sum())


@pytest.mark.parametrize(("shape", "links"), [("ring", 1), ("switch", 2)])
def test_bits_that_cross_links_and_what_is_always_on_by_hand(shape, links):
    # An all-reduce of S bytes among 4: each rank sends 2 * 3/4 S to the next, over one link of a ring of
    # 4 GPUs, or up to a switch and down. There are 8 links of 800 Gb/s; two servers take 1 kW each.
    job, machine, size = _tensor_parallel(shape, 4)
    result = rd.simulate(job, machine, allow_oom=True)
    energy, seconds = result.figures.energy, result.step_time / 1e12
    bits = 8 * 4 * 1.5 * size * links
    (net,) = energy.network.dimensions
    assert net.bits == pytest.approx(bits)
    # small sums go directly to all others here
    assert net.bits == pytest.approx(8 * sum(row.bytes for row in result.links()), rel=1e-3)
    assert net.links_j == pytest.approx(bits * 2e-12)
    assert net.idle_j == pytest.approx(seconds * (8 * 800e9 * 10e-12 + (100 if links == 2 else 0)))
    assert energy.network.hosts_j == pytest.approx(seconds * 2000)
    assert energy.joules == pytest.approx(sum(energy.as_json()["joules_by_part"].values()))
    assert energy.gpus_j == pytest.approx(energy.joules - energy.network.network_j - 2000 * seconds)
    assert energy.average_power_w == pytest.approx(energy.gpus_j / seconds / 4)


def test_bits_are_equal_in_all_modes_and_a_job_has_its_share_of_the_machine():
    job, machine, _ = _tensor_parallel("switch", 8)
    modes = ("flattened", "hierarchical", "analytical")
    found = [rd.simulate(job, machine, mode=mode, allow_oom=True).figures.energy for mode in modes]
    assert len({energy.network.dimensions[0].bits for energy in found}) == 1
    # half of 16 links of 800 Gb/s and of the switch
    watts = (16 * 800e9 * 10e-12 + 100) / 2
    assert found[2].network.dimensions[0].idle_j == pytest.approx(watts * found[2].duration_s)


def test_interpolated_decode_steps_send_too():
    words = {"inference.output_length": 9, "parallelism.tp": 2}
    machine = rd.load_machine("dgx_a100", settings=LINKS)
    some, every = (
        rd.simulate(
            rd.load_job(SERVE, settings=words | {"inference.decode_steps": steps}), machine
        ).figures.energy.network
        for steps in (2, "all")
    )
    assert some.by_part["links"] == pytest.approx(every.by_part["links"], rel=1e-9)


def test_what_a_machine_file_does_not_state_is_named():
    words = ["run", TRAIN, "--on", "dgx_a100", "--mode", "analytical", "--json"]
    assert call(*words).json["energy"]["left_out"] == ["links", "NICs", "switches", "hosts", "cooling"]
    stated = call(*words, "--set", "machine.fabric.0.energy={pj_per_bit: 5}").json["energy"]
    assert stated["left_out"] == ["switches of nvlink", "hosts", "cooling"]
    assert stated["links"]["nvlink"]["joules"] == pytest.approx(stated["links"]["nvlink"]["bits"] * 5e-12)
