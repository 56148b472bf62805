"""`run --explain`: what a practitioner checks a job against theory with."""

import pytest

from tests.cli.shell import call, refused

JOB = ("run", "llama2_7b_train", "--on", "dgx_a100")


@pytest.fixture(scope="module")
def explained():
    return call(*JOB, "--explain", "--json").json


def test_json_has_groups_stages_messages_and_operators(explained):
    plain = explained["explain"]
    assert [group["name"] for group in plain["groups"]] == ["tp", "gradient", "model", "stages"]
    assert [stage["layers"] for stage in plain["stages"]] == [[list(range(16))], [list(range(16, 32))]]
    for stage in plain["stages"]:
        assert sum(stage["memory_breakdown_bytes"].values()) == stage["memory_bytes"]
    # Two tp ranks hold the model's 6,738,415,616 parameters; each of them all 65 norms of 4,096.
    held = sum(stage["parameters"] for stage in plain["stages"])
    assert 2 * held - 65 * 4096 == 6_738_415_616
    gather = next(each for each in plain["messages"] if each["name"] == "forward.L*.ffn.in.gather")
    assert (gather["layers"], gather["count"], gather["size"]) == (16, 256, 4096 * 4096)
    assert gather["served_by"] == ["nccl ring simple"]


def test_operators_add_up_to_the_compute_of_the_critical_rank(explained):
    plain = explained["explain"]
    assert plain["operators_rank"] == explained["critical_rank"]
    whole = sum(row["time_s"] for row in plain["operators"])
    assert whole == pytest.approx(explained["breakdown_s"]["compute"], rel=1e-3)
    wide = next(row for row in plain["operators"] if row["operator"] == "forward.ffn.in")
    # 2·m·n·k: 4,096 tokens, gate and up with 5,504 columns each on this rank, from 4,096; in 16 layers,
    # for 16 micro-batches.
    assert wide["flops"] == 256 * 2 * 4096 * 11008 * 4096


def test_text_follows_the_report_and_its_tables_fit_120_columns():
    plain, longer = call(*JOB).out.splitlines(), call(*JOB, "--explain").out.splitlines()
    start = longer.index("  process groups")
    assert len(plain) in (start, start - 1)
    assert max(map(len, longer[start:])) <= 120
    assert any(line.split()[:4] == ["L*.ffn.in.gather", "0-1", "all_gather", "tp"] for line in longer)
    assert sum("-" in line and "16 x 16" in line for line in longer) == 10  # four forward, six backward


def test_modes_of_blocks_say_whose_messages_these_are():
    answer = call(*JOB, "--mode", "hybrid", "--explain")
    assert "messages are those of the flattened trace" in answer.out
    assert "operators of rank" not in answer.out
    assert "L*.ffn.in.gather" in answer.out


def test_it_does_not_go_with_every_mode():
    assert "--explain does not go with --compare-modes" in refused(call(*JOB, "--explain", "--compare-modes"))
