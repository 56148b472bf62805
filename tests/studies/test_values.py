"""What studies return travels: it is pickled, compared by content, and the same bits in every process."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.modes.execution import EngineChoice
from rapid_des.network.faults import parse_fault
from rapid_des.studies.collective_bench import bench
from rapid_des.studies.criticality import criticality
from rapid_des.studies.faults import How, scenario

SMALL = [("training.global_batch", "4"), ("model.layers", "2"), ("parallelism", "{tp: 2, pp: 1, dp: 2}")]
RINGS = {"collectives": "{default: ring}"}
SIMPY = How(engine=EngineChoice("simpy"))


def faults():
    found = scenario(
        load_job("llama2_7b_train", settings=SMALL),
        load_machine("torus_2d_a100", settings=RINGS),
        [parse_fault("link=0-1 bandwidth=0.25")],
        SIMPY,
    )
    return found.rank, found.kinds, found.collectives, found.links, found.busy, found.ranks


def ranking():
    job, machine = load_job("llama2_7b_train", settings=SMALL), load_machine("torus_2d_a100", settings=RINGS)
    return criticality(job, machine, derate=0.5, kinds=["gpu"], how=SIMPY)


def sizes():
    return bench(load_machine("dgx_a100"), "all_reduce", [2**20, 2**22], engine="simpy")


STUDIES = {"faults": faults, "ranking": ranking, "sizes": sizes}


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_what_a_study_returns_is_equal_by_content_and_travels(study):
    found = study()
    assert study() == found
    assert pickle.loads(pickle.dumps(found)) == found


def test_a_scenario_travels_whole():
    machine, job = load_machine("dgx_a100"), load_job("llama2_7b_train", settings=SMALL)
    found = scenario(job, machine, [parse_fault("gpu=0 compute=0.5")], SIMPY)
    assert pickle.loads(pickle.dumps(found)) == found


def test_two_processes_give_the_same_bits():
    program = (
        "import hashlib, tests.studies.test_values as t\n"
        "print(hashlib.sha256(repr([study() for study in t.STUDIES.values()]).encode()).hexdigest())"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(answers) == 1
