"""The picture of a schedule: a box a pass, as it ran, in every mode."""

import pytest

from rapid_des.errors import InputError
from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.report.charts.schedule import boxes, whole_segments
from rapid_des.simulation import simulate


def job(schedule):
    parallelism = {"tp": 1, "pp": 4, "sequence_parallel": False, "dp": 1}
    settings = {f"parallelism.{axis}": size for axis, size in parallelism.items()}
    training = {"schedule": schedule, "global_batch": 8, "micro_batch": 1, "sequence_length": 256}
    settings |= {f"training.{key}": value for key, value in training.items()}
    return load_job("llama2_7b_train", settings=settings | {"model.layers": 8})


@pytest.mark.parametrize("mode", ["flattened", "hierarchical", "analytical"])
@pytest.mark.parametrize("schedule", ["1f1b", "zb_v", "dualpipe"])
def test_every_pass_is_a_box_in_the_order_of_its_stage(mode, schedule):
    wanted = job(schedule)
    result = simulate(wanted, load_machine("dgx_a100"), mode=mode)
    drawn = list(whole_segments(result.trace, result.run or result.blocks.run))
    for stage, order in enumerate(wanted.stage_orders.orders):
        own = [box for box in drawn if box.stage == stage and box.name != "optimizer"]
        assert [(box.name, box.micro_batch, box.chunk) for box in own] == [item[:3] for item in order]
        assert all(first.finish <= second.start for first, second in zip(own, own[1:], strict=False))
    assert max(box.finish for box in drawn) <= result.step_time


def test_a_picture_is_drawn_alike_twice(tmp_path):
    pytest.importorskip("matplotlib")
    result = simulate(job("zb_h1"), load_machine("dgx_a100"), mode="hierarchical")
    for name in ("one.svg", "two.svg"):
        result.plot_schedule(tmp_path / name, title="zb_h1")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_requests_have_no_schedule(tmp_path):
    served = load_job("llama2_7b_inference", settings={"model.layers": 1, "inference.output_length": 2})
    result = simulate(served, load_machine("dgx_a100"), mode="analytical")
    with pytest.raises(InputError, match="a schedule's picture is of training"):
        result.plot_schedule(tmp_path / "x.png")


def test_both_halves_of_dualpipe_run_as_mirror_images():
    # Micro-batches from both ends, stages alike: stage s begins each pass when stage 7 - s does, unless one
    # of them waits in line behind the late message of another neighbour.
    settings = {"parallelism.pp": 8, "training.global_batch": 40}
    wanted = load_job(job("dualpipe"), settings=settings)
    result = simulate(wanted, load_machine("dgx_h100"), mode="hierarchical")
    drawn = list(whole_segments(result.trace, result.blocks.run))
    starts = [[box.start for box in drawn if box.stage == stage] for stage in range(8)]
    assert starts[:4] == starts[:3:-1]


def test_the_optimizer_is_drawn_where_its_kernels_run_and_not_while_its_stage_waits():
    # The last stage ends its passes first and waits for the gradient norm of the others: its kernels take as
    # long as they do on the first stage, whose wait is short.
    result = simulate(job("1f1b"), load_machine("dgx_a100"))
    drawn = list(boxes(result.trace, result.run))
    for stage in range(4):
        kernels = sum(
            box.finish - box.start for box in drawn if (box.stage, box.name) == (stage, "optimizer")
        )
        priced = sum(
            row.time_s for row in result.operators(stage) if row.operator in ("optimizer", "gradient_norm")
        )
        assert priced * 1e12 <= kernels < 1.01e12 * priced + result.step_time / 500, stage
    waits = [
        max(box.finish for box in drawn if (box.stage, box.name) == (stage, "exchange")) for stage in range(4)
    ]
    assert max(waits) <= result.step_time


def test_a_notebook_shows_a_figure_as_a_page_in_a_frame_that_reaches_nothing():
    pytest.importorskip("matplotlib")
    shown = simulate(job("1f1b"), load_machine("dgx_a100"), mode="analytical").plot_schedule()._repr_html_()
    assert shown.startswith('<iframe sandbox="allow-scripts"')
    assert "micro-batch 7" in shown and "<script" not in shown  # the page is escaped within its frame
