"""Whose file it is, and what that means for dependencies, sizes, times and streams."""

import pytest

from rapid_des.chakra import UNSTATED, ReadOptions, read_set
from rapid_des.errors import TraceError
from tests.chakra.writing import COLLECTIVE, all_reduce, attribute, metadata, node, one_rank, send, write


def dialect_of(folder):
    (note,) = (note for note in read_set(folder).notes if note.startswith("dialect"))
    return note.removeprefix("dialect: ").split(" ")[0]


def dialect_case(name):
    stage = metadata("", schema="symbolic_tensor_network")
    cases = {
        "pytorch": (metadata("", schema="1.1.1-chakra.0.0.4"), [node(1, us=1, rf_id=3, op_schema="")]),
        "stage": (stage, [node(1, "x@0_COMP", num_ops=4, tensor_size=(2, "uint64_val"))]),
        "text": (
            metadata("", schema="1.0.2-chakra.1.0.0", input_file="MODEL"),
            [node(1, "COMP_NODE_a_FWD", us=1)],
        ),
        "msccl": (metadata("", input_file='<algo name="x">'), [node(1, "COMP_NODE_tb0_step1", us=1)]),
        "rapid-llm": (metadata(), [node(1, is_cpu_op=False, us=1), node(2, is_cpu_op=False, ctrl=[1], us=1)]),
        "generator": (metadata("1.0.0"), [node(1, "COMP_NODE", us=5, is_cpu_op=False)]),
        "llmservingsim2": (metadata(), [node(1, "COMP_NODE_a", 5, us=5)]),
        "plain": (metadata(), [node(1, "whatever", us=5)]),
    }
    return cases[name]


@pytest.mark.parametrize(
    "name", ["pytorch", "stage", "text", "msccl", "rapid-llm", "generator", "llmservingsim2", "plain"]
)
def test_a_writer_is_known_by_its_marks(tmp_path, name):
    head, nodes = dialect_case(name)
    assert dialect_of(one_rank(tmp_path, *nodes, head=head)) == name


def test_a_dialect_can_be_said_and_a_wrong_one_names_the_choices(tmp_path):
    folder = one_rank(tmp_path, node(1, us=5))
    assert read_set(folder, ReadOptions(dialect="llmservingsim1")).ranks[0].nodes.duration[0] == 5_000
    with pytest.raises(TraceError, match="'stag' is not one of auto, .*stage"):
        ReadOptions(dialect="stag")


def test_stage_counts_elements_and_says_how_wide_they_are_taken(tmp_path):
    head = metadata("", schema="symbolic_tensor_network")
    folder = one_rank(tmp_path, all_reduce(1, 10), node(2, num_ops=7, tensor_size=3), head=head)
    traces = read_set(folder)
    assert traces.ranks[0].nodes.size[0] == 20  # 10 elements of 2 bytes
    assert traces.ranks[0].nodes.tensor_bytes[1] == 6
    assert any("taken as 2 bytes" in note for note in traces.notes)
    assert read_set(folder, ReadOptions(dtype_bytes=4)).ranks[0].nodes.size[0] == 40
    assert read_set(folder, ReadOptions(dialect="plain")).ranks[0].nodes.size[0] == 10


def test_the_text_converter_means_microseconds(tmp_path):
    head, nodes = dialect_case("text")
    assert read_set(one_rank(tmp_path, *nodes, head=head)).ranks[0].nodes.duration[0] == 1_000_000


def pytorch(id, name="op", type=4, **more):
    return node(id, name, type, rf_id=id, **more)


def test_pytorch_runs_in_order_on_its_streams_and_threads(tmp_path):
    folder = one_rank(
        tmp_path,
        pytorch(1, us=1, is_cpu_op=True, tid=1, stream=0),
        pytorch(2, us=1, is_cpu_op=True, tid=2, stream=0),
        pytorch(3, us=1, is_cpu_op=False, tid=1, stream=7),
        pytorch(4, type=COLLECTIVE, is_cpu_op=False, stream=20, comm_type=0, comm_size=8),
    )
    traces = read_set(folder)
    nodes = traces.ranks[0].nodes
    assert [nodes.streams[slot] for slot in nodes.stream] == ["cpu-1", "cpu-2", "stream-7", "stream-20"]
    assert traces.unordered_streams == frozenset()


def test_a_dependency_against_ids_on_one_stream_decides_the_order(tmp_path):
    folder = one_rank(
        tmp_path,
        *(
            pytorch(id, us=1, is_cpu_op=True, tid=1, needs=needs)
            for id, needs in [(1, [2]), (2, []), (3, [])]
        ),
    )
    traces = read_set(folder)
    nodes = traces.ranks[0].nodes
    assert nodes.ids.tolist() == [2, 1, 3]  # of those ready, the smallest id: 2, then 1 behind it
    assert nodes.dependencies.tolist() == [0]
    assert any("dependencies decide its order" in note for note in traces.notes)


def test_other_writers_streams_are_by_kind_and_group_and_unordered(tmp_path):
    folder = one_rank(
        tmp_path,
        node(1, us=1, is_cpu_op=False),
        node(2, us=1, is_cpu_op=True),
        all_reduce(3, pg_name="tp"),
        all_reduce(4),
        send(5, to=0),
    )
    traces = read_set(folder)
    expected = ("compute", "cpu-0", "coll-tp", "coll-world", "send")
    assert traces.ranks[0].nodes.streams == expected
    assert traces.unordered_streams == frozenset(expected)
    assert read_set(folder, ReadOptions(streams="ordered")).unordered_streams == frozenset()


def test_our_own_files_leave_out_what_is_not_known(tmp_path):
    head = metadata(rapid_format="1")
    nodes = [node(1, rapid_duration_ps=(17, "uint64_val"), rapid_stream="tp"), node(2, rapid_stream="tp")]
    table = read_set(one_rank(tmp_path, *nodes, head=head)).ranks[0].nodes
    assert table.duration.tolist() == [17, UNSTATED]
    assert table.streams == ("tp",)


def test_ranks_that_fit_no_dialect_follow_the_first(tmp_path):
    head, nodes = dialect_case("stage")
    write(tmp_path / "job.0.et", head, *nodes)
    write(tmp_path / "job.1.et", metadata(), all_reduce(1, 10))
    assert read_set(tmp_path).ranks[1].nodes.size.tolist() == [20]


def test_a_type_on_a_message_is_no_collective(tmp_path):
    from rapid_des.chakra.wire import message_class

    message = message_class("Node").FromString(send(1, to=0))
    attribute(message, "comm_type", 5)  # what the MSCCL converter writes: a node type
    nodes = read_set(one_rank(tmp_path, message.SerializeToString())).ranks[0].nodes
    assert nodes.collective.tolist() == [UNSTATED]
