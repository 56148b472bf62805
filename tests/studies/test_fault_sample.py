"""Samples of fault draws: figures with intervals, common draws, replay by id, places enumerated."""

import json
from itertools import pairwise
from statistics import NormalDist, fmean
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from rapid_des import BoundedCache, load_job, load_machine, parse_fault, simulate
from rapid_des.cli.main import cli
from rapid_des.errors import InputError
from rapid_des.executors import InProcess
from rapid_des.means import student
from rapid_des.report.study_text import sample_report
from rapid_des.report.tables import text
from rapid_des.studies.draw_statistics import SampleStatistics, Until, estimate
from rapid_des.studies.fault_rows import NO_DRAW, DrawRow, FaultSample
from rapid_des.studies.fault_sample import faults_sample
from rapid_des.studies.points import Point
from rapid_des.studies.worker_pools import executor_of
from tests.cli.shell import call, refused

SMALL = {"training.global_batch": 8, "model.layers": 4}
SOFT = "random=links count=1 where='source.a1 = 0 and destination.a1 = 0' bandwidth=normal(0.5,0.1)"
"""One of the eight cables of the first row, whose GPUs the job is on."""
GPU = "random=gpus count=1 compute=uniform(0.5,0.9)"


@pytest.fixture(scope="module")
def torus():
    return load_machine("torus_2d_a100", settings={"collectives": "{default: ring}"})


@pytest.fixture(scope="module")
def job():
    return load_job("llama2_7b_train", settings=SMALL)


@pytest.fixture(scope="module")
def sampled(job, torus):
    return faults_sample(job, torus, [SOFT], draws=8, seed=3)


def test_figures_of_a_sample_are_those_of_its_values():
    values = [float(value) for value in range(1, 101)]
    found = SampleStatistics.of(values)
    assert (found.mean, found.least, found.worst) == (50.5, 1.0, 100.0)
    assert found.p95 == pytest.approx(np.percentile(values, 95))
    assert found.cvar95 == pytest.approx(fmean(range(96, 101)))  # the worst five of a hundred
    assert found.mean_half == pytest.approx(student(99) * np.std(values, ddof=1) / 10)


def test_weights_stand_for_repeated_values():
    found, spelled = SampleStatistics.of([1.0, 2.0, 5.0], weights=[3, 1, 1]), [1.0, 1.0, 1.0, 2.0, 5.0]
    assert (found.mean, found.mean_half) == (pytest.approx(fmean(spelled)), 0.0)
    assert SampleStatistics.of([1.0, 9.0], weights=[0.9, 0.1]).cvar95 == pytest.approx(9.0)
    assert SampleStatistics.of([1.0, 9.0], weights=[0.98, 0.02]).cvar95 == pytest.approx((2 * 9 + 3 * 1) / 5)


@pytest.mark.parametrize(("freedom", "value"), [(1, 12.706), (4, 2.776), (9, 2.262), (29, 2.045)])
def test_student_s_quantiles_are_the_table_s(freedom, value):
    assert student(freedom) == pytest.approx(value, rel=2e-3)


def test_intervals_hold_what_they_promise():
    # of 200 samples of 40 values of a skewed distribution some 95 % hold its mean, 1
    generator = np.random.default_rng(1)
    held = 0
    for _ in range(200):
        middle, half = estimate(generator.gamma(4, 0.25, 40).tolist(), "mean")
        held += abs(middle - 1) <= half
    assert 180 <= held <= 198  # 190 on average, deviation 3


def test_until_says_when_there_are_draws_enough():
    normal = [NormalDist(100, 1).inv_cdf((place + 0.5) / 400) for place in range(400)]
    assert Until.parse("mean ±0.5%").met(normal) and not Until.parse("mean +-0.05%").met(normal)
    assert Until.parse("p95 ±1%").met(normal) and Until.parse("cvar95 ±1%").met(normal)
    with pytest.raises(InputError, match="allowed: 'mean ±0.5%'"):
        Until.parse("mean")


def test_a_draw_run_by_itself_takes_the_same_picoseconds(sampled, job, torus):
    row = max(sampled.rows, key=lambda row: row.step_time)
    faults = [parse_fault(words) for words in row.faults]
    alone = simulate(job, torus.with_faults(faults), mode="hierarchical")
    assert alone.step_time == row.step_time > row.healthy
    # the parts of the critical rank's time grow by what the step does, as that rank ends last in both
    healthy = simulate(job, torus, mode="hierarchical")
    before = sum(healthy.rank_breakdown(row.critical_rank).values())
    assert sum(row.added.values()) == row.step_time - before


def test_other_jobs_and_other_executors_see_the_same_draws(sampled, job, torus):
    other = load_job("llama2_7b_train", settings={**SMALL, "parallelism.tp": 4, "parallelism.pp": 1})
    points = {
        "one": Point(job, torus, mode="hierarchical"),
        "other": Point(other, torus, mode="hierarchical"),
    }
    with executor_of("processes", 2) as executor:
        both = faults_sample(points, faults=[SOFT], draws=8, seed=3, executor=executor)
    assert [row.faults for row in both.of("one")] == [row.faults for row in both.of("other")]
    assert [row.step_time for row in both.of("one")] == [row.step_time for row in sampled.rows]


class Pair(InProcess):
    """Two workers, as far as who asks knows, that simulate nothing; and how many draws each task had."""

    workers = 2

    def __init__(self):
        super().__init__()
        self.sizes = []

    def map(self, function, items, meanwhile=None):
        return super().map(self.rows, items)

    def rows(self, task, _):
        self.sizes.append(len(task.draws))
        return [DrawRow(task.name, number, (), 1, 1, 0, {}, weight) for number, _, weight in task.draws]


def test_quick_draws_come_many_at_a_time_but_no_worker_is_left_without(job, torus):
    executor = Pair()
    found = faults_sample(job, torus, [GPU], draws=1000, mode="analytical", executor=executor)
    assert [row.draw for row in found.rows] == list(range(1000))
    first, *others = executor.sizes  # how quick they are is not known before
    assert (first, others[0]) == (30, (1000 - 30) // 4)
    assert all(later <= before for before, later in pairwise(others)) and min(others[:-1]) == 30


def test_the_exact_mean_is_that_of_all_places():
    traces_machine, job = load_machine("hgx_a100_x4"), load_job("llama2_7b_train", settings=ON_FOUR)
    fault = "random=links count=1 bandwidth=choice(0.25,0.5:3)"
    exact = faults_sample(job, traces_machine, [fault], sampling="exact", mode="flattened")
    assert sum(row.weight for row in exact.rows) == pytest.approx(6)  # cables of four GPUs, all to all
    assert len(exact.rows) < 12  # places that symmetry makes alike are run once
    cache, steps = BoundedCache(), []
    for a, b in [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]:
        for share, weight in ((0.25, 1), (0.5, 3)):
            hurt = traces_machine.with_faults([parse_fault(f"link={a}-{b} bandwidth={share}")])
            steps += [simulate(job, hurt, cache=cache).step_time / 1e12] * weight
    assert exact.spread(job.name).mean == pytest.approx(fmean(steps), rel=1e-9)
    assert exact.spread(job.name).mean_half == 0


ON_FOUR = {**SMALL, "parallelism.tp": 2, "parallelism.pp": 2, "parallelism.dp": 1}


def test_a_draw_that_can_not_be_run_is_a_row_with_its_error(job):
    found = faults_sample(
        load_job("llama2_7b_train", settings=ON_FOUR),
        load_machine("hgx_a100_x4"),
        ["random=gpus count=choice(0,1) down=true"],
        draws=6,
    )
    failed = [row for row in found.rows if row.error]
    assert 0 < len(failed) < 6 and "is down, and rank" in failed[0].error
    assert all(row.faults for row in failed) and not any(row.faults for row in found.of("llama2_7b_train"))


def test_words_rank_configurations_by_step_mean_and_tail_and_tell_what_is_faster():
    steps = {"even": (20, 23, 23), "sharp": (18, 18, 30), "slow": (30, 29, 33), "slower": (40, 39, 44)}
    rows = [
        DrawRow(name, draw, ("gpu=0",), step, healthy, 0, {}, faster="pacing" if step < healthy else "")
        for name, (healthy, *drawn) in steps.items()
        for draw, step in enumerate(drawn)
    ]
    sample = FaultSample(tuple(steps), tuple(rows), ("gpu=0",), 0, "independent")
    lines = [line.strip() for line in text(sample_report(sample.as_json(top=1)))]
    best = [line.split(": ", 1)[1].split("; ")[0].split()[0] for line in lines if line.startswith("best by")]
    assert best == ["sharp", "even", "even"]
    assert "draws of slower, faster than without faults" in "\n".join(lines)
    assert "draws of slow, the slowest first" in "\n".join(lines)


def test_a_job_that_does_not_fit_has_one_row_beside_others(job, torus, tmp_path):
    large = load_job("llama2_7b_train", settings={"training.global_batch": 128, "training.micro_batch": 64})
    told: list[tuple[int, ...]] = []

    def found():
        told.clear()
        how = {"mode": "analytical", "folder": tmp_path, "on_progress": lambda _, *done: told.append(done)}
        return faults_sample({"one": job, "large": large}, torus, [GPU], draws=19, **how)

    first = found()
    assert [row.draw for row in first.rows] == [*range(19), NO_DRAW]  # of the second task of `large` nothing
    assert "InfeasibleJobError" in first.rows[-1].error and told[-1] == (19, 19)
    assert found().rows == first.rows and not told  # what is kept is not run again


def test_the_command_draws_replays_and_says_how_to_run_a_draw(tmp_path):
    subject = ["llama2_7b_train", "--on", "torus_2d_a100", "--set", "job.training.global_batch=8"]
    subject += ["--set", "job.model.layers=2", "--set", "machine.collectives={default: ring}"]
    asked = ["faults", "sample", *subject, "--fault", GPU, "--seed", "2", "--mode", "analytical"]

    def printed(*arguments):
        return CliRunner().invoke(cli, [*asked, *arguments], catch_exceptions=False, standalone_mode=False)

    found = json.loads(printed("--draws", "3", "--executor", "local", "--json").stdout)
    (one,) = found["configurations"]
    slowest = one["rows"][0]
    again = printed("--replay", str(slowest["draw"]), "--json")
    assert json.loads(again.stdout)["faulty"]["step_time_ps"] == slowest["step_time_ps"]
    assert f"--fault '{slowest['faults'][0]}'" in again.stderr
    assert "CVaR 95" in printed("--draws", "3", "--executor", "local").stdout


def test_what_is_kept_is_shown_and_run_again_from_its_manifest_alone(job, torus, tmp_path):
    pytest.importorskip("pyarrow")
    folder = tmp_path / "draws"
    made = faults_sample(
        {"a": job, "b": job.replace(tp=4, dp=1)}, torus, [SOFT], draws=2, seed=3, folder=folder
    )
    shown = call("show", folder, "--json").json
    assert shown["configurations"] == made.as_json()["configurations"]
    assert "draws of a, the slowest first" in call("show", folder, "--top", 1).out
    for row in (1, 10_000_002):  # the first draw of one, the second of the other
        assert "as they were" in call("show", folder, "--rerun", row).out
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["study"]["source"] = "another"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert "rapid_des changed\n  its results are the same" in call("show", folder, "--rerun", 1).out
    assert "--sort is for points" in refused(call("show", folder, "--sort", "id"))
    assert "keep no whole results" in refused(call("compare", f"{folder}#1", f"{folder}#2"))


def test_two_jobs_of_one_name_are_not_one(tmp_path):
    draws = ("--on", "torus_2d_a100", "--fault", GPU, "--draws", 1)
    answer = refused(call("faults", "sample", "llama2_7b_train", "--job", "llama2_7b_train", *draws))
    assert "another job here is called 'llama2_7b_train' too" in answer


def test_nonsense_is_refused_before_anything_is_simulated(job, torus):
    refused_words: list[tuple[Any, dict[str, Any], str]] = [
        ([], {}, "at least one --fault"),
        ([SOFT], {"sampling": "exact"}, "constants, and one number of choice"),
        (["link=0-1 bandwidth=0.5"], {"sampling": "exact"}, "with random one of"),
        ([SOFT], {"until": "soon"}, "--until 'soon'"),
        ([SOFT], {"until": "p0 ±1%"}, "--until 'p0"),
        (SOFT, {"draws": 0}, "draws 0, sampling 'independent'; allowed: draws from 1 on"),
        ([SOFT], {"sampling": "sobol"}, "sampling 'sobol'; allowed: .* one of independent, latin, exact"),
    ]
    for models, how, says in refused_words:
        with pytest.raises(InputError, match=says):
            faults_sample(job, torus, models, executor=InProcess(), **how)


def test_a_sample_is_a_table_in_notebooks(sampled):
    pytest.importorskip("pandas")
    frame = sampled.to_pandas()
    assert list(frame["draw"]) == list(range(8))
    assert list(frame["step_time_ps"]) == [row.step_time for row in sampled.rows]
    shown = sampled._repr_html_()
    assert "llama2_7b_train" in shown and f"{sampled.spread('llama2_7b_train').mean:.4g} s" in shown


@pytest.mark.usefixtures("own_caches")
def test_a_cache_reckons_what_the_engine_saw_of_each_draw():
    rings = {"collectives.default": {"algorithm": ["ring", "ring"]}}
    machine = load_machine("torus2d_ring_a100_64", settings=rings)
    split = {"tp": 1, "cp": 8, "pp": 1, "dp": 1, "global_batch": 2, "sequence_parallel": False}
    job, cache = load_job("llama2_7b_train").replace(**split), BoundedCache(1 << 28)
    weights = []
    for draws in (1, 3):
        cable = ["link=gpu0-gpu1 bandwidth=uniform(0.3,0.9)"]
        faults_sample(job, machine, cable, draws=draws, seed=3, executor=InProcess(cache))
        weights.append(cache.weight)
    seen = simulate(job, machine, mode="hierarchical").blocks.run.nbytes
    assert weights[0] > seen and (weights[1] - weights[0]) / 2 > seen  # the healthy run's, and each draw's
