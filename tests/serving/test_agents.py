"""Tasks of agents: turns that wait for answers, branches and tools, and contexts that grow."""

import numpy as np
import pytest

from rapid_des.errors import ConfigError
from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.serving.agents import Agents
from rapid_des.serving.requests import NEVER
from rapid_des.serving.server import serve
from rapid_des.serving.workload import Fixed, Marks, Uniform, draw, parse_arrivals
from tests.serving.test_queues import SERVICE, Affine, served

THINK = 7 * SERVICE
SHORT = Fixed(10), Fixed(5)


def tasks(agents, count=200, rate=5, most=None, lengths=SHORT):
    marks = Marks(think=THINK, most=most, agents=agents)
    return draw(parse_arrivals(f"poisson rate={rate}/s"), lengths, count, 3, marks)


def test_tasks_of_one_turn_are_requests_as_others():
    lengths = Uniform(5, 50), Uniform(2, 20)
    alone = served(tasks(Agents(Fixed(1)), lengths=lengths), 0)[1]
    plain = served(draw(parse_arrivals("poisson rate=5/s"), lengths, 200, 3), 0)[1]
    times = ("arrival", "first_token", "finished", "prompt", "output")
    assert all((alone.requests[name] == plain.requests[name]).all() for name in times)


def test_a_turn_waits_for_the_branches_before_it_and_for_the_tools():
    work = tasks(Agents(Uniform(1, 5), Uniform(1, 3), Fixed(20), Uniform(2, 9)))
    requests = served(work, 0, costs=Affine(token=10**6))[1].requests
    assert work.after is not None
    waited = 0
    for number, (begin, end) in enumerate(zip(work.after.starts[:-1], work.after.starts[1:], strict=True)):
        before = work.after.earlier[begin:end]
        if len(before):
            # at once when the last of them is there and the tools are done, neither earlier nor later
            assert requests["arrival"][number] == requests["finished"][before].max() + THINK
            waited += len(before) > 1
    assert waited > 20


def test_a_turn_has_in_its_prompt_what_was_said_and_what_the_branches_answered():
    # 10 and 5 of the first turn, two branches of 3 out, 10 new ones
    work = tasks(Agents(Fixed(3), Fixed(2), Fixed(20), Fixed(3)), count=7)
    assert work.prompt.tolist() == [10, 20, 20, 10 + 5 + 6 + 10, 20, 20, 31 + 5 + 6 + 10]
    assert work.marks["session"].tolist() == [0, NEVER, NEVER, 0, NEVER, NEVER, 0]


def test_a_task_ends_before_the_positions_of_the_model_do():
    work = tasks(Agents(Fixed(9)), count=50, most=60)
    assert (work.prompt + work.output <= 60).all()
    assert np.bincount(work.marks["task"])[:-1].tolist() == [4] * 12  # 15, 30, 45, 60 tokens


def test_what_was_said_is_found_again_and_more_replicas_make_no_task_longer():
    work = tasks(Agents(Fixed(4), Fixed(2)), lengths=(Fixed(160), Fixed(16)), rate=20)
    one, two = (
        served(work, 0, replicas=replicas, router="least_tokens", prefix_tiers=(), costs=Affine(token=10**6))[
            1
        ]
        for replicas in (1, 2)
    )
    # the second turn finds 176 tokens of which the last is never kept: ten whole pages
    assert one.prefix_cache is not None and one.prefix_cache.hit_rate > 0.2
    mean = [result.as_json()["tasks"]["time_s"]["mean"] for result in (one, two)]
    assert mean[1] <= mean[0]
    assert "whole task" in str(one) and len(one) == 200


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"agents": "{turns: 2}", "sessions": 4}, "sessions by themselves"),
        ({"agents": "{turns: 2}", "classes": "[{name: a}]"}, "of one class"),
        ({"agents": "{branch_output: 4}"}, "state their number"),
        ({"agents": "{turns: some}"}, "serving.agents.turns"),
        ({"agents": "{turns: 2}", "arrivals": "clients count=4"}, "come at a rate"),
    ],
)
def test_tasks_that_can_not_be_are_refused(settings, problem):
    stated = {"model.layers": 2, "serving.arrivals": "poisson rate=4/s"}
    stated |= {f"serving.{name}": text for name, text in settings.items()}
    with pytest.raises(ConfigError, match=problem):
        serve(load_job("llama2_7b_inference", settings=stated), load_machine("dgx_a100"), requests=5)
