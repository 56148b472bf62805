"""Faults and tenants of flows: those of every link of their routes."""

import pytest

from rapid_des.errors import ConfigError, TopologyError
from rapid_des.machine import load_machine
from rapid_des.network.faults import parse_fault


def with_fault(text, name="dgx_a100_x2"):
    return load_machine(name).with_faults([parse_fault(text)])


def slowed(machine):
    changed = (machine.fabric.bandwidth != machine.healthy.bandwidth).nonzero()[0]
    return {
        machine.fabric.link_name(link): machine.fabric.bandwidth[link] / machine.healthy.bandwidth[link]
        for link in changed.tolist()
    }


def test_a_flow_loads_every_link_of_its_route_in_its_direction():
    machine = with_fault("flow=0>9 load=0.25")
    assert slowed(machine) == dict.fromkeys(load_machine("dgx_a100_x2").route(0, 9), 0.75)


def test_flows_of_a_set_add_up_where_they_meet():
    there, other = (load_machine("dgx_a100").route(*pair) for pair in ((0, 2), (1, 2)))
    machine = with_fault("flow=0>2;1>2 load=0.25", "dgx_a100")
    assert set(slowed(machine)) == {*there, *other}
    assert slowed(machine)[there[1]] == 0.5


def test_both_directions_of_a_flow_may_be_named():
    machine = with_fault("flow=0-9 bandwidth=0.5")
    routes = load_machine("dgx_a100_x2")
    assert slowed(machine) == dict.fromkeys([*routes.route(0, 9), *routes.route(9, 0)], 0.5)


def test_a_machine_file_states_flows_too():
    machine = load_machine("dgx_a100", settings={"faults": [{"flow": "0>1", "load": 0.1}]})
    assert list(slowed(machine)) == list(machine.route(0, 1))
    assert [fault.link for fault in machine.faults] == ["gpu0>switch0", "switch0>gpu1"]


def test_flows_that_are_none_are_refused():
    with pytest.raises(TopologyError, match="--fault 'flow=0>99 load=0.1': .*there is no gpu 99"):
        with_fault("flow=0>99 load=0.1")
    with pytest.raises(TopologyError, match="'gpu0' names no flow; allowed: A-B, A>B"):
        with_fault("flow=gpu0 load=0.1")
    with pytest.raises(ConfigError, match="burst: not with flow"):
        parse_fault("flow=0>1 load=0.1 burst=1ms peak=0.5 seed=1")
