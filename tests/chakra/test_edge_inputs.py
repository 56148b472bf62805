"""Every kind of odd trace seen in the wild, and what we do with it."""

import gzip
import io
import json
import tarfile

import pytest

from rapid_des.chakra import UNSTATED, CollectiveType, NodeKind, ReadOptions, check, read_set
from rapid_des.chakra.files import varint
from rapid_des.errors import TraceError
from tests.chakra.writing import (
    COLLECTIVE,
    LOAD,
    METADATA,
    RECV,
    SEND,
    STORE,
    all_reduce,
    delimited,
    metadata,
    node,
    one_rank,
    ranks,
    recv,
    send,
    write,
)


def only(folder, **options):
    """Return the node table of a one-rank set."""
    return read_set(folder, ReadOptions(**options)).ranks[0].nodes


def kinds(findings):
    return [finding.kind for finding in findings]


@pytest.mark.parametrize("content", [b"", delimited(metadata())])
def test_a_set_without_nodes_says_so_and_is_an_error(tmp_path, content):
    (tmp_path / "job.0.et").write_bytes(content)
    with pytest.raises(TraceError, match="0 nodes in 1 files"):
        read_set(tmp_path)


def test_a_rank_without_nodes_beside_others_is_only_a_warning(tmp_path):
    ranks(tmp_path, [node(us=1)], [])
    assert [len(rank.nodes) for rank in read_set(tmp_path).ranks] == [1, 0]
    assert [finding.severity for finding in check(tmp_path)] == ["warning"]


def test_a_cut_frame_names_the_byte_and_the_last_good_node(tmp_path):
    whole = delimited(metadata(), node(7, "good", us=1))
    (tmp_path / "job.0.et").write_bytes(whole + delimited(node(8, "cut", us=2))[:-3])
    with pytest.raises(TraceError, match=rf"job\.0\.et: .*byte {len(whole)}: .*last good node: 7 \('good'\)"):
        read_set(tmp_path)


def test_salvage_keeps_the_whole_nodes_and_never_a_half_one(tmp_path):
    whole = delimited(metadata(), node(7, "good", us=1))
    (tmp_path / "job.0.et").write_bytes(whole + delimited(node(8, "cut", us=2, needs=[7]))[:-3])
    assert only(tmp_path, salvage=True).ids.tolist() == [7]


def test_an_endless_length_is_corrupt_not_a_wait(tmp_path):
    (tmp_path / "job.0.et").write_bytes(delimited(metadata()) + b"\xff" * 40)
    with pytest.raises(TraceError, match="corrupt at byte"):
        read_set(tmp_path)


def test_a_frame_that_is_no_node_names_its_byte(tmp_path):
    good = delimited(metadata(), node(3, "fine"))
    (tmp_path / "job.0.et").write_bytes(good + delimited(b"\x0f\x00\x01"))
    with pytest.raises(
        TraceError, match=rf"byte {len(good) + 1}: the frame there is not a node; last good node: 3"
    ):
        read_set(tmp_path)


def test_an_empty_frame_is_a_node_of_all_defaults(tmp_path):
    nodes = only(one_rank(tmp_path, b"", node(1, us=2)))
    assert nodes.ids.tolist() == [0, 1]
    assert nodes.kind.tolist() == [NodeKind.INVALID, NodeKind.COMPUTE]


def test_without_metadata_the_first_frame_is_a_node(tmp_path):
    write(tmp_path / "job.0.et", node(1, us=1, is_cpu_op=False), node(2, us=1))
    assert only(tmp_path).ids.tolist() == [1, 2]


def test_metadata_of_the_development_version_has_attributes_in_field_one(tmp_path):
    attr = b"\x0a\x06schema" + b"\xea\x01\x17symbolic_tensor_network"
    one_rank(tmp_path, node(1, num_ops=5), head=b"\x0a" + varint(len(attr)) + attr)
    assert "dialect: stage" in " ".join(read_set(tmp_path).notes)


def test_gzip_is_known_by_content_whatever_the_name(tmp_path):
    content = gzip.compress(delimited(metadata(), node(4, us=1)))
    (tmp_path / "job.0.et").write_bytes(content)
    (tmp_path / "job.1.et.gz").write_bytes(content)
    assert [rank.nodes.ids.tolist() for rank in read_set(tmp_path).ranks] == [[4], [4]]


def test_cut_gzip_is_an_error_with_the_byte(tmp_path):
    content = gzip.compress(delimited(metadata(), *(node(i, us=i) for i in range(500))))
    (tmp_path / "job.0.et").write_bytes(content[:-200])
    with pytest.raises(TraceError, match="gzip data is damaged or cut after byte"):
        read_set(tmp_path)


def test_a_tar_is_refused_by_name(tmp_path):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("job.0.et"))
    (tmp_path / "job.0.et").write_bytes(packed.getvalue())
    with pytest.raises(TraceError, match="tar archive; unpack it"):
        read_set(tmp_path)


def test_a_git_lfs_pointer_is_refused_by_name(tmp_path):
    (tmp_path / "job.0.et").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(TraceError, match="git lfs pull"):
        read_set(tmp_path)


@pytest.mark.parametrize(
    ("document", "advice"),
    [
        (
            {"schema": "1.1.1-chakra.0.0.4", "nodes": [{"id": 1}]},
            "PyTorch host execution trace.*Kineto profile",
        ),
        ({"traceEvents": []}, "Kineto"),
        ({"something": 1}, "JSON of another kind"),
        ([{"a": 1}], "JSON of another kind"),
    ],
)
def test_other_json_is_refused_with_what_to_do(tmp_path, document, advice):
    (tmp_path / "job.0.et").write_text(json.dumps(document))
    with pytest.raises(TraceError, match=advice):
        read_set(tmp_path)


def test_workload_graph_json_is_read(tmp_path):
    graph = [
        {
            "Id": 5,
            "Name": "a",
            "NodeType": 4,
            "data_deps": [],
            "ctrlDeps": [9],
            "runtime": 3,
            "is_cpu_op": True,
        },
        {
            "Id": 6,
            "Name": "b",
            "NodeType": 7,
            "data_deps": [5],
            "runtime": 0,
            "comm_type": 0,
            "comm_size": 64,
        },
    ]
    (tmp_path / "job.0.json").write_text(json.dumps({"workload_graph": graph}))
    nodes = only(tmp_path, dependencies="data")
    assert nodes.kind.tolist() == [NodeKind.COMPUTE, NodeKind.COLLECTIVE]
    assert (nodes.duration[0], nodes.size[1], nodes.dependencies.tolist()) == (3_000_000, 64, [0])


def test_unknown_node_types_take_no_time_and_are_noted(tmp_path):
    traces = read_set(one_rank(tmp_path, node(1, type=12), node(2, us=1)))
    assert traces.ranks[0].nodes.kind.tolist() == [NodeKind.INVALID, NodeKind.COMPUTE]
    assert any("types unknown to the schema (12)" in note for note in traces.notes)


# Dependencies: a chain 1 <- 2 <- 3 in every way that it is written.


def test_dependencies_only_in_ctrl_are_used(tmp_path):
    nodes = only(one_rank(tmp_path, node(1, us=1), node(2, us=1, ctrl=[1]), node(3, us=1, ctrl=[2])))
    assert nodes.dependencies.tolist() == [0, 1]


def test_data_and_ctrl_are_both_used_where_they_make_sense_together(tmp_path):
    folder = one_rank(tmp_path, node(1, us=1), node(2, us=1, ctrl=[1]), node(3, us=1, needs=[2], ctrl=[1]))
    assert only(folder).dependencies.tolist() == [0, 1, 0]


def test_ctrl_that_closes_a_circle_with_data_is_left_out(tmp_path):
    folder = one_rank(tmp_path, node(1, us=1, ctrl=[2]), node(2, us=1, needs=[1]))
    assert only(folder).dependencies.tolist() == [0]
    with pytest.raises(TraceError, match="2 nodes wait for each other"):
        read_set(folder, ReadOptions(dependencies="both"))


def test_the_policy_can_be_overridden(tmp_path):
    folder = one_rank(tmp_path, node(1, us=1), node(2, us=1, ctrl=[1]))
    assert only(folder, dependencies="data").dependencies.tolist() == []


def test_pytorch_takes_data_only_because_ctrl_is_its_call_stack(tmp_path):
    folder = one_rank(
        tmp_path,
        node(1, us=1, rf_id=1),
        node(2, us=1, ctrl=[1], rf_id=2),
        node(3, us=1, needs=[1], rf_id=3),
    )
    assert only(folder).dependencies.tolist() == [0]


def test_forward_references_are_fine(tmp_path):
    nodes = only(one_rank(tmp_path, node(1, us=1, needs=[2]), node(2, us=1)))
    assert nodes.dependencies.tolist() == [1]


def test_dangling_self_and_duplicate_dependencies_are_dropped_and_counted(tmp_path):
    folder = one_rank(tmp_path, node(1, us=1), node(2, us=1, needs=[1, 1, 2, 99]))
    traces = read_set(folder)
    assert traces.ranks[0].nodes.dependencies.tolist() == [0]
    text = " ".join(traces.notes)
    assert all(f"dropped 1 {kind}" in text for kind in ("dangling", "self", "duplicate"))
    with pytest.raises(TraceError, match="1 dangling dependencies, the first: node 2 needs 99"):
        read_set(folder, ReadOptions(strict=True))
    assert kinds(check(folder)) == ["dangling dependency", "self dependency", "duplicate dependency"]


def test_a_host_that_waits_for_what_it_has_yet_to_issue_is_a_cycle(tmp_path):
    issued = node(2, "kernel", us=1, rapid_issuer=(1, "uint64_val"), rapid_issued_ps=(5, "uint64_val"))
    folder = one_rank(tmp_path, node(1, "host", us=1, needs=[2], is_cpu_op=True), issued)
    with pytest.raises(TraceError, match=r"2 nodes wait .* 1 \('host'\) needs 2 \('kernel'\) needs 1"):
        read_set(folder)


def test_an_issuer_that_is_no_node_is_named(tmp_path):
    folder = one_rank(tmp_path, node(2, us=1, rapid_issuer=(7, "uint64_val")))
    with pytest.raises(TraceError, match="node 2: its rapid_issuer 7 is no node"):
        read_set(folder)


def test_a_cycle_is_printed_once_by_name(tmp_path):
    folder = one_rank(
        tmp_path,
        node(1, "a", needs=[3]),
        node(2, "b", needs=[1]),
        node(3, "c", needs=[2]),
        node(4, "d", needs=[3]),
    )
    with pytest.raises(
        TraceError, match=r"3 nodes .*circle: 1 \('a'\) needs 3 \('c'\) needs 2 \('b'\) needs 1 \('a'\)"
    ):
        read_set(folder)
    assert kinds(check(folder)) == ["cycle"]


def test_a_duplicate_id_names_both_places(tmp_path):
    head, first = metadata(), node(5, "one")
    folder = one_rank(tmp_path, first, node(5, "two"), head=head)
    one = len(head) + 2  # after the metadata and its length comes the first node's length
    with pytest.raises(
        TraceError, match=rf"node id 5 occurs twice, at byte {one} \('one'\) and at byte \d+ \('two'\)"
    ):
        read_set(folder)


def test_ids_are_unsigned_64_bit_and_belong_to_one_rank(tmp_path):
    largest = 2**64 - 1
    folder = ranks(tmp_path, [node(0, us=1), node(largest, us=1, needs=[0])], [node(largest, us=1)])
    first, second = read_set(folder).ranks
    assert first.nodes.ids.tolist() == [0, largest]
    assert first.nodes.dependencies.tolist() == [0]
    assert second.nodes.ids.tolist() == [largest]


NUMERIC = [
    (4096, kind)
    for kind in (
        "int32_val",
        "int64_val",
        "uint32_val",
        "uint64_val",
        "sint32_val",
        "sint64_val",
        "fixed32_val",
        "fixed64_val",
        "sfixed32_val",
        "sfixed64_val",
        "float_val",
        "double_val",
    )
]


@pytest.mark.parametrize("value", NUMERIC, ids=lambda pair: pair[1])
def test_any_numeric_kind_serves_for_a_size(tmp_path, value):
    folder = one_rank(tmp_path, node(1, type=COLLECTIVE, comm_type=0, comm_size=value))
    assert only(folder).size.tolist() == [4096]


@pytest.mark.parametrize("value", [(True, "bool_val"), (1, "int32_val"), (1, "uint64_val")])
def test_is_cpu_op_may_be_a_number(tmp_path, value):
    assert only(one_rank(tmp_path, node(1, us=1, is_cpu_op=value))).on_cpu.tolist() == [True]


def test_the_first_of_two_attributes_counts_and_a_conflict_is_noted(tmp_path):
    twice = node(1, type=COLLECTIVE, comm_type=0, comm_size=64)
    attr = node(comm_size=128, name="", type=0)  # the attribute alone, appended to the node
    traces = read_set(one_rank(tmp_path, twice + attr))
    assert traces.ranks[0].nodes.size.tolist() == [64]
    assert any("given twice" in note for note in traces.notes)


def test_attributes_without_a_value_or_unknown_ones_change_nothing(tmp_path):
    folder = one_rank(tmp_path, node(1, us=1, comm_size=None, outputs=None, something=b"\xff"))
    assert only(folder).size.tolist() == [0]


def test_a_fraction_where_a_whole_number_belongs_is_an_error(tmp_path):
    folder = one_rank(tmp_path, node(1, type=COLLECTIVE, comm_type=0, comm_size=1.5))
    with pytest.raises(TraceError, match="comm_size is no whole number"):
        read_set(folder)


def test_a_negative_size_names_the_node(tmp_path):
    with pytest.raises(TraceError, match="node 1: comm_size is -5"):
        read_set(one_rank(tmp_path, node(1, type=COLLECTIVE, comm_type=0, comm_size=-5)))


def test_host_collectives_without_attributes_are_cpu_work(tmp_path):
    nodes = only(one_rank(tmp_path, node(1, type=COLLECTIVE, us=7, is_cpu_op=True)))
    assert (nodes.kind[0], nodes.duration[0], nodes.on_cpu[0]) == (NodeKind.COMPUTE, 7_000_000, True)


def test_gpu_collectives_without_size_or_type_are_found(tmp_path):
    folder = one_rank(
        tmp_path, node(1, type=COLLECTIVE, is_cpu_op=False), node(2, type=COLLECTIVE, comm_type=33)
    )
    assert kinds(check(folder)) == ["unknown collective", "no size"]
    assert only(folder).size.tolist() == [UNSTATED, UNSTATED]


def test_a_kernels_name_says_what_collective_it_is_where_nothing_else_does(tmp_path):
    name = "ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)" + " " * 300
    silent = node(1, name=name, type=COLLECTIVE, is_cpu_op=False, comm_size=64)
    stated = node(2, name=name, type=COLLECTIVE, is_cpu_op=False, comm_size=64, comm_type=0)
    other = node(3, name="ncclKernel_SendRecv_RING", type=COLLECTIVE, is_cpu_op=False, comm_size=64)
    found = only(one_rank(tmp_path, silent, stated, other)).collective.tolist()
    assert found == [CollectiveType.BROADCAST, CollectiveType.ALL_REDUCE, UNSTATED]


@pytest.mark.parametrize("kind", list(CollectiveType))
def test_all_ten_collectives_are_known(tmp_path, kind):
    size = {} if kind == CollectiveType.BARRIER else {"comm_size": 8}
    folder = one_rank(tmp_path, node(1, type=COLLECTIVE, comm_type=int(kind), **size))
    assert check(folder) == ()
    assert only(folder).collective.tolist() == [kind]


def test_messages_without_a_peer_are_found_and_size_falls_back_to_the_tensor(tmp_path):
    folder = one_rank(tmp_path, node(1, type=SEND, tensor_size=32), node(2, type=RECV))
    assert kinds(check(folder)) == ["no peer", "no size"]
    nodes = only(folder)
    assert (nodes.peer.tolist(), nodes.size.tolist(), nodes.tag.tolist()) == (
        [-1, -1],
        [32, UNSTATED],
        [0, 0],
    )


def test_a_message_with_another_tag_is_named_as_a_near_miss(tmp_path):
    folder = ranks(tmp_path, [send(1, to=1, tag=5)], [recv(1, source=0, tag=6)])
    (finding,) = check(folder)
    assert finding.kind == "unmatched message"
    assert "1 sends (tag 5) and 1 receives (tag 6) do not match" in finding.message
    assert "rank 1 node 1" in finding.message
    assert "numbered the two sides apart" in finding.message


def test_a_receive_that_nobody_sends_is_found(tmp_path):
    folder = ranks(tmp_path, [node(us=1)], [recv(1, source=0)])
    assert "0 sends (none) and 1 receives (tag 0)" in check(folder)[0].message


def test_messages_whose_sizes_disagree_are_found(tmp_path):
    folder = ranks(tmp_path, [send(1, to=1, size=64)], [recv(2, source=0, size=65)])
    assert "sends 64 bytes but rank 1 node 2 ('r') receives 65" in check(folder)[0].message


def test_repeated_messages_with_one_key_match_in_any_order_of_sizes(tmp_path):
    folder = ranks(
        tmp_path, [send(1, 1, size=8), send(2, 1, size=9)], [recv(1, 0, size=9), recv(2, 0, size=8)]
    )
    assert check(folder) == ()


def test_a_message_to_a_rank_without_a_file_is_found(tmp_path):
    assert "unknown peer" in kinds(check(one_rank(tmp_path, send(1, to=9))))


def test_a_collective_that_members_do_not_agree_on_names_group_place_and_values(tmp_path):
    folder = ranks(tmp_path, [all_reduce(1), all_reduce(2, 64)], [all_reduce(1), all_reduce(2, 128)])
    (finding,) = check(folder)
    assert "group 'world': collective number 1 differs" in finding.message
    assert "ALL_REDUCE of 64 bytes but rank 1 node 2 ('ar') says ALL_REDUCE of 128 bytes" in finding.message


def test_a_member_that_issues_fewer_collectives_is_found(tmp_path):
    folder = ranks(tmp_path, [all_reduce(1), all_reduce(2)], [all_reduce(1)])
    assert "rank 0 issues 2, rank 1 1; the first without a partner: rank 0 node 2" in check(folder)[0].message


def test_collectives_listed_in_another_order_are_only_a_warning_where_streams_are_unordered(tmp_path):
    folder = ranks(tmp_path, [all_reduce(1, 8), all_reduce(2, 16)], [all_reduce(1, 16), all_reduce(2, 8)])
    assert [(finding.kind, finding.severity) for finding in check(folder)] == [("order", "warning")]


def test_missing_rank_files_are_named(tmp_path):
    for rank in (0, 1, 3):
        write(tmp_path / f"job.{rank}.et", metadata(), node(us=1))
    assert "ranks 0 to 3 have no file for 2" in check(tmp_path)[0].message
    assert "ranks without a file: 2" in read_set(tmp_path).notes


def test_traces_without_any_duration_say_that_compute_time_is_zero(tmp_path):
    traces = read_set(one_rank(tmp_path, node(1), node(2)))
    assert any("compute time is zero" in note for note in traces.notes)
    assert traces.ranks[0].nodes.duration.tolist() == [0, 0]


def test_operations_without_a_duration_are_left_to_the_machine(tmp_path):
    nodes = only(one_rank(tmp_path, node(1, num_ops=1000, tensor_size=64)))
    assert (nodes.duration[0], nodes.flops[0], nodes.tensor_bytes[0]) == (UNSTATED, 1000, 64)


def test_time_unit_and_element_width_can_be_said(tmp_path):
    folder = one_rank(tmp_path, node(1, us=5), all_reduce(2, 10))
    nodes = only(folder, time_unit="ns", dtype_bytes=4)
    assert (nodes.duration[0], nodes.size[1]) == (5_000, 40)


def test_an_hour_long_node_raises_a_question_about_the_unit(tmp_path):
    traces = read_set(one_rank(tmp_path, node(1, us=4_000_000_000)))  # 4000 s
    assert any("--time-unit" in note for note in traces.notes)


def test_any_name_survives(tmp_path):
    name = 'void cutlass::Kernel<int, "x=1">(a, b)\nsecond line\u2603'
    assert only(one_rank(tmp_path, node(1, name, us=1))).names == (name,)


def test_a_name_that_is_not_utf8_is_escaped_not_refused(tmp_path):
    raw = node(1, "ab", us=1).replace(b"ab", b"\xff\xfe")
    assert only(one_rank(tmp_path, raw)).names == ("\\xff\\xfe",)


def test_memory_nodes_carry_their_tensor(tmp_path):
    folder = one_rank(
        tmp_path, node(1, type=LOAD, tensor_size=256, tensor_loc=1), node(2, type=STORE, us=3, tensor_size=16)
    )
    nodes = only(folder)
    assert nodes.size.tolist() == [256, 16]
    assert nodes.duration.tolist() == [UNSTATED, 3_000_000]


def test_ranks_may_have_programs_of_any_lengths(tmp_path):
    folder = ranks(tmp_path, [node(i, us=1) for i in range(30)], [node(0, us=1)])
    assert [len(rank.nodes) for rank in read_set(folder).ranks] == [30, 1]
    assert check(folder) == ()


def test_ranks_with_the_same_program_share_one_table(tmp_path):
    program = [node(1, us=1), all_reduce(2, needs=[1])]
    traces = read_set(ranks(tmp_path, program, program, program))
    assert len({id(rank.nodes) for rank in traces.ranks}) == 1


def test_the_order_of_nodes_in_a_file_changes_nothing(tmp_path):
    program = [node(1, "a", us=1), node(2, "b", us=2, needs=[1]), all_reduce(3, needs=[2])]
    first = read_set(ranks(tmp_path / "a", program)).ranks[0].nodes
    second = read_set(ranks(tmp_path / "b", program[::-1])).ranks[0].nodes
    assert first.names == second.names
    assert first.dependencies.tolist() == second.dependencies.tolist()
    assert first.stream.tolist() == second.stream.tolist()


def test_metadata_nodes_are_kept_and_take_no_compute_stream(tmp_path):
    nodes = only(one_rank(tmp_path, node(1, type=METADATA), node(2, us=1)))
    assert [nodes.streams[slot] for slot in nodes.stream] == ["metadata", "compute"]
