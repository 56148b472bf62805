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
    assert lines[17].split()[1] == "1,305,796"


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
