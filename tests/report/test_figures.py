"""What a job's figures count: model FLOPs of causal attention, and what bounds a step."""

import pytest

import rapid_des as rd
from rapid_des.device.device import load_device
from tests.cli.shell import call

LONG = {"model": "llama3_1_8b", "phase": "training", "parallelism": {"cp": 8}}
LONG["training"] = {"global_batch": 1, "micro_batch": 1, "sequence_length": 131_072}
ROOMY = {"hbm.capacity": "2 TB"}


def simulated(job, machine="dgx_a100", **settings):
    loaded = rd.load_machine(machine, device_settings=settings)
    few = {"model.layers": 4} if isinstance(job, str) else {}
    return rd.simulate(rd.load_job(job, settings=few), loaded, mode="analytical")


def test_model_flops_count_the_pairs_that_a_causal_mask_leaves():
    # Llama 3.1 8B: 32 layers of 32 heads of 128; a pair costs 4 FLOPs an element of a head, three times.
    job = rd.load_job(LONG)
    shorter = rd.load_job(LONG, settings={"training.sequence_length": 65_536, "training.global_batch": 2})
    pairs = 131_072 * 131_073 // 2 - 2 * (65_536 * 65_537 // 2)
    assert job.model_flops - shorter.model_flops == 3 * 4 * pairs * 32 * 32 * 128


@pytest.mark.parametrize("operators", ["native", "roofline"])
@pytest.mark.parametrize("clock", ["boost", "sustained"])
def test_mfu_of_long_sequences_stays_below_one(operators, clock):
    result = simulated(LONG, "dgx_h100", operators=operators, **ROOMY, **{"conditions.clock": clock})
    assert 0.2 < result.figures.mfu < 1


def test_mfu_is_of_the_stated_peak_and_says_so():
    words = ["run", "llama2_7b_train", "--on", "dgx_h100", "--mode", "analytical"]
    words += ["--set", "job.model.layers=2"]
    plain = call(*words, "--json").json
    assert (plain["mfu_peak_flop_per_s"], plain["mfu_attention"]) == (989.4e12, "causal")
    assert "of 989.4 TFLOP/s, attention as far as causal" in call(*words).out
    fastest = load_device("h100_sxm").spec.clock
    boosted = call(*words, "--set", "device.conditions.clock=boost", "--json").json["mfu_peak_flop_per_s"]
    assert boosted == pytest.approx(989.4e12 * fastest.boost / fastest.peak)


def test_decode_is_bound_by_memory_and_training_by_compute():
    assert simulated("llama2_7b_inference").bound == "hbm"
    assert simulated("llama2_7b_train").bound == "compute"
