"""The public names, what a first program does with them, and what starting costs."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rapid_des as rd

ROOT = Path(__file__).parents[1]
PUBLIC: Any = rd  # takes what its types forbid, to be refused
HEAVY = ("numpy", "numpy.ma", "numba", "networkx", "simpy", "scipy", "google.protobuf", "matplotlib")


CALLABLE = [name for name in PUBLIC.__all__ if callable(getattr(rd, name))]


def test_dir_lists_the_public_names_in_order():
    assert [name for name in dir(rd) if not name.startswith("__")] == sorted(PUBLIC.__all__)


@pytest.mark.parametrize("name", CALLABLE)
def test_every_public_name_is_there(name):
    assert getattr(rd, name).__name__ == name


@pytest.mark.parametrize("name", CALLABLE)
def test_every_public_name_says_what_it_is_and_shows_it(name):
    thing = getattr(rd, name)
    assert thing.__doc__.splitlines()[0].endswith(".")
    is_error = isinstance(thing, type) and issubclass(thing, Exception)
    assert is_error or ">>>" in thing.__doc__, f"{name} has no doctest"


def test_the_typing_of_the_package_is_public():
    assert (ROOT / "rapid_des" / "py.typed").is_file()


def test_an_editor_completes_what_results_machines_and_jobs_have():
    used = {
        rd.Result: (
            "operators",
            "messages",
            "links",
            "write_timeline",
            "write_links",
            "plot_links",
            "as_json",
        ),
        rd.Machine: ("route", "check", "summary", "with_faults", "as_yaml"),
        rd.Job: ("as_yaml", "gpus", "tokens"),
        rd.Device: ("under", "as_yaml"),
    }
    for kind, names in used.items():
        assert [name for name in names if not hasattr(kind, name)] == []


JOB = {
    "model": "llama2_7b",
    "phase": "training",
    "parallelism": {"tp": 2, "pp": 2, "dp": 2},
    "training": {"global_batch": 8, "micro_batch": 1, "sequence_length": 4096, "schedule": "1f1b"},
}


def test_a_job_is_built_from_python_values():
    job = rd.load_job(JOB)
    assert (job.gpus, job.name, job.model.name) == (8, "job", "llama2_7b")
    with pytest.raises(rd.ConfigError, match=r"training.global_batch: global_batch 7 is not divisible"):
        rd.load_job(JOB, settings={"training.global_batch": 7})
    with pytest.raises(rd.ConfigError, match=r"job: holds what no file can"):
        rd.load_job(JOB | {"training": object()})


def test_a_loaded_job_is_changed_and_stays_as_it_was():
    job = rd.load_job("llama2_7b_train")
    wider = rd.load_job(job, settings={"parallelism.tp": 4, "model.layers": 16})
    assert (wider.gpus, wider.spec.parallelism.tp, wider.model.spec.layers) == (16, 4, 16)
    assert (job.spec.parallelism.tp, job.model.spec.layers, wider.name) == (2, 32, job.name)
    assert rd.load_job(job) == job


def test_a_job_is_changed_by_its_own_words():
    job = rd.load_job("llama2_7b_train")
    changed = job.replace(tp=4, dp=1, micro_batch=2, **{"model.layers": 16})
    paths = {"parallelism.tp": 4, "parallelism.dp": 1, "training.micro_batch": 2, "model.layers": 16}
    assert changed == rd.load_job(job, settings=paths)
    with pytest.raises(rd.ConfigError, match="unknown key 'tq'"):
        job.replace(tq=2)


def test_a_notebook_shows_results_machines_and_studies_and_takes_seconds():
    machine = rd.load_machine("torus_2d_a100", faults=[rd.parse_fault("link=0-1 bandwidth=0.5")])
    job = rd.load_job("llama2_7b_train", settings={"model.layers": 4})
    result = rd.simulate(job, machine)
    assert result.step_time.seconds == int(result.step_time) / 1e12
    study = {"job": "llama2_7b_train", "on": "dgx_a100", "axes": {"tp": [2, 4]}, "mode": "analytical"}
    done = rd.sweep(study, executor="local")
    for shown, holds in (
        (result, str(result.step_time)),
        (machine, "{link: 0-1, bandwidth: 0.5}"),
        (done, "<th>tp</th>"),
        (rd.load_job("llama2_7b_train"), "llama2_7b_train: llama2_7b, training, 8 GPUs</p>"),
        (rd.load_job("llama2_7b_train").replace(tp=4, dp=1), "parallelism: {tp: 4, pp: 2,"),
    ):
        assert holds in shown._repr_html_()
    slow = rd.simulate(job, rd.load_machine("torus_2d_a100"), mode="analytical")
    page = rd.difference(slow, result)._repr_html_()
    assert f"<p>step time {slow.step_time} to {result.step_time}: +" in page
    assert "<td>tp</td>" in page and "<td>+" in page and " more</td>" in page
    pandas = pytest.importorskip("pandas")
    frame = done.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["tp"]) == [2, 4]


def test_a_notebook_shows_names_as_text_of_bounded_size():
    name = "</pre><script>alert(1)</script>\u202e&amp;"
    machine = rd.load_machine("dgx_a100", settings={"name": name})
    shown = machine._repr_html_()
    assert "&lt;/pre&gt;&lt;script&gt;" in shown and "&amp;amp;" in shown
    assert "<script" not in shown and "\u202e" not in shown
    axes = {"x" * 10_000: {name: {}, "two": {}}, "tp": [8]}
    study = {"job": "llama2_7b_train", "on": "dgx_a100", "axes": axes, "where": "tp * dp * pp == 8"}
    study["set"] = {"dp": 1, "pp": 1}
    for each in (rd.load_study(study), rd.sweep({**study, "mode": "analytical"}, executor="local")):
        assert "<script" not in each._repr_html_() and len(each._repr_html_()) < 4_000
    long = rd.load_machine("dgx_a100", settings={"name": "<" * 1_000_000})
    assert len(long._repr_html_()) < 300_000


def test_a_machine_is_built_from_python_values_and_changed():
    plain = {
        "name": "ring",
        "device": "a100_sxm_80gb",
        "fabric": [{"name": "ring", "shape": "ring", "size": 8, "bandwidth": "50 GB/s", "latency": "1 us"}],
        "routing": {"order": "innermost_first", "tie": "positive"},
        "switching": {"mode": "cut_through", "segment": "4 KiB"},
    }
    ring = rd.load_machine(plain)
    faulty = ring.with_faults([rd.parse_fault("link=0-1 bandwidth=0.5")])
    assert rd.load_machine(ring) == ring
    assert rd.load_machine(faulty).faults == faulty.faults
    larger = rd.load_machine(ring, settings={"fabric.0.size": 16}, device_settings={"hbm.capacity": "40 GiB"})
    assert (larger.fabric.gpus, ring.fabric.gpus) == (16, 8)
    assert larger.device.spec.hbm.capacity * 2 == ring.device.spec.hbm.capacity
    quicker = rd.simulate(rd.load_job(JOB), ring).step_time
    assert rd.simulate(rd.load_job(JOB), faulty).step_time > quicker


def test_other_names_are_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        _ = PUBLIC.simulat


def test_replay_stays_the_function_when_its_package_is_imported():
    import rapid_des.program.program  # noqa: F401

    assert callable(rd.replay)


def test_a_name_in_the_place_of_what_it_stands_for_is_refused_with_what_loads_it():
    with pytest.raises(rd.InputError, match="'llama2_7b_train' is no Job: rapid_des.load_job makes one"):
        PUBLIC.simulate("llama2_7b_train", rd.load_machine("dgx_a100"))
    with pytest.raises(rd.InputError, match="'dgx_a100' is no Machine: rapid_des.load_machine makes one"):
        PUBLIC.replay(rd.load_trace("two_stages"), "dgx_a100")
    machine: Any = rd.load_machine("dgx_a100")
    with pytest.raises(rd.InputError, match="a Machine is no Job"):
        rd.simulate(machine, machine)
    for command in (PUBLIC.plan, PUBLIC.serve):
        with pytest.raises(rd.InputError, match="'llama2_7b_inference' is no Job"):
            command("llama2_7b_inference", machine)
    with pytest.raises(rd.InputError, match="is no Fault: rapid_des.parse_fault makes one"):
        machine.with_faults(["link=gpu0-switch0 bandwidth=0.5"])
    for wrong in ({"top": 0}, {"gpus": "8"}):
        with pytest.raises(rd.InputError, match="allowed: a whole number from 1 on"):
            rd.Wanted(**wrong)


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


def test_a_run_imports_no_protobuf_and_no_compiler():
    loaded = modules_after("run", "llama2_7b_train", "--on", "dgx_a100", "--mode", "analytical")
    assert {"numpy"} <= set(loaded) <= {"numpy", "simpy"}  # a small program is played by SimPy


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
    small += ["--set", "job.model.layers=2"]
    assert modules_after(*small) == ["numpy", "simpy"]


def test_print_shows_the_report_and_figures_come_back_as_objects(tmp_path):
    pytest.importorskip("matplotlib")
    result = rd.simulate(rd.load_job("llama2_7b_train"), rd.load_machine("dgx_a100"))
    assert str(result).splitlines()[0] == "llama2_7b_train on DGX A100"
    assert len(str(result).splitlines()) < 40 and len(repr(result)) < 100
    streams = [label.get_text() for label in result.plot_timeline().axes[0].get_yticklabels()]
    assert streams[:2] == [f"rank {result.critical_rank}: compute", f"rank {result.critical_rank}: tp"]
    for draw in (result.plot_breakdown, result.plot_schedule, result.plot_memory):
        assert draw(tmp_path / "picture.svg").axes and (tmp_path / "picture.svg").exists()


LINKS = {"device": "h100_sxm", "bandwidth": "450 GB/s", "latency": "350 ns"}


def test_a_first_machine_takes_its_device_and_its_links():
    server = rd.Machine.switched(8, **LINKS)
    assert server.switching == rd.load_machine("dgx_h100").switching
    joined = server.joined(2, bandwidth="50 GB/s", latency="2 us")
    assert joined.route(0, 9) == ("gpu0>switch0", "switch0>gpu1", "gpu1>switch3", "switch3>gpu9")
    assert joined.fabric.gpus == rd.Machine.torus(4, 4, **LINKS).fabric.gpus == 16
    with pytest.raises(rd.ConfigError, match="bandwidth"):
        rd.Machine.switched(8, **LINKS | {"bandwidth": "450"})
