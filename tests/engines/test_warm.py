"""Compiling the kernel beside its users: once, by one process, and never where it is forbidden."""

import os
import sys
import time

import pytest

from rapid_des.compiling import kept
from rapid_des.engines.compiled import warm
from rapid_des.modes.execution import EngineChoice
from rapid_des.simulation import replay
from tests.program.machines import machine, ring
from tests.program.tracing import ALL_REDUCE, Nodes, same_everywhere


@pytest.fixture
def cold(tmp_path, monkeypatch):
    """An empty cache, and a list of the processes that are started."""
    started = []
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv(warm.FORBIDS, raising=False)
    monkeypatch.setattr(warm.jit, "is_cold", lambda _: True)
    monkeypatch.setattr(warm.subprocess, "Popen", lambda command, **_: started.append(command))
    return started


def test_one_process_compiles_for_all(cold):
    assert [warm.in_background() for _ in range(3)] == [True, False, False]
    assert cold == [[sys.executable, "-m", "rapid_des.engines.compiled.warm"]]


def test_a_claim_that_nobody_lives_up_to_is_taken_over(cold):
    assert warm.in_background()
    (claim,) = kept.folders()[-1].glob("*.compiling")
    long_ago = time.time() - 3600
    os.utime(claim, (long_ago, long_ago))
    assert warm.in_background()


def test_it_can_be_forbidden(cold, monkeypatch):
    monkeypatch.setenv(warm.FORBIDS, "0")
    assert not warm.in_background()
    assert not cold


@pytest.mark.parametrize(
    ("is_cold", "steps", "engine", "told"),
    [
        (True, 20, "auto", 1),
        (False, 20, "auto", 0),
        (True, 1, "auto", 0),  # looking for the kernel would take longer than the run
        (True, 20, "simpy", 0),
    ],
)
def test_who_asks_is_told_when_a_run_does_without_the_kernel(monkeypatch, is_cold, steps, engine, told):
    monkeypatch.setattr(sys.modules["rapid_des.modes.execution"], "kernel_is_cold", lambda fluid: is_cold)
    nodes, times = Nodes(), []
    for _ in range(steps):
        nodes.collective(ALL_REDUCE, 1000)
    choice = EngineChoice(engine, cold=lambda: times.append(1), fold=False)
    result = replay(same_everywhere(nodes, 8), machine(ring(8)), engine=choice)
    assert len(times) == told
    assert result.engine == ("simpy" if told or engine == "simpy" or steps == 1 else "compiled")
