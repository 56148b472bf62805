"""Who waits for the compiler: large programs at once, small ones in the second process."""

import errno

from rapid_des.modes import execution
from rapid_des.modes.execution import EngineChoice
from rapid_des.program.lowering import lower
from tests.program.machines import machine, ring
from tests.program.tracing import ALL_REDUCE, Nodes, same_everywhere

INTERPRETED = "interpreted; the next run will compile the kernels first, once (half a minute)"


class ColdKernel:
    """A kernel that must be compiled, and what its cache says to those who ask for it."""

    is_interpreted = False
    advice = ""

    def __init__(self, *, asked=False, problem=None):
        self.asked, self.problem = asked, problem

    def is_cold(self):
        return True

    def ask(self):
        if self.problem is not None:
            raise self.problem
        asked, self.asked = self.asked, True
        return asked


def program(steps):
    nodes = Nodes()
    for _ in range(steps):
        nodes.collective(ALL_REDUCE, 1000)
    return lower(same_everywhere(nodes, 8), machine(ring(8))).program


def chosen(monkeypatch, kernel, *, steps=20, engine="auto"):
    """Return the engine for the same program twice in a process, and what was said."""
    texts: list[str] = []
    monkeypatch.setattr(execution, "_kernel", lambda _, *, closing=False: kernel)
    choice = EngineChoice(engine, announce=texts.append)
    engines = {choice.engine_for(program(steps)) for _ in range(2)}
    assert len(engines) == 1
    return engines.pop(), texts


def test_the_first_process_with_a_small_program_does_not_wait(monkeypatch):
    assert chosen(monkeypatch, ColdKernel()) == ("simpy", [INTERPRETED])


def test_the_second_process_compiles(monkeypatch):
    assert chosen(monkeypatch, ColdKernel(asked=True)) == ("compiled", [])


def test_a_large_program_is_compiled_for_at_once(monkeypatch):
    monkeypatch.setattr(execution, "SMALL_COLD", 1_500)
    assert chosen(monkeypatch, ColdKernel()) == ("compiled", [])


def test_a_tiny_program_is_never_compiled_for(monkeypatch):
    # looking for the kernel would take longer than the run
    assert chosen(monkeypatch, ColdKernel(asked=True), steps=1) == ("simpy", [])


def test_who_chooses_an_engine_gets_it(monkeypatch):
    assert chosen(monkeypatch, ColdKernel(asked=True), engine="simpy") == ("simpy", [])
    assert chosen(monkeypatch, ColdKernel(), engine="compiled") == ("compiled", [])


def test_small_programs_are_interpreted_for_ever_where_nothing_can_be_kept(monkeypatch):
    full = ColdKernel(problem=OSError(errno.ENOSPC, "disk full"))
    assert chosen(monkeypatch, full) == ("simpy", [])
    assert chosen(monkeypatch, full, engine="compiled") == ("compiled", [])


def test_where_numba_may_not_compile_nothing_is_announced(monkeypatch):
    kernel = ColdKernel()
    kernel.is_interpreted = True
    assert chosen(monkeypatch, kernel) == ("simpy", [])
    assert chosen(monkeypatch, kernel, engine="compiled") == ("compiled", [])
    assert not kernel.asked


def test_where_there_is_neither_machine_code_nor_numba_a_large_program_is_interpreted_too(monkeypatch):
    monkeypatch.setattr(execution, "SMALL_COLD", 1_500)
    kernel = ColdKernel()
    kernel.is_interpreted, kernel.advice = True, "install numba"
    assert chosen(monkeypatch, kernel) == ("simpy", ["install numba"])


def test_a_kernel_that_runs_is_not_looked_for_again_in_its_cache():
    ring_of_8 = program(steps=2)
    execution.execute(ring_of_8, EngineChoice("compiled"))
    kernel = execution._kernel(ring_of_8)
    assert kernel.is_interpreted or kernel.is_loaded
