"""A model and the size of a step become a job to plan."""

import json

import pytest

from rapid_des.errors import ConfigError
from rapid_des.frontend import load_job
from rapid_des.studies.model_jobs import names_model, parse_tokens, training_document
from tests.cli.shell import call, refused

CONFIG = dict(
    model_type="llama", hidden_act="silu", attention_bias=False, mlp_bias=False, tie_word_embeddings=False,
    rms_norm_eps=1e-05, max_position_embeddings=2048, hidden_size=256, num_hidden_layers=4,
    num_attention_heads=4, num_key_value_heads=4, intermediate_size=512, vocab_size=1024,
)  # fmt: skip
SMALL = ("--on", "dgx_a100", "--gpus", 2, "--vary", "tp=1", "--vary", "micro_batch=1", "--top", 1, "--json")


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return path


@pytest.fixture
def model_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(call("presets", "show", "gpt2").out)
    return path


def test_models_and_jobs_are_known_apart(config, model_file):
    assert names_model("gpt2") and names_model(str(config)) and names_model(str(config.parent))
    assert names_model(str(model_file))
    assert not names_model("llama2_7b_train") and not names_model("nothing")


def test_a_sequence_has_as_many_tokens_as_the_model_has_positions_for(config):
    job = load_job(training_document(str(config), 2**16))
    assert (job.training.sequence_length, job.training.global_batch) == (2048, 32)
    assert load_job(training_document(str(config), 2**16, 512)).training.global_batch == 128


@pytest.mark.parametrize(("text", "tokens"), [("4M", 2**22), ("1.5K", 1536), ("7", 7), ("1G", 2**30)])
def test_tokens_are_counted_in_powers_of_1024(text, tokens):
    assert parse_tokens(text) == tokens


@pytest.mark.parametrize("text", ["", "0", "M", "-4M", "4X", "1e9", "0.3K", "4 MB"])
def test_what_counts_no_tokens_is_refused(text):
    with pytest.raises(ConfigError, match="is not a whole number of tokens such as 4M"):
        parse_tokens(text)


def test_plan_takes_a_model(config):
    found = call("plan", config, "--tokens-per-batch", "64K", *SMALL)
    assert found.code == 0, found
    assert found.json["rows"][0]["tp"] == 1


def test_plan_says_what_is_missing_or_too_much():
    model = refused(call("plan", "gpt2", "--on", "dgx_a100"))
    assert "say how many tokens a training step has, as in --tokens-per-batch 4M" in model
    job = refused(call("plan", "llama2_7b_train", "--on", "dgx_a100", "--sequence", "512"))
    assert "--sequence: llama2_7b_train is not a model; a job states its batch itself" in job
    missing = refused(call("plan", "gone.json", "--on", "dgx_a100", "--tokens-per-batch", "1M"))
    assert "no model file 'gone.json'" in missing
    batch = refused(call("plan", "gpt2", "--on", "dgx_a100", "--tokens-per-batch", "1000"))
    assert "1,000 tokens are no whole number of sequences of 1,024; the nearest is 1,024" in batch
