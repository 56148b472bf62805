"""The traffic of an optimizer's update follows the formats of its states and master weights."""

import pytest

from rapid_des.device.operators import Vector
from rapid_des.device.vector import kind_of, update_kind
from rapid_des.errors import InputError
from rapid_des.frontend import load_job
from rapid_des.frontend.optimizers import update_kernels


@pytest.mark.parametrize(
    ("optimizer", "states", "master", "read", "written"),
    [
        ("adamw", "fp32", "fp32", 12, 14),  # two moments and a master; the same, and the weight of two bytes
        ("adamw", "bf16", "fp32", 2 * 2 + 4, 2 * 2 + 4 + 2),
        ("adamw", "bf16", None, 2 * 2 + 2, 2 * 2 + 2),  # the weight itself in the place of a master
        ("adam", "fp8", "fp16", 2 * 1 + 2, 2 * 1 + 2 + 2),
        ("sgd", "fp32", "fp32", 8, 10),
        ("sgd", "bf16", "bf16", 2 + 2, 2 + 2 + 2),
    ],
)
def test_bytes_of_an_element(optimizer, states, master, read, written):
    traffic = kind_of(update_kind(optimizer, states, master)).forward
    assert (traffic.read_bytes, traffic.write_bytes, traffic.reads) == (read, written, 1)


def test_a_job_s_update_is_in_its_formats():
    settings = {"precision.optimizer": "bf16", "precision.master_weights": None}
    kernels = update_kernels(load_job("llama2_7b_train", settings=settings), 0, {"dense": 8})
    assert kernels["optimizer"] == Vector("adamw_bf16_none", 1, 4, "fp32")  # each of two replicas its half
    assert update_kernels(load_job("llama2_7b_train"), 0, {"dense": 8})["optimizer"].kind == "adamw"


def test_eight_bit_states_and_muon_have_kernels_of_their_own():
    assert update_kind("adam_8bit", "fp32", None) == "adam_8bit"


@pytest.mark.parametrize("name", ["adamw_bf17_none", "adamw_bf16", "lion_bf16_none"])
def test_another_name_is_refused(name):
    with pytest.raises(InputError, match="is not one of layer_norm"):
        kind_of(name)
