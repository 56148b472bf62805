"""Rows of a model, layer, engine, GPU, operator or dtype that nothing here knows are counted and reasoned."""

import csv
import re

import pytest

from rapid_des.errors import InputError
from validation import DataFolder, all_topics, validate
from validation.measurements import CHECKOUT_DATA

NUMBER = re.compile(r"[-+0-9.eE]*")

# One row each that is predicted: file, columns.
GEMM = "operators/gemm_aiconfigurator.csv", {
    "gpu": "A100-SXM4-80GB", "op": "gemm", "dtype": "bfloat16", "M": "512", "N": "4096", "K": "4096",
    "time_us": "90.0", "framework": "vllm-0.14.0", "kernel": "k", "case_id": "c",
}  # fmt: skip
LAYER = "operators/layer_ops_llmservingsim.csv", {
    "gpu": "H100", "op": "o_proj", "model": "Llama-3.1-8B", "tp": "1", "tokens": "512", "dtype": "bf16",
    "time_us": "90.0", "prof": "v1-dense", "case_id": "c",
}  # fmt: skip
VECTOR = "operators/ops_neusight_nvidia.csv", {
    "gpu": "V100-PCIE-32GB", "op": "relu", "dtype": "fp32", "B": "512", "M": "", "N": "4096", "K": "",
    "time_us": "90.0", "case_id": "c",
}  # fmt: skip
ATTENTION = "operators/attention_aiconfigurator.csv", {
    "gpu": "A100-SXM4-80GB", "op": "attention_decode", "dtype": "bfloat16", "kv_dtype": "bfloat16",
    "batch": "8", "q_len": "1", "kv_len": "512", "n_heads": "32", "n_kv_heads": "8", "head_dim": "128",
    "time_us": "90.0", "framework": "vllm-0.14.0", "case_id": "c",
}  # fmt: skip
MLA = "operators/mla_aiconfigurator.csv", {
    "gpu": "H100-SXM-80GB", "op": "mla_decode", "dtype": "bfloat16", "kv_dtype": "bfloat16",
    "batch": "8", "q_len": "1", "past_len": "512", "n_heads": "32",
    "time_us": "90.0", "framework": "trtllm-1.0", "case_id": "c",
}  # fmt: skip
MOE = "operators/moe_aiconfigurator.csv", {
    "gpu": "H100-SXM-80GB", "op": "moe", "dtype": "bfloat16", "tokens": "64", "hidden": "4096",
    "inter": "1536", "topk": "8", "n_experts": "64", "moe_tp": "1", "moe_ep": "1", "routing": "balanced",
    "time_us": "90.0", "framework": "trtllm-1.0", "kernel": "moe_torch_flow_cutlass", "case_id": "c",
}  # fmt: skip
NCCL = "collectives/nccl_aiconfigurator.csv", {
    "gpu": "A100-SXM4-80GB", "op": "all_reduce", "dtype": "half", "ranks": "8", "bytes": "1024",
    "time_us": "30.0", "case_id": "c",
}  # fmt: skip
NDR = "collectives/nccl_h100_ndr_10node.csv", {
    "gpu": "H100-SXM-80GB", "op": "all_reduce", "ranks": "80", "gpus_per_node": "8", "bytes": "1048576",
    "time_us_out": "300.0", "case_id": "c",
}  # fmt: skip
SERVING = "collectives/custom_allreduce_aiconfigurator.csv", {
    "gpu": "A100-SXM4-80GB", "kernel": "vllm_graph", "ranks": "8", "bytes": "1024",
    "time_us": "10.0", "case_id": "c",
}  # fmt: skip
EXPERTS = "collectives/moe_alltoall_aiconfigurator.csv", {
    "gpu": "H100-SXM-80GB", "op": "deepep_normal_dispatch", "nodes": "2", "hidden": "7168", "tokens": "64",
    "topk": "8", "experts": "256", "time_us": "90.0", "sms": "20", "case_id": "c",
}  # fmt: skip


def report_of(tmp_path, file, row):
    path = tmp_path / file
    path.parent.mkdir()
    path.write_text("\n".join([",".join(row), ",".join(row.values())]) + "\n")
    return validate(DataFolder(tmp_path, split=False))["topics"]


@pytest.mark.parametrize(
    "known", [GEMM, LAYER, VECTOR, ATTENTION, MLA, MOE, NCCL, NDR, SERVING, EXPERTS], ids=lambda item: item[0]
)
def test_the_rows_below_are_predicted_as_they_stand(tmp_path, known):
    topics = report_of(tmp_path, *known)
    assert {figures["rows"] for figures in topics.values()} == {1}


@pytest.mark.parametrize(
    ("known", "column", "reason"),
    [
        (GEMM, "gpu", "no device file for Abacus"),
        (GEMM, "dtype", "no dtype Abacus"),
        (GEMM, "framework", "no kernels of engine 'Abacus'; there are vllm, trtllm, sglang"),
        (LAYER, "model", "widths of model 'Abacus' are not known"),
        (LAYER, "op", "no model of 'Abacus' alone"),
        (VECTOR, "gpu", "no device file for Abacus"),
        (VECTOR, "op", "no model of 'Abacus' alone"),
        (ATTENTION, "op", "no attention operator 'Abacus'"),
        (ATTENTION, "framework", "no kernels of engine 'Abacus'; there are vllm, trtllm"),
        (MLA, "gpu", "no device file for Abacus"),
        (MLA, "op", "no MLA operator 'Abacus'"),
        (MOE, "framework", "no kernels of engine 'Abacus'; there are vllm, trtllm, sglang"),
        (MOE, "routing", "no routing 'Abacus'; there are balanced and power_law_EXPONENT above 1"),
        (NCCL, "gpu", "no fabric constants for Abacus"),
        (NCCL, "op", "the NCCL model has no Abacus"),
        (NDR, "op", "the NCCL model has no Abacus"),
        (SERVING, "gpu", "no constants of this GPU's kernels"),
        (SERVING, "kernel", "serving kernels on a100: no all-reduce kernel of 'abacus'; allowed: "),
        (EXPERTS, "gpu", "no constants of this GPU's kernels"),
        (EXPERTS, "op", "only DeepEP is modelled"),
    ],
)
def test_a_name_that_nothing_knows_is_counted_with_the_reason(tmp_path, known, column, reason):
    file, row = known
    topics = report_of(tmp_path, file, row | {column: "Abacus"})
    for figures in topics.values():
        assert figures["rows"] == 0
        (found,) = figures["unsupported"].items()
        assert found[1] == 1
        assert found[0].startswith(reason)
    assert topics


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("x", r"gemm_aiconfigurator.csv: line 2: M: 'x' is no number"),
        ("1.5", r"line 2: M: '1.5' is no whole number from 1 on"),
        ("0", r"line 2: M: '0' is no whole number from 1 on"),
    ],
)
def test_a_number_that_is_none_is_an_error_with_its_place(tmp_path, value, message):
    file, row = GEMM
    with pytest.raises(InputError, match=message):
        report_of(tmp_path, file, row | {"M": value})


def test_a_time_is_above_zero(tmp_path):
    file, row = NCCL
    with pytest.raises(InputError, match="line 2: time_us: '0' is no time above 0"):
        report_of(tmp_path, file, row | {"time_us": "0"})


def test_a_column_that_is_not_there_is_named(tmp_path):
    file, row = NDR
    with pytest.raises(InputError, match="no column 'gpus_per_node'; there are gpu, op, ranks"):
        report_of(tmp_path, file, {name: value for name, value in row.items() if name != "gpus_per_node"})


def test_a_line_with_more_fields_than_columns_is_named(tmp_path):
    file, row = NCCL
    with pytest.raises(InputError, match="line 2: more fields than the 7 columns of the first line"):
        report_of(tmp_path, file, row | {"case_id": "c,d"})


SHIPPED = sorted(
    path
    for folder in ("training_e2e", "inference_e2e", "rapid")
    for path in (CHECKOUT_DATA / folder).glob("*.csv.gz")
)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name.removesuffix(".csv.gz"))
def test_no_name_and_no_blank_in_a_file_of_jobs_ends_the_whole_command(tmp_path, path):
    # Mixtral-8x22B in NeMo's table and llama2-13b in LMDeploy's ended `validate` with a KeyError.
    name = f"{path.parent.name}/{path.name.removesuffix('.gz')}"
    rows = DataFolder(CHECKOUT_DATA, split=False).read(name)
    first = {(row.get("source"), row.get("backend")): row for row in reversed(rows)}
    (tmp_path / name).parent.mkdir()
    with (tmp_path / name).open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        for row in first.values():
            for column, cell in row.items():
                table.writerow({**row, column: "" if NUMBER.fullmatch(cell) else "Abacus"})
    list(all_topics(DataFolder(tmp_path, split=False), [path.parent.name.replace("_e2e", "/")]))


NEW_SOURCE = "training_e2e/published_training.csv", {
    "case_id": "c", "source": "A Company 2027", "model": "Wide-Net-7B", "params_b": "", "layers": "",
    "hidden": "", "heads": "",
    "kv_heads": "", "ffn": "", "vocab": "", "seq": "4096", "gpu": "DGX-H100", "n_gpus": "8",
    "tp": "2", "pp": "1", "vpp": "", "dp": "", "cp": "", "ep": "", "fsdp": "", "mbs": "1", "gbs": "64",
    "recompute": "", "seq_parallel": "", "precision": "FP8", "framework": "NeMo 27.01", "iter_time_s": "4.5",
    "tokens_per_s_per_gpu": "", "notes": "",
}  # fmt: skip
MODEL = (
    "name,aliases,style,layers,hidden,heads,kv_heads,ffn,vocabulary,head_dim,experts,topk,expert_ffn,"
    "shared_ffn,source\n"
)


def test_a_source_that_nobody_has_seen_is_scored_with_the_dimensions_that_its_folder_states(tmp_path):
    topics = report_of(tmp_path, *NEW_SOURCE)
    figures = topics["training/a-company-2027"]
    assert figures["unsupported"] == {"no dimensions of model 'Wide-Net-7B': models.csv has no such row": 1}
    (tmp_path / "models.csv").write_text(f"{MODEL}wide net 7b,,llama,32,4096,32,8,14336,32000,,,,,,here\n")
    figures = validate(DataFolder(tmp_path, split=False))["topics"]["training/a-company-2027"]
    assert figures["rows"] == 1 and figures["residuals"][0]["measured"] == 4.5


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("framework", "Abacus 3", "no software profile of 'Abacus 3'"),
        ("gpu", "Abacus", "no machine file of Abacus"),
        ("precision", "", "the precision is not printed"),
        ("gbs", "", "gbs is not printed"),
        ("tp", "3", "the layout does not divide the GPUs"),
    ],
)
def test_a_row_of_such_a_source_names_what_it_lacks(tmp_path, column, value, reason):
    file, row = NEW_SOURCE
    figures = report_of(tmp_path, file, {**row, "model": "Llama-3-8B", column: value})[
        "training/a-company-2027"
    ]
    assert figures["unsupported"] == {reason: 1}


@pytest.mark.parametrize(
    ("name", "column", "value", "reason"),
    [
        ("training_e2e/dgxc_scaling.csv", "precision", "Abacus", "number format 'Abacus'"),
        ("training_e2e/dgxc_scaling.csv", "precision", "", "the precision is not printed"),
        ("inference_e2e/silicon_e2e_serving.csv", "osl", "", "osl is not printed"),
        ("inference_e2e/silicon_e2e_serving.csv", "osl", "1", "an answer of one token has no time a token"),
    ],
)
def test_formats_and_lengths_are_never_taken_for_others(tmp_path, name, column, value, reason):
    row = DataFolder(CHECKOUT_DATA, split=False).read(name)[3]
    plain = {key: cell.replace(",", ";") for key, cell in row.items()}
    topics = report_of(tmp_path, name, {**plain, column: value})
    assert {why for figures in topics.values() for why in figures["unsupported"]} == {reason}
    assert all(figures["rows"] == 0 for figures in topics.values())
