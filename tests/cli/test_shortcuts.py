"""`--no-shortcuts` simulates every rank; the answer is the same to the picosecond."""

from __future__ import annotations

import json

from click.testing import CliRunner

from rapid_des.cli.main import cli


def step_time(*options):
    small = ["--set", "job.model.layers=4", "--set", "job.training.global_batch=16"]
    arguments = [
        "run",
        "llama2_7b_train",
        "--on",
        "dgx_a100",
        "--engine",
        "simpy",
        "--json",
        *small,
        *options,
    ]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["step_time_ps"]


def test_simulating_every_rank_gives_the_same_step_time():
    assert step_time("--no-shortcuts") == step_time()
