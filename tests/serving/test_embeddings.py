"""Requests that are answered by their prompts alone: what they cost, who comes together, what is refused."""

import json

import numpy as np
import pytest

from rapid_des.errors import ConfigError
from rapid_des.frontend import load_job
from rapid_des.frontend.inference import one_pass
from rapid_des.frontend.operations import RequestGroup
from rapid_des.machine import load_machine
from rapid_des.report.tables import text
from rapid_des.serving.server import serve
from rapid_des.simulation import simulate
from tests.cli.shell import call, refused

MODEL = {"hidden": 512, "layers": 2, "attention": {"heads": 8, "causal": False},
         "feed_forward": {"activation": "gelu", "hidden": 2048}, "norm": "layer_norm", "position": "learned",
         "vocabulary": 1024, "max_positions": 512, "tied_embeddings": True}  # fmt: skip
ENCODER = {"model": MODEL, "phase": "inference", "software": "vllm-0.12",
           "inference": {"batch": 1, "prompt_length": 512, "output_length": 1},
           "serving": {"task": "embed"}, "host": None}  # fmt: skip
CAUSAL = {"model.attention.causal": True, "model.max_positions": 4096}
MACHINE = load_machine("dgx_h100")


def served(settings=(), arrivals="constant rate=1/s", requests=4, prompt="512", output=None):
    job = load_job(ENCODER, settings=dict(settings))
    return serve(job, MACHINE, arrivals=arrivals, requests=requests, prompt=prompt, output=output)


def test_a_request_alone_takes_a_pass_without_a_head():
    job = load_job(ENCODER, settings=CAUSAL)
    alone = simulate(one_pass(job, (RequestGroup(1, 512, samples=0),)), MACHINE)
    with_head = simulate(one_pass(job, (RequestGroup(1, 512),)), MACHINE)
    found = served(CAUSAL)
    assert alone.step_time < with_head.step_time
    assert found.prefill.tolist() == pytest.approx([int(alone.step_time)] * 4, rel=0.01)
    assert found.e2e.tolist() == found.ttft.tolist()


def test_requests_over_two_gpus_gather_no_logits():
    job = load_job(ENCODER, settings=CAUSAL | {"parallelism.tp": 2})
    alone = simulate(one_pass(job, (RequestGroup(1, 512, samples=0),)), MACHINE)
    found = served(CAUSAL | {"parallelism.tp": 2})
    # with the gather of 1,024 logits a pass is 4 % longer
    assert found.prefill.tolist() == pytest.approx([int(alone.step_time)] * 4, rel=0.01)


def test_prompts_fill_all_positions_of_an_encoder_and_are_never_cut():
    found = served({"serving.max_batched_tokens": 1100}, arrivals="clients count=5", requests=25)
    assert len(found) == 25
    # two of 512 fit into an iteration of 1,100 tokens; the rest of it stays empty
    assert max(int(load["prompt_tokens"].max()) for load in found.loads) == 1024


def test_encoders_are_routed_by_the_time_of_their_prompts():
    assert len(served({"serving.router": "least_time", "parallelism.dp": 2}, requests=8)) == 8


def test_documents_of_a_query_come_together_and_their_task_ends_with_the_last():
    found = served({"serving.documents": 3}, arrivals="poisson rate=1/s", requests=30, prompt="100")
    arrivals = np.sort(found.requests["arrival"]).reshape(10, 3)
    assert (arrivals == arrivals[:, :1]).all()
    tasks = found.as_json()["tasks"]
    assert tasks["requests_a_task"] == 3
    assert tasks["time_s"]["mean"] >= found.as_json()["e2e_s"]["mean"]
    assert "tokens/s in" in "\n".join(text(found.report()))


def test_lengths_of_answers_in_a_trace_do_not_count(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,100,50\n0.1,200,70\n", encoding="utf-8")
    found = served(arrivals=f"trace file={trace}")
    assert found.requests["output"].tolist() == [1, 1]
    assert found.tokens.sum() == 300


def test_commands_take_such_jobs_and_draw_them(tmp_path):
    job = tmp_path / "encoder.json"
    job.write_text(json.dumps(ENCODER), encoding="utf-8")
    words = (job, "--on", "dgx_h100", "--slo", "ttft=300ms", "--prompt", "512", "--plot")
    served, highest = tmp_path / "served.svg", tmp_path / "highest.svg"
    assert call("serve", *words, served, "--rate", "4/s", "--requests", "20").code == 0
    assert "limit of first token" in served.read_text(encoding="utf-8")
    assert call("capacity", *words, highest, "--requests", "20").code == 0
    assert "<svg" in highest.read_text(encoding="utf-8")
    assert "--rate" in refused(call("serve", job, "--on", "dgx_h100", "--rate", "bad"))
    for command in ("serve", "capacity"):
        rate = ("--rate", "4/s") if command == "serve" else ()
        message = refused(call(command, job, "--on", "dgx_h100", *rate, "--slo", "ttft=1s tpot=40ms"))
        assert "tpot" in message and "allowed: ttft=…, e2e=…" in message


@pytest.mark.parametrize(
    ("settings", "asked", "says"),
    [
        ({}, {"output": "5"}, "answered by their prompts"),
        ({"serving.sessions": 3}, {}, "sessions: requests of `task: embed`"),
        ({"serving.classes": [{"name": "a", "output": "5"}]}, {}, "classes: requests of `task: embed`"),
        (
            {"serving.classes": [{"name": "a", "slo": "tpot=1s"}]},
            {},
            r"classes\[0\].slo .*no tokens one by one",
        ),
        (
            {"serving.autoscaler": {"target": 1, "measure": "slo", "slo": "tpot=1s"}},
            {},
            "no tokens one by one",
        ),
        ({"serving.task": "generate"}, {}, "serving.task: embed"),
        ({"serving.task": "generate", "serving.documents": 3}, {}, "documents: pairs are scored"),
        ({"serving.documents": 3}, {"arrivals": "clients count=2"}, "documents come at a rate"),
        ({"serving.max_batched_tokens": 500}, {}, "takes prompts whole"),
    ],
)
def test_what_is_of_generated_tokens_is_refused(settings, asked, says):
    with pytest.raises(ConfigError, match=says):
        served(settings, **asked)
