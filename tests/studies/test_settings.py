"""Settings that change nothing are named: checked against what a simulation with and without them says."""

from functools import cache

import pytest

import rapid_des as rd
from rapid_des.bounded_cache import BoundedCache
from rapid_des.cli.options import split_settings
from rapid_des.errors import ConfigError
from rapid_des.studies.settings import idle_settings
from tests.cli.shell import call

TRAINING = ("llama2_7b_train", "dgx_a100")
SERVING = ("llama2_7b_inference", "dgx_a100")
NOTHING = "nothing in this run depends on it"
ALREADY = "that is what stands there already"
CACHE = BoundedCache()


FEW = ("job.model.layers=2",)


def opened(job, machine, settings):
    split = split_settings([*FEW, *settings])
    loaded = rd.load_machine(machine, settings=split["machine"], device_settings=split["device"])
    return rd.load_job(job, settings=split["job"]), loaded


@cache
def report(job, machine, *settings):
    plain = rd.simulate(*opened(job, machine, settings), cache=CACHE).as_json()
    basis = ("simulation_wall_s", "priced_with", "intervals", "spread")  # what stands behind the answer
    return {name: value for name, value in plain.items() if name not in basis and "forecast" not in name}


IDLE = [
    (TRAINING, "device.clock.boost=1.5 GHz", NOTHING),
    (TRAINING, "device.launch.eager=50 us", NOTHING),
    (TRAINING, "device.registers.bandwidth=2x", NOTHING),
    (TRAINING, "device.tensor_peak.fp64=2x", NOTHING),
    (TRAINING, "device.conditions.clock=sustained", NOTHING),
    (TRAINING, "machine.gpus_per_node=4", NOTHING),
    (TRAINING, "machine.collectives.all_to_all=direct", NOTHING),
    (TRAINING, "machine.collectives.libraries.ep={library: native}", NOTHING),
    (TRAINING, "machine.collectives.measured.kernels=null", NOTHING),
    (TRAINING, "job.software=megatron-2025", ALREADY),
    (TRAINING, "machine.routing.order=outermost_first", NOTHING),
    (TRAINING, "device.sms=108", ALREADY),
    (TRAINING, "device.hbm.bandwidth=2.039 TB/s", ALREADY),
    (TRAINING, "machine.fabric.0.latency=350 ns", ALREADY),
    (TRAINING, "job.training.zero_stage=1", ALREADY),
    (SERVING, "device.launch.eager=50 us", NOTHING),
    (SERVING, "job.inference.cuda_graphs=true", ALREADY),
]
LINK = "{source: 0, destination: switch0, both_directions: true, bandwidth: %s}"
FAR = "{source: 15, destination: switch1, both_directions: true, bandwidth: 1 GB/s}"
OF_TWO_NODES = ("llama2_7b_train", "dgx_a100_x2")  # the job has eight ranks: one node's links
IDLE += [
    (TRAINING, "machine.switching.mode=cut_through", ALREADY),
    (TRAINING, "machine.switching.segment=8 KiB", NOTHING),  # packets are the protocol's
    (TRAINING, f"machine.links=[{LINK % '300 GB/s'}]", NOTHING),
    (TRAINING, "machine.faults=[{link: 0-switch0, bandwidth: 1.0}]", NOTHING),
    (OF_TWO_NODES, f"machine.links=[{FAR}]", NOTHING),
    (OF_TWO_NODES, "machine.faults=[{link: 15-switch1, bandwidth: 0.5}]", NOTHING),
    (OF_TWO_NODES, "machine.faults=[{link: 15-switch1, bandwidth: 0.5, from: 100 ms}]", NOTHING),
    (OF_TWO_NODES, "machine.fabric.1.latency=5 us", NOTHING),
    (OF_TWO_NODES, "machine.routing.ecmp=lowest_id", NOTHING),
]
READ = [
    (TRAINING, "machine.switching.mode=fluid"),
    (TRAINING, "machine.switching.protocol.header=64 B"),
    (TRAINING, f"machine.links=[{LINK % '30 GB/s'}]"),
    (TRAINING, "machine.faults=[{link: 0-switch0, bandwidth: 0.5}]"),
    (TRAINING, "machine.faults=[{link: 0-switch0, bandwidth: 0.5, from: 100 ms}]"),
    (TRAINING, "machine.faults=[{gpu: 3, compute: 0.5, from: 100 ms}]"),
    (OF_TWO_NODES, "machine.faults=[{link: 0-switch0, latency: 1 us}]"),
    (TRAINING, "device.clock.sustained=1.1 GHz"),
    (TRAINING, "device.launch.graph=2 us"),
    (TRAINING, "device.sms=1.5x"),
    (TRAINING, "device.tensor_peak.bf16=0.9x"),
    (TRAINING, "device.hbm.bandwidth=0.9x"),
    (TRAINING, "device.hbm.capacity=2x"),
    (TRAINING, "device.power=1 kW"),
    (TRAINING, "device.energy.hbm_pj_per_byte=1"),
    (TRAINING, "device.l2.bandwidth=0.5x"),
    (TRAINING, "device.conditions.clock=boost"),
    (TRAINING, "machine.fabric.0.bandwidth=0.5x"),
    (TRAINING, "machine.fabric.0.latency=1 us"),
    (TRAINING, "machine.switching.parts=1"),
    (TRAINING, "machine.collectives.all_reduce=direct"),
    (TRAINING, "machine.collectives.libraries={default: {library: native}}"),
    (SERVING, "machine.collectives.measured.kernels=null"),
    (SERVING, "job.software=sglang"),
    (TRAINING, "job.software=fsdp"),
    (TRAINING, "job.training.micro_batch=2"),
    (TRAINING, "job.memory_reserve=2 GiB"),
    (("llama2_7b_train", "mesh_2d_a100"), "job.parallelism.placement=[3, 2, 1, 0, 4, 5, 6, 7]"),
    (SERVING, "job.inference.cuda_graphs=false"),
    (SERVING, "device.clock.boost=1.5 GHz"),
    (SERVING, "device.clock.sustained=1 GHz"),
]


def lines(subject, settings):
    job, machine = subject
    return idle_settings(
        settings, lambda chosen: opened(job, machine, chosen), opened(job, machine, settings)
    )


@pytest.mark.parametrize(("subject", "setting", "why"), IDLE)
def test_a_setting_that_changes_nothing_is_named_with_the_reason(subject, setting, why):
    assert lines(subject, [setting]) == (f"--set {setting}: {why}",)
    assert report(*subject, setting) == report(*subject)


@pytest.mark.parametrize(("subject", "setting"), READ)
def test_a_setting_that_changes_the_report_is_not_named(subject, setting):
    assert lines(subject, [setting]) == ()
    assert report(*subject, setting) != report(*subject)


def test_of_several_settings_only_the_idle_ones_are_named():
    settings = ["device.registers.bandwidth=2x", "job.training.micro_batch=2", "device.launch.eager=9 us"]
    assert [line.split()[1].split("=")[0] for line in lines(TRAINING, settings)] == [
        "device.registers.bandwidth",
        "device.launch.eager",
    ]


def test_what_closed_forms_leave_out_is_idle_in_their_mode():
    words = ["run", "llama2_7b_train", "--on", "dgx_a100", "--set", "machine.switching.parts=1"]
    note = f"--set machine.switching.parts=1: {NOTHING}"
    assert note in call(*words, "--mode", "analytical", "--json").json["notes"]
    assert note not in call(*words, "--json").json["notes"]


def test_a_replay_says_which_links_and_switches_its_traces_never_use():
    words = ["replay", "all_reduce_4", "--on", "dgx_a100_x2", "--set"]
    assert NOTHING in call(*words, "machine.fabric.1.latency=5 us").err
    assert NOTHING in call(*words, "machine.switching.segment=8 KiB").err
    assert call(*words, "machine.fabric.0.latency=5 us").err == ""


@pytest.mark.parametrize(
    ("machine", "read"),
    [("dgx_a100", False), ("torus_2d_a100", True), ("hyperx_a100_128", True), ("hypercube_a100", True)],
)
def test_the_order_of_axes_is_read_where_there_are_several_of_gpus_routers_or_bits(machine, read):
    order = call("topology", "route", machine, "0", "7", "--set", "machine.routing.order=outermost_first")
    assert (NOTHING in order.err) != read


def test_a_fault_that_begins_after_the_run_is_named():
    words = ["run", "llama2_7b_train", "--on", "dgx_a100", "--fault"]
    told = "it begins after the run, which ends at 4.011 s"
    assert (
        f"fault link=0-switch0 bandwidth=0.5 from='100 s': {told}"
        in call(*words, "link=0-switch0 bandwidth=0.5 from=100s").out
    )
    assert told in call(*words, "link=0-switch0 bandwidth=0.5 from_step=1").out
    assert "it begins" not in call(*words, "link=0-switch0 bandwidth=0.5 from=1s").out


def test_run_says_it_in_its_notes_and_others_on_stderr():
    words = ["--on", "dgx_a100", "--set", "device.clock.boost=1.5 GHz"]
    note = f"--set device.clock.boost=1.5 GHz: {NOTHING}"
    assert note in call("run", "llama2_7b_train", *words, "--json").json["notes"]
    assert f"note: {note}" in call("run", "llama2_7b_train", *words).out
    assert note in call("replay", "two_stages", *words).err


def test_the_device_prices_nothing_in_a_replay_nor_in_a_fabric():
    answer = call("topology", "show", "dgx_a100", "--set", "device.hbm.bandwidth=2x", "--json")
    assert NOTHING in answer.err
    assert answer.json["gpus"] == 8
    gemm = ("gemm", 4096, 4096, 4096, "--on", "dgx_a100", "--tp", 2, "--axis", "col")
    assert not call(*gemm, "--set", "device.sms=54").err


def test_what_other_options_stand_for_is_no_setting_of_the_user():
    bench = ("topology", "bench", "dgx_a100", "--op", "all_reduce", "--sizes", "1MiB")
    assert call(*bench, "--algorithm", "ring", "--chunks", 1).err == ""


def step(**settings):
    texts = [(name.replace("__", "."), text) for name, text in settings.items()]
    machine = rd.load_machine("dgx_a100", device_settings=texts)
    return rd.simulate(rd.load_job("llama2_7b_train"), machine, cache=CACHE).step_time


def test_streaming_multiprocessors_come_with_their_arithmetic_and_memories():
    assert step(sms="2x") < 0.96 * step() < step() < 0.65 * step(sms="0.5x")
    assert step(sms="2x", l2__bandwidth="2x", hbm__bandwidth="2x") < 0.65 * step()  # else L2 feeds too few
    spec = rd.load_machine("dgx_a100", device_settings=[("sms", "54")]).device.spec
    assert (spec.tensor_peak["bf16"], spec.vector_peak["fp32"]) == (156 * 10**12, 9_750 * 10**9)
    assert (spec.shared.bandwidth, spec.l2.bandwidth) == (9_745 * 10**9, 7_219 * 10**9)


def test_what_is_stated_beside_the_streaming_multiprocessors_stays_as_stated():
    settings = [("sms", "54"), ("tensor_peak.bf16", "312 TFLOP/s"), ("shared.bandwidth", "1 TB/s")]
    spec = rd.load_machine("dgx_a100", device_settings=settings).device.spec
    assert (spec.tensor_peak["bf16"], spec.tensor_peak["fp16"]) == (312 * 10**12, 156 * 10**12)
    assert spec.shared.bandwidth == 10**12


def test_the_clock_of_the_peaks_is_refused_without_the_peaks():
    with pytest.raises(ConfigError, match=r"clock.peak: .*set tensor_peak and vector_peak too"):
        rd.load_machine("dgx_a100", device_settings=[("clock.peak", "1 GHz")])


def test_without_cuda_graphs_every_decode_kernel_is_launched_by_itself():
    job = rd.load_job("llama2_7b_inference")
    eager = rd.load_job("llama2_7b_inference", settings=[("inference.cuda_graphs", "false")])
    machine = rd.load_machine("dgx_a100")
    before, after = (rd.simulate(each, machine, cache=CACHE).figures.requests for each in (job, eager))
    assert before.first_token == after.first_token
    assert after.per_output_token > 1.1 * before.per_output_token


@pytest.mark.parametrize(
    ("setting", "lines"),
    [
        ("job.training.prefetch=3", ("--set job.training.prefetch=3: nothing in this run depends on it",)),
        ("job.host.kernel=21 us", ()),
        ("job.training.reduce_each_micro_batch=true", ()),
    ],
)
def test_settings_of_long_steps_are_judged_by_shorter_ones(setting, lines):
    # 2,048 micro-batches; whole, they would take 10 s
    long = "job.training.global_batch=8192"
    both = [long, setting]

    def read(chosen):
        return opened(*TRAINING, (long, *(one for one in chosen if one != long)))

    assert idle_settings(both[1:], read, opened(*TRAINING, both)) == lines
