"""The public names, what a first program does with them, and what starting costs."""

import subprocess
import sys
from pathlib import Path

import pytest

import rapid_des as rd

ROOT = Path(__file__).parents[1]
HEAVY = ("numpy", "numpy.ma", "numba", "networkx", "simpy", "scipy", "google.protobuf", "matplotlib")


def test_the_public_names_are_these():
    assert rd.__all__ == [
        "Job",
        "Machine",
        "Result",
        "load_job",
        "load_machine",
        "load_trace",
        "replay",
        "simulate",
    ]


@pytest.mark.parametrize("name", rd.__all__)
def test_every_public_name_is_there(name):
    assert getattr(rd, name).__name__ == name


def test_other_names_are_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        _ = rd.simulat


def test_replay_stays_the_function_when_its_package_is_imported():
    import rapid_des.program.program  # noqa: F401

    assert callable(rd.replay)


def test_a_first_program_stays_this_short(tmp_path):
    machine = rd.load_machine(ROOT / "topologies" / "dgx_a100.yaml")
    job = rd.load_job(ROOT / "workloads" / "llama2_7b_train.yaml")
    result = rd.simulate(job, machine)
    assert sum(result.breakdown.values()) == result.step_time > 0
    result.write_timeline(tmp_path / "step.perfetto.json")
    assert (tmp_path / "step.perfetto.json").stat().st_size > 0


def test_a_trace_is_replayed_in_three_lines():
    traces = rd.load_trace(ROOT / "workloads" / "traces" / "two_stages")
    result = rd.replay(traces, rd.load_machine("dgx_a100"))
    assert result.critical_rank == 0
    assert set(result.finish) == {0, 1}


def modules_after(*arguments):
    """Return the heavy modules that a fresh interpreter has loaded after a command."""
    program = (
        "import sys\n"
        "from rapid_des.cli.main import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        f"print('LOADED', *[name for name in {HEAVY} if name in sys.modules])"
    )
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout.splitlines()[-1].split()[1:]


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["nope"]])
def test_help_imports_nothing_heavy(arguments):
    assert modules_after(*arguments) == []


def test_importing_the_package_imports_nothing_heavy():
    program = f"import sys, rapid_des; print(*[name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.split() == []


def test_a_topology_is_shown_without_compilers_and_engines():
    assert not {"numba", "simpy", "matplotlib", "scipy"} & set(modules_after("topology", "show", "dgx_a100"))


def test_a_small_job_runs_without_compilers_and_file_readers():
    small = ["run", "llama2_7b_train", "--on", "dgx_a100", "--engine", "simpy"]
    assert modules_after(*small) == ["numpy", "simpy"]
