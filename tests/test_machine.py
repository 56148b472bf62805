"""Machine files: every preset loads, and what is wrong is one line with place, value and what is allowed."""

import pytest

from rapid_des.config import preset_names
from rapid_des.errors import ConfigError, TopologyError
from rapid_des.machine import MachineSpec, load_machine
from rapid_des.network.faults import link_timetables, parse_fault
from rapid_des.network.metrics import channel_dependency_cycle

MACHINE = """
name: small
device: a100_sxm_80gb
gpus_per_node: 4
fabric:
  - {name: nvlink, shape: switch, size: 4, bandwidth: 300 GB/s, latency: 350 ns}
  - {name: ring, shape: ring, size: 3, bandwidth: 25 GB/s, latency: 1 us}
routing: {order: innermost_first, tie: positive}
switching: {mode: cut_through, segment: 4 KiB}
"""


LINK = "links: [{source: 0, both_directions: true, destination: %s}]\nrouting:"
FAULT = "faults: [{%s}]\nrouting:"


@pytest.fixture
def write(tmp_path):
    def written(text):
        path = tmp_path / "m.yaml"
        path.write_text(text)
        return path

    return written


@pytest.mark.parametrize("name", preset_names("machine"))
def test_every_preset_is_a_machine_whose_gpus_reach_each_other(name):
    machine = load_machine(name)
    gpus = machine.fabric.gpus
    step = max(1, gpus // 16)
    pairs = [(a, b) for a in range(0, gpus, step) for b in range(gpus)]
    routes = machine.router.routes(pairs)
    for flow, (source, destination) in enumerate(pairs):
        links = list(routes.of(flow))
        ends = [source, *machine.fabric.destination[links].tolist()]
        assert machine.fabric.source[links].tolist() == ends[:-1]
        assert ends[-1] == destination
    assert machine.device.spec.sms > 0


def test_the_papers_machine_has_its_rates():
    fabric = load_machine("torus2d_ring_a100_64").fabric
    assert (fabric.gpus, len(fabric)) == (64, 64 * 4 + 64 * 2)
    assert set(fabric.bandwidth.tolist()) == {100_000_000_000, 25_000_000_000}


def test_rails_join_equal_gpus_of_all_nodes():
    machine = load_machine("dgx_a100_x4")
    # GPU 1 of node 0 to GPU 1 of node 3: NIC, rail switch, NIC; no NVLink.
    route = [machine.fabric.link_name(link) for link in machine.router.route(1, 25)]
    assert [name.split(">")[1] for name in route] == ["nic1", "switch5", "nic25", "gpu25"]
    # A non-blocking rail fabric is free of circles; only tori need virtual channels.
    assert channel_dependency_cycle(machine.fabric, machine.router) == ()


def test_settings_change_any_key_before_the_checks():
    machine = load_machine("dgx_a100_x4", settings=[("fabric.0.bandwidth", "0.5x"), ("fabric.1.size", "2")])
    assert machine.fabric.gpus == 16
    assert machine.fabric.bandwidth.max() == 150_000_000_000
    assert load_machine("dgx_a100", device_settings=[("sms", "54")]).device.spec.sms == 54


def test_links_may_have_rates_of_their_own(write):
    link = "{source: 0, destination: '(0, 1)', both_directions: false, bandwidth: 1 GB/s, latency: 9 us}"
    fabric = load_machine(write(f"{MACHINE}links: [{link}]")).fabric
    there, back = fabric.link(0, 4), fabric.link(4, 0)
    assert (fabric.bandwidth[there], fabric.latency[there]) == (1_000_000_000, 9_000_000)
    assert fabric.bandwidth[back] == 25_000_000_000


def test_faults_of_the_file_and_of_the_call_add_up(write):
    text = MACHINE + "faults: [{link: 0-4, down: true}, {link: 1-5, bandwidth: 0.5, until: 1 ms}]"
    machine = load_machine(write(text), faults=[parse_fault("node=2 down=true")])
    assert machine.lost == frozenset({8, 9, 10, 11})
    assert machine.fabric.link(0, 4) in machine.dead
    # 0-4 is dead and so is the way round over node 2: over GPU 1 instead.
    names = [machine.fabric.link_name(link) for link in machine.router.route(0, 4)]
    assert names == ["gpu0>switch0", "switch0>gpu1", "gpu1>gpu5", "gpu5>switch1", "switch1>gpu4"]
    assert len(link_timetables(machine.fabric, machine.faults, 10**9, 4)) == 2


def test_a_graph_file_is_found_beside_the_machine_file(write, tmp_path):
    (tmp_path / "pair.csv").write_text("source,destination\n0,1\n")
    text = MACHINE.replace("shape: ring, size: 3", "shape: graph, size: 2, file: pair.csv")
    assert load_machine(write(text)).fabric.gpus == 8


def test_a_link_that_goes_down_later_is_routed_around_when_asked(write):
    machine = load_machine(write(MACHINE))
    dead = frozenset({machine.fabric.link(0, 4)})
    assert len(machine.router.route(0, 4)) == 1
    assert machine.fabric.link(0, 4) not in machine.router_around(dead).route(0, 4)
    assert machine.router_around(frozenset()) is machine.planned


def test_an_algorithm_is_chosen_by_operation_else_by_default(write):
    text = (
        "collectives: {default: ring, all_to_all: direct, all_reduce: {algorithm: [direct, ring], chunks: 4}}"
    )
    collectives = load_machine(write(MACHINE + text)).collectives
    assert collectives.choice("broadcast").algorithm == "ring"
    assert collectives.choice("all_to_all").algorithm == "direct"
    assert collectives.choice("all_reduce").algorithm == ("direct", "ring")
    assert collectives.choice("all_reduce").chunks == 4
    assert load_machine(write(MACHINE)).collectives.choice("barrier") is None


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("shape: ring", "shape: tours", "fabric[1].shape: 'tours' is not one of ring, mesh, torus"),
        ("size: 3", "sizes: 3", "fabric[1]: unknown key 'sizes'; did you mean 'size'?"),
        ("size: 3", "size: 0", "fabric[1].size: 0 is not a whole number from 1"),
        ("size: 3", "size: three", "fabric[1].size"),
        ("25 GB/s", "25", "fabric[1].bandwidth: 25 is not a quantity such as '450 GB/s'"),
        ("25 GB/s", "25 GiB", "'25 GiB' has unit 'GiB'; allowed:"),
        ("25 GB/s", "0 GB/s", "dimension ring: bandwidth: must be above 0"),
        ("name: ring,", "name: nvlink,", "dimensions of different names"),
        ("tie: positive", "tie: up", "routing.tie: 'up' is not one of"),
        (", tie: positive", "", "routing: missing key 'tie'"),
        ("a100_sxm_80gb", "a100_sxm_90gb", "device: no device file 'a100_sxm_90gb' here"),
        (", segment: 4 KiB", "", "switching.segment: missing"),
        ("cut_through, segment: 4 KiB", "fluid, segment: 4 KiB", "switching.segment: the fluid mode has no"),
        ("4 KiB", "0 B", "switching.segment: 0 B; allowed: above 0"),
        ("cut_through, segment: 4 KiB", "fluid, parts: 2", "switching.parts: 2; allowed: 1, or more with"),
        ("segment: 4 KiB", "segment: 4 KiB, parts: 0", "switching.parts: 0 is not a whole number from 1"),
        ("size: 3", "size: 16777216", "67108864 GPUs; allowed: up to 16777216"),
        ("routing:", LINK % "9, latency: 1 us",
         "links[0]: small: no link leads from gpu0 to gpu9"),
        ("routing:", LINK % "4", "neither bandwidth nor"),
        ("routing:", FAULT % "link: 0-9, down: true", "faults[0]: small: no link leads"),
        ("routing:", FAULT % "link: 0-4, bandwidth: 2", "faults[0].bandwidth: 2 is not a number above 0"),
        ("routing:", FAULT % "link: 0-4, down: true, from: 2 s, until: 1 s", "until: 1 s is not after"),
        ("routing:", FAULT % "node: 3, down: true", "there is no node 3; allowed: 0 to 2"),
    ],
)  # fmt: skip
def test_a_wrong_machine_file_is_one_clear_line(write, old, new, says):
    assert old in MACHINE
    with pytest.raises((ConfigError, TopologyError)) as caught:
        load_machine(write(MACHINE.replace(old, new)))
    assert says in str(caught.value)
    assert "m.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("mode", ["fluid", "store_and_forward"])
def test_another_mode_is_one_setting_away_from_a_preset_that_sends_parts(mode):
    assert load_machine("dgx_a100").switching.parts == 12
    assert load_machine("dgx_a100", settings=[("switching.mode", mode)]).switching.parts == 1
    with pytest.raises(ConfigError, match="switching.parts: 4; allowed: 1, or more with mode cut_through"):
        load_machine("dgx_a100", settings=[("switching.mode", mode), ("switching.parts", "4")])


def test_the_file_format_has_a_json_schema():
    from rapid_des.config import json_schema

    assert "fabric" in str(json_schema(MachineSpec))
