"""`rapid-des replay` on ASTRA-sim's own files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from rapid_des.cli.replay import replay
from rapid_des.errors import ConfigError, InputError

CASE = Path(__file__).parents[2] / "golden" / "astra_sim" / "s_switch16_tpdp"
FILES = {
    "--astra-network": CASE / "net.yml",
    "--astra-system": CASE / "sys.json",
    "--astra-groups": CASE / "groups.json",
}


def call(*extra, without=()):
    options = [str(part) for pair in FILES.items() if pair[0] not in without for part in pair]
    return CliRunner().invoke(replay, [str(CASE / "wl"), *options, *extra], catch_exceptions=False)


def test_json_holds_every_rank_and_what_was_not_used():
    answer = json.loads(call("--json").stdout)
    expected = json.loads((CASE / "expected.json").read_text())
    ranks = [answer["ranks"][str(rank)] for rank in range(16)]
    assert [rank["finish_ns"] for rank in ranks] == expected["finish_ns"]
    assert [rank["exposed_communication_ns"] for rank in ranks] == expected["exposed_communication_ns"]
    assert any("boost-mode" in note for note in answer["notes"])


def test_text_names_the_slowest_rank_last():
    lines = call().stdout.splitlines()
    assert "16 ranks" in lines[0]
    assert lines[1].split()[:2] == ["finish", "1,305,796"]
    assert lines[18].split()[1] == "1,305,796"


def test_link_table_is_written(tmp_path):
    call("--links", str(tmp_path / "links.csv"))
    rows = (tmp_path / "links.csv").read_text().splitlines()
    assert len(rows) == 1 + 32  # 16 links up and 16 down


@pytest.mark.parametrize(
    ("extra", "without", "said"),
    [
        ((), ("--astra-system",), "needs --astra-system as well"),
        (("--on", "anything"), (), "--on does not go with --astra-network"),
        (("--timeline", "x.json"), (), "--timeline does not go with --astra-network"),
    ],
)
def test_options_that_do_not_go_together_are_refused(extra, without, said):
    with pytest.raises(InputError, match=said):
        call(*extra, without=without)


def test_unknown_dialects_are_refused():
    with pytest.raises(ConfigError, match="--astra-dialect: 'old' is not one of stock, extended"):
        call("--astra-dialect", "old")


def test_the_command_line_of_astra_sim_is_taken_as_it_is():
    words = ["--workload-configuration", str(CASE / "wl"), f"--network-configuration={CASE / 'net.yml'}"]
    words += [
        f"--system-configuration={CASE / 'sys.json'}",
        f"--comm-group-configuration={CASE / 'groups.json'}",
    ]
    answer = CliRunner().invoke(replay, [*words, "--num-queues-per-dim=1", "--json"], catch_exceptions=False)
    assert json.loads(answer.stdout)["ranks"] == json.loads(call("--json").stdout)["ranks"]


def test_settings_of_machines_are_refused_beside_astra_sims_files():
    with pytest.raises(InputError, match="--set does not go with --astra-network"):
        call("--set", "machine.name=x")
