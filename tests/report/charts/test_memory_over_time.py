"""The picture of memory over a step's time."""

import pytest

from rapid_des.errors import InputError
from rapid_des.frontend import load_job, memory
from rapid_des.machine import load_machine
from rapid_des.report.charts.memory import memory_steps
from rapid_des.report.charts.schedule import whole_segments
from rapid_des.simulation import simulate

SMALL = {"training.global_batch": 8, "model.layers": 4}


@pytest.fixture(scope="module")
def result():
    return simulate(load_job("llama2_7b_train", settings=SMALL), load_machine("dgx_a100"), mode="hybrid")


@pytest.mark.parametrize("name", ["memory.png", "memory.svg"])
def test_it_is_drawn_in_every_format_and_mode(result, tmp_path, name):
    result.plot_memory(tmp_path / name, title="small")
    assert (tmp_path / name).stat().st_size > 5_000


def test_a_stage_begins_and_ends_with_what_stands(result):
    stage = result.figures.memory.stages[0]
    ran = [box for box in whole_segments(result.trace, result.blocks.run) if box.stage == 0]
    times, sizes = memory_steps(stage, ran, result.step_time)
    assert times == sorted(times)
    assert (times[0], times[-1]) == (0, result.step_time)
    assert sizes[0] == sizes[-1]
    assert sizes[0]["activations"] == 0
    assert max(sum(held.values()) for held in sizes) == stage.peak


def test_between_passes_a_stage_holds_what_waits_for_its_backward(result):
    timeline = result.figures.memory.stages[0].timeline
    # Two stages: the first holds two micro-batches until its first backward.
    assert timeline[1].left["activations"] == result.figures.memory.stages[0].activations
    assert timeline[0].left["activations"] * 2 == timeline[1].left["activations"]
    assert timeline[-1].left["activations"] == timeline[-1].left["temporary"] == 0


def test_requests_have_no_picture_of_memory_over_time(tmp_path):
    job = load_job("llama2_7b_inference", settings={"model.layers": 1, "inference.output_length": 2})
    served = simulate(job, load_machine("dgx_a100"), mode="hybrid")
    assert memory(served.trace.job).stages[0].timeline == ()
    with pytest.raises(InputError, match="drawn of training"):
        served.plot_memory(tmp_path / "x.png")
