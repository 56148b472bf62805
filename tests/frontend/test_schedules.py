"""Every schedule: complete, in an order that runs, within its bounds of work in flight and bubble."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapid_des.frontend.schedules import SCHEDULES
from rapid_des.frontend.schedules.schedule import PassResult, PipelineShape, in_flight


@st.composite
def shapes(draw):
    stages = draw(st.integers(1, 7))
    return PipelineShape(
        stages,
        draw(st.integers(1, 24)),
        draw(st.integers(1, 3)),
        draw(st.sampled_from([None, *range(1, 12)])),
    )


def fitted(name, shape):
    """Return the shape with the schedule's own chunks if the schedule takes it, else None."""
    schedule = SCHEDULES[name]
    chosen = shape._replace(chunks=schedule.chunks or shape.chunks)
    return None if schedule.refusal(chosen) else chosen


def plans(name, shape):
    chosen = fitted(name, shape)
    return [] if chosen is None else [(chosen, SCHEDULES[name].stage_orders(chosen))]


def times(plan, forward, input_gradient, weight_gradient, pair=None):
    """Return by stage the start and end of all items, messages taking no time; pairs as one if given."""
    length = {"forward": forward, "input_gradient": input_gradient, "weight_gradient": weight_gradient}
    length["backward"] = input_gradient + weight_gradient
    queues = [units(order, joined=pair is not None) for order in plan.orders]
    free = [0] * len(queues)
    spans: list[list[tuple[int, int]]] = [[] for _ in queues]
    ends: dict[tuple[int, PassResult], int] = {}
    while any(queues):
        for stage, queue in enumerate(queues):
            needs = [plan.needs(stage, item) for item in queue[0]] if queue else []
            while queue and all(need is None or need in ends for need in needs):
                unit = queue.pop(0)
                start = max([free[stage], *(ends[need] for need in needs if need)])
                free[stage] = start + (pair if len(unit) == 2 else length[unit[0].phase])
                spans[stage].append((start, free[stage]))
                for item in unit:
                    if item.phase != "weight_gradient":
                        ends[stage, PassResult(item.direction, item.micro_batch, item.chunk)] = free[stage]
                needs = [plan.needs(stage, item) for item in queue[0]] if queue else []
    return spans


def units(order, *, joined):
    """Return the items of an order, pairs together if `joined`."""
    found: list[list[Any]] = []
    for place, item in enumerate(order):
        if joined and place and order[place - 1].paired:
            found[-1].append(item)
        else:
            found.append([item])
    return found


def bubble(spans):
    """Return the longest that a stage waits between its first item and its last."""
    return max(own[-1][1] - own[0][0] - sum(end - start for start, end in own) for own in spans)


@pytest.mark.parametrize("name", SCHEDULES)
@settings(deadline=None)
@given(shape=shapes())
def test_every_micro_batch_passes_every_part_once_each_way_in_an_order_that_runs(name, shape):
    for chosen, plan in plans(name, shape):
        passed: Counter[Any] = Counter()
        for stage, item in plan.execution():
            part = plan.placement[stage][item.chunk]
            halves = {
                "backward": ("input", "weight"),
                "input_gradient": ("input",),
                "weight_gradient": ("weight",),
            }
            passed.update((half, part, item.micro_batch) for half in halves.get(item.phase, ("forward",)))
        expected = Counter(
            (half, part, number)
            for half in ("forward", "input", "weight")
            for part in plan.holders
            for number in range(chosen.micro_batches)
        )
        assert passed == expected


@pytest.mark.parametrize("name", SCHEDULES)
@settings(deadline=None)
@given(shape=shapes())
def test_chunks_in_flight_reach_the_schedules_bound_and_no_more(name, shape):
    for chosen, plan in plans(name, shape):
        assert max(map(in_flight, plan.orders)) == SCHEDULES[name].bound(chosen)


@pytest.mark.parametrize("name", SCHEDULES)
@settings(deadline=None)
@given(shape=shapes())
def test_asking_in_the_order_of_need_never_blocks_in_order_streams(name, shape):
    """Sends leave in the order of their items and wait for the receive; receives in the order of theirs."""
    for chosen, plan in plans(name, shape):
        if not SCHEDULES[name].by_need(chosen):
            continue
        asked = [
            [(need, stage) for item in order if (need := plan.needs(stage, item)) and need[0] != stage]
            for stage, order in enumerate(plan.orders)
        ]
        consumers = {need: stage for line in asked for need, stage in line}
        sends = [
            [
                ((stage, result), consumers[stage, result])
                for item in order
                if (stage, result := PassResult(item.direction, item.micro_batch, item.chunk)) in consumers
            ]
            for stage, order in enumerate(plan.orders)
        ]
        position, moved = [0] * len(plan.orders), True
        done: set[tuple[int, PassResult]] = set()
        arrived: set[tuple[int, PassResult]] = set()
        while moved:
            moved = False
            for stage, order in enumerate(plan.orders):
                if position[stage] < len(order):
                    item = order[position[stage]]
                    need = plan.needs(stage, item)
                    if need is None or need in (done if need[0] == stage else arrived):
                        done.add((stage, PassResult(item.direction, item.micro_batch, item.chunk)))
                        position[stage] += 1
                        moved = True
                if sends[stage]:
                    message, target = sends[stage][0]
                    if message in done and asked[target][0][0] == message:
                        arrived.add(message)
                        del sends[stage][0], asked[target][0]
                        moved = True
        assert position == [len(order) for order in plan.orders]


CLOSED = {
    # Huang et al. 2019; Narayanan et al. 2021, section 2.2: (p - 1)(F + B), over v where chunks interleave.
    "gpipe": lambda p, f, b, w: (p - 1) * (f + b + w),
    "1f1b": lambda p, f, b, w: (p - 1) * (f + b + w),
    "interleaved_1f1b": lambda p, f, b, w: (p - 1) * (f + b + w),
    "breadth_first": lambda p, f, b, w: (p - 1) * (f + b + w),
    # Qi et al. 2023 (arXiv 2401.10241), table 1.
    "zb_h1": lambda p, f, b, w: (p - 1) * (f + b - w),
    "zb_h2": lambda p, f, b, w: (p - 1) * (f + b - 2 * w),
}


@pytest.mark.parametrize("durations", [(1, 1, 1), (10, 12, 9)])
@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("name", CLOSED)
def test_the_bubble_is_the_papers(name, stages, durations):
    chunks = SCHEDULES[name].chunks or 3
    plan = SCHEDULES[name].stage_orders(PipelineShape(stages, 4 * stages, chunks))
    assert bubble(times(plan, *durations)) == CLOSED[name](stages, *durations)


@pytest.mark.parametrize("stages", [2, 3, 8])
def test_zb_v_has_no_bubble_where_all_passes_take_equally_long(stages):
    assert bubble(times(SCHEDULES["zb_v"].stage_orders(PipelineShape(stages, 2 * stages, 2)), 1, 1, 1)) == 0
    assert (
        bubble(times(SCHEDULES["zb_v"].stage_orders(PipelineShape(stages, 3 * stages + 1, 2)), 1, 1, 1)) == 0
    )


@pytest.mark.parametrize(
    ("name", "stages"), [("dualpipe", 8), ("dualpipe", 4), ("dualpipe_v", 4), ("dualpipe_v", 2)]
)
def test_dualpipes_bubble_is_its_papers(name, stages):
    # DeepSeek-V3 (arXiv 2412.19437), table 2: (p/2 - 1)(F&B + B - 3W), in units F&B 3, B 2, W 1.
    half = stages // 2 if name == "dualpipe" else stages
    plan = SCHEDULES[name].stage_orders(PipelineShape(stages, 4 * half, 2))
    assert bubble(times(plan, 1, 1, 1, pair=3)) == (half - 1) * (3 + 2 - 3)
    # Where halves of a pair hand on their results one by one: (p/2 - 1)(F + I - W).
    assert bubble(times(plan, 1, 1, 1)) == half - 1
