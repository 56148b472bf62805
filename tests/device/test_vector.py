from typing import Any

import pytest

from rapid_des.device import Vector, load_device
from rapid_des.device.vector import FUSIONS, fused, vector_bytes
from rapid_des.device.vector_kinds import KINDS
from rapid_des.errors import InputError
from rapid_des.values import replace
from tests.device.prices import estimate_of

A100 = load_device("a100_sxm_80gb")


def seconds(vector, device=A100):
    return estimate_of(device, vector).duration * 1e-12


def test_a_large_addition_takes_as_long_as_its_three_tensors():
    # 2^30 elements x 3 x 2 B = 6.44 GB at 2.039 TB/s: 3.16 ms at least; PyTorch reaches about 0.9 of it.
    least = 3 * 2 * 2**30 / 2.039e12
    assert least < seconds(Vector("residual_add", 2**15, 2**15)) < 1.2 * least


def test_the_smallest_kernel_costs_its_launch():
    estimate = estimate_of(A100, Vector("residual_add", 1, 64))
    assert estimate.bound == "launch"
    assert estimate.duration < 5e6  # ps: 1 us launch in a graph, about 2 us of latency


def test_eager_launches_cost_more_than_those_in_a_graph():
    vector = Vector("residual_add", 1, 64)
    assert seconds(vector, A100.under(launch="eager")) > seconds(vector)


def test_what_fits_l2_is_faster_when_it_is_warm():
    vector = Vector("gelu", 1024, 1024)  # 4 MB of 40 MB
    assert seconds(vector, A100.under(l2="warm")) <= seconds(vector)


def test_rows_too_many_for_l2_are_read_again():
    # Softmax of rows of 64 KB: 432 blocks in flight hold 28 MB, more than half of L2, so the second and third
    # readings come from HBM; rows of 4 KB stay.
    per_byte = [
        seconds(Vector("softmax", rows, columns, "fp32"))
        / vector_bytes(Vector("softmax", rows, columns, "fp32"))
        for rows, columns in ((262144, 1024), (16384, 16384))
    ]
    assert per_byte[1] > 1.5 * per_byte[0]


def test_scalar_loads_are_slower_than_vectors_of_them():
    # An early vLLM reads two bytes a thread: its norm of 4,096 x 8,192 took 194 us on an A100 (vidur's
    # profile), 134 MB of traffic that HBM moves in 73 us.
    norm = Vector("rms_norm", 4096, 8192, "fp16")
    assert seconds(norm, A100.under(library="vidur")) == pytest.approx(194e-6, rel=0.1)
    assert seconds(norm) < 120e-6


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_is_priced_in_both_passes_that_it_has(kind):
    vector = Vector(kind, 256, 1024)
    assert estimate_of(A100, vector).duration > 0
    backward = replace(vector, phase="backward")
    if KINDS[kind].backward:
        assert estimate_of(A100, backward).duration > 0
    else:
        with pytest.raises(InputError, match="no backward pass"):
            estimate_of(A100, backward)


def test_adam_moves_thirty_bytes_a_parameter_with_a_master_copy():
    # Read weight, moments (12 B), gradient (4 B) in fp32; write the three and a 2-byte weight (14 B).
    assert vector_bytes(Vector("adam", 1, 1_000_000, "fp32")) == 30_000_000


def test_an_unknown_kind_lists_the_known_ones():
    with pytest.raises(InputError, match=r"'sotfmax' is not one of layer_norm, rms_norm"):
        estimate_of(A100, Vector("sotfmax", 8, 8))


def test_an_empty_shape_is_refused():
    with pytest.raises(InputError, match="at least 1"):
        estimate_of(A100, Vector("gelu", 0, 8))


def test_engines_add_the_residual_in_the_norm():
    assert fused(["residual_add", "rms_norm"], "vllm") == ("add_rms_norm",)
    assert fused(["residual_add", "rms_norm"], "megatron") == ("residual_add", "rms_norm")


def test_eager_rms_norm_is_eight_kernels():
    assert len(fused(["rms_norm"], "eager")) == 8


def test_megatron_fuses_bias_dropout_and_addition():
    assert fused(["bias_add", "dropout", "residual_add"], "megatron") == ("dropout_add",)
    assert fused(["bias_add", "dropout", "residual_add"], "eager") == ("bias_add", "dropout", "residual_add")


def test_every_fused_name_is_a_kernel():
    for table in FUSIONS.values():
        assert {kind for run in table for kind in (*run, table[run])} <= set(KINDS)


def test_an_unknown_policy_lists_the_known_ones():
    policy: Any = "tensorflow"
    with pytest.raises(InputError, match="eager, torch_compile, megatron, vllm"):
        fused(["gelu"], policy)
