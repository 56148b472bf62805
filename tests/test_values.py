"""Values travel: pickled before and after use, equal by content, written back to their own files."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import rapid_des as rd
from rapid_des.config import preset_names
from rapid_des.network.faults import parse_fault
from rapid_des.serving.slo import Slo

ROOT = Path(__file__).parents[1]
TWO_STAGES = ROOT / "workloads" / "traces" / "two_stages"
FAULTS = (
    "link=0-1 bandwidth=0.5",
    "gpu=3 compute=0.8",
    "link=2>3 down=true from=1ms until=2ms detection=1us policy=reroute",
)


CONGESTION = "switching.congestion"
RULED = {
    "dcqcn": (
        "hgx_a100_clos_16",
        {f"{CONGESTION}.control": "none", f"{CONGESTION}.dcqcn.preset": "zhu_2015"},
    ),
    "pauses": (
        "hgx_a100_clos_16",
        {
            f"{CONGESTION}.control": "none",
            f"{CONGESTION}.pause.stop_above": "64 KiB",
            f"{CONGESTION}.pause.go_at": "16 KiB",
        },
    ),
    "windows": (
        "hgx_a100_clos_16",
        {f"{CONGESTION}.control": "window", f"{CONGESTION}.bandwidth_delay_products": "1.5"},
    ),
    "routing by load": (
        "dragonfly_plus_a100_128",
        {
            "switching.spray.ways": "2",
            "switching.spray.per": "part",
            "switching.spray.choose": "least_loaded",
        },
    ),
    "jitter": ("torus_2d_a100", {"jitter.seed": "4", "jitter.gpu_speed.lognormal": "0.02"}),
    "retries": (
        "torus_2d_a100",
        "link=0-1 packet_loss=0.1 packet=4KiB retransmission=selective_repeat timeout=1us backoff=2 seed=3",
    ),
    "replanning": (
        "torus_2d_a100",
        "link=0-1 down=true from=20us until=1ms detection=1us policy=replan",
    ),
    "constant replanning": ("torus_2d_a100", "link=0-1 down=true policy=replan"),
}
"""Machines by what rules their links: settings, or a fault."""


@pytest.fixture(scope="module")
def result():
    return rd.simulate(rd.load_job("llama2_7b_train"), rd.load_machine("dgx_a100"))


@pytest.mark.parametrize("name", preset_names("machine"))
def test_a_machine_is_recreated_from_the_file_that_it_writes(name, tmp_path):
    machine = rd.load_machine(name)
    (tmp_path / "again.yaml").write_text(machine.as_yaml(), encoding="utf-8")
    again = rd.load_machine(tmp_path / "again.yaml")
    assert again == machine
    assert hash(again) == hash(machine)
    assert pickle.loads(pickle.dumps(machine)) == machine


def test_what_was_set_and_broken_by_hand_is_in_the_file(tmp_path):
    machine = rd.load_machine(
        "torus_2d_a100",
        settings=[("fabric.0.bandwidth", "0.5x")],
        device_settings=[("sms", "100"), ("conditions.clock", "boost")],
        faults=[parse_fault(text) for text in FAULTS],
    )
    (tmp_path / "again.yaml").write_text(machine.as_yaml(), encoding="utf-8")
    again = rd.load_machine(tmp_path / "again.yaml")
    assert again == machine != rd.load_machine("torus_2d_a100")
    job = rd.load_job("llama2_7b_train")
    assert rd.simulate(job, again) == rd.simulate(job, machine)


@pytest.mark.parametrize(("name", "asked"), RULED.values(), ids=RULED)
def test_what_rules_links_travels_before_and_after_use(name, asked, tmp_path):
    fault = [parse_fault(asked)] if isinstance(asked, str) else []
    machine = rd.load_machine(name, settings={} if fault else asked, faults=fault)
    (tmp_path / "again.yaml").write_text(machine.as_yaml(), encoding="utf-8")
    unused, again = pickle.loads(pickle.dumps(machine)), rd.load_machine(tmp_path / "again.yaml")
    here = rd.replay(rd.load_trace(TWO_STAGES), machine, engine="simpy")
    assert pickle.loads(pickle.dumps(machine)) == unused == again == machine != rd.load_machine(name)
    assert len({machine, unused, again}) == 1
    for other in (unused, again):
        there = pickle.loads(pickle.dumps(rd.replay(rd.load_trace(TWO_STAGES), other, engine="simpy")))
        assert there == here
        assert (hash(there), there.links(), there.messages()) == (hash(here), here.links(), here.messages())


def test_equal_machines_and_fabrics_are_not_unequal():
    first, second = rd.load_machine("torus_2d_a100"), rd.load_machine("torus_2d_a100")
    assert not first != second  # noqa: SIM202 - a Struct answers `!=` by itself
    assert not first.healthy != second.healthy  # noqa: SIM202


def test_machines_that_differ_are_not_equal():
    machine = rd.load_machine("torus_2d_a100")
    others = [
        rd.load_machine("torus_2d_a100", settings=[("fabric.0.latency", "2 us")]),
        rd.load_machine("torus_2d_a100", device_settings=[("hbm.bandwidth", "2x")]),
        rd.load_machine("torus_2d_a100", settings=[("switching.parts", "1")]),
        machine.with_faults([parse_fault(FAULTS[0])]),
    ]
    assert all(other != machine for other in others)
    assert len({machine, rd.load_machine("torus_2d_a100"), *others}) == 5


def test_results_travel_and_compare_by_content(result):
    copy = pickle.loads(pickle.dumps(result))
    assert copy == result
    assert hash(copy) == hash(result)
    assert copy.links() == result.links()
    assert copy.operators() == result.operators()


@pytest.mark.parametrize(
    "value",
    [rd.memory(rd.load_job("llama2_7b_train")), Slo.parse("ttft=2s tpot=50ms")],
    ids=["memory", "limits of requests"],
)
def test_what_is_derived_travels_and_is_hashed_by_content(value):
    copy = pickle.loads(pickle.dumps(value))
    assert copy == value
    assert hash(copy) == hash(value)


def test_another_process_gives_the_same_bits(result):
    code = (
        "import pickle, sys, rapid_des as rd\n"
        "job, machine = pickle.loads(sys.stdin.buffer.read())\n"
        "sys.stdout.buffer.write(pickle.dumps(rd.simulate(job, machine)))\n"
    )
    values = rd.load_job("llama2_7b_train"), rd.load_machine("dgx_a100")
    rd.simulate(*values)  # values travel after they were used, too
    done = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(values), capture_output=True, check=True, cwd=ROOT
    )
    there = pickle.loads(done.stdout)
    assert there == result
    assert there.finish == result.finish
    assert there.messages() == result.messages()
