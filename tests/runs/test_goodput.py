"""Runs of jobs: the file kind, what it refuses, the command and its JSON."""

import json
from math import hypot
from typing import Any

import pytest
from msgspec import structs

from rapid_des import goodput
from rapid_des.bounded_cache import BoundedCache
from rapid_des.errors import ConfigError, InputError
from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.runs.checkpoints import checkpoint_cost
from rapid_des.runs.goodput import Replications, play, requested
from rapid_des.runs.loading import load_reliability
from rapid_des.studies.kept_runs import KeptRuns
from tests.cli.shell import call, refused

FILE = {
    "classes": [{"name": "gpu", "mtbf": "2000 h"}],
    "detection": "1 min",
    "diagnosis": "lognormal(2 min, 0.5)",
    "repair": "10 h",
    "checkpoint": {"interval": "30 min", "storage": "10 GB/s"},
    "restart": {"start": "3 min", "communicators_per_gpu": "10 ms"},
}
COMMAND = ("goodput", "llama2_7b_train", "--on", "dgx_a100", "--mode", "analytical")


def changed(path, value):
    tree = json.loads(json.dumps(FILE))
    *above, last = path.split(".")
    place = tree
    for key in above:
        place = place[int(key) if key.isdigit() else key]
    place[last] = value
    return tree


CACHE = BoundedCache()
"""The step, which is simulated once."""


@pytest.fixture(scope="module")
def where():
    return load_job("llama2_7b_train"), load_machine("dgx_a100")


def run(where, file=FILE, **options):
    job, machine = where
    asked: dict[str, Any] = {"days": 30, "replications": 20, "mode": "analytical", "cache": CACHE}
    return goodput(job, machine, file, **asked | options)


def test_every_instant_of_every_replication_has_one_cause(where):
    for length in ({}, {"days": None, "steps": 200_000}, {"days": None, "tokens": "1B"}):
        for each in run(where, **length).replications:
            assert sum(each.times.values()) == each.wall


def test_without_failures_a_run_is_its_steps_to_the_picosecond(where):
    never = FILE | {"classes": [{"name": "gpu", "rate": "0 /h"}], "checkpoint": None}
    result = run(where, never, days=None, steps=1000, replications=2)
    assert [each.wall for each in result.replications] == [1000 * int(result.step_time)] * 2
    assert result.figures["goodput"].mean == 1


def test_one_replication_is_played_again_alone(where):
    alone = run(where, first=7, replications=1).replications[0]
    assert run(where).replications[7].times == alone.times


def test_a_checkpoint_has_the_bytes_of_the_job_once(where):
    # 6.74e9 parameters of 2 bytes, and three states of 4 bytes, whatever the layout
    cost = checkpoint_cost(load_reliability(FILE), where[0], 8)
    assert cost.size == pytest.approx(6.74e9 * 14, rel=0.01)
    other = load_job(where[0], settings={"parallelism.tp": 8, "parallelism.pp": 1, "parallelism.dp": 1})
    assert checkpoint_cost(load_reliability(FILE), other, 8).size == pytest.approx(cost.size, rel=0.001)
    assert cost.stall == pytest.approx(cost.size / 10e9 * 1e12, rel=1e-6)


def test_checkpoints_go_to_the_storage_that_the_machine_states(where):
    size = checkpoint_cost(load_reliability(FILE), where[0], 8).size
    machine = {"storage": {"bandwidth": "10 GB/s", "per_node": "2 GB/s", "capacity": "1 TB"}}
    stored = load_machine(where[1], settings=machine)
    file = FILE | {"checkpoint": {"interval": "30 min"}}
    found = run((where[0], stored), file, replications=1).as_json()["checkpoint"]
    assert found["stall_s"] == pytest.approx(size / 2e9, rel=1e-6)  # all in one node
    later = {"checkpoint": {"interval": "30 min", "scheme": "asynchronous"}}
    found = run((where[0], stored), FILE | later, replications=1).as_json()["checkpoint"]
    assert found["stall_s"] == pytest.approx(size / 8 / 25e9, rel=0.01)  # over the A100's link to its host
    assert found["write_s"] == pytest.approx(size / 2e9, rel=1e-6)
    machine["storage"]["capacity"] = "1 GiB"
    with pytest.raises(ConfigError, match=r"checkpoint.capacity: a checkpoint of 87.86 GiB does not fit"):
        run((where[0], load_machine(where[1], settings=machine)), file)
    with pytest.raises(ConfigError, match="neither stall nor storage nor the machine's storage is stated"):
        run(where, file)


def test_an_interval_is_rounded_up_to_steps_and_auto_follows_the_failures(where):
    result = run(where, replications=1)
    every, step = result.plan.course.levels[-1].every, int(result.step_time)
    assert (every - 1) * step < 1800 * 10**12 <= every * step
    often, seldom = (
        run(
            where,
            changed("checkpoint.interval", "auto") | {"classes": [{"name": "gpu", "mtbf": mtbf}]},
            replications=1,
        )
        for mtbf in ("500 h", "2000 h")
    )
    assert seldom.plan.course.levels[-1].every == pytest.approx(
        2 * often.plan.course.levels[-1].every, rel=0.05
    )


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("classes.0.mtbf", "2000", "classes[0].mtbf: "),
        ("classes.0.mtbf", "-3 h", "out of range; allowed: 0 to"),
        ("classes.0.mtbf", "0 s", "classes[0].mtbf: 0 s is no time between failures"),
        ("classes.0.rate", "3 /h", "mtbf and rate of mtbf, rate and observed is stated"),
        ("classes.0.per", "rack", "classes[0].per: 'rack' is not one of gpu, node, job"),
        ("domains", {"rack": 99}, "domains.rack: rack has 99 GPUs, DGX A100 has 8"),
        ("detection", "soon", "detection: 'soon' is not a quantity"),
        ("diagnosis", "gauss(1 min)", "diagnosis: 'gauss(1 min)' is no"),
        ("spares", {"hot": 3}, "spares: 3 spare nodes and 1 of the job"),
        ("checkpoint.capacity", "1 GiB", "checkpoint.capacity: a checkpoint of 87.86 GiB does not fit"),
        ("checkpoint.interval", "1 s", "checkpoint.interval: 1 s is shorter than a checkpoint takes"),
        ("checkpoint.intervall", "1 h", "did you mean 'interval'?"),
        ("restart.start", "1", "restart.start: '1' has no unit"),
    ],
)
def test_what_does_not_fit_is_refused_by_place(where, path, value, said):
    tree = changed(path, value)
    if path == "domains":
        tree["classes"][0]["per"] = "rack"
    with pytest.raises(ConfigError) as refusal:
        run(where, tree)
    assert said in str(refusal.value)


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"unit": "pod"}, "classes[0].burst.unit: 'pod' is not one of gpu, node, half"),
        ({"unit": "gpu"}, "classes[0].burst.unit: gpu has 1 GPUs, half 4; allowed: a multiple"),
    ],
)
def test_bursts_stay_in_units_of_whole_parts(where, own, said):
    part = {"name": "gpu", "mtbf": "2000 h", "per": "half", "burst": {"share": 0.5, "within": "1 h"} | own}
    with pytest.raises(ConfigError) as refusal:
        run(where, FILE | {"classes": [part], "domains": {"half": 4}})
    assert said in str(refusal.value)


def test_a_run_has_one_length(where):
    for lengths in ({"days": None}, {"steps": 5}, {"days": -1}, {"days": None, "tokens": "15Q"}):
        with pytest.raises(InputError):
            run(where, **lengths)


def test_the_command_prints_figures_that_add_up(tmp_path):
    answer = call(*COMMAND, "--reliability", "llama3_h100", "--days", 20, "--replications", 5, "--json")
    plain = answer.json
    assert plain["goodput"]["low"] < plain["goodput"]["mean"] < plain["goodput"]["high"]
    assert sum(plain["time_s"].values()) == pytest.approx(plain["wall_s"], rel=1e-12)
    assert plain["wall_s"] == 20 * 86_400
    rows = tmp_path / "rows.csv"
    text = call(
        *COMMAND, "--reliability", "llama3_h100", "--days", 20, "--replications", 5, "--rows", rows
    ).out
    assert "wall time by cause" in text
    assert len(rows.read_text().splitlines()) == 1 + round(5 * plain["incidents_total"]["mean"])


def test_the_command_refuses_in_one_line(tmp_path):
    assert "no reliability file 'nothing'" in refused(call(*COMMAND, "--reliability", "nothing", "--days", 3))
    stopped = call(
        *COMMAND,
        "--reliability",
        "llama3_h100",
        "--days",
        3,
        "--set",
        "reliability.classes.2.observed.period=1 h",
    )
    assert "the mean time between failures is" in refused(stopped, 3)
    assert len(stopped.err.splitlines()) == 1


def test_two_files_are_compared_under_the_same_failures(where, tmp_path):
    slower = changed("restart.start", "13 min")
    before, after = run(where, slower), run(where)
    gain = before.gain(after)
    apart = [each.figures["goodput"] for each in (before, after)]
    assert gain.low > 0
    assert gain.high - gain.low < 0.7 * hypot(*(each.high - each.low for each in apart))
    for name, tree in (("a", slower), ("b", FILE)):
        (tmp_path / f"{name}.json").write_text(json.dumps(tree))
    answer = call(
        *COMMAND, "--reliability", tmp_path / "a.json", "--compare", tmp_path / "b.json", "--days", 30,
        "--replications", 20, "--json",
    )  # fmt: skip
    assert answer.json["compared"]["gain"]["mean"] == pytest.approx(gain.mean)


def test_settings_that_only_a_run_reads_are_not_called_idle():
    settings = ("machine.storage.bandwidth=1 TB/s", "job.training.prefetch=3")
    chosen = [word for setting in settings for word in ("--set", setting)]
    said = call(*COMMAND, "--reliability", "llama3_h100", "--days", 1, "--replications", 1, *chosen).err
    assert "machine.storage" not in said
    assert "job.training.prefetch=3: nothing in this run depends on it" in said


def test_runs_with_more_failures_than_can_be_played_are_refused():
    said = refused(call(*COMMAND, "--reliability", "llama3_h100", "--days", "1e9"))
    assert "100 runs of 1000000000 d have about" in said
    assert "allowed: 10,000,000 (a shorter run, or fewer replications)" in said


def test_replications_go_on_until_the_figure_is_known_so_well(where):
    result = run(where, replications="goodput ±0.5%")
    estimate = result.figures["goodput"]
    assert (estimate.high - estimate.mean) / estimate.mean <= 0.005
    assert len(result.replications) % 20 == 0
    assert result.replications[3].times == run(where, replications=5).replications[3].times
    with pytest.raises(InputError, match="or such as 'goodput"):
        run(where, replications="step ±1%")


def test_a_run_that_is_interrupted_keeps_what_is_finished(where):
    def stop(done, _):
        if done == 3:
            raise KeyboardInterrupt

    result = run(where, replications=10, on_progress=stop)
    assert (len(result.replications), result.left) == (3, 7)


def test_replications_in_a_folder_are_not_played_again(where, tmp_path):
    def stop(done, _):
        if done == 3:
            raise KeyboardInterrupt

    (job, machine), cache = where, BoundedCache()
    request = requested(job, machine, FILE, days=300, mode="analytical")
    with KeptRuns(tmp_path / "kept", request, cache) as kept:
        play(request, Replications(10), cache=cache, on_progress=stop, kept=kept)
    played = []
    with KeptRuns(tmp_path / "kept", request, cache) as kept:
        assert [*kept.found] == [0, 1, 2]
        whole = play(request, Replications(10), on_progress=lambda done, _: played.append(done), kept=kept)
    assert played == [4, 5, 6, 7, 8, 9, 10]
    assert whole.replications == play(request, Replications(10), cache=cache).replications
    with pytest.raises(InputError, match="holds the results of another study \\(seed: 0 there, 1 here\\)"):
        KeptRuns(tmp_path / "kept", structs.replace(request, seed=1), cache)


def test_a_price_and_a_picture(where, tmp_path):
    plain = run(where, FILE | {"spares": None}, days=10, replications=2).as_json(2.0)
    assert plain["cost"]["mean"] == 2.0 * 8 * 240
    path = tmp_path / "run.svg"
    call(*COMMAND, "--reliability", "llama3_h100", "--days", 3, "--replications", 2, "--plot", path)
    assert "<svg" in path.read_text()[:2000]
