"""Small files are read together: nothing may show but the time that it takes."""

import gzip
import random

import pytest

from rapid_des.chakra import ReadOptions, batched_reader
from rapid_des.chakra.reader import read_report
from rapid_des.values import fields
from tests.chakra.test_damage import FILES, damaged
from tests.chakra.test_generations import PROGRAMS
from tests.chakra.writing import all_reduce, delimited, metadata, node, recv, send

RANKS = 12


def program(draw):
    """Return the nodes of one rank, of which any may lack what others have."""
    nodes = []
    for number in range(draw.randrange(1, 9)):
        needs = draw.sample(range(number), k=draw.randrange(min(number, 3) + 1))
        one = draw.choice((send, recv, all_reduce, node))
        more = {"needs": needs} if draw.random() < 0.7 else {"ctrl": needs}
        if one is all_reduce:
            group = draw.choice(("0", "1", "3.0", 2, None))
            more |= {"pg_name": group} if group is not None else {}
            more |= {"involved_dim": draw.choice((b"\x0a\x02\x01\x00", b"\x08\x01\x08\x01"))}
            nodes.append(all_reduce(number, draw.randrange(1, 4096), **more))
        elif one is node:
            stated = {"num_ops": 7, "tid": 3, "stream": "7", "rapid_position": -number, "is_cpu_op": True}
            more |= {name: stated[name] for name in draw.sample(list(stated), k=draw.randrange(3))}
            nodes.append(node(number, draw.choice("abc"), us=draw.randrange(3), **more))
        else:
            nodes.append(one(number, draw.randrange(RANKS), tag=draw.randrange(3), **more))
    draw.shuffle(nodes)
    return nodes


def write_ranks(folder, contents):
    for rank, content in enumerate(contents):
        (folder / f"job.{rank}.et").write_bytes(content)


def seen(folder, options):
    """Return all that reading found, as plain values."""
    report = read_report(folder, options)
    tables = [[getattr(rank.nodes, name) for name in fields(rank.nodes)] for rank in report.traces.ranks]
    columns = [[x if isinstance(x, tuple) else (x.dtype.str, x.tolist()) for x in one] for one in tables]
    ranks = [(rank.rank, rank.groups, rank.peers) for rank in report.traces.ranks]
    repairs = {rank: [(one.kind, one.nodes.tolist(), one.needs.tolist()) for one in found]
               for rank, found in report.repairs.items()}  # fmt: skip
    traces = report.traces
    return (
        columns,
        ranks,
        list(traces.groups.items()),
        traces.unordered_streams,
        traces.notes,
        report.findings,
        repairs,
    )


def assert_alike(folder, monkeypatch, options=None):
    """Read a set with and without reading files together; return how many were."""
    options = options or ReadOptions(dimensions=(4, 3))
    taken = []
    original = batched_reader.Prefetcher.take

    def take(self, path):
        taken.append(original(self, path))
        return taken[-1]

    with monkeypatch.context() as patched:
        patched.setattr(batched_reader.Prefetcher, "take", take)
        one = seen(folder, options)
    with monkeypatch.context() as patched:
        patched.setattr(batched_reader.Prefetcher, "take", lambda self, path: None)
        other = seen(folder, options)
    assert one == other
    return sum(read is not None for read in taken)


@pytest.mark.parametrize("room", [batched_reader.ROOM, 300])
@pytest.mark.parametrize("seed", range(8))
def test_files_read_together_are_read_as_each_by_itself(tmp_path, monkeypatch, seed, room):
    monkeypatch.setattr(batched_reader, "ROOM", room)
    draw = random.Random(seed)
    heads = [metadata(), metadata(schema="s", rapid_unordered_streams="x"), None]
    contents = []
    for _ in range(RANKS):
        head = draw.choice(heads)
        contents.append(delimited(*([] if head is None else [head]), *program(draw)))
    write_ranks(tmp_path, contents)
    assert assert_alike(tmp_path, monkeypatch) >= 4


@pytest.mark.parametrize("kind", [*PROGRAMS, "json", "graph", "modern", "twice", "empty", "headed", "gzip"])
def test_a_file_that_is_not_plain_is_read_by_itself(tmp_path, monkeypatch, kind):
    draw = random.Random(3)
    contents = [delimited(metadata(), *program(draw)) for _ in range(RANKS)]
    twice = node(1, "n", num_ops=1) + node(1, "n", num_ops=2)
    odd = {
        "twice": delimited(metadata(), twice),
        "empty": b"",
        "headed": delimited(metadata()),
        "gzip": gzip.compress(contents[0]),
    }
    contents[5] = odd.get(kind) if kind in odd else FILES[kind]
    write_ranks(tmp_path, contents)
    assert assert_alike(tmp_path, monkeypatch) in {0, 10, 11}


@pytest.mark.parametrize("salvage", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_file_among_others_gives_the_same_error(tmp_path, monkeypatch, seed, salvage):
    draw = random.Random(seed)
    contents = [delimited(metadata(), *program(draw)) for _ in range(RANKS)]
    contents[4] = damaged(contents[4], seed)
    contents[7] = contents[7][: draw.randrange(len(contents[7]))]
    write_ranks(tmp_path, contents)
    assert_alike(tmp_path, monkeypatch, ReadOptions(salvage=salvage))


def test_files_that_are_the_same_are_read_once(tmp_path, monkeypatch):
    draw = random.Random(1)
    kinds = [delimited(metadata(), *program(draw)) for _ in range(4)]
    write_ranks(tmp_path, [kinds[rank % 4] for rank in range(RANKS)])
    assert assert_alike(tmp_path, monkeypatch, ReadOptions()) == 3
