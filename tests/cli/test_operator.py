import json
import re

import pytest
from click.testing import CliRunner

from rapid_des.cli.device import device
from rapid_des.cli.operator import operator, sharded_gemm
from rapid_des.errors import InputError


def run(command, *arguments):
    result = CliRunner().invoke(command, arguments)
    if result.exception is not None:
        raise result.exception
    return result.stdout


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (("norm", "4096", "4096"), {"transfer": "37.19 us", "kernels": "1"}),
        (
            ("attention", "1", "128", "4096", "--heads", "32"),
            {"compute": "151.4 us", "tiles_visited": "2,048"},
        ),
        (("gemm", "512", "1024", "2048"), {"launch": "1 us"}),
    ],
)
def test_details_are_written_as_people_write_them(arguments, shown):
    text = run(operator, *arguments, "--device", "a100_sxm_80gb")
    details = dict(line.split(maxsplit=1) for line in text.splitlines()[1:])
    assert {name: details[name] for name in shown} == shown
    assert not [name for name in details if name.endswith(("_us", "_ps", "_pj"))]


@pytest.mark.parametrize(
    ("job", "marks"),
    [
        # no learned file or fault: a run prices the same, at the clock that the title names
        ("llama2_7b_train", ("sustained clock", "forward.attention.qkv", "optimizer")),
        ("llama2_7b_inference", ("sustained clock", "prefill attention.qkv", "decode step 199")),
    ],
)
def test_a_roofline_shows_what_a_run_prices(job, marks, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "roofline.svg"
    run(operator, "roofline", job, "--on", "dgx_a100", "-o", str(picture))
    words = " ".join(re.findall("<!-- (.*?) -->", picture.read_text()))
    assert [mark for mark in marks if mark not in words] == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("gemm", "512", "1024", "2048"),
        ("grouped", "8x64", "1024", "2048"),
        ("attention", "2", "1024", "1024", "--heads", "16"),
        ("vector", "rms_norm", "1024", "4096"),
        ("vector", "softmax", "1024", "4096", "--phase", "backward"),
    ],
)
def test_every_family_prints_time_bound_and_bytes(arguments):
    plain = json.loads(run(operator, *arguments, "--device", "h100_sxm", "--json"))
    assert plain["time_s"] > 0
    assert plain["bound"] in {"tensor", "vector", "shared", "l2", "hbm", "latency", "launch"}
    assert plain["bytes"]["hbm"] > 0
    text = run(operator, *arguments, "--device", "h100_sxm")
    assert f"bound by {plain['bound']}" in text


def test_conditions_are_options():
    slow, fast = (
        json.loads(
            run(operator, "gemm", "8192", "8192", "8192", "--device", "h100_sxm", "--clock", clock, "--json")
        )
        for clock in ("sustained", "boost")
    )
    assert slow["conditions"]["clock"] == "sustained"
    assert slow["time_s"] > fast["time_s"]


@pytest.mark.parametrize("rows", ["a,b", "3x", "-1,4", ""])
def test_rows_that_are_no_list_are_told(rows):
    with pytest.raises(InputError, match="ROWS"):
        run(operator, "grouped", "--device", "h100_sxm", "--", rows, "64", "64")


def test_the_vector_kernels_have_a_group_of_their_own():
    assert "rms_norm" in run(operator, "vector", "--help")
    assert len(operator.list_commands(None)) < 10
    named = run(operator, "vector", "rms_norm", "64", "1024", "--device", "h100_sxm")
    assert run(operator, "norm", "64", "1024", "--device", "h100_sxm") == named  # as scripts may still say


def test_row_and_column_cuts_put_the_sum_where_it_belongs():
    row, col = (
        json.loads(
            run(
                sharded_gemm,
                "4096",
                "4096",
                "8192",
                "--tp",
                "4",
                "--axis",
                axis,
                "--on",
                "dgx_a100",
                "--json",
            )
        )
        for axis in ("row", "col")
    )
    # Cut by rows, the partial results [M, N] are summed forward; by columns, the gradients of the input.
    assert [p["collectives"][0]["bytes"] if p["collectives"] else 0 for p in row] == [4096 * 8192 * 2, 0, 0]
    assert [p["collectives"][0]["bytes"] if p["collectives"] else 0 for p in col] == [0, 4096 * 4096 * 2, 0]
    assert row[0]["gemm"] == {"m": 4096, "n": 8192, "k": 1024}
    assert row[0]["total_s"] == pytest.approx(row[0]["gemm_s"] + row[0]["collectives"][0]["time_s"])


def test_a_cut_that_does_not_divide_is_an_error():
    with pytest.raises(InputError, match="3 does not divide N = 8192"):
        run(sharded_gemm, "64", "64", "8192", "--tp", "3", "--axis", "col", "--on", "dgx_a100")


def test_show_prints_a_variant_with_its_base_merged_in():
    assert "128 MiB" in run(device, "show", "h100_case_a")
    assert json.loads(run(device, "show", "h100_case_a", "--json"))["sms"] == 132


def test_calibrate_prints_a_block_for_the_device_file(tmp_path):
    rows = [f"{m},4096,4096,bf16,{40 + m / 8},case{m % 7}" for m in range(1, 700, 13)]
    (tmp_path / "times.csv").write_text("M,N,K,dtype,time_us,case_id\n" + "\n".join(rows))
    text = run(
        device, "calibrate", str(tmp_path / "times.csv"), "--device", "a100_sxm_80gb", "--fit", "hbm,tensor"
    )
    assert text.startswith("constants:\n  gemm:\n    default:\n")
    assert "# calibration: mean absolute error" in text


def test_calibrate_fits_the_section_that_is_asked_for(tmp_path):
    rows = [f"rms_norm,{2**m},8192,bf16,{20 + 2**m / 100},case{m}" for m in range(14)]
    (tmp_path / "times.csv").write_text("kind,rows,columns,dtype,time_us,case_id\n" + "\n".join(rows))
    arguments = (str(tmp_path / "times.csv"), "--device", "a100_sxm_80gb", "--section", "vector")
    text = run(device, "calibrate", *arguments, "--scope", "mine")
    assert text.startswith("constants:\n  vector:\n    mine:\n")
    assert "# test: mean absolute error" in text
    plain = json.loads(run(device, "calibrate", *arguments, "--json"))
    assert (plain["section"], plain["scope"]) == ("vector", "default")


def test_calibrate_names_a_missing_column(tmp_path):
    (tmp_path / "times.csv").write_text("M,N\n1,2\n")
    with pytest.raises(InputError, match="no column 'K'"):
        run(device, "calibrate", str(tmp_path / "times.csv"), "--device", "a100_sxm_80gb")
