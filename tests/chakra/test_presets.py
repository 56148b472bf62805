"""The trace sets that ship: small enough to check by hand, and made by this file."""

from rapid_des.chakra import check, read_set
from rapid_des.chakra.source import discover
from tests.chakra.writing import COLLECTIVE, delimited, metadata, node, recv, send

MIB = 2**20


def all_reduce_of(size, id, needs):
    return node(id, "gradients", COLLECTIVE, needs, is_cpu_op=False, comm_type=0, comm_size=size)


def compute(id, name, us, needs=()):
    return node(id, name, 4, needs, us=us, is_cpu_op=False)


def all_reduce_4():
    """Each of four ranks computes 10 us, then all of them reduce 1 MiB."""
    return [[compute(0, "forward", 10), all_reduce_of(MIB, 1, [0])] for _ in range(4)]


def two_stages():
    """Two pipeline stages and one micro-batch: 1 MiB of activations forward, 1 MiB of gradients back."""
    first = [
        compute(0, "forward", 100),
        send(1, to=1, tag=1, size=MIB, needs=[0], is_cpu_op=False),
        recv(2, source=1, tag=2, size=MIB, is_cpu_op=False),
        compute(3, "backward", 200, [2]),
    ]
    last = [
        recv(0, source=0, tag=1, size=MIB, is_cpu_op=False),
        compute(1, "forward", 100, [0]),
        compute(2, "backward", 200, [1]),
        send(3, to=0, tag=2, size=MIB, needs=[2], is_cpu_op=False),
    ]
    return [first, last]


PRESETS = {"all_reduce_4": all_reduce_4(), "two_stages": two_stages()}


def test_shipped_files_are_what_this_file_describes():
    for name, programs in PRESETS.items():
        files = discover(name).files
        assert [path.read_bytes() for path in files.values()] == [
            delimited(metadata(), *program) for program in programs
        ]


def test_shipped_traces_are_clean_and_read_as_described():
    for name in PRESETS:
        assert check(name) == ()
    first, last = read_set("two_stages").ranks
    assert first.nodes.duration.tolist() == [100_000_000, -1, -1, 200_000_000]
    assert last.nodes.size.tolist() == [MIB, 0, 0, MIB]
