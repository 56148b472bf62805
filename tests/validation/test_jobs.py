"""Measured jobs: rows of files become jobs, and what cannot become one is counted with the reason."""

import csv
import io
import json
from statistics import fmean
from typing import Any

import pytest

from rapid_des.frontend import load_job
from rapid_des.values import replace
from validation import DataFolder, open_folder, validate
from validation.inference import tables, trtllm
from validation.jobs.blame import Taken, errors_by_part
from validation.jobs.cases import Case, Place, Served, outcome
from validation.jobs.decoders import Dimensions
from validation.jobs.models import shipped
from validation.jobs.origins import SERVERS, SOFTWARE, place
from validation.jobs.workers import FEW, NOT_RUN, Runs
from validation.measurements import CHECKOUT_DATA
from validation.training import bridge, dgxc, mlperf, nanotron, plain, published, small
from validation.training import tables as others

pytestmark = pytest.mark.skipif(not CHECKOUT_DATA.is_dir(), reason="the data ships with a checkout only")
TRTLLM = (
    "case_id,gpu,model,precision,tp,pp,batch,input_len,output_len,ttft_ms,tpot_ms,latency_ms,out_tok_per_s,"
    "peak_mem_gb_per_gpu,custom_allreduce,source"
)


@pytest.fixture
def written(tmp_path):
    """Return a folder that holds a file of this text."""

    def write(name, text):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        return DataFolder(tmp_path, split=False)

    return write


@pytest.fixture
def rows_of(written):
    """Return a folder that holds the shipped rows of a file that have some values."""

    def take(name, /, change=None, **values):
        shipped = [row for row in open_folder(None).read(name) if values.items() <= row.items()]
        text = io.StringIO()
        table = csv.DictWriter(text, list(shipped[0]))
        table.writeheader()
        table.writerows(dict(row) | (change or {}) for row in shipped)
        return written(name, text.getvalue())

    return take


def measured(module, data):
    """Return the measured jobs behind a module's topics, without running any."""
    return [row for topic in module.topics(data) if topic.shares is None for row in topic.rows.args[1]]


def job_of(row):
    return load_job(json.loads(row.cases[0].job))


def scored(data, topic):
    return validate(data, [topic])["topics"][topic]


def test_a_row_of_korthikanti_is_the_job_of_its_table(rows_of):
    data = rows_of(plain.FILE, case_id="korthikanti-t5/175B-selective")
    (row,) = measured(published, data)
    job = job_of(row)
    assert (job.gpus, job.shape.chunks, job.training.recompute, job.spec.attention) == (
        64,
        3,
        "selective",
        "unfused",
    )
    assert row.cases[0].place == Place("dgx_a100_x8", (("fabric.1.size", "8"),))
    assert scored(data, "training/korthikanti")["mean_abs_pct"] < 8  # 13.75 s measured


def test_a_ladder_is_scored_by_its_ratios(rows_of):
    data = rows_of(dgxc.FILE, case_id="dgxc/H100-SXM-80GB/Llama3.1-8B/bf16/25.04/weak")
    figures = scored(data, "training/dgxc-slope")
    # 8, 16, 32, 64, 128 GPUs at 12.27, 12.30, 12.32, 12.33, 12.33 s: four rungs above the first.
    assert figures["rows"] == 4
    assert figures["residuals"][0]["measured"] == pytest.approx(12.30 / 12.27)
    assert figures["mean_abs_pct"] < 2


def test_reduced_depths_are_no_rungs_of_one_ladder():
    data = open_folder(None)
    rows: Any = next(topic for topic in dgxc.topics(data) if topic.name == "training/dgxc-slope").rows
    ladders = rows.args[1]
    assert all(
        len({job_of(row).model.spec.layers for _, row in ladder if row.cases}) <= 1 for ladder in ladders
    )


def test_rows_of_other_layers_are_counted_with_the_reason():
    rows = measured(bridge, open_folder(None))
    assert any(row.unsupported.startswith("no dimensions of model 'Nemotron_3") for row in rows)
    assert all(row.cases or row.unsupported for row in rows)


def test_sharded_parameters_are_gathered_again_unless_the_row_keeps_them(rows_of):
    rows = [row for row in measured(published, open_folder(None)) if "llm-foundry" in row.topic]
    kept = {job_of(row).training.reshard for row in rows if row.cases}
    assert kept == {True, False} and {job_of(row).training.zero_stage for row in rows if row.cases} == {3}


def test_every_software_is_a_profile_and_every_server_a_machine_file():
    for profile in SOFTWARE.values():
        chosen = profile if isinstance(profile, str) else dict(profile)
        load_job("llama2_7b_train", settings={"software": chosen})
    job = {
        "model": "llama2_7b",
        "phase": "inference",
        "inference": {"batch": 1, "prompt_length": 8, "output_length": 2},
    }
    assert {gpu: outcome(Case.of(job, place(gpu, 1))).refusal for gpu in SERVERS} == dict.fromkeys(
        SERVERS, ""
    )


def test_submissions_that_print_no_chunks_have_those_of_their_defaults():
    rows = [row for row in measured(mlperf, open_folder(None)) if "/v3.1/" in row.case_id and row.cases]
    assert rows and {job_of(row).shape.chunks for row in rows} == {12}


def test_rows_of_adapters_train_them_beside_attention_with_one_sequence_a_micro_batch():
    rows = [row for row in measured(mlperf, open_folder(None)) if row.topic == "training/mlperf/lora"]
    jobs = [job_of(row) for row in rows if row.cases]
    assert jobs and {job.training.adapters.matrices for job in jobs} == {
        ("attention.qkv", "attention.output")
    }
    assert {job.training.micro_batch for job in jobs} == {1}
    others = [job_of(row) for row in measured(mlperf, open_folder(None)) if row.cases and row not in rows]
    assert {job.training.overlap_tp for job in others if job.spec.parallelism.tp == 1} == {"none"}
    assert "userbuffers" in {job.training.overlap_tp for job in others}


def test_tokens_a_second_are_times_and_pipelines_have_as_many_micro_batches_as_stages(rows_of):
    data = rows_of(plain.FILE, case_id="torchtitan/405b-512gpu-1F1B")
    (row,) = measured(others, data)
    assert row.measured == pytest.approx(256 * 8192 / (100 * 512))
    job = job_of(row)
    assert (job.micro_batches, job.training.micro_batch, job.shape.chunks) == (8, 4, 1)
    assert row.cases[0].place == Place("dgx_h100_x8", (("fabric.1.size", "64"), ("device", "h100_sxm_500w")))
    rows = measured(others, open_folder(None))
    assert sum(bool(row.unsupported) for row in rows) == 3  # scales of rows


def test_what_a_source_counts_as_flops_is_read_both_ways(rows_of):
    data = rows_of(plain.FILE, case_id="llama3-405b/16384gpu-seq8192")
    rows = measured(others, data)
    assert len({row.measured for row in rows}) == 2
    assert {job_of(row).shape.chunks for row in rows} == {8}
    assert [job_of(row).sharding.each for row in rows] == [True, False] * 2
    causal, whole = sorted({row.measured for row in rows})
    # 12 and 6 FLOPs a layer, channel and pair of positions, for 2,048 sequences
    more = 6 * 126 * 16384 * 8192 * 8192 * 2048 / 16384 / 400e12
    assert whole - causal == pytest.approx(more)


def test_stages_of_nanotron_end_where_their_share_of_the_matrices_does():
    size = Dimensions(16, 2048, 32, 32, 8192, 131072)
    # A layer has 4·2048² + 3·2048·8192 = 67.1 M parameters, the head 2048·131072 = four times that.
    assert nanotron.by_cost(size, 2) == (10, 6) and nanotron.by_cost(size, 4) == (5, 5, 5, 1)


@pytest.mark.parametrize(("status", "verdict"), [("Success", 1.0), ("OOM", 2.0)])
def test_a_memory_verdict_is_right_or_wrong_in_a_direction(rows_of, status, verdict):
    name = "1.34G_dp32_tp1_pp1_acc4_mbs2_seq4096_zero1_tpmodeRED_vocab131k"  # 13 GB of 80
    data = rows_of(nanotron.FILE, change={"status": status}, name=name)
    figures = scored(data, "training/nanotron/fits")
    assert figures["residuals"][0]["predicted"] == verdict


def test_activations_are_the_published_formulas(rows_of):
    figures = scored(rows_of(small.MEMORY, model="175B"), "training/memory")
    assert figures["rows"] == 8 and figures["mean_abs_pct"] < 6


def test_a_static_batch_has_four_figures_of_one_run(written):
    row = "c,A100-SXM4-80GB,Llama-2-7B,fp16,1,1,1,128,128,13.5,10.0,1283.5,99,20.0,Yes,dli"
    data = written(trtllm.FILE, f"{TRTLLM}\n{row}\n")
    report = validate(data, ["inference/trtllm-static/"])["topics"]
    names = [f"inference/trtllm-static/{figure}" for figure in ("e2e", "memory", "tpot", "ttft")]
    assert [name for name in report if report[name]["rows"]] == names
    predicted = {name: report[name]["residuals"][0]["predicted"] for name in names}
    e2e, memory, tpot, ttft = predicted.values()
    assert e2e == pytest.approx(ttft + 127 * tpot, rel=1e-6)
    assert 13 < memory < 20 and 6.6 < tpot < 20  # weights: 13.5 GB at 2.039 TB/s take 6.6 ms
    shares = report["inference/trtllm-static/e2e/parts"]["shares_pct"]
    assert sum(shares.values()) == pytest.approx(100)


def test_like_batches_on_more_gpus_are_scored_by_the_ratio_of_their_tokens(written):
    rows = [f"c{tp},A100-SXM4-80GB,Llama-2-7B,fp16,{tp},1,1,128,128,13.5,{tpot},9,99,20.0,Yes,dli"
            for tp, tpot in ((1, 10.0), (4, 4.0))]  # fmt: skip
    data = written(trtllm.FILE, "\n".join([TRTLLM, *rows, ""]))
    figures = scored(data, "inference/trtllm-static/tp-slope")
    (residual,) = figures["residuals"]
    assert residual["measured"] == 0.4 and 0.25 < residual["predicted"] < 0.6
    assert figures["null_mean_abs_pct"] == pytest.approx(100 * (0.4 - 0.25) / 0.4)


def test_times_of_a_server_have_the_parts_that_they_are_of():
    static = {"batch": 1, "prompt_length": 128, "output_length": 2}  # the server reads none of it
    tree = {"model": "llama2_7b", "phase": "inference", "software": "vllm-0.12", "inference": static}
    case = replace(Case.of(tree, Place("dgx_a100")), served=Served((500,) * 12, (20,) * 12, clients=4))
    ran = outcome(case)
    first = ran.first_parts_s
    assert sum(first.values()) == pytest.approx(ran.first_token_s)
    assert list(first) == ["kernels", "communication", "host", "client", "scheduler"]
    # four clients begin together and stay in step: their prompts are one pass, longer than one alone
    assert first["communication"] < 1e-9 and first["scheduler"] > first["kernels"] > 0
    assert sum(ran.parts_s.values()) == pytest.approx(ran.step_s, rel=0.01)


def test_what_parts_add_to_the_bias_adds_up_to_it_and_names_who_is_off():
    rows = [Taken(10 + 3 * n, {"kernels": 10, "tp": 2 * n}) for n in range(1, 20)]
    errors = errors_by_part(rows)
    bias = 100 * fmean(sum(row.parts.values()) / row.measured - 1 for row in rows)
    assert sum(errors.values()) == pytest.approx(bias)
    assert errors["tp"] == pytest.approx(bias, rel=0.1) and abs(errors["kernels"]) < 2
    assert errors_by_part(rows[:2]) == {}


@pytest.mark.parametrize("model", ["Mixtral-8x7B", "Falcon-180B", "GPT-J-6B", "Mistral-7B"])
def test_models_of_other_styles_are_run(written, model):
    row = f"c,A100-SXM4-80GB,{model},fp16,8,1,1,128,128,13.5,10.0,1283.5,99,20.0,Yes,dli"
    data = written(trtllm.FILE, f"{TRTLLM}\n{row}\n")
    assert scored(data, "inference/trtllm-static/tpot")["rows"] == 1


def test_a_gpu_without_a_machine_file_is_not_supported(written):
    row = "c,H100-NVL-94GB,Llama-2-70B,fp8,16,1,1,128,128,13.5,10.0,1283.5,99,20.0,No,dli"
    data = written(trtllm.FILE, f"{TRTLLM}\n{row}\n")
    reason = "no machine file of 16 H100-NVL-94GB"
    assert scored(data, "inference/trtllm-static/ttft")["unsupported"] == {reason: 1}


def test_more_than_a_pair_of_h100_nvl_meet_over_pcie():
    assert place("H100-NVL-94GB", 2).machine == "h100_nvl_x8"
    assert place("H100-NVL-94GB", 8) == Place("rtx_pro_6000_x8", (("device", "h100_nvl"),))


def test_one_client_is_a_batch_and_several_are_a_server(rows_of):
    (gpu_file, *_) = tables.NIM_TABLES
    data = rows_of(gpu_file)
    rows = [
        row
        for row in measured(tables, data)
        if row.topic in ("inference/nim/itl", "inference/nim/itl/clients")
    ]
    clients = {row.cases[0].served.clients if row.cases[0].served else 1 for row in rows if row.cases}
    assert 1 in clients and max(clients) > 1


def test_rows_whose_rate_is_not_that_of_busy_clients_stand_apart(rows_of):
    _, file = tables.NIM_TABLES
    asked = {"Input Tokens": "1000", "Output Tokens": "1000", "Concurrency": "25"}
    # 25 * 1000 tokens in 0.19568 + 999 * 0.02476 s are 1002.8 tokens/s; 979.58 are printed
    for rate, loop in (("979.58", "excluded-unsteady"), ("1002.8", "clients")):
        data = rows_of(file, {"Throughput (Tokens/s)": rate}, **asked)
        topics = {row.topic for row in measured(tables, data)}
        assert topics == {f"inference/nim/itl/{loop}", f"inference/nim/ttft/{loop}"}


def test_a_row_of_kundu_is_one_request(rows_of):
    data = rows_of("rapid/imec_inference_a100_measured.csv", model="Llama 2-7B", tp="1")
    job = job_of(*measured(tables, data))
    assert (job.inference.batch, job.inference.prompt_length, job.gpus) == (1, 200, 1)
    assert scored(data, "inference/kundu/A100")["mean_abs_pct"] < 40  # 2.19 s measured


def test_what_does_not_fit_is_refused_where_memory_counts():
    job = {
        "model": "llama2_70b",
        "phase": "inference",
        "inference": {"batch": 1, "prompt_length": 8, "output_length": 2},
    }
    assert outcome(Case.of(job, Place("dgx_a100"), limited=True)).refusal.startswith("the model says")
    assert not outcome(Case.of(job, Place("dgx_a100"))).refusal


def test_workers_give_what_one_process_gives():
    job = {"model": "llama2_7b", "phase": "inference"}
    cases = [
        Case.of(
            {**job, "inference": {"batch": 1, "prompt_length": 8 + n, "output_length": 2}}, Place("dgx_a100")
        )
        for n in range(FEW + 1)
    ]
    runs, told = Runs(), []
    runs.watch = lambda done, cases: told.append((done, cases))
    runs.begin(cases)
    alone = [outcome(case) for case in cases]
    first = runs.outcome(cases[0])
    runs.abandon()  # as ^C does: what is there stays, the rest is not waited for
    kept = [runs.outcome(case) for case in cases]
    assert first == kept[0] == alone[0]
    assert all(one in (own, NOT_RUN) for one, own in zip(kept, alone, strict=True))
    runs.begin(cases)
    assert [runs.outcome(case) for case in cases] == alone
    assert told
    runs.abandon()


def test_a_row_of_a_page_states_its_network_its_stage_and_its_copies_of_the_state():
    rows = {row["case_id"]: row for row in open_folder(None).read(plain.FILE)}
    row = rows["internevo/7b-zero1-in-node-64"]
    case, _ = plain.plain_case(shipped(), row, *plain.profile_of(row["framework"]))
    job = json.loads(case.job)
    assert ("fabric.1.bandwidth", "6.25 GB/s") in case.place.settings
    assert (job["training"]["zero_stage"], job["parallelism"]["dp_replicate"]) == (1, 8)
    case, _ = plain.plain_case(shipped(), rows["automodel/Kimi-K2-256"], "torchtitan")
    assert sum(json.loads(case.job)["parallelism"]["layers"]) == 61  # dealt to 32 parts
