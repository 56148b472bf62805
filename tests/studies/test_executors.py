"""Executors: the same outcomes in any of them, whatever dies; what fails, fails alone."""

import os
import signal
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import rapid_des as rd
from rapid_des.executors import Done, Failed, InProcess
from rapid_des.studies.points import Point, evaluate
from rapid_des.studies.worker_pools import WorkerPool, executor_of
from tests.workers import workers

MACHINE, JOB = rd.load_machine("dgx_a100"), rd.load_job("llama2_7b_train")


def points():
    """Two that run, one whose numbers do not fit together, one that does not fit into memory."""
    for tp, dp, more in ((2, 2, ()), (4, 1, ()), (3, 1, ()), (2, 2, (("device.hbm.capacity", "8 GiB"),))):
        split = (("job.parallelism.tp", str(tp)), ("job.parallelism.dp", str(dp)), *more)
        yield Point(JOB, MACHINE, split, mode="analytical")


def marked(folder: str, _: object) -> str:
    """Run by workers: leave a mark that tells who did an item, and die of it the first time it is `fatal`."""
    path = Path(folder)
    mark = path / f"{len(list(path.iterdir()))}-{os.getpid()}"
    mark.touch()
    if (path / "fatal").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return path.name


def doubled(number: int, _: object) -> int:
    return 2 * number


@pytest.fixture(scope="module")
def alone():
    with InProcess() as executor:
        return list(executor.map(evaluate, points()))


def test_failures_are_outcomes_with_the_error_and_its_text(alone):
    kinds = [type(outcome) for _, outcome in alone]
    assert kinds == [Done, Done, Failed, Failed]
    assert alone[2][1].error == "ConfigError"
    assert "tp 3" in alone[2][1].text
    assert alone[3][1].error == "InfeasibleJobError"


def test_processes_give_the_outcomes_of_this_process_to_the_bit(alone):
    with executor_of("processes", 2) as executor:
        found = dict(executor.map(evaluate, points()))
        again = dict(executor.map(evaluate, reversed(list(points()))))
    assert [found[place] for place in range(4)] == [outcome for _, outcome in alone]
    assert [again[3 - place] for place in range(4)] == [outcome for _, outcome in alone]


def test_what_a_killed_worker_had_is_done_by_another(tmp_path):
    folders = [tmp_path / str(number) for number in range(6)]
    for folder in folders:
        folder.mkdir()
    with executor_of("processes", 2) as executor:
        killed, names = False, {}
        for place, outcome in executor.map(marked, map(str, folders)):
            names[place] = outcome.value
            if not killed:
                victim = workers()[1]
                os.kill(victim, signal.SIGKILL)
                killed = True
        assert victim not in workers()
    assert workers() == []
    assert names == {place: str(place) for place in range(6)}


def test_an_item_that_kills_every_worker_fails_alone(tmp_path):
    for number in range(3):
        (tmp_path / str(number)).mkdir()
    (tmp_path / "1" / "fatal").touch()
    with executor_of("processes", 2) as executor:
        outcomes = dict(executor.map(marked, (str(tmp_path / str(number)) for number in range(3))))
    assert (outcomes[0].value, outcomes[2].value) == ("0", "2")
    assert outcomes[1].error == "WorkerDied"
    assert "SIGKILL" in outcomes[1].text
    assert len(list((tmp_path / "1").iterdir())) == 1 + 3  # three workers tried it


class OneCore:
    """Workers of which the first alone ever starts, as if the others' node had gone with its cores."""

    died: tuple[type[BaseException], ...] = ()

    def __init__(self):
        self.hired = []
        self.closed = False

    def worker(self):
        self.hired.append(Here(starts=not self.hired))
        return self.hired[-1]

    def shared(self, pickled):
        return pickled

    def close(self):
        self.closed = True


class Here:
    """A worker that does what it is asked at once, or never."""

    def __init__(self, *, starts):
        self.starts = starts

    def submit(self, function, *arguments):
        future: Future[Any] = Future()
        if self.starts:
            future.set_result(function(*arguments))
        return future

    def release(self):
        pass

    def close(self):
        pass


@pytest.mark.parametrize("workers", [0, -1, "two"])
def test_numbers_of_workers_that_are_none_are_refused(workers):
    with pytest.raises(rd.InputError, match=f"workers {workers!r}; allowed: a whole number from 1 on"):
        executor_of("processes", workers)


def test_workers_that_never_start_hold_nothing():
    kind: Any = OneCore()
    with WorkerPool(kind, 3) as executor:
        found = dict(executor.map(doubled, range(40)))
    assert {place: outcome.value for place, outcome in found.items()} == {n: 2 * n for n in range(40)}
    assert len(kind.hired) == 3 and kind.closed


def test_items_are_taken_as_they_are_needed_and_leaving_early_ends_the_workers():
    taken: list[int] = []

    def endless():
        while True:
            taken.append(len(taken))
            yield Point(JOB, MACHINE, (("job.parallelism.tp", "3"),))

    with executor_of("processes", 2) as executor:
        for count, _ in enumerate(executor.map(evaluate, endless())):
            if count == 20:
                break
        assert len(taken) < 20 + 2 * 64 + 64


def test_leaving_early_keeps_workers_that_are_soon_done():
    with executor_of("processes", 2) as executor:
        outcomes = executor.map(doubled, range(1000))
        next(outcomes)
        seen = workers()
        outcomes.close()
        assert len(list(executor.map(doubled, range(1000)))) == 1000
        assert workers() == seen


def test_blocks_inside_a_block_have_the_same_workers():
    seen = []
    with executor_of("processes", 2) as executor:
        for _ in range(2):
            with executor:
                assert len(list(executor.map(evaluate, list(points())[:2]))) == 2
                seen.append(workers())
        assert workers() == seen[0] == seen[1] != []
    assert workers() == []
