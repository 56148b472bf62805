"""Measured servers under closed loops: which rows count, and how their benchmarks started the engines."""

import csv
import io
import json
from types import SimpleNamespace

import pytest

from rapid_des.device.calibration import Record
from rapid_des.frontend import load_job
from rapid_des.serving.pools import pools_of
from validation import DataFolder, open_folder
from validation.inference import silicon
from validation.inference.recipes import recipe_of
from validation.measurements import CHECKOUT_DATA

pytestmark = pytest.mark.skipif(not CHECKOUT_DATA.is_dir(), reason="the data ships with a checkout only")


@pytest.fixture(scope="module")
def shipped():
    return open_folder(None).read(silicon.SILICON)


@pytest.fixture
def known(tmp_path):
    """Return what becomes of rows, as a folder of its own would have them."""

    def configurations(rows):
        text = io.StringIO()
        table = csv.DictWriter(text, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
        file = tmp_path / silicon.SILICON
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.getvalue())
        return silicon.configurations(DataFolder(tmp_path, split=False))

    return configurations


def one_of(rows, model, **values):
    wanted = {"mode": "agg", "concurrency": "16", "isl": "1024", "osl": "1024"} | values
    row = next(row for row in rows if model in row["model_path"] and wanted.items() <= row.items())
    return Record(row, row.where)


def test_repeats_are_averaged_and_count_once(shipped, known):
    row = one_of(shipped, "gpt-oss", system="h100_sxm")
    ((records, case),) = known([row, {**row, "ttft_ms": "100", "tpot_ms": "9"}])
    assert silicon.mean(records, "ttft") == pytest.approx((float(row["ttft_ms"]) + 100) / 2)
    assert case.served.clients == 16
    assert len(case.served.prompt) == 160


def test_prompts_that_would_need_most_of_the_peak_were_not_computed(shipped, known):
    row = one_of(shipped, "gpt-oss", system="b200_sxm", backend="trtllm", isl="8192")
    ((records, case),) = known([row])
    assert not silicon.cached_prompts([(records, case)])
    quick = [Record({**record, "ttft_ms": "0.1", "tpot_ms": "0.01"}, record.where) for record in records]
    assert silicon.cached_prompts([(quick, case)]) == {("trtllm", "b200_sxm", row["model_path"])}


def test_experts_of_gpt_oss_in_triton_are_refused_by_name(shipped):
    h200 = one_of(shipped, "gpt-oss", backend="trtllm", system="h200_sxm")
    assert silicon.case_of(h200) == "experts of gpt-oss in Triton: none of their kernels is measured"
    b200 = Record(h200 | {"system": "b200_sxm"}, h200.where)
    assert not isinstance(silicon.case_of(b200), str)


def test_rows_of_r1_that_are_not_v3_s_again_are_speculative_where_v3_was_measured(shipped, known):
    plain = one_of(shipped, "DeepSeek-V3", backend="trtllm", system="b200_sxm")
    again = plain | {"model_path": "deepseek-ai/DeepSeek-R1"}
    quicker = again | {"tpot_ms": "1"}
    cases = [case for _, case in known([plain, again, quicker])]
    assert len(cases) == 2
    assert cases[1] == silicon.SPECULATIVE
    ((_, alone),) = known([quicker])  # nothing tells it apart
    assert alone != silicon.SPECULATIVE


@pytest.mark.parametrize(
    ("model", "values", "stated"),
    [
        ("gpt-oss", {"backend": "vllm", "system": "h100_sxm"}, {"tokens": 8192, "expert_kernels": "marlin"}),
        ("gpt-oss", {"backend": "vllm", "system": "h200_sxm"}, {"captured": 2048}),
        ("Kimi-K2.5", {"system": "b300_sxm"}, {"tokens": 2048, "kv_cache": "fp8", "captured": 8192}),
        ("Llama-3.1-70B", {"backend": "vllm", "system": "b200_sxm", "tp_size": "8"},
         {"captured": 0, "norm_in_sum": "8 MiB"}),
        ("gpt-oss", {"backend": "trtllm", "system": "b200_sxm"}, {"tokens": 20000, "kv_cache": "fp8"}),
        ("Llama-3.1-70B", {"backend": "trtllm", "tp_size": "4"}, {"tokens": 2048, "wait": (20, 0.9)}),
        ("Llama-3.1-70B", {"backend": "trtllm", "tp_size": "8"}, {"wait": (0, 0.0)}),
        ("DeepSeek-V3", {"backend": "trtllm", "measured_date": "2025-12-15"}, {"tokens": 1152}),
        ("DeepSeek-V3", {"backend": "trtllm", "measured_date": "2026-02-03"}, {"tokens": 8192}),
        ("Llama-3.1-8B", {"backend": "trtllm", "osl": "128"}, {"tokens": 2540}),
        ("DeepSeek-V3", {"backend": "sglang", "system": "b200_sxm"}, {"receive_interval": 30}),
        ("DeepSeek-V3", {"backend": "sglang", "system": "h200_sxm"}, {"tokens": 32768}),
    ],
)  # fmt: skip
def test_engines_start_as_the_scripts_of_their_benchmark_say(shipped, model, values, stated):
    recipe = recipe_of(one_of(shipped, model, **values))
    assert {name: getattr(recipe, name) for name in stated} == stated


def test_lengths_vary_in_the_sweep_and_are_fixed_elsewhere(shipped):
    swept = silicon.case_of(one_of(shipped, "Llama-3.1-70B")).served
    fixed = silicon.case_of(one_of(shipped, "Llama-3.1-8B-Instruct", osl="128")).served
    assert min(swept.prompt) >= 819 and max(swept.prompt) <= 1024 and len(set(swept.prompt)) > 50
    assert set(fixed.prompt) == {1024} and set(fixed.output) == {128}


def test_every_runnable_configuration_is_a_job_and_others_say_why(shipped, known):
    rows = {
        (row["model_path"], row["backend"], row["system"], row["gemm_quant_mode"]): row for row in shipped
    }
    reasons = set()
    for _, case in known(list(rows.values())):
        if isinstance(case, str):
            reasons.add(case)
        else:
            assert load_job(json.loads(case.job)).spec.serving is not None
    assert "sparse attention with an indexer (GLM-5)" in reasons


def test_the_best_of_a_group_is_chosen_by_prediction(shipped, known, monkeypatch):
    row = one_of(shipped, "Llama-3.1-70B", backend="trtllm", tp_size="4")
    others = [row | {"tp_size": "8", "tpot_ms": "5"}, row | {"tpot_ms": "6"}]
    configurations = known(others)

    class Quicker:
        refusal = ""

        def __init__(self, case):
            self.per_token_s = 1.0 / load_job(json.loads(case.job)).gpus

    ran = SimpleNamespace(outcome=Quicker, abandon=None)
    monkeypatch.setattr(silicon, "runs", lambda: ran)
    (topic,) = silicon._ranking(configurations)
    (chosen,) = topic.rows()
    assert (chosen.measured, chosen.predicted) == (5.0, 5.0)


def test_workers_for_prompts_and_for_answers_have_layouts_of_their_own(shipped, known):
    row = one_of(
        shipped,
        "DeepSeek-V3",
        mode="disagg",
        backend="sglang",
        system="b200_sxm",
        isl="8192",
        concurrency="64",
    )
    unstated = row | {"prefill_num_workers": "0"}
    apart = {"prefill_tp_size": "1", "prefill_attention_dp_size": "4", "prefill_moe_tp_size": "1",
             "prefill_moe_ep_size": "4", "decode_num_workers": "2"}  # fmt: skip
    refused, case = (known([one])[0][1] for one in (unstated, row | apart))
    assert "does not state" in refused
    job = load_job(json.loads(case.job))
    prompting, answering = pools_of(job)
    split = prompting.job.spec.parallelism
    assert (split.tp, split.dp, split.ep) == (1, 4, 4)  # a worker of four replicas that share experts
    assert (answering.each, answering.replicas, answering.first, answering.end) == (8, 2, 8, 24)
    assert case.place.settings[0] == ("fabric.1.size", "3")
