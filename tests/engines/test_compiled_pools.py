"""Programs that outgrow each of the compiled engine's pools; every answer is still that of the definition."""

import numpy as np
import pytest

from rapid_des.engines import compiled
from rapid_des.engines.compiled import CompiledSimulation, KernelRun
from rapid_des.engines.compiled.pools import MADE, TRAIL
from rapid_des.program.lowering import lower
from tests.engines.agreement import assert_engines_agree
from tests.program.machines import dimension, machine, ring
from tests.program.tracing import ALL_REDUCE, Nodes, same_everywhere, trace_set
from tests.semantics.sketch import Sketch

IN_PARTS = {"mode": "cut_through", "parts": 12, "segment": "4 KiB"}
"""Messages in parts, which links take by priority where collectives are cut into chunks."""


def grown(program, of, **options):
    """Run, and return how large a pool was before and after."""
    simulation = CompiledSimulation(KernelRun(program, **options))
    before = of(simulation.kernel.pools)
    simulation.run()
    return before, of(simulation.kernel.pools)


def many_servers(visits):
    """One rank whose visits all run at once and end at different times."""
    sketch = Sketch()
    rank = sketch.rank(capacities=(1,) * visits)
    for place in range(visits):
        rank.compute(1 + place, server=place)
    return sketch.program()


def test_more_events_than_there_is_room_for():
    program = many_servers(3000)
    before, after = grown(program, lambda pools: len(pools.calendar.next))
    assert before < 3000 < after
    assert_engines_agree(program)


def test_more_work_at_one_instant_than_there_is_room_for():
    sketch = Sketch()
    rank = sketch.rank(capacities=(5000,))
    gate = rank.join(10)
    for _ in range(5000):
        rank.compute(7, after=[gate])
    program = sketch.program()
    before, after = grown(program, lambda pools: len(pools.stack_kind))
    assert before < 5000 < after
    assert assert_engines_agree(program).makespan == 17


def test_more_collectives_in_flight_than_there_is_room_for():
    # 40 collectives of as many groups, each of another size: none can use the room of another
    nodes = Nodes()
    groups = {f"g{place}": (0, 1) for place in range(40)}
    for place, name in enumerate(groups):
        nodes.collective(ALL_REDUCE, 100 + 2 * place, name, stream=f"s{place}")
    program = lower(same_everywhere(nodes, 2, groups=groups), machine(ring(2))).program
    before, after = grown(program, lambda pools: len(pools.instances.group))
    assert before < 40 <= after
    assert_engines_agree(program)


def test_a_collective_larger_than_all_room_so_far():
    nodes = Nodes()
    nodes.collective(ALL_REDUCE, 640)
    program = lower(same_everywhere(nodes, 64), machine(ring(64))).program
    # 64 members exchange 2 * 63 pieces each
    before, after = grown(program, lambda pools: len(pools.pending))
    assert before < 64 * 126 < after
    assert assert_engines_agree(program).hops == 64 * 126


def test_room_of_finished_collectives_is_used_again():
    nodes = Nodes()
    for _ in range(500):
        nodes.collective(ALL_REDUCE, 80)
    program = lower(same_everywhere(nodes, 2), machine(ring(2))).program
    simulation = CompiledSimulation(KernelRun(program))
    simulation.run()
    # the ranks are never more than one collective apart
    assert simulation.kernel.pools.counts[MADE] <= 2


def test_more_messages_on_their_way_than_there_is_room_for():
    sender, receiver = Nodes(), Nodes()
    for tag in range(600):
        sender.send(1, 10, tag=tag, stream=f"s{tag}")
        receiver.recv(0, 10, tag=tag, stream=f"r{tag}")
    program = lower(trace_set([sender, receiver]), machine(ring(2))).program
    before, after = grown(program, lambda pools: len(pools.transfers.next))
    assert before < 600 < after
    records = assert_engines_agree(program)
    # one after the other over the one link: 10 ns each, and the latency of the last
    assert records.makespan == 600 * 10_000 + 100_000


@pytest.mark.parametrize("priority", [0, 1])
def test_more_hops_than_the_trail_has_room_for(priority):
    nodes = Nodes()
    nodes.collective(ALL_REDUCE, 400)
    nodes.collective(ALL_REDUCE, 400, stream="other", priority=priority)
    program = lower(same_everywhere(nodes, 20), machine(dimension("mesh", [20]))).program
    simulation = CompiledSimulation(KernelRun(program, trail=True))
    simulation.run()
    records = simulation.records()
    # two collectives of 20 * 38 pieces; the piece from the end of the line back to its head takes 19 hops
    assert records.hops == 2 * 38 * (19 + 19)
    assert records.hops > 1024
    assert len(records.trail.link) == records.hops == simulation.kernel.pools.counts[TRAIL]
    assert (np.diff(records.trail.start[np.argsort(records.trail.start)]) >= 0).all()
    assert_engines_agree(program, trail=True)


def test_no_room_is_lost_between_runs():
    program = many_servers(3000)
    one, other = compiled.run(program), compiled.run(program)
    np.testing.assert_array_equal(one.finish, other.finish)


def test_more_links_that_are_free_at_once_than_there_is_room_for():
    # Each of 64 GPUs sends four chunks to 31 others at once. Many links are then free at one instant, each
    # takes a part that waits (one event) and says when it is free (another), and nobody asks.
    chunks = {"default": {"algorithm": ["direct", "direct"], "chunks": 4}}
    inner = dimension("switch", 2, bandwidth="50 GB/s", latency="700 ns")
    outer = dimension("switch", 32, bandwidth="25 GB/s", latency="1 us")
    where = machine(inner, outer, switching=IN_PARTS, collectives=chunks)
    nodes = Nodes()
    nodes.collective(ALL_REDUCE, 16384)
    assert_engines_agree(lower(same_everywhere(nodes, 64), where).program)
