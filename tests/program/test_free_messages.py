"""Messages that cost nothing: ranks still wait for each other, and ranks that live alike are still folded."""

import pytest

from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.modes.execution import EngineChoice, execute
from rapid_des.program.free_messages import with_free_messages
from rapid_des.simulation import simulate


@pytest.fixture(scope="module")
def result():
    job = load_job("llama3_1_70b_train_64", settings={"model.layers": 16})
    return simulate(job, load_machine("dgx_h100_x8"))


@pytest.mark.parametrize("stream", ["tp", "dp"])
def test_a_program_with_free_messages_folds_like_any_other(result, stream):
    program = with_free_messages(result.run.lowered, {stream})
    folded, whole = (execute(program, EngineChoice("compiled", fold=fold)) for fold in (True, False))
    assert folded.records.makespan == whole.records.makespan < result.step_time
