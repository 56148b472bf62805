"""Shell completion: what bash is told for the words that stand there."""

import pytest
from click.shell_completion import BashComplete

from rapid_des.cli.main import cli


def completed(*typed):
    """Return what the shell is offered for the last of the words: (kind, text) each."""
    shell = BashComplete(cli, {}, "rapid-des", "_RAPID_DES_COMPLETE")
    return [(item.type, item.value) for item in shell.get_completions(list(typed[:-1]), typed[-1])]


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["run", "llama2_7b_t"], ["llama2_7b_train"]),
        (["run", "llama2_7b_train", "--on", "dgx_h100_x"], ["dgx_h100_x288", "dgx_h100_x8"]),
        (["run", "llama2_7b_train", "--mode", "hi"], ["hierarchical"]),
        (["run", "llama2_7b_train", "--engine", "s"], ["simpy"]),
        (["run", "llama2_7b_train", "--set", "d"], ["device."]),
        (["run", "llama2_7b_train", "--set", "device.clock.bo"], ["device.clock.boost="]),
        (["run", "llama2_7b_train", "--set", "job.training.zero"], ["job.training.zero_stage="]),
        (["run", "llama2_7b_train", "--set", "machine.fabric.0.band"], ["machine.fabric.0.bandwidth="]),
        (["explain", "job.paralleli"], ["job.parallelism."]),
        (["device", "show", "h100_s"], ["h100_sxm", "h100_sxm_500w"]),
        (["faults", "run", "llama2_7b_train", "--mode", "fl"], ["flattened"]),
        (["replay", "two_s"], ["two_stages"]),
    ],
)
def test_a_shell_completes(typed, offered):
    assert completed(*typed) == [("plain", word) for word in offered]


def test_where_no_preset_begins_so_files_are_completed():
    assert completed("run", "./jo") == [("file", "./jo")]
