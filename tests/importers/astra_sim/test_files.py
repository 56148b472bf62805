from __future__ import annotations

import pytest

from rapid_des.errors import ConfigError
from rapid_des.importers.astra_sim.other_backends import refuse_other_backends


def test_unknown_keys_are_noted_with_the_nearest_known_one(bench):
    bench.system |= {"boost-mode": 0, "endpoint-delai": 3}
    del bench.system["endpoint-delay"]
    setup = bench.setup()
    assert "ignored, as ASTRA-sim reads no such key: sys.json: boost-mode 0" in setup.notes
    (near,) = (each for each in setup.ignored if each.key == "sys.json: endpoint-delai")
    assert near.reason == "ASTRA-sim reads no such key (did you mean 'endpoint-delay'?)"


def test_absent_endpoint_delay_is_that_simulators_own_ten_nanoseconds(bench):
    del bench.system["endpoint-delay"]
    assert bench.setup().system.endpoint_delay == 10


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        ("network", {"topology": ["Donut"]}, "topology[0]: 'Donut' is not one of FullyConnected, HyperCube"),
        ("network", {"bandwidth": [50.0, 25.0]}, "bandwidth: 2 entries, but topology names 1"),
        ("network", {"latency": [-1.0]}, "latency[0]"),
        ("network", {"npus_count": [0]}, "npus_count[0]"),
        ("network", {"npus_count": "four"}, "npus_count"),
        ("network", {"faulty_links": [[0, 1, 1.5]]}, "faulty_links[0][2]"),
        *(
            (
                "network",
                {"latency": [text] * 2},
                f"latency[0]: {text!r} is not a number from 0 to",
            )
            for text in ("0-1", "1_000", "１２", "0x10", "1:30")
        ),
        ("system", {"scheduling-policy": "RANDOM"}, "scheduling-policy: 'RANDOM' is not one of"),
        ("system", {"preferred-dataset-splits": 0}, "preferred-dataset-splits"),
        ("system", {"model-shared-bus": 1}, "model-shared-bus: 1 (the LogGP bus) is not supported"),
        ("system", {"roofline-enabled": 1}, "roofline-enabled: needs peak-perf"),
        ("system", {"all-reduce-implementation-custom": ["x"]}, "custom collectives are not supported"),
    ],
)
def test_wrong_files_are_one_line_that_names_the_key(bench, file, change, said):
    setattr(bench, file, getattr(bench, file) | change)
    with pytest.raises(ConfigError) as failure:
        bench.setup()
    assert said in str(failure.value)
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ({"tp": [0, 1]}, "tp: a group's name must be a number"),
        ({"1": [0, 0]}, "1: a group must be a list of distinct ranks"),
        ({"1": "all"}, "1: a group must be a list of distinct ranks"),
        ([0, 1], "the top level must be a mapping"),
        ("{", "not valid JSON"),
    ],
)
def test_wrong_groups_are_one_line(bench, groups, said):
    bench.groups = groups
    with pytest.raises(ConfigError) as failure:
        bench.setup()
    assert said in str(failure.value)


def test_json_may_be_indented_with_tabs(bench):
    bench.system = '{\n\t"endpoint-delay": 7\n}'
    assert bench.setup().system.endpoint_delay == 7


def test_memory_that_is_shared_by_a_node_must_say_how_many_share_it(bench):
    bench.memory = {"memory-type": "PER_NODE_MEMORY_EXPANSION", "remote-mem-latency": 1, "remote-mem-bw": 2}
    with pytest.raises(ConfigError, match="num-npus-per-node"):
        bench.setup()


def test_a_missing_file_is_named(bench):
    setup = bench.setup()
    setup.files.network.unlink()
    from rapid_des.importers.astra_sim import read_setup

    with pytest.raises(ConfigError, match=r"net\.yml: cannot be read"):
        read_setup(setup.files)


def test_queues_below_one_are_refused(bench):
    with pytest.raises(ConfigError, match="--astra-queues-per-dim"):
        bench.setup(queues=0)


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        (
            "config.txt",
            "ENABLE_QCN 1\nUSE_DYNAMIC_PFC_THRESHOLD 1\n",
            "the configuration of ASTRA-sim's ns-3",
        ),
        (
            "config.txt",
            "CLAMP_TARGET_RATE 0\nTOPOLOGY_FILE 8_nodes.txt\n",
            "the configuration of ASTRA-sim's",
        ),
        ("logical.json", '{"logical-dims": ["8"]}', "the logical topology of ASTRA-sim's ns-3 backend"),
        ("8_nodes_1_switch.txt", "9 1 8\n8\n0 8 400Gbps 0.0005ms 0\n", "a physical topology of ASTRA-sim's"),
        ("fat_tree.topo", "Nodes 16\nTiers 3\nPodsize 4\n", "a topology or a connection matrix of htsim"),
        ("ring.cm", "Nodes 8\nConnections 8\n0->1 id 1 start 0 size 4096\n", "a topology or a connection"),
    ],
)
def test_files_of_other_backends_are_refused_by_what_they_are(tmp_path, name, text, kind):
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=f"is {kind}.*network.yml of the analytical backend"):
        refuse_other_backends(tmp_path / name)
