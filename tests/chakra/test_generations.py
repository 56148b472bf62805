"""Every wire generation, found in files or made from its description, reads as the same program."""

import pytest

from rapid_des.chakra import UNSTATED, CollectiveType, NodeKind, ReadOptions, read_nodes, read_set
from rapid_des.chakra.wire import message_class
from rapid_des.errors import TraceError
from tests.chakra.writing import metadata, node, one_rank, write


def old_class(name, generation):
    return message_class(name, f"rapid_des.chakra.{generation}")


def eg_nodes():
    """A compute node of 7 us, and an all-gather of 64 bytes behind it, as 0.0.1 writes them."""
    make = old_class("Node", "v0_0_1")
    first = make(id=0, name="c", node_type=3, simulated_run_time=7)
    second = make(
        id=1, name="g", node_type=6, comm_type=3, comm_size=64, parent=[0], involved_dim=[True, True]
    )
    return [first.SerializeToString(), second.SerializeToString()]


def attribute_nodes(generation, kinds, integer):
    """The same program as 0.0.2 and 0.0.3 write it: `kinds` are the numbers of (compute, collective)."""
    make = old_class("Node", generation)
    number = {"v0_0_2": 1, "v0_0_3a": 2, "v0_0_3b": 3}[generation]
    first = make(id=0, name="c", type=kinds[0])
    first.attribute.add(name="runtime", type=number, **{integer: 7})
    second = make(id=1, name="g", type=kinds[1], parent=[0])
    second.attribute.add(name="comm_type", type=number, **{integer: 2})
    second.attribute.add(name="comm_size", type=number, **{integer: 64})
    return [first.SerializeToString(), second.SerializeToString()]


PROGRAMS = {
    "0.0.1": eg_nodes(),
    "0.0.2": attribute_nodes("v0_0_2", (3, 6), "i"),
    "0.0.3a": attribute_nodes("v0_0_3a", (4, 7), "i"),
    "0.0.3b": attribute_nodes("v0_0_3b", (4, 7), "i"),
    "today": [node(0, "c", 4, us=7), node(1, "g", 7, needs=[0], comm_type=2, comm_size=64)],
    "llmservingsim2": [
        node(0, "COMP_NODE_x", 5, us=7),
        node(1, "COMM_COLL_NODE_x", 8, needs=[0], comm_type=2, comm_size=64),
    ],
}


@pytest.mark.parametrize("generation", PROGRAMS)
def test_every_generation_reads_as_the_same_program(tmp_path, generation):
    write(tmp_path / "job.0.et", *PROGRAMS[generation])
    traces = read_set(tmp_path, ReadOptions(time_unit="us"))
    nodes = traces.ranks[0].nodes
    assert any(f"generation: {generation}" in note for note in traces.notes)
    assert nodes.kind.tolist() == [NodeKind.COMPUTE, NodeKind.COLLECTIVE]
    assert nodes.duration.tolist() == [7_000_000, UNSTATED]
    assert nodes.collective.tolist() == [UNSTATED, CollectiveType.ALL_GATHER]
    assert nodes.size.tolist() == [0, 64]
    assert nodes.dependencies.tolist() == [0]


def test_a_pytorch_file_of_the_0_0_3_era_has_a_metadata_frame(tmp_path):
    head = old_class("GlobalMetadata", "v0_0_3b")()
    head.attribute.add(name="schema", type=4, s=b"1.0.1")
    path = write(tmp_path / "job.0.et", head.SerializeToString(), *PROGRAMS["0.0.3b"])
    assert [(entry.name, entry.string_val) for entry in read_nodes(path).metadata.attr] == [
        ("schema", "1.0.1")
    ]
    assert len(read_set(tmp_path).ranks[0].nodes) == 2


def test_0_0_3_attributes_keep_their_values_in_todays_nodes(tmp_path):
    old = old_class("Node", "v0_0_3b")(id=1, name="m", type=1, inputs="[1]", input_types="['Int']")
    old.attribute.add(name="flag", type=0, b=True)
    old.attribute.add(name="many", type=8, ints=[-1, 2])
    old.attribute.add(name="words", type=9, strings=[b"x", b"y"])
    old.attribute.add(name="raw", type=4, s=b"\xff")
    old.attribute.add(name="src", type=3, i=3)
    path = write(tmp_path / "job.0.et", old.SerializeToString())
    (new,) = read_nodes(path).nodes
    values = {entry.name: entry for entry in new.attr}
    assert (new.inputs.values, new.inputs.types) == ("[1]", "['Int']")
    assert values["flag"].bool_val
    assert list(values["many"].int64_list.values) == [-1, 2]
    assert list(values["words"].string_list.values) == ["x", "y"]
    assert values["raw"].bytes_val == b"\xff"
    assert values["comm_src"].int64_val == 3


@pytest.mark.parametrize(("number", "expected"), [(1, 0), (2, 6), (3, 2), (4, 7)])
def test_0_0_1_numbers_collectives_in_its_own_way(tmp_path, number, expected):
    old = old_class("Node", "v0_0_1")(id=1, node_type=6, comm_type=number, comm_size=8)
    write(tmp_path / "job.0.et", old.SerializeToString())
    assert read_set(tmp_path).ranks[0].nodes.collective.tolist() == [expected]


def test_a_bare_eg_file_is_0_0_1_although_its_fields_fit_several(tmp_path):
    old = old_class("Node", "v0_0_1")(id=1, name="c", node_type=3, simulated_run_time=5)
    write(tmp_path / "job.0.eg", old.SerializeToString())
    assert read_set(tmp_path).ranks[0].nodes.kind.tolist() == [NodeKind.COMPUTE]


def test_a_file_that_fits_several_generations_follows_the_others_of_its_set(tmp_path):
    bare = old_class("Node", "v0_0_1")(id=1, name="c", node_type=3, simulated_run_time=5)
    write(tmp_path / "job.0.et", bare.SerializeToString())
    write(tmp_path / "job.1.et", *eg_nodes())
    assert read_set(tmp_path).ranks[0].nodes.kind.tolist() == [NodeKind.COMPUTE]


def test_the_generation_can_be_said(tmp_path):
    bare = old_class("Node", "v0_0_1")(id=1, name="c", node_type=3, simulated_run_time=5)
    write(tmp_path / "job.0.et", bare.SerializeToString())
    assert read_set(tmp_path, ReadOptions(generation="0.0.1")).ranks[0].nodes.kind.tolist() == [
        NodeKind.COMPUTE
    ]


def test_shifted_types_are_known_by_a_collective_where_names_say_nothing(tmp_path):
    write(tmp_path / "job.0.et", metadata(), node(1, "x", 5, us=2), node(2, "y", 8, comm_type=0, comm_size=8))
    nodes = read_set(tmp_path).ranks[0].nodes
    assert nodes.kind.tolist() == [NodeKind.COMPUTE, NodeKind.COLLECTIVE]
    assert nodes.duration[0] == 2_000  # that simulator counts nanoseconds


def test_storage_and_data_nodes_of_2026_are_read_and_kept(tmp_path):
    storage = message_class("Node")(id=1, name="read", type=8, duration_micros=4)
    storage.storage.level = 1
    storage.storage.fs.op = 3
    storage.storage.fs.pathname = "/dataset"
    storage.storage.fs.size_bytes = 4096
    loading = message_class("Node")(id=2, name="load", type=9, data_deps=[1])
    loading.data_op = 1
    folder = one_rank(tmp_path, storage.SerializeToString(), loading.SerializeToString())
    nodes = read_set(folder).ranks[0].nodes
    assert nodes.kind.tolist() == [NodeKind.STORAGE, NodeKind.DATA_OPERATION]
    assert nodes.duration.tolist() == [4_000_000, 0]
    assert [message.SerializeToString() for message in read_nodes(folder / "job.0.et").nodes] == [
        storage.SerializeToString(),
        loading.SerializeToString(),
    ]


def test_a_damaged_old_node_names_its_byte(tmp_path):
    write(tmp_path / "job.0.et", *PROGRAMS["0.0.3b"], b"\x5a\x02\x0a\x7f")
    with pytest.raises(TraceError, match="not a node"):
        read_set(tmp_path)
