"""Our copy of the schema: what is committed, private, and readable by upstream."""

from pathlib import Path

import pytest
from google.protobuf import descriptor_pool

import rapid_des.chakra.wire as schema
from rapid_des.chakra import read_set, write_set
from tests.chakra.writing import all_reduce, node, ranks, recv, send

FOLDER = Path(schema.__file__).with_name("schema")


def test_committed_descriptors_are_what_the_proto_text_compiles_to():
    pytest.importorskip("grpc_tools")
    from google.protobuf import descriptor_pb2

    committed = descriptor_pb2.FileDescriptorSet.FromString((FOLDER / "descriptors.bin").read_bytes())
    compiled = descriptor_pb2.FileDescriptorSet.FromString(schema.compile_descriptors(FOLDER))
    assert compiled == committed


def test_the_schema_stays_out_of_the_shared_pool():
    assert schema.message_class("Node").DESCRIPTOR.full_name == "rapid_des.chakra.Node"
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName("rapid_des.chakra.Node")


@pytest.mark.parametrize(
    ("message", "field", "number"),
    [
        ("Node", "attr", 10),
        ("Node", "storage", 11),
        ("Node", "data_op", 12),
        ("AttributeProto", "bytes_list", 32),
    ],
)
def test_field_numbers_are_the_public_ones(message, field, number):
    assert schema.message_class(message).DESCRIPTOR.fields_by_name[field].number == number


def test_upstreams_own_reader_reads_what_we_write(tmp_path):
    pytest.importorskip("chakra.schema.protobuf.et_def_pb2")
    from chakra.schema.protobuf.et_def_pb2 import GlobalMetadata, Node
    from chakra.src.third_party.utils.protolib import decodeMessage, openFileRd

    ranks(
        tmp_path,
        [
            node(1, "gemm", us=12, is_cpu_op=False),
            send(2, to=1, tag=9, needs=[1]),
            all_reduce(3, 4096, needs=[2]),
        ],
        [recv(1, source=0, tag=9), all_reduce(2, 4096, needs=[1])],
    )
    write_set(read_set(tmp_path), tmp_path / "ours", "job")
    head, first, second, third = GlobalMetadata(), Node(), Node(), Node()
    with openFileRd(str(tmp_path / "ours" / "job.0.et")) as stream:
        for message in (head, first, second, third):
            assert decodeMessage(stream, message)
        assert not decodeMessage(stream, Node())
    assert head.version == "0.0.4"
    assert (first.name, first.type, first.duration_micros) == ("gemm", 4, 12)
    assert list(second.data_deps) == [1]
    kinds = {entry.name: entry.WhichOneof("value") for entry in [*second.attr, *third.attr]}
    assert kinds["is_cpu_op"] == "bool_val"
    assert (kinds["comm_type"], kinds["comm_size"]) == ("int64_val", "int64_val")
    assert (kinds["comm_src"], kinds["comm_dst"], kinds["comm_tag"]) == ("int32_val",) * 3
