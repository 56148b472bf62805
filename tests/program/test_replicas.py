"""A program of one replica ends when the program of all replicas ends, rank by rank."""

import numpy as np
import pytest

from rapid_des.chakra.trace import CollectiveType, TraceSet
from rapid_des.engines.simpy import engine as simpy
from rapid_des.errors import UnsupportedByEngine
from rapid_des.program.lowering import lower
from rapid_des.program.replicas import Replicas
from rapid_des.report.breakdown import finish_times
from tests.program.machines import machine, ring, switch
from tests.program.tracing import Nodes, same_everywhere

C = CollectiveType


def finish(traces, where, replicas=None):
    """Return when each rank is done, the hops of all, and whether links chose among equals."""
    lowered = lower(traces, where, replicas=replicas)
    records = simpy.run(lowered.program, ties=True)
    ends = lowered.of_every_rank(finish_times(lowered, records).tolist())
    return ends, records.hops * lowered.copies, bool(records.ties)


def next_to(ranks, count):
    return Replicas(count, (np.arange(ranks) + ranks // count) % ranks)


@pytest.mark.parametrize("count", [3, 6])
@pytest.mark.parametrize("algorithm", ["ring", "bidirectional_ring"])
@pytest.mark.parametrize("kind", [C.ALL_REDUCE, C.ALL_GATHER, C.REDUCE_SCATTER])
def test_a_ring_of_six_in_replicas(kind, algorithm, count):
    where = machine(ring(6), collectives={"default": algorithm})
    nodes = Nodes()
    nodes.collective(kind, 6000, after=nodes.compute(500))
    nodes.collective(kind, 1200, after=nodes.compute(700))
    traces = same_everywhere(nodes, 6)
    first = TraceSet(traces.ranks[: 6 // count], traces.groups)
    whole = finish(traces, where)
    assert not whole[-1]
    assert finish(first, where, next_to(6, count)) == whole


def test_a_small_all_reduce_over_one_switch_in_replicas():
    where = machine(switch(6))
    nodes = Nodes()
    nodes.collective(C.ALL_REDUCE, 3)  # fewer bytes than members: everybody sends to everybody else
    traces = same_everywhere(nodes, 6)
    whole = finish(traces, where)
    assert finish(TraceSet(traces.ranks[:1], traces.groups), where, next_to(6, 6)) == whole


@pytest.mark.parametrize(
    ("where", "size", "problem"),
    [
        (machine(ring(6)), 6001, "blocks of different sizes"),
        (machine(ring(6), collectives={"default": "halving_doubling"}), 6000, "has no cut"),
        (machine(switch(2), ring(3)), 6000, "differ"),
    ],
)
def test_what_tells_replicas_apart_is_refused(where, size, problem):
    nodes = Nodes()
    nodes.collective(C.ALL_REDUCE, size)
    traces = same_everywhere(nodes, 6)
    with pytest.raises(UnsupportedByEngine, match=problem):
        lower(TraceSet(traces.ranks[:1], traces.groups), where, replicas=next_to(6, 6))
