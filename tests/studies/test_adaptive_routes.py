"""What ways chosen by load are worth: shifts by a group of GPUs, the worst case of minimal routes."""

import pytest

from rapid_des.machine import load_machine
from rapid_des.simulation import replay
from rapid_des.studies.traffic import shift

MIB = 1 << 20
BY_LOAD = {"ways": 4, "per": "part", "choose": "least_loaded", "detours": 4, "bias": "0 ns"}


@pytest.mark.parametrize(
    ("name", "by", "times"),
    [
        # of four groups one is the goal: with half of the messages over the other two each link carries half
        ("dragonfly_a100_256", 64, (1351, 785)),
        ("dragonfly_plus_a100_128", 32, (1860, 1132)),
        ("hyperx_a100_128", 32, (684, 413)),
    ],
)
def test_readmes_shifts_by_a_group(name, by, times):
    minimal = load_machine(name)
    adaptive = load_machine(name, settings={"switching.spray": BY_LOAD})
    traces = shift(minimal.fabric.gpus, by, 4 * MIB)
    taken = [int(replay(traces, one).step_time) / 1e6 for one in (minimal, adaptive)]
    assert [round(time) for time in taken] == list(times)
