"""Named workloads have the figures that were published of their traces."""

from typing import get_args

import numpy as np
import pytest

from rapid_des.errors import ConfigError
from rapid_des.frontend import load_job
from rapid_des.frontend.servers import WorkloadName
from rapid_des.machine import load_machine
from rapid_des.serving.named_workloads import WORKLOADS
from rapid_des.serving.server import serve
from rapid_des.serving.workload import draw, parse_arrivals, parse_lengths
from rapid_des.units import PS_PER_S
from tests.cli.shell import call, refused

# median, mean and 99th percentile of prompts, then of answers, in the released files
AZURE = {
    "azure_code_2023": (1469, 2048, 7436, 13, 28, 249),
    "azure_conv_2023": (1020, 1155, 4142, 129, 211, 601),
    "azure_code_2024": (1930, 2511, 7685, 8, 23, 271),
    "azure_conv_2024": (928, 1632, 6683, 41, 106, 694),
}


def drawn(name, count=200_000):
    shape = WORKLOADS[name]
    lengths = parse_lengths(shape.prompt, "p"), parse_lengths(shape.output, "o")
    return draw(parse_arrivals(shape.arrivals or "gamma rate=1/s cv=2"), lengths, count, 1)


@pytest.mark.parametrize("name", AZURE)
def test_azures_lengths_have_the_medians_means_and_tails_of_the_traces(name):
    work = drawn(name)
    for lengths, (median, mean, tail) in (
        (work.prompt, AZURE[name][:3]),
        (work.output, AZURE[name][3:]),
    ):
        assert np.median(lengths) == pytest.approx(median, rel=0.01)
        assert lengths.mean() == pytest.approx(mean, rel=0.03)
        assert np.quantile(lengths, 0.99) == pytest.approx(tail, rel=0.02)


def test_the_week_of_2024_has_the_busiest_and_the_quietest_hour():
    # conversations: 27,303,999 in seven days, the busiest hour 3.6 times as busy as the quietest
    shape = WORKLOADS["azure_conv_2024"].arrivals.replace("45.1/s", "0.451/s")  # a hundredth of them
    times = parse_arrivals(shape).times(100_000, np.random.default_rng(1)) / PS_PER_S / 3600
    hours = np.bincount((times[times < 48] % 24).astype(int))
    assert hours.max() / hours.min() == pytest.approx(3.6, rel=0.15)
    assert pytest.approx(45.1, rel=0.002) == 27_303_999 / (7 * 86400)


def test_burstgpts_lengths_have_the_medians_and_90th_percentiles_of_the_traces():
    for name, figures in (("burstgpt_conv", (481, 1664, 229, 543)), ("burstgpt_api", (218, 2161, 26, 187))):
        work = drawn(name)
        found = [np.quantile(each, q) for each in (work.prompt, work.output) for q in (0.5, 0.9)]
        assert found == pytest.approx(figures, rel=0.04)


def test_a_job_names_a_workload_and_states_what_differs():
    assert set(get_args(WorkloadName)) == set(WORKLOADS)
    settings = {"model.layers": 2, "serving.workload": "azure_code_2023", "serving.output": "fixed tokens=5"}
    job = load_job("llama2_7b_inference", settings=settings | {"model.max_positions": 8192})
    result = serve(job, load_machine("dgx_a100"), requests=40)
    assert set(result.requests["output"].tolist()) == {5} and result.requests["prompt"].max() > 2000
    lone = load_job(job, settings={"serving.workload": "burstgpt_conv"})
    with pytest.raises(ConfigError, match="nothing says when requests come"):
        serve(lone, load_machine("dgx_a100"), requests=2)


def test_the_command_takes_a_workload_and_names_those_there_are():
    words = ("serve", "llama3_1_70b_serve", "--on", "dgx_h100", "--requests", "5")
    assert call(*words, "--workload", "azure_conv_2023").code == 0
    assert "azure_conv_2023" in refused(call(*words, "--workload", "azure"))


def test_a_model_is_served_at_a_rate_without_a_job_file():
    words = ("serve", "llama3_2_1b", "--on", "dgx_a100", "--rate", "8/s", "--prompt", "100", "--output", "4")
    answer = call(*words, "--requests", "10", "--set", "parallelism.tp=2", "--json")
    assert answer.code == 0 and answer.json["gpus"] == 8
    assert "tp 2 on 4 replicas" in answer.err and "prompts: 100, of answers: 4" in answer.err


@pytest.mark.parametrize("text", ["quantiles p50=9 p90=8 p99=10", "quantiles p50=9 p90=10"])
def test_quantiles_that_are_not_ascending_or_missing_are_refused(text):
    with pytest.raises(ConfigError):
        parse_lengths(text, "--prompt")


AZURE_FILE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,374,44
2023-11-16 18:17:04.0799600,9,1
"""
FIXED = parse_lengths("1", "--prompt")
BURSTGPT_FILE = (
    "Timestamp,Model,Request tokens,Response tokens\n5,GPT-4,472,18\n45,GPT-4,99,0\n118,GPT-4,417,276\n"
)
OWN_FILE = (
    "\ufeffarrival_s, prompt_tokens, output_tokens, priority\n1700000001.5, 7, 2, -1\n1700000000.5, 8, 3, 4\n"
)


@pytest.mark.parametrize(
    ("text", "prompts", "outputs", "seconds"),
    [
        (AZURE_FILE, [374, 9], [44, 1], [0, 0.1]),
        (BURSTGPT_FILE, [472, 417], [18, 276], [0, 113]),
        (OWN_FILE, [8, 7], [3, 2], [0, 1]),
    ],
)
def test_traces_are_read_by_the_columns_that_they_have(tmp_path, text, prompts, outputs, seconds):
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    work = draw(parse_arrivals(f"trace file={tmp_path / 't.csv'}"), (FIXED, FIXED), 9, 0)
    assert (work.prompt.tolist(), work.output.tolist()) == (prompts, outputs)
    assert work.arrival / PS_PER_S == pytest.approx(seconds, abs=1e-6)


@pytest.mark.parametrize(
    ("row", "words"),
    [("1,1.5,1", "line 2: prompt_tokens: '1.5' is not a whole number"),
     ("1,2", "line 2: output_tokens: nothing"),
     ("soon,1,1", "'soon' is not a time"), ("nan,1,1", "'nan' is not a time"), ("1,2,0", "from 1 to 1e"),
     ("0,1_0,3", "'1_0' is not a whole number"), ("0,１２,3", "'１２' is not a whole number"),
     ("1,2,3,4", "line 2: 4 entries; the columns are 3")],
)  # fmt: skip
def test_a_trace_s_bad_cell_is_named(tmp_path, row, words):
    (tmp_path / "t.csv").write_text(f"arrival_s,prompt_tokens,output_tokens\n{row}\n")
    with pytest.raises(ConfigError, match=words):
        draw(parse_arrivals(f"trace file={tmp_path / 't.csv'}"), (FIXED, FIXED), 9, 0)


@pytest.mark.parametrize(
    ("columns", "row", "words"),
    [("output_tokens", "9", "the column output_tokens stands 2 times"),
     ("prefix_tokens", "5", "prefix_tokens: request 0: 5 tokens of a prompt of 2")],
)  # fmt: skip
def test_a_column_that_can_not_be_right_is_named(tmp_path, columns, row, words):
    (tmp_path / "t.csv").write_text(f"arrival_s,prompt_tokens,output_tokens,{columns}\n0,2,3,{row}\n")
    with pytest.raises(ConfigError, match=words):
        draw(parse_arrivals(f"trace file={tmp_path / 't.csv'}"), (FIXED, FIXED), 9, 0)


def test_a_date_keeps_its_zone_whatever_its_digits(tmp_path):
    # 18:17:03 two hours east of Greenwich is 16:17:03 there, 120 s before the other.
    rows = "2023-11-16 18:17:03.9799600+02:00,5,3\n2023-11-16 16:19:03.9799600+00:00,5,3\n"
    (tmp_path / "t.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    work = draw(parse_arrivals(f"trace file={tmp_path / 't.csv'}"), (FIXED, FIXED), 9, 0)
    assert work.arrival / PS_PER_S == pytest.approx([0, 120], abs=1e-6)
