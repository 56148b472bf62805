import csv

import pytest

from rapid_des.device import Attention, Vector, load_device
from rapid_des.device.calibrate import FitTarget, calibrate
from rapid_des.device.calibration import BOUNDS
from rapid_des.errors import InputError
from tests.device.prices import estimate_of
from validation import is_calibration

A100 = load_device("a100_sxm_80gb", settings=[("conditions.library", "mine")], new_library=True)
SHAPE = ["batch", "q_len", "kv_len", "n_heads", "n_kv_heads", "head_dim"]
ATTENTION = [*SHAPE, "dtype", "kv_dtype", "time_us", "case_id"]
VECTOR = ["kind", "rows", "columns", "dtype", "time_us", "case_id"]
CASES = [f"case{index}" for index in range(12)]


def made_with(section, **constants):
    """Return the device whose constants made the synthetic times."""
    settings = [("conditions.library", "mine")]
    settings += [(f"constants.{section}.mine.{name}", str(value)) for name, value in constants.items()]
    return load_device("a100_sxm_80gb", settings=settings)


def micros(device, operator):
    return estimate_of(device, operator).duration / 1e6


def written(path, columns, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    return path


def attention_rows(device, *, queries, scale=None):
    """Return rows of one case a batch size; `scale` multiplies the times of the cases outside the fit."""
    for batch, case in enumerate(CASES, start=1):
        for keys in (512, 2048, 8192):
            call = Attention(batch, queries or keys, keys, 32, 8, 128)
            time = micros(device, call)
            if scale and not is_calibration(case):
                time *= scale
            yield [batch, call.query_length, keys, 32, 8, 128, "bf16", "bf16", time, case]


def vector_rows(device, kind):
    for index, case in enumerate(CASES):
        for columns in (1024, 8192):
            rows = 16 * 2**index
            yield [kind, rows, columns, "bf16", micros(device, Vector(kind, rows, columns)), case]


def test_the_constant_behind_made_up_decode_times_is_found_again(tmp_path):
    truth = made_with("decode", kernel_us=9)
    path = written(tmp_path / "t.csv", ATTENTION, attention_rows(truth, queries=1))
    found = calibrate(path, A100, FitTarget("decode", names=("kernel_us",)))
    assert found.constants["kernel_us"] == pytest.approx(9, rel=0.02)
    before, after = found.errors["test"]
    assert after < 1 < before


def test_a_prefill_constant_is_found_again(tmp_path):
    truth = made_with("attention", tensor_utilisation=0.4)
    path = written(tmp_path / "t.csv", ATTENTION, attention_rows(truth, queries=0))
    found = calibrate(path, A100, FitTarget("attention", names=("tensor_utilisation",)))
    assert found.constants == {"tensor_utilisation": pytest.approx(0.4, rel=0.02)}


def test_a_vector_kinds_own_constant_can_be_fitted(tmp_path):
    truth = made_with("vector", rms_norm_kernel_us=12)
    path = written(tmp_path / "t.csv", VECTOR, vector_rows(truth, "rms_norm"))
    found = calibrate(path, A100, FitTarget("vector", names=("rms_norm_kernel_us",)))
    assert found.constants == {"rms_norm_kernel_us": pytest.approx(12, rel=0.03)}


def test_vllms_attention_times_include_writing_the_new_keys(tmp_path):
    vllm = A100.under(library="vllm")
    call = (Attention(8, 1, 4096, 32, 8, 128), Vector("kv_cache_write", 8, 2 * 8 * 128))
    time = sum(micros(vllm, operator) for operator in call)
    rows = [[8, 1, 4096, 32, 8, 128, "bf16", "bf16", time, case] for case in CASES]
    path = written(tmp_path / "t.csv", ATTENTION, rows)
    found = calibrate(path, vllm, FitTarget("decode", names=("kernel_us",)))
    assert found.errors["test"] == (pytest.approx(0, abs=1e-9), pytest.approx(0, abs=0.1))


def test_only_calibration_cases_enter_the_fit(tmp_path):
    # The other cases' times are tripled: fitted constants stay the ones that made the calibration cases.
    truth = made_with("decode", kernel_us=9)
    wanted = FitTarget("decode", names=("kernel_us",))
    plain, bent = (
        calibrate(
            written(tmp_path / f"{scale}.csv", ATTENTION, attention_rows(truth, queries=1, scale=scale)),
            A100,
            wanted,
        )
        for scale in (None, 3.0)
    )
    assert plain.constants == bent.constants == {"kernel_us": pytest.approx(9, rel=0.02)}
    # A prediction of 1 beside a measurement of 3 is 67 % off.
    assert bent.errors["test"][1] == pytest.approx(66.7, abs=1)


def test_no_utilisation_rises_above_its_bound(tmp_path):
    rows = [[*row[:8], row[8] / 20, row[9]] for row in attention_rows(A100, queries=0)]
    path = written(tmp_path / "t.csv", ATTENTION, rows)
    found = calibrate(path, A100, FitTarget("attention", names=("tensor_utilisation", "overlap")))
    for name, value in found.constants.items():
        assert value <= BOUNDS["attention"][name][1] <= 1


@pytest.mark.parametrize(
    ("columns", "row", "wanted", "message"),
    [
        (
            VECTOR,
            ["rms_norm", 1, 1, "bf16", 1, "a"],
            FitTarget("nope"),
            "--section: 'nope' is not one of gemm, ",
        ),
        (VECTOR[1:], [1, 1, "bf16", 1, "a"], FitTarget("vector"), "no column 'kind'; needed: kind, rows"),
        (
            VECTOR,
            ["rms_norm", 1, 1, "bf17", 1, "a"],
            FitTarget("vector"),
            "case a: dtype 'bf17' is not one of",
        ),
        (VECTOR, ["rms_norm", 1, 1, "bf16", -1, "a"], FitTarget("vector"), "case a: time_us: -1 is no time"),
        (VECTOR, ["rms_norm", 1, 1], FitTarget("vector"), "line 2: ends before its last column"),
        (VECTOR, ["nope", 1, 1, "bf16", 1, "case1"], FitTarget("vector"), "nope"),
        (
            ATTENTION,
            [1, 1, 9, 4, 0, 8, "bf16", "bf16", 1, "a"],
            FitTarget("decode"),
            "n_kv_heads: '0' is no whole",
        ),
        (
            ATTENTION,
            [1, 1, 9, 4, 4, 8, "bf16", "bf16", 1, "a"],
            FitTarget("decode"),
            "they are of decode_mha",
        ),
    ],
)
def test_bad_input_is_one_line(tmp_path, columns, row, wanted, message):
    with pytest.raises(InputError) as caught:
        calibrate(written(tmp_path / "t.csv", columns, [row]), A100, wanted)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_fit_names_an_unknown_constant(tmp_path):
    path = written(tmp_path / "t.csv", ATTENTION, attention_rows(A100, queries=1))
    with pytest.raises(InputError, match="--fit: 'tile_q' is not one of tensor_utilisation"):
        calibrate(path, A100, FitTarget("decode", names=("tile_q",)))
