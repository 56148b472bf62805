"""What people see of a rank's nodes: rows and pictures."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from rapid_des.chakra import (
    read_set,
)
from rapid_des.errors import InputError, TraceError
from rapid_des.report.pictures import trace
from rapid_des.report.pictures.trace import critical_chain, draw, lay_out, window
from rapid_des.report.tables import text
from rapid_des.report.trace_text import node_rows, nodes_table, rank_of
from tests.chakra.writing import all_reduce, node, one_rank, ranks, recv, send

DIAMOND = [
    node(1, "start", us=1),
    node(2, "short", us=2, needs=[1]),
    node(3, "long", us=9, needs=[1]),
    node(4, "end", us=1, needs=[2, 3]),
]


def test_the_critical_chain_is_the_one_that_takes_longest(tmp_path):
    nodes = read_set(one_rank(tmp_path, *DIAMOND)).ranks[0].nodes
    assert critical_chain(nodes).tolist() == [1, 0, 2, 3]  # start, long, end


def test_a_window_keeps_the_dependencies_inside_it(tmp_path):
    nodes = read_set(one_rank(tmp_path, *DIAMOND)).ranks[0].nodes
    part = window(nodes, 1, 3)
    assert part.ids.tolist() == [2, 3, 4]
    assert part.dependency_starts.tolist() == [0, 0, 0, 2]
    assert part.dependencies.tolist() == [0, 1]
    with pytest.raises(TraceError, match="the rank has 4 nodes"):
        window(nodes, 4, 1)


def test_a_layout_puts_what_is_needed_to_the_left_and_no_two_nodes_on_one_place(tmp_path):
    nodes = read_set(one_rank(tmp_path, *DIAMOND)).ranks[0].nodes
    layout = lay_out(nodes)
    assert layout.column.tolist() == [0, 1, 1, 2]
    places = set(zip(layout.column.tolist(), layout.height.tolist(), strict=True))
    assert len(places) == 4


def test_a_long_chain_is_folded_into_bands(tmp_path):
    chain = [node(i, us=1, needs=[i - 1] if i else []) for i in range(100)]
    layout = lay_out(read_set(one_rank(tmp_path, *chain)).ranks[0].nodes)
    assert layout.column.max() < 40
    assert len(np.unique(layout.height)) > 2


def test_a_drawing_names_the_critical_nodes(tmp_path):
    pytest.importorskip("matplotlib")
    rank = read_set(one_rank(tmp_path, *DIAMOND)).ranks[0]
    draw(rank, tmp_path / "graph.svg")
    # Text is drawn as outlines; matplotlib writes its words in a comment before them.
    words = re.findall("<!-- (.*?) -->", (tmp_path / "graph.svg").read_text())
    assert {"1 start", "3 long", "4 end", "compute"} <= set(words)
    draw(rank, tmp_path / "graph.png", first=1, count=2)
    assert (tmp_path / "graph.png").read_bytes().startswith(b"\x89PNG")


def test_unreadable_drawings_are_refused(tmp_path):
    rank = read_set(one_rank(tmp_path, *(node(i, us=1) for i in range(401)))).ranks[0]
    with pytest.raises(TraceError, match="a window of at most 400"):
        draw(rank, tmp_path / "graph.svg", count=500)
    with pytest.raises(InputError, match=r"\.png, \.svg or \.pdf"):
        draw(rank, tmp_path / "graph.gif", count=5)


def test_labels_of_a_drawing_do_not_lie_on_each_other(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    # a fork, whose columns stand half a line apart, of nodes with long names, and a tail that is folded
    fork = [node(i, f"backward.L{i}.attention.output.weight_gradient", us=i, needs=[1]) for i in range(2, 5)]
    tail = [node(i, f"forward.L{i}.attention.output.scatter", us=1, needs=[i - 1]) for i in range(5, 38)]
    chain = [node(1, "forward.embedding.position.dropout.cast", us=1), *fork, *tail]
    rank = read_set(one_rank(tmp_path, *chain)).ranks[0]
    drawn = []
    monkeypatch.setattr(trace, "save", lambda figure, *_, **__: drawn.append(figure))
    draw(rank, tmp_path / "graph.png")
    figure = drawn[0]
    boxes = [text.get_window_extent(figure.canvas.get_renderer()) for text in figure.axes[0].texts]
    assert len(boxes) == 37
    overlapping = [(a, b) for a, b in itertools.combinations(range(37), 2) if boxes[a].overlaps(boxes[b])]
    assert overlapping == []


def test_a_drawing_that_fails_leaves_the_old_one(tmp_path, monkeypatch):
    figure = pytest.importorskip("matplotlib.figure")
    rank, target = read_set(one_rank(tmp_path, *DIAMOND)).ranks[0], tmp_path / "graph.png"
    target.write_text("old")

    def half(_, path, **__):
        Path(path).write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(figure.Figure, "savefig", half)
    with pytest.raises(InputError, match="cannot be written: No space left"):
        draw(rank, target)
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir() if "graph" in path.name] == ["graph.png"]


def test_rows_say_what_a_node_takes_and_whom_it_talks_to(tmp_path):
    folder = ranks(
        tmp_path, [node(1, "g", us=3), send(2, to=1, tag=4, needs=[1]), all_reduce(3)], [recv(1, 0, tag=4)]
    )
    rows = node_rows(read_set(folder).ranks[0], 0, 10)
    assert [row.amount() for row in rows] == ["3 us", "64 B", "1 KiB"]
    assert [row.partner() for row in rows] == ["-", "to 1, tag 4", "all_reduce on world"]
    lines = list(text([nodes_table(rows)]))
    assert lines[0].split() == ["id", "kind", "name", "stream", "takes", "with", "needs"]
    assert len(lines) == 4


def test_a_name_with_line_breaks_stays_on_one_line(tmp_path):
    rows = node_rows(read_set(one_rank(tmp_path, node(1, "a\nb", us=1))).ranks[0], 0, 1)
    assert len([*text([nodes_table(rows)])]) == 2


def test_a_rank_or_a_window_that_is_not_there_is_an_error(tmp_path):
    traces = read_set(one_rank(tmp_path, node(1, us=1)))
    with pytest.raises(TraceError, match="rank 5 has no trace; 1 ranks from 0 to 0"):
        rank_of(traces, 5)
    with pytest.raises(TraceError, match="out of range"):
        node_rows(traces.ranks[0], -1, 5)
