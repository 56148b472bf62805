"""Samples of the modules of arXiv 2509.22832 as samples of our operators."""

import csv

import numpy as np
import pytest

from rapid_des.device import load_device
from rapid_des.device.operators import Attention, Gemm
from rapid_des.device.pricing import operator_model
from rapid_des.learned import LearnedOperators, load_learned, shape_of
from rapid_des.learned.decomposition import OPERATORS, SampleSizes, attention, convert
from tests.cli.shell import call

DEVICE = "a100_sxm_40gb"


@pytest.fixture(scope="module")
def native():
    return operator_model(load_device(DEVICE))


def sample(op, phase, time, **sizes):
    return {"op": op, "phase": phase, "time_us": str(time)} | {
        name: str(size) for name, size in sizes.items()
    }


def test_matrices_are_those_of_a_rank():
    size = SampleSizes(mp=2, b=4, length=4096, h=32, dim=4096, params=0)
    products = {name: OPERATORS[name]["fwd"](size)[0] for name in OPERATORS if name.startswith("linear")}
    # The paper's own list for Llemma 7B with mp 2: rows, inputs, outputs.
    assert {name: (each.m, each.k, each.n) for name, each in products.items()} == {
        "linear1": (16384, 4096, 6144),
        "linear2": (16384, 2048, 4096),
        "linear3": (16384, 4096, 8192),
        "linear4": (16384, 8192, 4096),
        "linear_final": (16384, 4096, 25216),
    }


def test_a_backward_is_shared_out_as_native_models_do(native):
    rows = [sample("linear3", "bwd", 900.0, mp=2, b=4, l=2048, dim=4096)]
    first, second = convert(rows, native).timed
    kernels = (Gemm(8192, 4096, 8192, dtype="fp16"), Gemm(8192, 4096, 8192, dtype="fp16"))
    assert [first.shape, second.shape] == [shape_of(kernel) for kernel in kernels]
    assert first.time_us + second.time_us == pytest.approx(900)
    ratio = native.estimate(kernels[0]).duration / native.estimate(kernels[1]).duration
    assert first.time_us / second.time_us == pytest.approx(ratio)


def test_flash_attention_is_one_rank_s_heads(native):
    (timed,) = convert([sample("flash_atten", "fwd", 80.0, mp=4, b=2, l=1024, h=32, dim=4096)], native).timed
    assert timed.shape == shape_of(Attention(2, 1024, 1024, 8, 8, 128, dtype="fp16"))


def test_what_has_no_operator_here_is_refused_by_name(native):
    rows = [sample("fillmask", "fwd", 1), sample("res_add", "bwd", 1), sample("conv", "fwd", 1)]
    left_out = convert(rows, native).left_out
    assert set(left_out) == {"fillmask/fwd", "res_add/bwd", "conv/fwd"}
    assert "copy" in left_out["res_add/bwd"].reason


def written(path):
    """Write parts of attention whose times are exact laws, and one matrix."""
    rows = []
    for batch in (2, 4):
        for length in (1024, 1536, 2048, 3072):
            for heads in (8, 16):
                sizes = {"mp": 1, "b": batch, "l": length, "h": heads}
                pairs = batch * heads * length**2
                for op, law in (("baddbmm", 2e-6), ("bmm", 3e-6)):
                    rows.append(sample(op, "fwd", law * pairs, **sizes, dim=128 * heads))
                rows.append(sample("ScaledUpperTriangMaskedSoftmax", "fwd", 1e-6 * pairs, **sizes))
                rows.append(sample("linear1", "fwd", 1e-3 * batch * length, **sizes, dim=128 * heads))
    columns = ("op", "phase", "b", "l", "h", "dim", "mp", "params", "time_us")
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)


def test_the_command_fits_whole_attention_from_its_parts(tmp_path, native):
    written(tmp_path / "samples.csv")
    target = tmp_path / "fitted.npz"
    answer = call(
        "device", "fit", tmp_path / "samples.csv", target, "--fallback", "native", "--modules-on", DEVICE
    )
    assert answer.code == 0, answer.err
    file = load_learned(target)
    assert set(file.regressors) == {"gemm/fp16", "unfused_attention/forward/fp16/causal"}
    from rapid_des.bounded_cache import BoundedCache

    priced = LearnedOperators(file, "fitted", native, BoundedCache(1 << 20))
    whole = attention((4, 1536, 16, 128), "fwd", fused=False)
    expected = 6e-6 * 4 * 16 * 1536**2
    assert priced.estimate(whole).duration / 1e6 == pytest.approx(expected, rel=0.1)
    assert priced.estimate(whole).model == "learned:fitted"
    assert np.isfinite(priced.estimate(Gemm(4096, 3072, 1024, dtype="fp16")).duration)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("op,phase\nlinear1,fwd\n", "no column 'time_us'; needed: op, phase, time_us"),
        ("op,phase,time_us,b\nlinear1,fwd,3,many\n", "line 2: 'many' is no number; allowed: 0 to"),
    ],
)
def test_a_wrong_table_is_one_clear_line(tmp_path, text, problem):
    (tmp_path / "s.csv").write_text(text)
    said = call(
        "device",
        "fit",
        tmp_path / "s.csv",
        tmp_path / "o.npz",
        "--fallback",
        "native",
        "--modules-on",
        DEVICE,
    )
    assert said.code == 2 and problem in said.err and not (tmp_path / "o.npz").exists()
