"""Matrices of (max, +): what a stretch of program does to streams, by hand and chained."""

import numpy as np
import pytest

from rapid_des.bounded_cache import BoundedCache
from rapid_des.chakra.trace import NodeKind
from rapid_des.frontend import load_job
from rapid_des.frontend.template import INPUT, SECOND, STREAMS, PieceNode, make_piece
from rapid_des.machine import load_machine
from rapid_des.studies.floors import Floors
from rapid_des.studies.stream_paths import after, longest, paths, power, product, unmoved

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
    assert after(matrix, np.array([0, 0, 0, 0])).tolist() == [28, 25, 28, 12]
    assert after(matrix, np.array([0, 100, 0, 0])).tolist() == [123, 120, 123, 12]
    assert after(matrix, np.array([0, 0, 0, 50])).tolist() == [60, 25, 60, 57]
    assert after(unmoved(2), np.array([1, 2, 3, 4])).tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("times", [0, 1, 2, 7])
def test_a_power_is_as_many_stretches_in_a_row(times):
    matrix, moments = paths(PIECE, DURATIONS, (0, EP), (3, 2))[:2, :2], np.array([4, 30])
    expected = moments
    for _ in range(times):
        expected = after(matrix, expected)
    assert after(power(matrix, times), moments).tolist() == expected.tolist()
    assert product(matrix, power(matrix, times)).tolist() == power(matrix, times + 1).tolist()


@pytest.mark.parametrize("schedule", ["dualpipe", "dualpipe_v"])
def test_of_a_long_step_of_pairs_a_short_one_is_walked(monkeypatch, schedule):
    settings = {"model.layers": "8", "model.exceptions": "[]", "model.feed_forward.experts": "16",
                "training.sequence_length": "2048", "training.global_batch": "320",
                "parallelism": "{pp: 4, dp: 4, ep: 4, layers: even}",
                "training.schedule": schedule}  # fmt: skip
    job = load_job("deepseek_v3_train_2048", settings=settings)
    floors = Floors(load_machine("dgx_h100_x8"), BoundedCache())
    short = floors.walked(job)
    monkeypatch.setattr("rapid_des.studies.pair_walk._MIDDLE", 1000)
    assert 0.99 * floors.walked(job) <= short <= floors.walked(job)
