"""A result depends on the model's facts, not on how a trace numbers or names what it speaks of."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapid_des.chakra.trace import RankTrace, TraceSet
from rapid_des.program.lowering import lower
from rapid_des.values import replace
from tests.engines.agreement import RUN, assert_same
from tests.engines.random_programs import machines, traces


def renamed(trace_set: TraceSet, rng) -> TraceSet:
    """Other ids, numbers of streams, groups and peers, group names, and orders of dependencies."""
    ranks = tuple(_renamed_rank(trace, rng) for trace in trace_set.ranks)
    names = list(trace_set.groups)
    rng.shuffle(names)
    return TraceSet(ranks, {f"~{name}": trace_set.groups[name] for name in names})


def _renamed_rank(trace: RankTrace, rng) -> RankTrace:
    nodes = trace.nodes
    streams, stream_to = _shuffled(nodes.streams, rng)
    groups, group_to = _shuffled(trace.groups, rng)
    peers, peer_to = _shuffled(trace.peers, rng)
    ids = list(range(7, 7 + 3 * len(nodes), 3))
    rng.shuffle(ids)
    rows = np.split(nodes.dependencies, nodes.dependency_starts[1:-1]) if len(nodes) else []
    rows = [rng.sample(row.tolist(), len(row)) for row in rows]
    table = replace(
        nodes,
        ids=np.array(ids, np.uint64),
        streams=streams,
        stream=stream_to[nodes.stream],
        group=np.where(nodes.group >= 0, group_to[nodes.group], nodes.group).astype(np.int32),
        peer=np.where(nodes.peer >= 0, peer_to[nodes.peer], nodes.peer).astype(np.int32),
        dependencies=np.array([before for row in rows for before in row], np.int32),
    )
    return RankTrace(trace.rank, table, tuple(f"~{name}" for name in groups), peers)


def _shuffled(values, rng):
    """The values in another order, and where each old place went."""
    order = list(range(len(values)))
    rng.shuffle(order)
    to = np.zeros(max(len(values), 1), np.int32)
    to[order] = np.arange(len(values))
    return tuple(values[old] for old in order), to


@pytest.mark.parametrize("engine", sorted(RUN))
@settings(max_examples=8, deadline=None)
@given(st.data())
def test_ids_slots_and_names_change_nothing(engine, data):
    where = data.draw(machines())
    original = data.draw(traces(where.fabric.gpus))
    other = renamed(original, data.draw(st.randoms(use_true_random=False)))
    one, two = (RUN[engine](lower(each, where).program) for each in (original, other))
    # statistics are kept by stream, whose numbers differ; their sums do not
    assert_same(*(_summed(records) for records in (one, two)))


def _summed(records):
    names = ("link_bytes", "link_busy", "link_wait")
    return replace(records, **{name: getattr(records, name).sum(axis=1) for name in names})
