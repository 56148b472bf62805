"""Machines whose GPUs are not alike: clocks as drawn, in every mode what faults of those GPUs would do."""

from math import log
from statistics import fmean, stdev

import pytest

from rapid_des.errors import ConfigError, UnsupportedByEngine
from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.network.faults import parse_fault
from rapid_des.network.jitter import GpuSpeed, Jitter, Slow, drawn_speeds
from rapid_des.simulation import simulate

SLOW = {"jitter.seed": 3, "jitter.gpu_speed": {"slow": {"share": 0.3, "speed": 0.9, "of": "gpus"}}}
HALVES = {"training.global_batch": 8, "training.micro_batch": 1, "model.layers": 4}


def clocks(stated, gpus=4000, node=None):
    return {gpu: float(one.compute) for gpu, one in drawn_speeds(stated, gpus, node).items()}


def test_clocks_are_lognormal_about_the_device_file():
    drawn = clocks(Jitter(seed=1, gpu_speed=GpuSpeed(lognormal=0.03)))
    logs = [log(drawn.get(gpu, 1.0)) for gpu in range(4000)]
    assert fmean(logs) == pytest.approx(0, abs=0.0015)  # three standard deviations of the mean
    assert stdev(logs) == pytest.approx(0.03, rel=0.04)


def test_servers_are_slow_as_a_whole():
    drawn = clocks(Jitter(seed=1, gpu_speed=GpuSpeed(slow=Slow(share=0.1, speed=0.9, of="nodes"))), node=8)
    nodes = {gpu // 8 for gpu in drawn}
    assert len(drawn) == 8 * len(nodes)
    assert set(drawn.values()) == {0.9}
    assert len(nodes) / 500 == pytest.approx(0.1, abs=0.04)


def test_more_gpus_change_nobody_else():
    stated = Jitter(seed=1, gpu_speed=GpuSpeed(lognormal=0.03))
    few, many = clocks(stated, 10), clocks(stated, 20)
    assert few == {gpu: speed for gpu, speed in many.items() if gpu < 10}


@pytest.mark.parametrize("mode", ["flattened", "hierarchical", "analytical"])
def test_slow_gpus_cost_what_faults_of_them_cost(mode):
    job, even = load_job("llama2_7b_train", settings=HALVES), load_machine("dgx_a100")
    drawn = load_machine("dgx_a100", settings=SLOW)
    assert 0 < len(drawn.slowed) < 8
    faulty = even.with_faults([parse_fault(f"gpu={gpu} compute=0.9") for gpu in drawn.slowed])
    result = simulate(job, drawn, mode=mode)
    assert result.step_time == simulate(job, faulty, mode=mode).step_time
    even_step = simulate(job, even, mode=mode).step_time
    assert f"on the even machine the step takes {even_step} (+" in result.notes[-1]
    assert "clocks of GPUs from 0.9 (gpu" in result.notes[-2]
    assert drawn.even.slowed == {}


def test_faults_come_on_top():
    drawn = load_machine("dgx_a100", settings=SLOW)
    gpu = min(drawn.slowed)
    both = drawn.with_faults([parse_fault(f"gpu={gpu} compute=0.5")])
    assert float(both.slowed[gpu].compute) == 0.45
    assert both.unfaulted.slowed == drawn.slowed


def test_a_machine_file_with_jitter_loads_to_an_equal_machine(tmp_path):
    drawn = load_machine("dgx_a100", settings=SLOW)
    path = tmp_path / "machine.yaml"
    path.write_text(drawn.as_yaml())
    assert load_machine(path) == drawn != load_machine("dgx_a100")


def test_late_messages_are_refused_where_blocks_stand_for_others():
    late = {"jitter.seed": 1, "jitter.message_delay": {"exponential": "2 us"}}
    with pytest.raises(UnsupportedByEngine, match="jitter.message_delay draws for every message, blocks"):
        simulate(load_job("llama2_7b_train"), load_machine("dgx_a100", settings=late), mode="hierarchical")


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"jitter.seed": 1}, "jitter: states nothing; allowed: gpu_speed, message_delay"),
        ({"jitter.seed": 1, "jitter.gpu_speed": {}}, "gpu_speed: states nothing; allowed: lognormal, slow"),
        ({"jitter.gpu_speed.lognormal": 0.01}, "missing key 'seed'"),
        (SLOW | {"jitter.gpu_speed.slow.share": 1}, "share.*1"),
    ],
)
def test_what_is_no_jitter_is_refused(stated, message):
    with pytest.raises(ConfigError, match=message):
        load_machine("dgx_a100", settings=stated)
