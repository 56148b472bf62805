import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapid_des.device import Gemm, GroupedGemm, load_device
from rapid_des.device.gemm import gemm_times_us
from rapid_des.device.pricing import gemm_bytes
from tests.device.prices import estimate_of

A100, H100 = load_device("a100_sxm_80gb"), load_device("h100_sxm")
sizes = st.integers(1, 20_000)


def price(gemm, device=A100):
    return estimate_of(device, gemm)


@settings(max_examples=60, deadline=None)
@given(sizes, sizes, sizes)
def test_never_faster_than_the_datasheet_allows(m, n, k):
    gemm = Gemm(m, n, k)
    estimate = price(gemm)
    assert estimate.duration > 2 * m * n * k / 312e12 * 1e12
    assert estimate.duration > gemm_bytes(gemm) / 2.039e12 * 1e12
    assert estimate.flops == 2 * m * n * k
    assert estimate.bytes["hbm"] >= gemm_bytes(gemm)


@settings(max_examples=40, deadline=None)
@given(sizes, sizes, sizes, st.integers(2, 8))
def test_a_batch_takes_longer_than_one_and_at_most_as_long_as_one_by_one(m, n, k, batch):
    one, many = price(Gemm(m, n, k)), price(Gemm(m, n, k, batch=batch))
    assert one.duration <= many.duration * 1.001
    # A fuller busiest SM can cost a little more than separate runs, never much.
    assert many.duration <= batch * one.duration * 1.15


def test_a_partial_wave_costs_a_whole_one():
    # 108 SMs; 128 x 256 tiles of 4096 columns: 16 a row of tiles. 6 rows (768) make 96 CTAs, one wave;
    # 7 rows (896) make 112, a second wave for 4 of them unless another kernel does better.
    one_wave, two_waves = price(Gemm(768, 4096, 8192)), price(Gemm(896, 4096, 8192))
    assert two_waves.duration > 1.25 * one_wave.duration


def test_long_k_on_few_tiles_is_split():
    # One tile of 128 x 128 would leave 107 of 108 SMs idle.
    split = price(Gemm(128, 128, 65536)).detail["split_k"]
    assert split >= 8


def test_a_vector_times_a_matrix_is_bound_by_memory():
    estimate = price(Gemm(1, 16384, 16384))
    assert estimate.bound == "hbm"
    # 512 MiB of weights at 2.039 TB/s take 263 µs; a GPU reaches 75 to 95 % of that.
    assert 263e6 / 0.95 < estimate.duration < 263e6 / 0.75


def test_a_tiny_gemm_is_bound_by_its_launch():
    assert price(Gemm(16, 32, 32)).bound == "launch"


def test_eager_launch_adds_what_the_file_says():
    graph, eager = A100.under(launch="graph"), A100.under(launch="eager")
    gemm = Gemm(512, 512, 512)
    launch = A100.spec.launch
    assert price(gemm, eager).duration - price(gemm, graph).duration == launch.eager - launch.graph


def test_what_l2_still_holds_is_not_read_again():
    gemm = Gemm(64, 2048, 2048)  # 8.4 MB of weights, 0.26 MB of activations, in 40 MiB
    cold, activations, warm = (
        price(gemm, A100.under(l2=l2)).bytes["hbm"] for l2 in ("cold", "activations", "warm")
    )
    assert cold - activations == pytest.approx(1.05 * 64 * 2048 * 2, rel=0.01)
    assert warm < 0.1 * cold


def test_weight_only_quantisation_reads_fewer_bytes():
    full, quarter = price(Gemm(1, 8192, 8192)), price(Gemm(1, 8192, 8192, weight_dtype="int4"))
    # Weights are nearly all of the traffic: a quarter of the bytes.
    assert quarter.bytes["hbm"] == pytest.approx(full.bytes["hbm"] / 4, rel=0.01)
    assert quarter.duration < full.duration / 2


def test_accumulation_reads_the_result_too():
    plain, added = price(Gemm(8192, 8192, 512)), price(Gemm(8192, 8192, 512, accumulate=True))
    assert added.bytes["hbm"] - plain.bytes["hbm"] == 8192 * 8192 * 2


def test_fp8_is_faster_than_bf16_where_compute_bounds():
    wide = (8192, 8192, 8192)
    ratio = price(Gemm(*wide), H100).duration / price(Gemm(*wide, dtype="fp8"), H100).duration
    assert 1.5 < ratio <= 2.0


def test_many_at_once_are_priced_as_one_by_one():
    gemms = [Gemm(m, 4096, 1024) for m in (1, 33, 500, 4096)]
    together = gemm_times_us(gemms, H100)
    assert [round(t, 6) for t in together] == [price(g, H100).duration / 1e6 for g in gemms]


def test_the_same_operator_is_the_same_object():
    assert price(Gemm(77, 88, 99)) is price(Gemm(77, 88, 99))


def test_energy_counts_flops_and_bytes():
    estimate = price(Gemm(4096, 4096, 4096))
    table = A100.spec.energy
    least = estimate.flops * table.flop_pj["bf16"] + estimate.bytes["hbm"] * table.hbm_pj_per_byte
    assert estimate.detail["energy_pj"] > least


def test_an_estimate_explains_itself():
    detail = price(Gemm(4096, 4096, 4096)).detail
    assert {"tile", "split_k", "waves", "ctas", "ctas_per_sm", "sm_occupancy", "launch_ps"} <= set(detail)


class TestGrouped:
    def test_experts_without_rows_read_no_weights(self):
        few, all_of_them = (
            estimate_of(H100, GroupedGemm(rows, 4096, 4096)) for rows in ((8, 0, 0, 0), (2, 2, 2, 2))
        )
        # One weight matrix against four, the rows being few.
        assert all_of_them.bytes["hbm"] == pytest.approx(4 * few.bytes["hbm"], rel=0.02)

    def test_skew_costs_more_than_balance(self):
        skewed = estimate_of(H100, GroupedGemm((4033, 21, 21, 21), 4096, 4096))
        even = estimate_of(H100, GroupedGemm((1024,) * 4, 4096, 4096))
        assert skewed.flops == even.flops
        assert skewed.duration > 0.97 * even.duration

    def test_no_rows_at_all_is_an_empty_launch(self):
        assert estimate_of(H100, GroupedGemm((0, 0), 64, 64)).duration == H100.launch_overhead


def test_activations_that_are_narrow_already_are_not_quantised_again():
    device = load_device("h100_sxm").under(library="trtllm")
    wide, narrow = (
        estimate_of(device, Gemm(1, 4096, 4096, dtype="fp8", out_dtype="fp16", quantised=there))
        for there in (False, True)
    )
    # The library's kernels that quantise take 9.96 us and more; 16 bit GEMMs have none.
    assert 9.96e6 < wide.duration - narrow.duration < 10.5e6
    plain = [estimate_of(device, Gemm(1, 4096, 4096, quantised=there)).duration for there in (False, True)]
    assert plain[0] == plain[1]


def test_a_version_of_a_library_has_its_constants_where_it_states_none():
    named, version = (load_device("h100_sxm").under(library=name) for name in ("trtllm", "trtllm-0.9"))
    assert version.constants("gemm", "fp8") == named.constants("gemm", "fp8")
    changed = {**named.constants("grouped_gemm", "bf16"), "tensor": 0.547}
    assert version.constants("grouped_gemm", "bf16") == changed


def test_what_stands_across_k_is_transposed_first_where_the_unit_reads_along_k_alone():
    plain, across = (Gemm(4096, 4096, 4096, dtype="fp8", across=size) for size in (0, 4096 * 4096))
    # 16 MiB read and written at 3.35 TB/s or slower, and a launch
    added = price(across, H100).duration - price(plain, H100).duration
    assert added > 2 * 4096 * 4096 / 3.35e12 * 1e12
    assert added == price(across, H100).detail["transpose_ps"]
    blackwell = load_device("gb200")
    assert price(across, blackwell).duration == price(plain, blackwell).duration
