"""Profiles of PyTorch: samples of real runs, steps whose parts are known, and files that are none."""

import gzip
import json

import numpy as np
import pytest

from rapid_des.errors import TraceError
from rapid_des.profiles import columns, profile_report, read_profile, tables
from rapid_des.profiles.breakdown import _union
from rapid_des.profiles.kernel_classes import class_of
from tests.cli.shell import ROOT, call, refused

SAMPLES = ROOT / "validation" / "data" / "profiles"
pytestmark = pytest.mark.skipif(not SAMPLES.is_dir(), reason="the samples are in a checkout only")


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.gz")), ids=lambda path: path.stem)
def test_parts_of_real_steps_add_up_and_their_kernels_have_classes(path):
    report = profile_report([read_profile(path)])
    (rank,) = report.ranks
    mean = sum(rank.steps[number] for number in rank.steady) / len(rank.steady)
    assert rank.mean == int(mean)
    assert all(time >= 0 for time in rank.parts.values())
    assert report.classified > 0.99


def event(name, start, length, category="kernel", **arguments):
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": length, "args": arguments}


def launch(number, when):
    return event("cudaLaunchKernel", when, 1, "cuda_runtime", correlation=number)


def written(tmp_path, events, name="rank.json", **others):
    path = tmp_path / name
    path.write_text(json.dumps({"traceEvents": events, **others}))
    return path


def step_of(number, at):
    """Events of a step of 100 us on two streams from `at` on."""
    called = [launch(number + place, at + when) for place, when in enumerate((0, 5, 10, 70))]
    return [
        event(f"ProfilerStep#{number}", at - 2, 100, "user_annotation"),
        *called,
        event("sgemm", at, 20, stream=7, correlation=number),
        # 10 us of the message are behind the product, 30 exposed
        event("ncclDevKernel_AllReduce", at + 10, 40, stream=9, correlation=number + 1,
              **{"Collective name": "allreduce", "In msg nelems": 8, "Group size": 4, "dtype": "BFloat16"}),
        event("Memcpy HtoD", at + 55, 5, "gpu_memcpy", stream=7, correlation=number + 2),
        event("gelu_kernel", at + 75, 25, stream=7, correlation=number + 3),
    ]  # fmt: skip


def test_each_part_of_a_step_is_what_the_gpu_did_then(tmp_path):
    events = [*step_of(10, 1000), *step_of(20, 1100), *step_of(30, 1200)]
    report = profile_report([read_profile(written(tmp_path, events, distributedInfo={"rank": 3}))])
    (rank,) = report.ranks
    assert rank.profile.rank == 3 and list(rank.steps) == [100_000] * 3
    # 50 to 55 waits for what was launched at 11; 60 to 71 for the host, 71 to 75 for the launch
    microseconds = {"compute": 45, "exposed_communication": 30, "exposed_copies": 5, "host": 11, "waiting": 9}
    assert rank.parts == {part: 1000 * time for part, time in microseconds.items()}
    assert rank.groups == {"allreduce over 4 ranks": 40_000}
    assert report.operators[0].name == "ncclDevKernel_AllReduce" and report.operators[0].count == 3


def test_steps_far_from_the_median_are_left_out_and_the_slowest_rank_stands_first(tmp_path):
    warm = [
        event("ProfilerStep#1", 0, 900, "user_annotation"),
        launch(1, 1),
        event("sgemm", 10, 20, correlation=1),
    ]
    events = [*warm, *step_of(10, 1000), *step_of(20, 1100), *step_of(30, 1200)]
    slow = [*events, launch(40, 1290), event("sgemm", 1310, 20, stream=7, correlation=40)]
    paths = [written(tmp_path, each, f"{name}.json") for name, each in {"fast": events, "slow": slow}.items()]
    plain = call("profile", "show", *map(str, paths), "--json").json
    assert [rank["file"].rpartition("/")[2] for rank in plain["ranks"]] == ["slow.json", "fast.json"]
    assert plain["steady_steps"] == [1, 2, 3] and len(plain["steps_s"]) == 4
    assert plain["step_time_s"] == pytest.approx(110e-6)
    assert sum(plain["ranks"][0]["breakdown_s"].values()) == pytest.approx(plain["step_time_s"])
    assert "1 step without device work, or far from the median" in call("profile", "show", str(paths[1])).out


@pytest.mark.parametrize(
    ("kernel", "operator", "expected"),
    [
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)", "", "communication"),
        ("void cutlass::Kernel<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32>", "", "gemm"),
        ("void cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688fprop_optimized_tf32>", "", "convolution"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add>", "", "elementwise"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdam>", "", "optimizer"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>", "", "norm"),
        ("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash>", "", "attention"),
        ("Cijk_Alik_Bljk_SB_Bias_AS", "", "gemm"),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTN", "", "gemm"),
        ("triton_poi_fused_add_cos_sin_0", "", "elementwise"),
        ("triton_red_fused_native_layer_norm_3", "", "norm"),
        ("void std::enable_if<vllm::_typeConvert<c10>::exists>::type vllm::fused_add_rms_norm_kernel<", "",
         "norm"),
        ("bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2_transOut_schedP2_bN_tma", "", "gemm"),
        ("void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*)", "", "elementwise"),
        ("triton_poi_fused__scaled_dot_product_flash_attention_cat_transpose_view_2", "", "elementwise"),
        ("triton_red_fused__to_copy_add_addmm_mean_mul_pow_rsqrt_transpose_view_4", "", "norm"),
        ("void at::native::max_pool_backward_nchw<c10::BFloat16>(c10::BFloat16)", "", "pooling"),
        ("moe::dev::routing::routingRenormalize::routingIndicesKernel<P>", "", "sort_and_index"),
        ("void (anonymous namespace)::store_kvcache<2048l, 4>(StoreKVCacheParams)", "", "attention"),
        ("sage_quant_kernel", "", "quantise"),
        ("void fft1d_r2c_32<float, float, float2, false, false>(float2*, float const*)", "", "convolution"),
        ("void cunn_ClassNLLCriterion_updateOutput_kernel<float, float>(float*, float*)", "", "softmax"),
        ("kernel_2", "aten::mm", "gemm"),
        ("kernel_2", "my::op", ""),
    ],
)  # fmt: skip
def test_kernels_are_classed_by_their_names_and_else_by_their_operators(kernel, operator, expected):
    assert class_of(kernel, operator) == expected


def test_unions_are_what_a_loop_finds():
    random = np.random.default_rng(1)
    for _ in range(50):
        starts = np.sort(random.integers(0, 60, 12))
        ends = starts + random.integers(1, 9, 12)
        covered = {t for start, end in zip(starts, ends, strict=True) for t in range(start, end)}
        begins, stops = _union(starts, ends)
        assert int((stops - begins).sum()) == len(covered)
        assert (begins[1:] > stops[:-1]).all()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "is no JSON"),
        (b'{"schema": "1.1"}', "is no profile of PyTorch: it has no 'traceEvents'"),
        (b"7", "the file: a whole number; allowed: "),
        (b'{"traceEvents": 1}', "traceEvents: a whole number; allowed: a list"),
        (b"[]", "has no events with a duration"),
        (b'[{"ph": "X", "name": "a", "ts": 1, "dur": -4}]', "dur -4.0 us; allowed: 0 or more"),
        (b'[{"ph": "X", "name": "a", "ts": 1e300, "dur": 4}]', "is no time"),
        (b'[{"ph": "X", "name": 7, "ts": 1}]', "[0].name: a whole number; allowed: text"),
        (b'[{"ph": "X", "name": "a", "ts": 1e999}]', "[0].ts: Number out of range"),
        (b'[{"ph": "X", "name": "\x80", "ts": 1}]', "is no JSON: a text in it is not UTF-8"),
        (gzip.compress(b"[" * 999, mtime=0)[:-9], "damaged or cut off"),
        (b"[" * 100_000, ""),
    ],
)
def test_a_file_that_is_no_profile_is_one_line(tmp_path, content, said):
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(TraceError) as problem:
        read_profile(path)
    assert str(problem.value).startswith(f"{path}: ") and said in str(problem.value)
    answer = call("profile", "show", str(path))
    assert answer.code == 2 and answer.err.count("\n") == 1


@pytest.mark.parametrize(
    ("start", "called", "said"),
    [(9e10, 9e10, "events are 1.042 days apart: a clock jumped"),
     (5e6, 7e6, "'gelu': begins 2 s before it was launched: a clock jumped")],
)  # fmt: skip
def test_a_clock_that_jumped_is_named(tmp_path, start, called, said):
    events = [launch(1, 0), event("sgemm", 5, 9, correlation=1), launch(2, called)]
    path = written(tmp_path, [*events, event("gelu", start, 9, correlation=2)])
    with pytest.raises(TraceError, match=said):
        read_profile(path)


def test_a_large_file_is_read_piece_by_piece(tmp_path, monkeypatch):
    monkeypatch.setattr("rapid_des.profiles.kineto._PIECE", 1000)
    events = [each for number in range(1, 40) for each in step_of(10 * number, 1000 + 100 * number)]
    events[7]["args"]["deep"] = [{"a": "},{"}, {"b": 1}]  # ends of mappings that are no ends of events
    path = written(tmp_path, events, distributedInfo={"rank": 3})
    pieces = read_profile(path)
    monkeypatch.undo()
    whole = read_profile(path)
    assert (pieces.rank, len(pieces.steps)) == (3, 39) and pieces.events.names == whole.events.names
    assert np.array_equal(pieces.events.start, whole.events.start)
    assert np.array_equal(pieces.events.called, whole.events.called)
    path.write_bytes(path.read_bytes().replace(b'"ph": "X"', b'"ph" "X"', 1))
    with pytest.raises(TraceError, match="is no JSON"):
        read_profile(path)


def test_of_a_profile_with_too_many_events_the_earliest_whole_steps_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(columns, "_MOST", 10)
    steps = [step_of(10 * number, 1000 + 100 * number) for number in range(1, 9)]
    path = written(tmp_path, [each for step in reversed(steps) for each in step])
    profile = read_profile(path)
    # 10 of 32 device events: two steps of four are whole, and the two events of the third go with the rest
    assert [step.name for step in profile.steps] == ["ProfilerStep#10", "ProfilerStep#20"]
    assert len(profile.events) == 8 and profile.left_out == 24
    (rank,) = profile_report([profile]).ranks
    (whole,) = profile_report([read_profile(written(tmp_path, [*steps[0], *steps[1]], "whole.json"))]).ranks
    assert (rank.parts, rank.steps, rank.groups) == (whole.parts, whole.steps, whole.groups)
    assert "24 later device events of a rank" in call("profile", "show", str(path)).out
    monkeypatch.setattr(columns, "_MOST", 3)
    assert "later device events" in call("profile", "show", str(path)).out
    assert "no marked step is whole in its first 3 device events" in refused(call("replay", str(path)))


def test_names_without_end_are_folded_into_one(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_MOST_LETTERS", 3)
    events = [event(name, place, 1) for place, name in enumerate(("a", "bc", "defg", "h", "a"))]
    assert sorted(read_profile(written(tmp_path, events)).events.names) == [
        "(further names)",
        "a",
        "bc",
        "defg",
    ]


def test_a_number_that_no_stream_has_counts_as_none(tmp_path):
    wide = event("sgemm", 10, 20, stream=10**22, correlation=1)
    assert read_profile(written(tmp_path, [launch(1, 0), wide])).events.stream.tolist() == [-1]
