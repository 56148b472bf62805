"""Settings that change nothing are named: checked against what a simulation with and without them says."""

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


def opened(job, machine, settings):
    split = split_settings(settings)
    loaded = rd.load_machine(machine, settings=split["machine"], device_settings=split["device"])
    return rd.load_job(job, settings=split["job"]), loaded


def report(job, machine, settings):
    plain = rd.simulate(*opened(job, machine, settings), cache=CACHE).as_json()
    return {name: value for name, value in plain.items() if name not in ("simulation_wall_s", "priced_with")}


IDLE = [
    (TRAINING, "device.power=1 kW", NOTHING),
    (TRAINING, "device.clock.boost=1.5 GHz", NOTHING),
    (TRAINING, "device.launch.eager=50 us", NOTHING),
    (TRAINING, "device.energy.hbm_pj_per_byte=1", NOTHING),
    (TRAINING, "device.registers.bandwidth=2x", NOTHING),
    (TRAINING, "device.tensor_peak.fp64=2x", NOTHING),
    (TRAINING, "device.conditions.clock=sustained", NOTHING),
    (TRAINING, "machine.gpus_per_node=4", NOTHING),
    (TRAINING, "machine.collectives.all_to_all=direct", NOTHING),
    (TRAINING, "machine.routing.order=outermost_first", NOTHING),
    (TRAINING, "device.sms=108", ALREADY),
    (TRAINING, "device.hbm.bandwidth=2.039 TB/s", ALREADY),
    (TRAINING, "machine.fabric.0.latency=350 ns", ALREADY),
    (TRAINING, "job.training.zero_stage=1", ALREADY),
    (SERVING, "device.clock.sustained=1 GHz", NOTHING),
    (SERVING, "device.launch.eager=50 us", NOTHING),
    (SERVING, "job.inference.cuda_graphs=true", ALREADY),
]
READ = [
    (TRAINING, "device.clock.sustained=1.1 GHz"),
    (TRAINING, "device.launch.graph=2 us"),
    (TRAINING, "device.sms=1.5x"),
    (TRAINING, "device.tensor_peak.bf16=0.9x"),
    (TRAINING, "device.hbm.bandwidth=0.9x"),
    (TRAINING, "device.hbm.capacity=2x"),
    (TRAINING, "device.l2.bandwidth=0.5x"),
    (TRAINING, "device.conditions.clock=boost"),
    (TRAINING, "machine.fabric.0.bandwidth=0.5x"),
    (TRAINING, "machine.fabric.0.latency=1 us"),
    (TRAINING, "machine.switching.parts=1"),
    (TRAINING, "machine.collectives.all_reduce=direct"),
    (TRAINING, "job.training.micro_batch=2"),
    (TRAINING, "job.memory_reserve=2 GiB"),
    (SERVING, "job.inference.cuda_graphs=false"),
    (SERVING, "device.clock.boost=1.5 GHz"),
]


def lines(subject, settings):
    return idle_settings(settings, lambda chosen: opened(*subject, chosen), opened(*subject, settings))


@pytest.mark.parametrize(("subject", "setting", "why"), IDLE)
def test_a_setting_that_changes_nothing_is_named_with_the_reason(subject, setting, why):
    assert lines(subject, [setting]) == (f"--set {setting}: {why}",)
    assert report(*subject, [setting]) == report(*subject, [])


@pytest.mark.parametrize(("subject", "setting"), READ)
def test_a_setting_that_changes_the_report_is_not_named(subject, setting):
    assert lines(subject, [setting]) == ()
    assert report(*subject, [setting]) != report(*subject, [])


def test_of_several_settings_only_the_idle_ones_are_named():
    settings = ["device.power=1 kW", "job.training.micro_batch=2", "device.launch.eager=9 us"]
    assert [line.split()[1].split("=")[0] for line in lines(TRAINING, settings)] == [
        "device.power",
        "device.launch.eager",
    ]


def test_run_says_it_in_its_notes_and_others_on_stderr():
    words = ["--on", "dgx_a100", "--set", "device.power=1 kW"]
    note = f"--set device.power=1 kW: {NOTHING}"
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
