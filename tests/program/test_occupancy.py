"""Kernels beside a library's collectives and beside each other, from files to the finish of a visit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapid_des.chakra.trace import BOUNDS, UNSTATED, CollectiveType, RankTrace, TraceSet
from rapid_des.device.device import load_device
from rapid_des.device.operators import Bound
from rapid_des.machine import load_machine
from rapid_des.modes.execution import EngineChoice
from rapid_des.program.builders import Occupancy, rank_program
from rapid_des.program.contention import MOST_STATES, slowdowns, with_contention
from rapid_des.program.timetable import ALONE
from rapid_des.simulation import run_traces
from rapid_des.studies.traffic import GpuKernel, beside
from rapid_des.values import replace
from tests.program.tracing import Nodes

MS = 10**9
LONG = 2**30


def finish(kernel, *, settings=(), where="dgx_h100", **how):
    """When a kernel of 1 ms ends beside an all-gather that outlasts it."""
    machine = load_machine(where, settings=settings)
    traces = beside(range(8), GpuKernel(kernel, MS), CollectiveType.ALL_GATHER, LONG, **how)
    return int(run_traces(traces, machine, EngineChoice("simpy")).execution.records.finish[0])


def test_a_gemm_has_the_sms_that_a_collective_leaves():
    # NCCL's 24 channels of 132 SMs; the launch is not slowed, shares are cut to 1 / 4096
    launch = load_device("h100_sxm").launch_overhead
    assert finish("tensor") == pytest.approx(launch + (MS - launch) * 132 / 108, rel=2 / ALONE)


def test_a_kernel_that_memory_bounds_has_the_bandwidth_that_a_collective_leaves():
    assert MS < finish("hbm") < 1.5 * MS
    assert finish("hbm", settings={"collectives.libraries.dp": _copy_engines()}) == finish("hbm")


def test_copy_engines_take_no_sms():
    assert finish("tensor", settings={"collectives.libraries.dp": _copy_engines()}) == MS


def _copy_engines():
    return {"library": "nccl", "multiprocessors": 0}


@pytest.mark.parametrize(
    ("kernel", "how"),
    [
        ("launch", {}),
        ("latency", {}),
        ("tensor", {"settings": {"collectives.contention": "false"}}),
        ("tensor", {"settings": {"collectives.libraries.dp": {"library": "native"}}}),
        ("tensor", {"waits": True}),
    ],
)
def test_what_is_not_slowed(kernel, how):
    assert finish(kernel, **how) == MS


def test_a_recorded_duration_holds_already_what_ran_beside_it():
    machine = load_machine("dgx_h100")
    traces = beside(range(8), GpuKernel("tensor", MS), CollectiveType.ALL_GATHER, LONG)
    recorded = replace(traces.ranks[0].nodes, bound=np.full(2, UNSTATED, np.int8))
    ranks = tuple(replace(rank, nodes=recorded) for rank in traces.ranks)
    records = run_traces(replace(traces, ranks=ranks), machine, EngineChoice("simpy")).execution.records
    assert records.finish[0] == MS


def test_who_wants_all_of_the_memory_gets_half_of_it():
    device = load_device("h100_sxm")
    kernel: tuple[Bound, int, int] = ("hbm", MS + device.launch_overhead, 0)
    greedy = np.array([10 * int(device.spec.hbm.bandwidth)])
    (slower,) = slowdowns(device, kernel, np.zeros(1, np.int64), greedy)
    assert slower == pytest.approx(1 + MS / kernel[1])


def test_a_table_of_many_sets_of_streams_is_bounded():
    nodes = Nodes()
    nodes.compute(MS, bound=BOUNDS.index("tensor"))
    takers = [Occupancy(sms) for sms in range(1, 21)]
    for stream in ("s0", "s1", "s2"):
        for _ in takers:
            nodes.collective(CollectiveType.ALL_REDUCE, 100, stream=stream)
    table = nodes.table()
    program = rank_program(table, table.duration, expansion=np.full(61, -1, np.int32), expansions=[])
    program = replace(program, server=table.stream)
    which = np.array([-1, *(list(range(20)) * 3)], np.int32)
    contention = with_contention(
        program, table, table.duration, (which, takers), load_device("h100_sxm")
    ).contention
    # 21 states of each of 3 streams are 9,261: each stream counts as the 20 SMs that its largest takes
    assert contention.shares.shape[1] == 8 <= MOST_STATES
    assert contention.weight.tolist() == [0, *[1] * 20, *[2] * 20, *[4] * 20]
    assert contention.shares[0, 7] == pytest.approx(ALONE * (132 - 60) / 132, rel=1e-3)


def pair(first, second):
    """When each of two kernels on two streams ends, on H100 by the definition; (bound, duration, bytes)."""
    nodes = Nodes()
    for stream, (bound, duration, moved) in (("compute", first), ("compute-beside", second)):
        nodes.compute(duration, stream=stream, bound=BOUNDS.index(bound), tensor_bytes=moved)
    machine = load_machine("dgx_h100")
    traces = TraceSet((RankTrace(0, nodes.table(), (), ()),), {})
    runs = [run_traces(traces, machine, EngineChoice(engine)) for engine in ("simpy", "compiled")]
    simpy, compiled = (run.execution.records.finish.tolist() for run in runs)
    assert simpy == compiled
    return simpy


BANDWIDTH = int(load_device("h100_sxm").spec.hbm.bandwidth)


def moved_in(duration):
    """Bytes that H100's memory moves in so many picoseconds."""
    return BANDWIDTH * duration // 10**12


@pytest.mark.parametrize(
    ("first", "second", "ends"),
    [
        # all of the memory, and little of anything: neither slows the other by more than a sixteenth
        (("hbm", MS, moved_in(MS)), ("launch", MS // 4, 0), [MS, MS // 4]),
        # a product and a stream through memory share nothing
        (("tensor", MS, 0), ("hbm", MS, moved_in(MS)), [MS, MS]),
        # two products: each at half the rate until the short one is done, which takes twice its time
        (("tensor", MS, 0), ("tensor", MS // 4, 0), [5 * MS // 4, MS // 2]),
        # half of the memory each: all of it in use, nobody waits
        (("latency", MS, moved_in(MS // 2)), ("latency", MS, moved_in(MS // 2)), [MS, MS]),
        # all of it and half of it: two thirds of the rate each until the short one has done 0.5 ms
        (("hbm", MS, moved_in(MS)), ("latency", MS // 2, moved_in(MS // 4)), [5 * MS // 4, 3 * MS // 4]),
    ],
)
def test_kernels_on_two_streams_share_what_both_need(first, second, ends):
    assert pair(first, second) == pytest.approx(ends, rel=1 / 1000)


@settings(max_examples=25, deadline=None)
@given(
    pairs=st.tuples(
        *(
            st.tuples(st.sampled_from(["tensor", "hbm", "latency"]), st.integers(10**6, MS), st.floats(0, 1))
            for _ in range(2)
        )
    )
)
def test_a_pair_takes_what_it_needs_and_no_more_than_one_after_the_other(pairs):
    device = load_device("h100_sxm")
    kernels = [(bound, duration, moved_in(int(share * duration))) for bound, duration, share in pairs]
    end = max(pair(*kernels))
    launch = int(device.spec.launch.graph)
    of_chip = sum(duration - launch for bound, duration, _ in kernels if bound == "tensor")
    of_memory = sum(
        duration - launch if bound == "hbm" else moved * 10**12 // BANDWIDTH
        for bound, duration, moved in kernels
    )
    durations = [duration for _, duration, _ in kernels]
    assert max(*durations, of_chip, of_memory) * (1 - 2 / ALONE) <= end
    assert end <= sum(durations) * (1 + 2 / ALONE) + 2


def test_a_kernel_on_the_second_stream_meets_messages_too():
    nodes = Nodes()
    nodes.compute(MS, bound=BOUNDS.index("tensor"))
    nodes.compute(MS, stream="compute-beside", bound=BOUNDS.index("tensor"))
    nodes.collective(CollectiveType.ALL_GATHER, LONG)
    machine = load_machine("dgx_h100")
    table = nodes.table()
    ranks = tuple(RankTrace(rank, table, ("world",), ()) for rank in range(8))
    traces = replace(beside(range(8), GpuKernel("tensor", MS), CollectiveType.ALL_GATHER, LONG), ranks=ranks)
    finish = run_traces(traces, machine, EngineChoice("simpy")).execution.records.finish
    launch = load_device("h100_sxm").launch_overhead
    # each at half of what 108 of 132 SMs give
    assert finish[0] == pytest.approx(2 * (launch + (MS - launch) * 132 / 108), rel=4 / ALONE)
