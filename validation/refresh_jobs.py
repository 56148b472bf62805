"""Score every set of measured jobs as a whole: the tables of them in docs/accuracy, and a picture a set.

`python -m validation.refresh_jobs` runs all of `validate training inference ranking` (an hour of two cores)
and writes `validation/figures/SET.png`, the parts of `docs/accuracy/training.md` and `inference.md`, and the
table of servers in `validation/README.md`. Given reports of `rapid-des validate TOPICS --data validation/data
--json`, it takes those sets from there and leaves the others. No constant is fitted on these rows but hosts
of engines (nanotron, NIM), on calibration halves: both splits count. Every figure is by row.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rapid_des.report.pictures import new_figure, save
from validation import DataFolder, all_topics, validate
from validation.measurements import CHECKOUT_DATA
from validation.pages import ACCURACY, NOTES, as_of, fill, part
from validation.scoring import Row, by_source

FIGURES = Path(__file__).parent / "figures"
AREAS = ("training", "inference")
Report = Mapping[str, Any]


@dataclass(frozen=True)
class Set:
    """Topics that are one source's, under one name."""

    name: str
    topics: tuple[str, ...]
    area: str = "training"
    unit: str = "s"
    picture: str = ""
    """The name of a picture that sets share; unset: that of the topics."""

    @property
    def file(self) -> str:
        """Return the picture's name."""
        return f"{self.picture or self.topics[0].split('/')[0]}.png"

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the topics as a report names them."""
        return tuple(f"{self.area}/{topic}" for topic in self.topics)


H100, GB200 = "H100-SXM-80GB", "GB200-NVL72"
ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM 1.x"}
SYSTEMS = ("h100_sxm", "h200_sxm", "b200_sxm", "b300_sxm", "gb200", "gb300")
SETS = (
    Set("Korthikanti 2022, Table 5, A100", ("korthikanti",)),
    Set("Megatron SC'21, Tables 1 and 2, A100", ("sc21",)),
    Set("NVIDIA dgxc, H100, bf16", (f"dgxc/{H100}/bf16",)),
    Set("NVIDIA dgxc, H100, fp8", (f"dgxc/{H100}/fp8",)),
    Set("NVIDIA dgxc, GB200, bf16", (f"dgxc/{GB200}/bf16",)),
    Set("NVIDIA dgxc, GB200, fp8", (f"dgxc/{GB200}/fp8",)),
    Set("dgxc, times over the smallest run's", ("dgxc-slope",)),
    Set("Megatron-Bridge, H100, dense", ("megatron-bridge/DGX-H100/dense",)),
    Set("Megatron-Bridge, H100, experts", ("megatron-bridge/DGX-H100/moe",)),
    Set(
        "Megatron-Bridge, Blackwell, dense",
        tuple(f"megatron-bridge/DGX-{gpu}/dense" for gpu in ("B200", "GB200", "GB300")),
    ),
    Set(
        "Megatron-Bridge, Blackwell, experts",
        tuple(f"megatron-bridge/DGX-{gpu}/moe" for gpu in ("B200", "B300", "GB200", "GB300")),
    ),
    Set("NeMo 25.02 and 25.04, B200 and GB200", ("nemo/DGX-B200", "nemo/DGX-GB200")),
    Set("torchtitan, H100 of 500 W and H200", ("torchtitan",)),
    Set("Llama 3 405B, 16,384 H100", ("llama3",)),
    Set("MLPerf Training, H100 to GB300", ("mlperf",)),
    Set("MLPerf, adapters of Llama 2 70B", ("mlperf/lora",)),
    Set("MegaScale's baseline, A100", ("megascale",)),
    Set("MT-NLG 530B, A100", ("mt-nlg",)),
    Set("llm-foundry MPT, A100 40 GB", ("llm-foundry/a100_40gb",)),
    Set("llm-foundry MPT, A100 80 GB", ("llm-foundry/a100_80gb",)),
    Set("llm-foundry MPT, H100", ("llm-foundry/h100_80gb",)),
    Set("UCI, Llama 2 7B, 4 A100 PCIe", ("uci",)),
    Set("Megatron's MoE folding, H100", ("folding",)),
    Set("nanotron sweep, H100", ("nanotron/step",)),
    *(
        Set(name, (topic,), picture="further")
        for name, topic in (
            ("torchtitan's documentation, A100", "torchtitan-docs"),
            ("IBM's fms-fsdp, A100 and H100", "ibm-fms-fsdp"),
            ("InternEvo, A100", "internevo"),
            ("TinyLlama, A100 40 GB", "tinyllama"),
            ("nanoGPT, A100 40 GB", "nanogpt"),
            ("NeMo AutoModel, H100, experts", "automodel"),
            ("FlagPerf, A100 and H100", "flagperf"),
            ("OLMo-core, H100", "olmo-core"),
            ("VectorLM, A100", "vectorlm"),
            ("GPT-NeoX-20B, A100 40 GB", "gpt-neox-20b"),
            ("Nemotron-4 340B, 6,144 H100", "nemotron-4-340b"),
        )
    ),
    Set("Kundu et al. 2024, 200 + 200 tokens, A100", ("kundu/A100",), "inference", "ms"),
    Set("Kundu et al. 2024, H100", ("kundu/H100",), "inference", "ms"),
    Set("Koyeb, Llama 3.1 8B, A100, time a token", ("koyeb",), "inference", "ms"),
    Set("LMDeploy, A100, time a token", ("lmdeploy/tpot",), "inference", "ms"),
    Set("LMDeploy, A100, first token", ("lmdeploy/ttft",), "inference", "ms"),
    Set("NVIDIA NIM, single requests, time a token", ("nim/itl",), "inference", "ms"),
    Set("NVIDIA NIM, single requests, first token", ("nim/ttft",), "inference", "ms"),
    Set("NVIDIA NIM, 2 to 50 clients, tokens/s", ("nim/throughput",), "inference", "tokens/s"),
    Set("NVIDIA NIM, 2 to 50 clients, first token", ("nim/ttft/clients",), "inference", "ms"),
    *(
        Set(
            f"{name} under closed loops, {what}",
            tuple(f"silicon/{engine}/{gpu}/{figure}" for gpu in SYSTEMS),
            "inference",
            "ms",
        )
        for engine, name in ENGINES.items()
        for figure, what in (("tpot", "time a token"), ("ttft", "first token"))
    ),
    Set("TensorRT-LLM 0.9, time a token", ("trtllm-static/tpot",), "inference", "ms"),
    Set("TensorRT-LLM 0.9, first token", ("trtllm-static/ttft",), "inference", "ms"),
    Set("TensorRT-LLM 0.9, end to end", ("trtllm-static/e2e",), "inference", "ms"),
)


def residuals(report: Report, topic: str) -> list[Mapping[str, Any]]:
    """Return the rows of a topic that were run; none of one that the report has not."""
    return list(report["topics"].get(topic, {}).get("residuals", []))


COLUMNS: Mapping[str, str] = {
    "mean": "mean_abs_pct",
    "bias": "bias_pct",
    "median": "median_abs_pct",
    "p90": "p90_abs_pct",
    "worst row": "worst_row_pct",
    "forecast": "forecast_mean_abs_pct",
    "its bias": "forecast_bias_pct",
    "in interval": "covered_pct",
    "profile alone": "profile_alone_mean_abs_pct",
    "null": "in_sample_null_mean_abs_pct",
}
"""A set's columns: figures over its rows, as `validate` has them of sources."""
ONLY_OF_STEPS = ("forecast", "its bias", "in interval", "profile alone")
"""Columns that inference has not."""


def columns_of(area: str) -> Mapping[str, str]:
    """Return the columns of an area's table."""
    return {name: key for name, key in COLUMNS.items() if area == "training" or name not in ONLY_OF_STEPS}


def table(report: Report, area: str, known: Mapping[str, str]) -> Iterator[str]:
    """Yield an area's lines: a set a row, errors in percent; sets that it lacks as they are known."""
    columns = columns_of(area)
    yield f"| set | rows | not run | {' | '.join(columns)} | as of |"
    yield f"|---|---:|---:|{'---:|' * len(columns)}---|"
    for one in SETS:
        rows = [_row(row) for topic in one.keys for row in residuals(report, topic)]
        if one.area == area and rows:
            figures = by_source(rows)
            cells = " | ".join(_cell(figures, name) for name in columns)
            yield f"| {one.name} | {len(rows)} | {not_run(report, one)} | {cells} | {as_of()} |"
        elif one.area == area and one.name in known:
            yield known[one.name]


def _row(residual: Mapping[str, Any]) -> Row:
    stated: dict[str, Any] = {key: residual.get(key) for key in ("null", "covered", "forecast", "alone")}
    return Row(residual["case_id"], residual["measured"], residual["predicted"], **stated)


def _cell(figures: Mapping[str, Any], column: str) -> str:
    """Return a figure, the null model's in bold where it is nearer than the simulation.

    >>> _cell({"in_sample_null_mean_abs_pct": 8.71, "null_is_better": True}, "null"), _cell({}, "mean")
    ('**8.7**', '–')
    """
    value = figures.get(COLUMNS[column])
    if value is None:
        return "–"
    text = f"{value:+.1f}" if "bias" in column else f"{value:.1f}"
    return f"**{text}**" if column == "null" and figures["null_is_better"] else text


def ranking_table(report: Report) -> Iterator[str]:
    """Yield the lines of rankings: a source a row, of its jobs with three layouts and more."""
    names = ("jobs", "rank correlation", "by forecast", "regret, %", "by forecast", "worst", "blind")
    yield f"| source | {' | '.join(names)} | as of |"
    yield f"|---|{'---:|' * len(names)}---|"
    for topic, found in report["topics"].items():
        if topic.startswith("ranking/"):
            rows: Mapping[str, Any] = by_source([_row(row) for row in found["residuals"]])
            ranks = [found.get(f"{by}rank_correlation") for by in ("", "forecast_")]
            keys = ("mean_abs_pct", "forecast_mean_abs_pct", "worst_row_pct", "in_sample_null_mean_abs_pct")
            cells = [*(_number(rank, 2) for rank in ranks), *(_number(rows[key], 1) for key in keys)]
            name = topic.removeprefix("ranking/")
            yield f"| {name} | {rows['rows']} | {' | '.join(cells)} | {as_of()} |"


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def silicon_table(report: Report) -> Iterator[str]:
    """Yield the lines of servers under closed loops: an engine and GPU a row, medians over configurations."""
    yield "| engine | GPU | configurations | not run | `tpot` | bias | `ttft` | bias |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|"
    for engine, name in ENGINES.items():
        for gpu in SYSTEMS:
            topic = f"inference/silicon/{engine}/{gpu}"
            token, first = residuals(report, f"{topic}/tpot"), residuals(report, f"{topic}/ttft")
            if token:
                cells = " | ".join(f"{value:.1f}" for rows in (token, first) for value in _spread(rows))
                lost = sum(report["topics"][f"{topic}/tpot"]["unsupported"].values())
                yield f"| {name} | {gpu} | {len(token)} | {lost} | {cells} |"


def _spread(rows: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Return the median error of rows and their mean signed one, in percent."""
    signed = [100 * (row["predicted"] / row["measured"] - 1) for row in rows]
    return median(abs(error) for error in signed), fmean(signed)


def ranking(report: Report, within: float = 1.05) -> str:
    """Return in how many groups of configurations the predicted best is as good as the best."""
    rows = residuals(report, "inference/silicon-ranking")
    good = sum(row["predicted"] <= within * row["measured"] for row in rows)
    told = "Of a model, GPU, lengths and clients the configuration that is predicted best is within 5 %"
    return f"{told}\nof the best in {good} of {len(rows)} groups (asked 80 %)." if rows else ""


def not_run(report: Report, one: Set) -> int:
    """Return how many rows of a set were not run, for whatever reason."""
    reasons = (report["topics"].get(topic, {}).get("unsupported", {}) for topic in one.keys)
    return sum(sum(counts.values()) for counts in reasons)


def draw(report: Report, folder: Path, area: str) -> list[Path]:
    """Write a picture for each file that sets name, predicted over measured, a colour a set."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for file in dict.fromkeys(one.file for one in SETS if one.area == area):
        sets = [one for one in SETS if one.file == file and any(residuals(report, t) for t in one.keys)]
        if sets:
            _draw(report, sets, folder / file)
            written.append(folder / file)
    return written


def _draw(report: Report, sets: Sequence[Set], path: Path) -> None:
    figure = new_figure(path, figsize=(4.4, 3.6))
    from matplotlib.ticker import LogLocator

    axes = figure.subplots()
    for one in sets:
        rows = [row for topic in one.keys for row in residuals(report, topic)]
        size = 2.5 if len(rows) > 100 else 4.5
        measured, predicted = ([row[side] for row in rows] for side in ("measured", "predicted"))
        axes.loglog(measured, predicted, "o", markersize=size, alpha=0.7, markeredgewidth=0, label=one.name)
    low, high = min(*axes.get_xlim(), *axes.get_ylim()), max(*axes.get_xlim(), *axes.get_ylim())
    axes.plot([low, high], [low, high], color="black", linewidth=0.8)
    axes.fill_between([low, high], [0.9 * low, 0.9 * high], [1.1 * low, 1.1 * high], color="grey", alpha=0.25)
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    unit = "ratio" if "slope" in path.name else sets[0].unit
    axes.set_xlabel(f"measured ({unit}), band: 10 %", fontsize=8)
    axes.set_ylabel(f"predicted ({unit})", fontsize=8)
    axes.tick_params(labelsize=7)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 100 else (1,)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("")
    axes.legend(fontsize=6.5, loc="upper left")
    save(figure, path, dpi=80, bbox_inches="tight")


def refreshed(page: Path, report: Report, area: str) -> None:
    """Write an area's table and pictures into a page; sets that the report has not keep what stands there."""
    draw(report, FIGURES, area)
    known = {line.split(" | ")[0].removeprefix("| "): line for line in part(page, area).splitlines()}
    files = dict.fromkeys(one.file for one in SETS if one.area == area and (FIGURES / one.file).is_file())
    pictures = (f"![{Path(file).stem}](../../validation/figures/{file})" for file in files)
    fill(page, area, [*table(report, area, known), "", *pictures])


def reports(paths: Sequence[str]) -> Report:
    """Return reports that are there as one."""
    topics: dict[str, Any] = {}
    for path in paths:
        topics |= json.loads(Path(path).read_text())["topics"]
    return {"topics": topics}


def main(paths: Sequence[str] = ()) -> None:
    """Write the tables of reports that are there, or of a run of all."""
    if paths:
        write(reports(paths))
    else:
        refresh(AREAS)


def refresh(areas: Sequence[str]) -> None:
    """Run what the tables of areas hold, and write them."""
    topics = [topic for one in SETS if one.area in areas for topic in one.keys]
    beside = {"training": "ranking", "inference": "inference/silicon-ranking"}
    folder = DataFolder(CHECKOUT_DATA, split=False)
    known = {topic.name for topic in all_topics(folder, areas)}
    topics = [topic for topic in topics if topic in known] + [beside[area] for area in areas]
    write(validate(folder, topics))


def write(found: Report) -> None:
    """Write the tables of a report."""
    for area in AREAS:
        if any(topic.startswith(f"{area}/") for topic in found["topics"]):
            refreshed(ACCURACY / f"{area}.md", found, area)
    if any(topic.startswith("ranking/") for topic in found["topics"]):
        fill(ACCURACY / "training.md", "ranking", ranking_table(found))
    if any(topic.startswith("inference/silicon/") for topic in found["topics"]):
        fill(NOTES, "silicon", [*silicon_table(found), "", ranking(found)])


if __name__ == "__main__":
    main(sys.argv[1:])
