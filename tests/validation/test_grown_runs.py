"""Profiles of simulated steps: they grow as their job does."""

import pytest

from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.modes.execution import EngineChoice
from rapid_des.profiles.ranks import ProfileChanges
from rapid_des.simulation import simulate
from rapid_des.studies.profile_replay import ask_profiles
from validation.grown_runs import profile_of

MODEL = {
    "hidden": 512, "layers": 2, "attention": {"heads": 8}, "norm": "rms_norm", "position": "rope",
    "feed_forward": {"activation": "swiglu", "hidden": 2048}, "vocabulary": 4096,
    "max_positions": 1024, "tied_embeddings": False,
}  # fmt: skip


def job(dp):
    tree = {"model": MODEL, "phase": "training", "parallelism": {"dp": dp}}
    return load_job(tree | {"training": {"global_batch": dp, "micro_batch": 1, "sequence_length": 128}})


def test_a_simulated_step_asked_for_more_replicas_grows_as_the_larger_job_does():
    machine = load_machine("dgx_a100")
    small, large = (simulate(job(dp), machine) for dp in (2, 4))
    wanted = ProfileChanges(grown=(2, 4))
    asked = ask_profiles([profile_of(small)], (machine, machine), wanted, engine=EngineChoice())
    simulated = int(large.step_time) / int(small.step_time)
    assert asked.changed / asked.unchanged == pytest.approx(simulated, rel=1e-3)
    assert asked.changed > asked.unchanged
