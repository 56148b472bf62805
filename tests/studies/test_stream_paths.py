"""Matrices of (max, +): what a stretch of program does to streams, by hand and chained."""

from typing import Any

import numpy as np
import pytest

from rapid_des.chakra.trace import NodeKind
from rapid_des.frontend.parts import ModelSection, PieceKey
from rapid_des.frontend.template import INPUT, SECOND, STREAMS, PieceNode, chain, make_piece
from rapid_des.studies.stage_paths import StagePaths, Timed, in_a_row
from rapid_des.studies.stream_paths import longest, paths, product, unmoved

EP = STREAMS.index("ep")


def node(stream, duration, *waits):
    kind = NodeKind.COMPUTE if stream == "compute" else NodeKind.COLLECTIVE
    return PieceNode(stream, kind, stream, waits, duration=duration)


PIECE = make_piece(
    [node("compute", 5, INPUT), node("ep", 20, 0), node("compute", 7, SECOND), node("compute", 3, 1)]
)
DURATIONS = np.array([5, 20, 7, 3])


def test_a_piece_is_the_longest_paths_between_streams_inputs_and_results():
    matrix = paths(PIECE, DURATIONS, (0, EP), (3, 2))
    free, exchanged, result, second = np.maximum(matrix, -1).tolist()  # -1: no path
    assert free == [28, 23, 28, 10]  # from compute, ep and both inputs to the end of the last kernel
    assert exchanged == [25, 20, 25, -1]
    assert result == free
    assert second == [12, -1, 12, 7]
    assert longest(PIECE, DURATIONS) == 28


def test_what_is_late_on_one_stream_moves_what_waits_for_it():
    matrix = paths(PIECE, DURATIONS, (0, EP), (3, 2))
    assert ends(matrix, 0, 0, 0, 0) == [28, 25, 28, 12]
    assert ends(matrix, 0, 100, 0, 0) == [123, 120, 123, 12]
    assert ends(matrix, 0, 0, 0, 50) == [60, 25, 60, 57]
    assert ends(unmoved(2), 1, 2, 3, 4) == [1, 2, 3, 4]


def ends(matrix, *moments):
    return (matrix + np.array(moments)).max(axis=1).tolist()


@pytest.mark.parametrize("times", [1, 2, 7])
def test_runs_in_a_row_are_one_behind_the_other(times):
    matrix, moments = paths(PIECE, DURATIONS, (0, EP), (3, 2))[:2, :2], [4, 30]
    expected = moments
    for _ in range(times):
        expected = ends(matrix, *expected)
    known: dict[tuple[int, ...], Any] = {(0,): matrix}
    assert ends(in_a_row((0,) * times, known), *moments) == expected
    assert in_a_row((0,) * (times + 1), known).tolist() == product(matrix, known[(0,) * times]).tolist()


def test_a_pass_of_several_sections_is_their_pieces_in_one():
    """Also a pair whose pieces send nothing: its second pass does not wait for what the first has made."""
    sections: tuple[ModelSection, ...] = (
        ModelSection("block", 0),
        ModelSection("block", 1),
        ModelSection("block", 0),
    )
    timed = {
        PieceKey(section, "forward"): Timed(PIECE, DURATIONS * (1 + section.kind)) for section in sections
    }
    found = StagePaths([timed], by_unit=True)
    whole = chain([timed[PieceKey(section, "forward")].piece for section in sections])
    durations = np.concatenate([timed[PieceKey(section, "forward")].durations for section in sections])
    one: Any = (sections, "forward")
    expected = paths(whole, durations, (0, EP), (whole.output,) * 2)
    assert found.of((one,))[:, :3].tolist() == expected[:, :3].tolist()
    streams = expected[:2, :2]
    assert found.of((one, one))[:2, :2].tolist() == product(streams, streams).tolist()
