"""JSON names one unit for times: seconds; what is an exact integer of another unit stands beside them."""

import pytest

from tests.cli.shell import call

EXACT = {"step_time_ps", "finish_ps", "attribution_ps"}
COMMANDS = (
    "run llama2_7b_train --on dgx_a100",
    "replay two_stages --on dgx_a100",
    "topology show dgx_a100",
    "topology route dgx_a100 0 7",
    "topology bench dgx_a100 --sizes 1MiB:4MiB",
    "operator gemm 1024 1024 1024 --device h100_sxm",
    "operator attention 1 128 128 --heads 8 --device h100_sxm",
    "operator attention 1 128 128 --heads 8 --unfused --device h100_sxm",
    "operator attention 8 1 4096 --heads 8 --device h100_sxm",
    "operator grouped 8x128 1024 1024 --device h100_sxm",
    "operator vector rms_norm 1024 1024 --device h100_sxm",
    "gemm 4096 4096 4096 --on dgx_a100 --tp 2 --axis col",
)


def keys(plain):
    if isinstance(plain, dict):
        for key, value in plain.items():
            yield key
            yield from keys(value)
    elif isinstance(plain, list):
        for item in plain:
            yield from keys(item)


@pytest.mark.parametrize("command", COMMANDS)
def test_times_are_seconds(command):
    named = set(keys(call(*command.split(), "--json").json))
    assert {key for key in named if key.endswith(("_ps", "_ns", "_us", "_ms"))} <= EXACT
    assert any(key.endswith("_s") for key in named)
