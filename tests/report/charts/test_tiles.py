"""The first lines of pages of studies: what bounds them, and what to change."""

from rapid_des.report.charts.tiles import capacity_tiles, goodput_tiles, sample_tiles, served_tiles
from rapid_des.report.page.studies import difference_answers

SERVED = {"task": "generate", "steady_requests_per_s": None, "steady_output_tokens_per_s": None}


def by_label(tiles):
    return {tile.label: tile for tile in tiles.tiles}


def test_a_server_that_makes_requests_wait_is_bound_by_its_queue():
    rate = {"output_tokens_per_s": 9.0, "requests_per_s": 1.0}
    means = {f"{name}_s": {"mean": mean} for name, mean in (("queue", 3.0), ("prefill", 1.0), ("e2e", 5.0))}
    tiles = by_label(served_tiles({**SERVED, "throughput": rate, **means}, {}))
    assert tiles["What bounds it"].value == "waiting in the queue"
    assert tiles["What bounds it"].note.startswith("60.0%")  # 3 s of 5 s
    assert "more replicas" in tiles["What to change"].note


def test_a_server_that_embeds_reads_tokens_and_has_answers():
    rate = {"output_tokens_per_s": 9.0, "total_tokens_per_s": 4009.0, "requests_per_s": 9.0}
    times = {"ttft_s": {"p50": 1.0, "p99": 2.0}, "steady_requests_per_s": None}
    tiles = by_label(served_tiles({"throughput": rate, "task": "embed", **times}, {}))
    assert tiles["How much it does"].note == "4,000 tokens/s in"  # all but one of each request
    assert tiles["Answer, p99"].value == "2 s"


def test_a_comparison_says_what_makes_most_of_the_difference_and_what_bounds_both():
    parts = [{"part": "tp", "added_ps": 5}, {"part": "compute", "added_ps": -2 * 10**12}]
    figures = {
        "bound": {"before": "hbm", "after": "tensor"},
        "memory_bytes": {"before": 2**30, "after": 2**30},
    }
    tiles = {tile.label: tile for tile in difference_answers({"parts": parts, "figures": figures})}
    assert tiles["What makes most of it"].value == "compute"
    assert tiles["What bounds them"].value == "hbm and tensor"
    assert (tiles["Memory they need"].value, tiles["Memory they need"].note) == ("1.0 GiB", "both")


def test_goodput_names_what_shortens_the_largest_loss_and_what_half_of_it_gives():
    good, incidents = {"mean": 0.9, "low": 0.8, "high": 1.0}, {"mean": 0.0}
    lost = {"steps": 900.0, "rework": 60.0, "checkpoints": 40.0}
    plain = {"goodput": good, "time_s": lost, "wall_s": 1000.0, "incidents": {}, "incidents_total": incidents}
    change = by_label(goodput_tiles(plain))["What to change"]
    assert change.value == "checkpoint more often"
    assert change.note.startswith("half of that time is 3.00%")  # of 60 s in 1,000 s


def test_draws_name_the_fault_of_the_worst_one():
    rows = [{"faults": [name], "slowdown": slower} for name, slower in (("a", 1.1), ("b", 1.4), ("c", 1.2))]
    drawn = {"configuration": "x", "rows": rows, "step_time_s": {"mean": 1.2}, "healthy_s": 1.0}
    mend = by_label(sample_tiles({"configurations": [drawn]}))["What to mend first"]
    assert (mend.value, mend.note) == ("b", "the worst draw: +40.00%")


def test_a_capacity_names_the_limit_that_breaks_first():
    row = {
        "layout": {},
        "gpus": 8,
        "rate_per_s": 2.0,
        "rate_interval_per_s": (1.0, 3.0),
        "broken_above": "tpot",
    }
    row["output_tokens_per_s_per_gpu"] = 10.0
    tiles = by_label(capacity_tiles({"rows": [row]}))
    assert tiles["What bounds it"].value == "tpot"
    assert tiles["What to change"].value == "decoding"
