"""Which kernels a layer launches: the fusion policies, and that the device knows every one."""

from collections import Counter

import pytest

from rapid_des.device.operators import Attention, Vector
from rapid_des.device.vector import FUSIONS, traffic_of
from rapid_des.frontend.inference import serving_lists
from rapid_des.frontend.parts import training_lists

GPT = [
    ("model.feed_forward", "{activation: gelu, hidden: 128, bias: true}"),
    ("model.attention", "{heads: 4, qkv_bias: true, output_bias: true}"),
    ("model.norm", "layer_norm"),
    ("model.position", "learned"),
]


def small_kernels(lists, section, phase):
    steps = next(steps for key, steps in lists.items() if (key.section.name, key.phase) == (section, phase))
    return Counter(step.operator.kind for step in steps if isinstance(step.operator, Vector))


@pytest.mark.parametrize("fusion", FUSIONS)
@pytest.mark.parametrize("model", [[], GPT], ids=["llama", "gpt"])
@pytest.mark.parametrize("attention", ["flash", "unfused"])
def test_the_device_knows_every_small_kernel(tiny, tiny_service, fusion, model, attention):
    chosen = [*model, ("fusion", fusion), ("attention", attention)]
    service = tiny_service(*chosen)
    lists = [
        training_lists(tiny(*chosen, ("training.dropout", "true"), ("training.recompute", "selective"))),
        serving_lists(service),
    ]
    found = [step.operator for some in lists for steps in some.values() for step in steps]
    for operator in found:
        if isinstance(operator, Vector):
            assert traffic_of(operator.kind, operator.phase)
            assert operator.rows * operator.columns > 0
        elif isinstance(operator, Attention):
            assert operator.fused == (attention == "flash")


def test_eager_launches_what_megatron_fuses(tiny):
    dropout = ("training.dropout", "true")
    eager = small_kernels(training_lists(tiny(*GPT, dropout, ("fusion", "eager"))), "block", "forward")
    megatron = small_kernels(training_lists(tiny(*GPT, dropout)), "block", "forward")
    # Eager adds biases in the GEMM. Megatron leaves them to the next kernel; that of QKV has none to ride in.
    assert eager == {"layer_norm": 2, "gelu": 1, "dropout": 2, "residual_add": 2}
    assert megatron == {"layer_norm": 2, "bias_add": 1, "bias_gelu": 1, "dropout_add": 2}


def test_eager_backward_of_a_layer_norm_is_two_kernels_and_that_of_the_split_a_copy(tiny):
    eager = small_kernels(training_lists(tiny(*GPT, ("fusion", "eager"))), "block", "backward")
    fused = small_kernels(training_lists(tiny(*GPT)), "block", "backward")
    assert (eager["layer_norm"], eager["norm_gradient"], eager["copy"]) == (2, 2, 1)
    assert (fused["layer_norm"], fused["norm_gradient"], fused["copy"]) == (2, 0, 0)


def test_autograd_runs_an_rms_norm_an_operator_at_a_time_in_fp32(tiny):
    lists = training_lists(tiny(("fusion", "eager")))
    steps = [one.operator for each in lists.values() for one in each if ".norm" in one.name]
    widths = {(one.kind, one.dtype) for one in steps if isinstance(one, Vector) and one.columns > 1}
    assert {("power_scalar", "fp32"), ("fill", "fp32"), ("bias_gradient", "bf16")} <= widths
    assert not any(kind == "rms_norm" for kind, _ in widths)
    whole = small_kernels(training_lists(tiny(("fusion", "flash_attn"))), "block", "backward")
    assert (whole["rms_norm"], whole["rope"], whole["fill"]) == (2, 1, 0)


def test_a_log_takes_its_own_cross_entropies_of_the_logits(tiny):
    plain = small_kernels(training_lists(tiny()), "head", "forward")
    logged = small_kernels(training_lists(tiny(("training.logged_losses", "2"))), "head", "forward")
    assert logged - plain == {"cast": 2, "softmax": 2}


def test_eager_swiglu_is_two_kernels_each_way(tiny):
    lists = training_lists(tiny(("fusion", "eager")))
    assert small_kernels(lists, "block", "forward")["multiply"] == 1
    assert small_kernels(lists, "block", "backward")["silu"] == 1
    assert small_kernels(training_lists(tiny()), "block", "backward")["swiglu"] == 1


def test_an_engine_adds_the_residual_in_the_norm(tiny_service):
    job = tiny_service()
    lists = serving_lists(job)
    expected = {"add_rms_norm": 2, "rope": 1, "kv_cache_write": 1, "swiglu": 1}
    assert small_kernels(lists, "block", "forward") == expected


def test_the_head_multiplies_in_the_format_of_activations(tiny):
    lists = training_lists(tiny(("precision.gemm", "fp8")))
    formats = {
        step.name: step.operator.dtype
        for steps in lists.values()
        for step in steps
        if step.name in {"head", "ffn.in"}
    }
    assert formats == {"head": "bf16", "ffn.in": "fp8"}
