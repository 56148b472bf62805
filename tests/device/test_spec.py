import math

import pytest

from rapid_des.config import preset_names
from rapid_des.device import Gemm, load_device, load_device_spec
from rapid_des.device.operators import Dtype
from rapid_des.device.spec import RANGES, check_constants
from rapid_des.device.vector import VectorKernel
from rapid_des.errors import ConfigError, InputError
from tests.device.prices import estimate_of


@pytest.mark.parametrize("name", preset_names("device"))
def test_every_preset_prices_a_gemm_within_its_peak(name):
    device = load_device(name)
    dtypes: tuple[Dtype, ...] = ("bf16", "fp16", "fp32")
    dtype = next((each for each in dtypes if each in device.spec.tensor_peak), dtypes[-1])
    gemm = Gemm(8192, 8192, 8192, dtype=dtype)
    estimate = estimate_of(device, gemm)
    # 2 * 8192**3 FLOP cannot be done faster than at the peak of the clock in use.
    assert estimate.duration >= 2 * 8192**3 / device.tensor_rate(dtype) * 1e12
    assert estimate.bytes["hbm"] >= 3 * 8192 * 8192 * (4 if dtype == "fp32" else 2)


def test_datasheet_numbers_of_a100():
    spec = load_device_spec("a100_sxm_80gb")
    # 108 SMs x 2,048 FLOP a clock x 1.41 GHz = 311.9 TFLOP/s.
    assert spec.tensor_peak["bf16"] == pytest.approx(108 * 2048 * 1.41e9, rel=0.001)
    assert spec.hbm.bandwidth == 2_039_000_000_000


def test_a_variant_changes_only_what_it_names():
    base, variant = load_device_spec("h100_sxm"), load_device_spec("h100_case_a")
    assert variant.l2.capacity == 128 * 2**20
    assert (variant.hbm, variant.clock, variant.tensor_peak) == (base.hbm, base.clock, base.tensor_peak)


def test_a_variant_of_a_variant_multiplies_what_its_base_has():
    # Case C: 18.28 TB/s; case D: 0.73 of it.
    assert load_device_spec("h100_case_d").hbm.bandwidth == pytest.approx(0.73 * 18.28e12)


def test_settings_reach_the_spec():
    slow = load_device("a100_sxm_80gb", settings=[("hbm.bandwidth", "0.5x")])
    assert slow.spec.hbm.bandwidth == 2_039_000_000_000 // 2


def test_bases_in_a_circle_are_refused(tmp_path):
    (tmp_path / "a.yaml").write_text("base: b\n")
    (tmp_path / "b.yaml").write_text("base: a\n")
    with pytest.raises(ConfigError, match="circle"):
        load_device("a", folder=tmp_path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("smms: 3", "did you mean 'sms'"),
        ("sms: 0", "sms: 0 is not a whole number from 1"),
        ("hbm: {bandwidth: 3}", "hbm.bandwidth"),
        ("clock: {sustained: 9 GHz}", "clock.sustained"),
        ("operators: magic", "native, roofline"),
        ("conditions: {l2: hot}", "not one of .*activations"),
        ("family: gothic", "families: "),
        ("constants: {gem: {default: {}}}", "not one of"),
        ("constants: {gemm: {default: {tensor: 1.2}}}", "allowed: 0.0001 to 1"),
        ("constants: {gemm: {default: {tensor: 0}}}", "gemm.default.tensor: 0.0 is out of range"),
        ("constants: {gemm: {default: {step_us: -1}}}", "step_us: -1.0 is out of range; allowed: 0 to"),
        ("constants: {memory: {default: {l2_shares: 0.5}}}", "unknown 'l2_shares'; allowed: l2_share"),
        ("constants: {attention: {default: {tile_q: 1.5}}}", "allowed: whole numbers 1 to 65536"),
        ("constants: {moe: {default: {move: 2}}}", "moe.default.move"),
        ("constants: {vector: {default: {rope_row_use: 1}}}", "KERNEL_NAME for one kernel"),
        ("conditions: {library: cubles}", "conditions.library: 'cubles' is no library of kernels"),
        ("family: ../../../etc/hopper", "family: .* names no family"),
        ("l2_port_bytes_per_clock: -64", "l2_port_bytes_per_clock: -64 is not"),
        ("launch: {eager: 2 s, graph: 1 us}", "a launch takes at most 1 s"),
        ("energy: {hbm_pj_per_byte: -29}", "energy.hbm_pj_per_byte: -29 is not"),
        ("constants: {gemm: {default: {tensro: 0.9}}}", "unknown 'tensro'"),
    ],
)
def test_a_wrong_file_is_told_in_one_line(tmp_path, text, told):
    (tmp_path / "x.yaml").write_text(f"base: h100_sxm\n{text}\n")
    with pytest.raises(InputError, match=told) as caught:
        estimate_of(load_device("x", folder=tmp_path), Gemm(64, 64, 64))
    assert "\n" not in str(caught.value)


def test_the_most_specific_constants_win():
    device = load_device("h100_sxm")
    default = device.constants("gemm", "bf16")
    vllm = device.under(library="vllm").constants("gemm", "fp8")
    assert vllm["start_us"] != default["start_us"]
    # What the library and dtype do not name comes from the family's default.
    assert vllm["vector"] == default["vector"]


def test_unsupported_arithmetic_names_what_there_is():
    with pytest.raises(InputError, match=r"no fp8 arithmetic; it has .*bf16"):
        estimate_of(load_device("a100_sxm_80gb"), Gemm(64, 64, 64, dtype="fp8"))


def test_sustained_clock_slows_compute_and_not_memory():
    device = load_device("a100_sxm_80gb")
    slow = device.under(clock="sustained")
    ratio = device.spec.clock.sustained / device.spec.clock.boost
    assert slow.tensor_rate("bf16") == pytest.approx(ratio * device.tensor_rate("bf16"))
    wide, thin = Gemm(8192, 8192, 8192), Gemm(1, 16384, 16384)
    for gemm, least in ((wide, 1.1), (thin, 0.99)):
        assert estimate_of(slow, gemm).duration >= least * estimate_of(device, gemm).duration
    assert estimate_of(slow, thin).duration < 1.02 * estimate_of(device, thin).duration


def test_roofline_is_never_slower_than_the_model():
    device, first_look = (
        load_device("a100_sxm_80gb"),
        load_device("a100_sxm_80gb", settings=[("operators", "roofline")]),
    )
    for gemm in (Gemm(1, 4096, 4096), Gemm(4096, 4096, 4096), Gemm(200, 500, 64)):
        assert estimate_of(first_look, gemm).duration <= estimate_of(device, gemm).duration


def test_a_device_under_other_conditions_is_another_value():
    device = load_device("a100_sxm_80gb")
    slow = device.under(clock="sustained")
    assert slow.conditions.clock == "sustained"
    assert slow != device
    assert device.under(clock="sustained") == slow
    assert slow.under(clock="boost") == device


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, 1e300])
@pytest.mark.parametrize("section", list(RANGES))
def test_no_constant_takes_what_is_no_finite_number_in_its_range(section, value):
    for name in RANGES[section]:
        with pytest.raises(ValueError, match=rf"constants\.{section}\.default\.{name}: .* allowed: "):
            check_constants({section: {"default": {name: value}}})


def test_a_constant_of_a_kernel_that_nobody_knows_is_refused():
    device = load_device("h100_sxm", settings=[("constants", "{vector: {default: {rop_row_us: 1}}}")])
    with pytest.raises(InputError, match="'rop' is no vector kernel; allowed: .*rope"):
        VectorKernel.of(device, "rope", "bf16")


def test_a_library_with_constants_of_its_own_is_known():
    settings = [("constants", "{gemm: {mine: {start_us: 2}}}"), ("conditions.library", "mine")]
    assert load_device("h100_sxm", settings=settings).constants("gemm", "bf16")["start_us"] == 2
