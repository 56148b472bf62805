"""Writing then reading gives the same trace set, and converting gives the same bytes."""

import dataclasses
import gzip
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rapid_des.chakra import (
    UNSTATED,
    NodeKind,
    NodeTable,
    RankTrace,
    ReadOptions,
    TraceSet,
    convert_set,
    read_nodes,
    read_set,
    set_paths,
    write_nodes,
    write_set,
)
from rapid_des.chakra.groups import by_first_appearance
from rapid_des.chakra.trace import BOUNDS
from rapid_des.errors import TraceError
from rapid_des.values import fields
from tests.chakra.writing import all_reduce, delimited, metadata, node, one_rank, ranks, send, write

SIZES = st.integers(0, 2**50)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
STREAMS = ("compute", "tp", "dp")


@dataclasses.dataclass(frozen=True)
class Plain:
    """One node as Hypothesis draws it; needs are distances back in the program."""

    id_step: int
    kind: int
    name: str
    stream: int
    duration: int
    size: int
    collective: int
    group: int
    peer: int
    tag: int
    priority: int
    flops: int
    tensor_bytes: int
    on_cpu: bool
    needs: tuple[int, ...]
    issued_by: int | None = None
    issued: int = 0
    bound: int = UNSTATED


PLAIN = st.builds(
    Plain,
    id_step=st.integers(1, 2**40),
    kind=st.integers(0, 9),
    name=NAMES,
    stream=st.integers(0, 2),
    duration=st.one_of(st.just(UNSTATED), st.integers(0, 2**50)),
    size=SIZES,
    collective=st.integers(0, 9),
    group=st.integers(0, 1),
    peer=st.integers(0, 1),
    tag=st.integers(-(2**40), 2**40),
    priority=st.integers(-(2**40), 2**40),
    flops=SIZES,
    tensor_bytes=SIZES,
    on_cpu=st.booleans(),
    bound=st.integers(UNSTATED, len(BOUNDS) - 1),
    needs=st.sets(st.integers(1, 6), max_size=3).map(tuple),
    issued_by=st.none() | st.integers(1, 6),
    issued=SIZES,
)


def table(plains, *, descending):
    """Build the node table of drawn nodes, with slots numbered as they first appear."""
    count = len(plains)

    def column(name, dtype=np.int64, where=None):
        values = np.array([getattr(plain, name) for plain in plains], np.int64)
        return (values if where is None else np.where(where, values, UNSTATED)).astype(dtype)

    kind = column("kind", np.int8)
    collective = kind == NodeKind.COLLECTIVE
    message = (kind == NodeKind.SEND) | (kind == NodeKind.RECV)
    names, texts = by_first_appearance(np.arange(count), [plain.name for plain in plains])
    distinct = list(dict.fromkeys(texts))
    stream, streams = by_first_appearance(column("stream"), STREAMS)
    group, groups = by_first_appearance(column("group", where=collective), ("world", "tp0"))
    peer, peers = by_first_appearance(column("peer", where=message), (3, 1))
    needs = [[index - back for back in plain.needs if back <= index] for index, plain in enumerate(plains)]
    issuer = np.array(
        [
            index - plain.issued_by if plain.issued_by is not None and plain.issued_by <= index else UNSTATED
            for index, plain in enumerate(plains)
        ],
        np.int32,
    )
    ids = np.cumsum([plain.id_step for plain in plains], dtype=np.uint64)
    return NodeTable(
        ids=ids[::-1].copy() if descending else ids,
        kind=kind,
        name=np.array([distinct.index(texts[slot]) for slot in names], np.int32),
        stream=stream,
        duration=column("duration"),
        size=column("size"),
        collective=column("collective", np.int8, collective),
        group=group,
        peer=peer,
        tag=column("tag"),
        priority=column("priority"),
        flops=column("flops"),
        tensor_bytes=column("tensor_bytes"),
        on_cpu=column("on_cpu", np.bool_),
        issuer=issuer,
        issued=np.where(issuer == UNSTATED, 0, column("issued")),
        bound=column("bound", np.int8),
        dependency_starts=np.cumsum([0, *map(len, needs)], dtype=np.int64),
        dependencies=np.array([need for row in needs for need in row], np.int32),
        names=tuple(distinct),
        streams=streams,
    ), (groups, peers)


def assert_same(first, second):
    assert dict(first.groups) == dict(second.groups)
    assert first.unordered_streams == second.unordered_streams
    for mine, theirs in zip(first.ranks, second.ranks, strict=True):
        assert (mine.rank, mine.groups, mine.peers) == (theirs.rank, theirs.groups, theirs.peers)
        for column in fields(NodeTable):
            left, right = getattr(mine.nodes, column), getattr(theirs.nodes, column)
            if isinstance(left, tuple):
                assert left == right, column
            else:
                assert left.dtype == right.dtype, column
                np.testing.assert_array_equal(left, right, err_msg=column)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    programs=st.lists(st.lists(PLAIN, min_size=1, max_size=12), min_size=1, max_size=3),
    descending=st.booleans(),
)
def test_what_is_written_reads_back_identical(tmp_path_factory, programs, descending):
    tables = [table(plains, descending=descending) for plains in programs]
    rank_traces = tuple(RankTrace(rank, nodes, *slots) for rank, (nodes, slots) in enumerate(tables))
    used = {nodes.streams[slot] for nodes, _ in tables for slot in nodes.stream.tolist()}
    groups = {"world": tuple(range(len(programs))), "tp0": (0,)}
    traces = TraceSet(rank_traces, groups, frozenset(used & {"dp"}))
    folder = tmp_path_factory.mktemp("set")
    write_set(traces, folder, "job")
    assert_same(traces, read_set(folder))


def test_durations_round_up_to_whole_microseconds_for_other_tools(tmp_path):
    # 1 500 000 ps is 1.5 us: other tools read 2 us, we read the picoseconds.
    plain = Plain(1, 4, "x", 0, 1_500_000, 0, 0, 0, 0, 0, 0, 0, 0, False, ())
    nodes, slots = table([plain], descending=False)
    write_set(TraceSet((RankTrace(0, nodes, *slots),), {"world": (0,)}), tmp_path, "job")
    (message,) = read_nodes(tmp_path / "job.0.et").nodes
    assert message.duration_micros == 2
    assert read_set(tmp_path).ranks[0].nodes.duration.tolist() == [1_500_000]


def test_writing_refuses_a_folder_with_other_ranks_of_the_same_name(tmp_path):
    ranks(tmp_path, [node(us=1)], [node(us=1)])
    alone = read_set(tmp_path / "job.0.et")
    with pytest.raises(TraceError, match=r"already holds job\.1\.et"):
        write_set(alone, tmp_path, "job")


def test_many_who_write_one_set_at_once_leave_it_whole(tmp_path):
    ranks(tmp_path / "in", *([node(number, us=number + 1) for number in range(300)] for _ in range(8)))
    traces = read_set(tmp_path / "in")
    with ThreadPoolExecutor(8) as writers:
        names = set(writers.map(lambda _: write_set(traces, tmp_path / "out", "job"), range(24)))
    assert names == {set_paths(tmp_path / "out", "job", range(8))}
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
        path.name for path in names.pop()
    )
    assert_same(traces, read_set(tmp_path / "out"))


PROGRAM = [
    node(0, "a", us=3, is_cpu_op=(0, "int32_val"), outputs=None),
    node(9, "b", 7, needs=[0], ctrl=[0], comm_type=0, comm_size=(64, "uint64_val"), inputs="x"),
]


def test_converting_a_file_of_today_keeps_every_byte(tmp_path):
    original = write(tmp_path / "in" / "job.0.et", metadata("1.0.0", schema="x"), *PROGRAM)
    (copy,) = convert_set(tmp_path / "in", tmp_path / "out", "et", ReadOptions())
    assert copy.read_bytes() == original.read_bytes()


def test_messages_read_and_written_keep_every_byte(tmp_path):
    original = write(tmp_path / "job.0.et", metadata("1.0.0", schema="x"), *PROGRAM)
    write_nodes(tmp_path / "copy.et", read_nodes(original))
    assert (tmp_path / "copy.et").read_bytes() == original.read_bytes()


def test_converting_unpacks_gzip_and_adds_a_missing_metadata_frame(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "job.0.et").write_bytes(gzip.compress(delimited(*PROGRAM)))
    (copy,) = convert_set(tmp_path / "in", tmp_path / "out", "et", ReadOptions())
    assert copy.read_bytes() == delimited(b"", *PROGRAM)


def test_jsonizer_text_and_back_keeps_every_byte(tmp_path):
    original = write(tmp_path / "in" / "job.0.et", metadata("1.0.0", schema="x"), *PROGRAM)
    convert_set(tmp_path / "in", tmp_path / "json", "json", ReadOptions())
    (back,) = convert_set(tmp_path / "json", tmp_path / "back", "et", ReadOptions())
    assert back.read_bytes() == original.read_bytes()


def test_a_converted_file_keeps_its_writers_conventions(tmp_path):
    shifted = [node(0, "COMP_NODE_x", 5, us=7), node(1, "COMM_COLL_NODE_x", 8, comm_type=2, comm_size=64)]
    write(tmp_path / "in" / "job.0.et", metadata(), *shifted)
    convert_set(tmp_path / "in", tmp_path / "out", "et", ReadOptions())
    assert_same(read_set(tmp_path / "in"), read_set(tmp_path / "out"))


def test_converting_into_the_same_folder_is_refused(tmp_path):
    one_rank(tmp_path, all_reduce(1), send(2, to=0))
    with pytest.raises(TraceError, match="choose another folder"):
        convert_set(tmp_path, tmp_path, "et", ReadOptions())


def test_a_conversion_that_fails_leaves_no_file_behind(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "job.0.et").write_bytes(delimited(metadata(), *PROGRAM)[:-2])
    with pytest.raises(TraceError, match="truncated"):
        convert_set(tmp_path / "in", tmp_path / "out", "et", ReadOptions())
    assert list((tmp_path / "out").iterdir()) == []


def test_a_place_that_can_not_be_written_is_an_error(tmp_path):
    folder = one_rank(tmp_path / "in", node(1, us=1))
    (tmp_path / "file").write_text("")
    with pytest.raises(TraceError, match="cannot be written"):
        write_set(read_set(folder), tmp_path / "file", "job")


def test_a_bound_that_is_none_is_named_with_its_node(tmp_path):
    folder = one_rank(tmp_path, node(7, rapid_bound="tensors"))
    with pytest.raises(TraceError, match="node 7: rapid_bound is 'tensors'; allowed: tensor, vector"):
        read_set(folder)
