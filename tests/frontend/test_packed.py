"""Sequences that hold several documents: attention stays within each, all else is as for one."""

import pytest

from rapid_des.device.operators import Attention
from rapid_des.errors import ConfigError
from rapid_des.frontend.parts import ModelSection, PieceKey, training_lists

BLOCK = ModelSection("block", 0)
PACKED = ("training.documents", "[16, 8, 8]")


def split(job, phase="forward"):
    operations = training_lists(job)[PieceKey(BLOCK, phase)]
    cores = [one.operator for one in operations if isinstance(one.operator, Attention)]
    return cores, [one for one in operations if not isinstance(one.operator, Attention)]


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_attention_is_a_kernel_a_length(tiny, phase):
    cores, others = split(tiny(PACKED), phase)
    assert [(core.batch, core.query_length, core.key_length) for core in cores] == [(2, 8, 8), (1, 16, 16)]
    assert {core.phase for core in cores} == {phase}
    names = [one.name for one in others]
    assert names == [one.name for one in split(tiny(), phase)[1]]


def test_one_document_is_the_sequence_itself(tiny):
    whole, packed = tiny(), tiny(("training.documents", "[32]"))
    assert training_lists(packed) == training_lists(whole)
    assert packed.model_flops == whole.model_flops


def test_flops_count_what_documents_see(tiny):
    # Two products of heads · channels = 64 each, of n(n + 1)/2 pairs; forward and twice that backward.
    pairs = 32 * 33 // 2 - (16 * 17 // 2 + 2 * (8 * 9 // 2))
    assert tiny().model_flops - tiny(PACKED).model_flops == 3 * 8 * 4 * pairs * 4 * 64


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ([("training.documents", "[16, 8]")], "they sum to 24, sequence_length is 32"),
        (
            [("training.documents", "[18, 14]"), ("parallelism.cp", "2")],
            "cp 2 cuts each document into two pieces a rank, and one of 18",
        ),
    ],
)
def test_what_does_not_fit_is_refused(tiny, settings, problem):
    with pytest.raises(ConfigError, match=problem):
        tiny(*settings)
