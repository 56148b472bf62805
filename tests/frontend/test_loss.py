"""What a loss runs and keeps by its implementation, and how a table's gradient is made."""

import pytest

from rapid_des.device.vector import bytes_per_element, traffic_of
from rapid_des.frontend.parts import EMBEDDING, HEAD, PieceKey, training_lists
from rapid_des.frontend.software import kernels_of

ROWS, COLUMNS = 32, 256  # tokens of a micro-batch, words


def head(tiny, way, phase):
    return training_lists(tiny(("cross_entropy", way)))[PieceKey(HEAD, phase)]


def moved(tiny, way, phase):
    """Bytes that an element of the logits moves in casts and loss."""
    total = 0.0
    for one in head(tiny, way, phase):
        if one.name in ("head.cast", "loss"):
            vector = one.operator
            assert (vector.rows, vector.columns) == (ROWS, COLUMNS)
            width = 4 if vector.dtype == "fp32" else 2
            total += bytes_per_element(traffic_of(vector.kind, vector.phase), width)
    return total


@pytest.mark.parametrize(
    ("way", "forward", "backward", "kernels"),
    [
        ("one_pass", 6 + 4, 8, 1),
        ("separate", 6 + 4 + 8 + 8 + 4 + 8, 8 + 6, 5),  # max, minus, exp, sum, over; times, to two bytes
        ("compiled", 6 + 8 + 8 + 8, 8 + 6, 3),  # the maximum by the cast; minus, exp and sum; copy; over
        ("online", 2 + 2 + 2, 2 + 2, 2),
    ],
)
def test_a_loss_moves_what_its_kernels_read_and_write(tiny, way, forward, backward, kernels):
    assert (moved(tiny, way, "forward"), moved(tiny, way, "backward")) == (forward, backward)
    (loss,) = (one for one in head(tiny, way, "forward") if one.name == "loss")
    assert kernels_of(loss.operator) == kernels
    assert loss.logits == ROWS * COLUMNS * (2 if way == "online" else 4)


@pytest.mark.parametrize(("tp", "tensors"), [(1, 4 + 4 + 2), (2, 4 + 4 + 4 + 2)])
def test_torchs_loss_makes_a_tensor_more_where_the_words_are_split(tiny, tp, tensors):
    lists = training_lists(tiny(("cross_entropy", "torch"), ("parallelism.tp", str(tp))))
    (loss,) = (one for one in lists[PieceKey(HEAD, "backward")] if one.name == "loss")
    # gradient and softmax, their sum and its product (loss_parallel), and the logits as they came.
    assert loss.output == tensors * ROWS * COLUMNS // tp


def test_a_table_of_zeros_takes_the_gradients_of_words_and_is_added(tiny):
    operations = training_lists(tiny(("parallelism.tp", "2")))[PieceKey(EMBEDDING, "backward")]
    clear, scatter, add = (one for one in operations if one.operator is not None)
    assert (clear.operator.kind, clear.operator.rows, clear.operator.columns) == ("fill", 128, 64)
    assert (scatter.operator.kind, scatter.operator.rows) == ("embedding_gradient", 32)
    assert (add.operator.kind, add.operator.rows, add.parameters) == ("gradient_add", 128, 128 * 64)
    assert clear.deferrable and scatter.deferrable and add.deferrable
