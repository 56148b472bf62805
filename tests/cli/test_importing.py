"""`rapid-des import hf`: a config.json to a model file."""

import json

from click.testing import CliRunner

from rapid_des.cli.main import cli

CONFIG = {
    "model_type": "qwen2", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 512,
}  # fmt: skip


def run(*arguments):
    return CliRunner().invoke(cli, ["import", "hf", *map(str, arguments)], catch_exceptions=False)


def test_a_model_file_is_printed_or_written(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    printed = run(tmp_path).output
    assert printed.startswith("# qwen2, ")
    assert "attention: {kind: attention, heads: 4, kv_heads: 4, qkv_bias: true}\n" in printed
    target = tmp_path / "model.yaml"
    assert "parameters" in run(tmp_path / "config.json", "-o", target).output
    assert target.read_text() == printed
    plain = json.loads(run(tmp_path, "--json").output)
    # 2·100·64 tables, 64 for the last norm; a layer has 4·64² + 3·64 of attention, 3·64·128, and two norms.
    assert plain["parameters"] == 2 * 100 * 64 + 64 + 2 * (4 * 64**2 + 3 * 64 + 3 * 64 * 128 + 2 * 64)
    assert (plain["architecture"], plain["model"]["hidden"]) == ("qwen2", 64)
