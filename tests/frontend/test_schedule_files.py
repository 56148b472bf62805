"""Schedules from files: what a name stands for can be written down, and what is wrong is said in a line."""

import pytest

from rapid_des.errors import ConfigError
from rapid_des.frontend import build, load_job
from rapid_des.frontend.schedules import SCHEDULES, ScheduleSpec
from rapid_des.frontend.schedules.files import stage_orders_of
from rapid_des.frontend.schedules.schedule import PipelineShape

GOOD = """\
placement: [[0, 3], [1, 2]]
orders:
  - F0-2 F0.1 I0.1 W0.1 F1.1 I1.1 W1.1 F3 I0 W0 F2.1 I2.1 W2.1 I1 W1 F3.1 I3.1 W3.1 I2 W2 I3 W3
  - F0 F0.1 F1 F1.1 I0.1 W0.1 I0 W0 F2 I1.1 W1.1 I1 W1 F2.1 F3 I2.1 W2.1 I2 F3.1 I3.1 I3 W2 W3.1 W3
"""
PIPELINE = [("parallelism.pp", "2"), ("training.global_batch", "4")]


def written(stages):
    """Return the orders of stages as a schedule file says them."""
    orders = [
        "".join(f"{item}{'&' if item.paired else ' '}" for item in order).strip() for order in stages.orders
    ]
    return ScheduleSpec(orders=tuple(orders), placement=stages.placement)


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_can_be_written_as_a_file(name):
    stages = SCHEDULES[name].stage_orders(PipelineShape(4, 8, SCHEDULES[name].chunks or 2))
    assert stage_orders_of(written(stages)) == stages


@pytest.mark.parametrize("name", ["1f1b", "zb_v", "dualpipe"])
def test_a_file_runs_as_what_it_says(tiny, prices, replay, tmp_path, name):
    named = tiny(*PIPELINE, ("training.schedule", name), ("training.overlap_pipeline", "true"))
    spec = written(named.stage_orders)
    (tmp_path / "own.yaml").write_text(
        f"placement: {[list(parts) for parts in spec.placement]}\norders: {list(spec.orders)}\n"
    )
    job = tiny(*PIPELINE, ("training.schedule", "own.yaml"), ("training.overlap_pipeline", "true"))
    ends = [
        {rank: max(times) for rank, times in replay(build(each, prices).traces, rendezvous=True).items()}
        for each in (named, job)
    ]
    assert ends[0] == ends[1]
    again = tmp_path / "again.yaml"
    again.write_text(job.as_yaml())
    assert load_job(again) == job


def test_a_stage_waits_until_its_messages_have_left(tiny, prices, replay, tmp_path):
    # The second stage takes the activation when it has sent nothing yet: only the wait holds up F1.
    plain = "orders: [F0-3 B0-3, F0 B0 F1 B1 F2 B2 F3 B3]\n"
    ends = []
    for text in (plain, plain.replace("F0-3 B0-3", "F0 wait F1-3 wait B0-3")):
        (tmp_path / "own.yaml").write_text(text)
        job = tiny(*PIPELINE, ("training.schedule", "own.yaml"), ("training.overlap_pipeline", "true"))
        trace = build(job, prices)
        waits = trace.tables[0].dependencies.size
        ends.append((max(map(max, replay(trace.traces, rendezvous=True).values())), waits))
    assert ends[1][0] >= ends[0][0]
    assert ends[1][1] > ends[0][1]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("F0-2", "Q0-2", "orders[0]: 'Q0-2' is no item; allowed: F0, B0, I0 and W0"),
        ("F0-2", "F2-0", "orders[0]: 'F2-0' runs backwards"),
        ("F0-2", "F0&F1 F2", "orders[0]: 'F0&F1' is no pair of one forward and one backward"),
        ("I3 W3\n", "I3\n", "orders[0]: no W3"),
        ("F3 I0", "I0", "orders[0]: no F3 for its backward"),
        ("I3 W3\n", "\n", "orders[0]: F3 needs B3, or I3 and W3"),
        ("I3 W3\n", "I3 W3 B3\n", "orders[0]: F3 needs B3, or I3 and W3 and not both"),
        ("F1.1 I1.1", "F1.1 F1.1 I1.1", "orders[0]: F1.1 stands there 2 times"),
        ("F3.1 I3.1 W3.1 I2", "F3.2 I3.2 W3.2 I2", "orders[0]: F3.2 is of chunk 2, the stage has 2"),
        ("[1, 2]", "[1, 4]", "placement: no stage holds part 2"),
        ("[1, 2]", "[0, 1, 2]", "placement[0]: stage 1 shares some of its parts [0, 3] and not all"),
        ("[1, 2]]", "[1, 2], [4, 5]]", "orders of 2 stages and places of 3, parallelism.pp is 2"),
        (" F3 I0 W0", " I0 W0 F3", None),
        (
            "F0-2 F0.1",
            "F0-2 I0 F0.1",
            "stage 0 at I0 for the gradient of micro-batch 0 from stage 1, stage 1",
        ),
        ("orders", "ordres", "unknown key 'ordres'; did you mean 'orders'?"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tiny, tmp_path, before, after, said):
    assert before in GOOD
    text = GOOD.replace(before, after, 1)
    if after.startswith("F0-2 I0"):
        text = text.replace("F3 I0 W0", "F3 W0", 1)
    (tmp_path / "own.yaml").write_text(text)
    settings = [*PIPELINE, ("training.schedule", "own.yaml")]
    if said is None:
        assert tiny(*settings).parts == 4
        return
    with pytest.raises(ConfigError) as refused:
        tiny(*settings)
    assert said in str(refused.value)
    assert str(refused.value).startswith(str(tmp_path / "own.yaml"))


def test_a_job_of_other_micro_batches_is_refused_with_both_numbers(tiny, tmp_path):
    (tmp_path / "own.yaml").write_text(GOOD)
    with pytest.raises(ConfigError, match="orders of 4 micro-batches, the job has 8 a step"):
        tiny(("parallelism.pp", "2"), ("training.schedule", "own.yaml"))
    with pytest.raises(ConfigError, match=r"no schedule file 'other\.yaml' here"):
        tiny(("training.schedule", "other.yaml"))
