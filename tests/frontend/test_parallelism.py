"""Every schedule in the registry: complete, ordered, runnable, within its bound of in-flight work."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapid_des.frontend.parallelism import SCHEDULES, Item, execution_order, in_flight, predecessor


@st.composite
def shapes(draw):
    stages = draw(st.integers(1, 6))
    return stages, stages * draw(st.integers(1, 4)), draw(st.integers(1, 3))


def orders(name, shape):
    stages, micro_batches, chunks = shape
    chunks = chunks if SCHEDULES[name].interleaves else 1
    return SCHEDULES[name].orders(stages, micro_batches, chunks), chunks


@pytest.mark.parametrize("name", SCHEDULES)
@settings(deadline=None)
@given(shape=shapes())
def test_every_micro_batch_passes_every_part_once_each_way(name, shape):
    lists, chunks = orders(name, shape)
    expected = Counter(
        Item(phase, index, chunk)
        for phase in ("forward", "backward")
        for index in range(shape[1])
        for chunk in range(chunks)
    )
    assert all(Counter(order) == expected for order in lists)


@pytest.mark.parametrize("name", SCHEDULES)
@settings(deadline=None)
@given(shape=shapes())
def test_no_item_runs_before_what_it_consumes(name, shape):
    lists, chunks = orders(name, shape)
    done = set()
    for stage, item in execution_order(lists, chunks):
        needs = predecessor(shape[0], chunks, stage, item)
        assert needs is None or needs in done
        assert item.phase == "forward" or (stage, Item("forward", *item[1:])) in done
        done.add((stage, item))
    assert len(done) == sum(map(len, lists))


@pytest.mark.parametrize("name", SCHEDULES)
@settings(deadline=None)
@given(shape=shapes())
def test_messages_in_schedule_order_never_block_in_order_streams(name, shape):
    """Sends leave in the order of their items and wait for the receive; receives in the order of theirs."""
    lists, chunks = orders(name, shape)
    sends, receives = [[] for _ in lists], [[] for _ in lists]
    for stage, order in enumerate(lists):
        for item in order:
            needs = predecessor(shape[0], chunks, stage, item)
            if needs is not None and needs[0] != stage:
                receives[stage].append((*needs, stage))
    consumers = {(source, item): stage for line in receives for source, item, stage in line}
    for stage, order in enumerate(lists):
        sends[stage] = [(stage, item, consumers[stage, item]) for item in order if (stage, item) in consumers]
    position, done = [0] * shape[0], set()
    arrived = set()
    moved = True
    while moved:
        moved = False
        for stage, order in enumerate(lists):
            if position[stage] < len(order):
                needs = predecessor(shape[0], chunks, stage, order[position[stage]])
                if needs is None or (needs in arrived if needs[0] != stage else needs in done):
                    done.add((stage, order[position[stage]]))
                    position[stage] += 1
                    moved = True
            if sends[stage]:
                source, item, target = sends[stage][0]
                if (source, item) in done and receives[target][0] == (source, item, target):
                    arrived.add((source, item))
                    del sends[stage][0], receives[target][0]
                    moved = True
    assert all(index == len(order) for index, order in zip(position, lists, strict=True))


@settings(deadline=None)
@given(shape=shapes())
def test_in_flight_micro_batches_stay_within_each_schedules_bound(shape):
    stages, micro_batches, chunks = shape
    # GPipe holds all; 1F1B at most as many as stages follow (itself included).
    assert {in_flight(order) for order in SCHEDULES["gpipe"].orders(stages, micro_batches, 1)} == {
        micro_batches
    }
    for stage, order in enumerate(SCHEDULES["1f1b"].orders(stages, micro_batches, 1)):
        assert in_flight(order) == min(micro_batches, stages - stage)
    # Interleaved: the first stage holds pp·v + pp - 1 chunks (Korthikanti et al. 2022, section 4.2.3).
    first = SCHEDULES["interleaved_1f1b"].orders(stages, micro_batches, chunks)[0]
    assert in_flight(first) == min(micro_batches * chunks, stages * chunks + stages - 1)
