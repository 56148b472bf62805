"""Score every set of measured jobs as a whole: the tables of them in docs/accuracy, and a picture a set.

`python -m validation.refresh_jobs` runs all of `validate training inference` (minutes on two cores) and
writes `validation/figures/SET.png` and what stands between the markers of `docs/accuracy/training.md` and
`inference.md`. Given reports of `rapid-des validate TOPICS --data validation/data --json`, it takes those
sets from there and leaves the others. No constant is fitted on these rows but hosts of engines (nanotron,
NIM), on calibration halves: both splits count; the mean of the test split stands beside.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rapid_des.report.pictures import new_figure, save
from validation import DataFolder, is_calibration, validate
from validation.measurements import CHECKOUT_DATA

ACCURACY = Path(__file__).parents[1] / "docs" / "accuracy"
FIGURES = Path(__file__).parent / "figures"
TABLES = {area: re.compile(rf"(<!-- {area}:[^\n]*-->\n)(.*?)(<!-- end -->)", re.DOTALL)
          for area in ("training", "inference")}  # fmt: skip
Report = Mapping[str, Any]
NOTES = Path(__file__).parent / "README.md"
SILICON = re.compile(r"(<!-- silicon:[^\n]*-->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Set:
    """Topics that are one source's, under one name."""

    name: str
    topics: tuple[str, ...]
    target: str
    """Mean and worst case that are aimed at, percent."""
    area: str = "training"
    unit: str = "s"

    @property
    def file(self) -> str:
        """Return the picture's name."""
        return f"{self.topics[0].split('/')[0]}.png"

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the topics as a report names them."""
        return tuple(f"{self.area}/{topic}" for topic in self.topics)


H100, GB200 = "H100-SXM-80GB", "GB200-NVL72"
ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM 1.x"}
SYSTEMS = ("h100_sxm", "h200_sxm", "b200_sxm", "b300_sxm", "gb200", "gb300")
SETS = (
    Set("Korthikanti 2022, Table 5, A100", ("korthikanti",), "2.5 / 5.5"),
    Set("Megatron SC'21, Tables 1 and 2, A100", ("sc21",), "5 / 12"),
    Set("NVIDIA dgxc, H100, bf16", (f"dgxc/{H100}/bf16",), "3 / 6"),
    Set("NVIDIA dgxc, H100, fp8", (f"dgxc/{H100}/fp8",), "5 / 9"),
    Set("NVIDIA dgxc, GB200, bf16", (f"dgxc/{GB200}/bf16",), "8"),
    Set("NVIDIA dgxc, GB200, fp8", (f"dgxc/{GB200}/fp8",), "8"),
    Set("dgxc, times over the smallest run's", ("dgxc-slope",), "2"),
    Set("Megatron-Bridge, H100, dense", ("megatron-bridge/DGX-H100/dense",), "6 / 10"),
    Set("Megatron-Bridge, H100, experts", ("megatron-bridge/DGX-H100/moe",), "12 / 20"),
    Set(
        "Megatron-Bridge, Blackwell, dense",
        tuple(f"megatron-bridge/DGX-{gpu}/dense" for gpu in ("B200", "GB200", "GB300")),
        "10 / 18",
    ),
    Set(
        "Megatron-Bridge, Blackwell, experts",
        tuple(f"megatron-bridge/DGX-{gpu}/moe" for gpu in ("B200", "B300", "GB200", "GB300")),
        "12 / 20",
    ),
    Set("NeMo 25.02 and 25.04, B200 and GB200", ("nemo/DGX-B200", "nemo/DGX-GB200"), "10 / 18"),
    Set("torchtitan, H100 of 500 W", ("torchtitan",), "6 / 10"),
    Set("Llama 3 405B, 16,384 H100", ("llama3",), "6"),
    Set("MLPerf Training, H100 to GB300", ("mlperf",), "7"),
    Set("MLPerf, adapters of Llama 2 70B", ("mlperf/lora",), "12"),
    Set("MegaScale's baseline, A100", ("megascale",), "10"),
    Set("MT-NLG 530B, A100", ("mt-nlg",), "–"),
    Set("llm-foundry MPT, A100 40 GB", ("llm-foundry/a100_40gb",), "6"),
    Set("llm-foundry MPT, A100 80 GB", ("llm-foundry/a100_80gb",), "6"),
    Set("llm-foundry MPT, H100", ("llm-foundry/h100_80gb",), "6"),
    Set("UCI, Llama 2 7B, 4 A100 PCIe", ("uci",), "10 / 20"),
    Set("Megatron's MoE folding, H100", ("folding",), "6 / 12"),
    Set("nanotron sweep, H100", ("nanotron/step",), "median 15"),
    Set("Kundu et al. 2024, 200 + 200 tokens, A100", ("kundu/A100",), "8 / 15", "inference", "ms"),
    Set("Kundu et al. 2024, H100", ("kundu/H100",), "8 / 15", "inference", "ms"),
    Set("Koyeb, Llama 3.1 8B, A100, time a token", ("koyeb",), "8 / 20", "inference", "ms"),
    Set("LMDeploy, A100, time a token", ("lmdeploy/tpot",), "10", "inference", "ms"),
    Set("LMDeploy, A100, first token", ("lmdeploy/ttft",), "15", "inference", "ms"),
    Set("NVIDIA NIM, single requests, time a token", ("nim/itl",), "8", "inference", "ms"),
    Set("NVIDIA NIM, single requests, first token", ("nim/ttft",), "20", "inference", "ms"),
    Set("NVIDIA NIM, 2 to 50 clients, tokens/s", ("nim/throughput",), "10", "inference", "tokens/s"),
    Set("NVIDIA NIM, 2 to 50 clients, first token", ("nim/ttft/clients",), "20", "inference", "ms"),
    *(
        Set(
            f"{name} under closed loops, {what}",
            tuple(f"silicon/{engine}/{gpu}/{figure}" for gpu in SYSTEMS),
            f"median {target}",
            "inference",
            "ms",
        )
        for engine, name in ENGINES.items()
        for figure, what, target in (("tpot", "time a token", 18), ("ttft", "first token", 25))
    ),
    Set("TensorRT-LLM 0.9, time a token", ("trtllm-static/tpot",), "8", "inference", "ms"),
    Set("TensorRT-LLM 0.9, first token", ("trtllm-static/ttft",), "7", "inference", "ms"),
    Set("TensorRT-LLM 0.9, end to end", ("trtllm-static/e2e",), "7", "inference", "ms"),
)


def residuals(report: Report, topic: str) -> list[Mapping[str, Any]]:
    """Return the rows of a topic that were run; none of one that the report has not."""
    return list(report["topics"].get(topic, {}).get("residuals", []))


def table(report: Report, area: str) -> Iterator[str]:
    """Yield a page's lines of an area: a set a row, errors in percent."""
    yield "| set | rows | not run | mean | test split | median | bias | worst | null | target |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|---|"
    for one in SETS:
        rows = [row for topic in one.keys for row in residuals(report, topic)]
        if not rows or one.area != area:
            continue
        held = [row for row in rows if not is_calibration(row["case_id"])]
        errors = by_case(rows)
        signed = by_case(rows, signed=True)
        figures = [
            fmean(errors),
            fmean(by_case(held)) if held else None,
            median(row["pct"] for row in rows),
            fmean(signed),
            max(errors),
        ]
        cells = "".join(" – |" if figure is None else f" {figure:.1f} |" for figure in figures)
        null = null_text(null_of(report, one), fmean(errors))
        yield f"| {one.name} | {len(rows)} | {not_run(report, one)} |{cells} {null} | {one.target} |"


def null_text(null: float | None, mean: float) -> str:
    """Return the null model's error, in bold where it is nearer.

    >>> null_text(8.71, 13.1), null_text(9.5, 2.3), null_text(None, 2.3)
    ('**8.7**', '9.5', '–')
    """
    if null is None:
        return "–"
    return f"**{null:.1f}**" if null < mean else f"{null:.1f}"


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


def by_case(rows: Sequence[Mapping[str, Any]], *, signed: bool = False) -> list[float]:
    """Return the mean error of each case, in percent."""
    cases: dict[str, list[float]] = {}
    for row in rows:
        sign = -1 if signed and row["predicted"] < row["measured"] else 1
        cases.setdefault(row["case_id"], []).append(sign * row["pct"])
    return [fmean(errors) for errors in cases.values()]


def null_of(report: Report, one: Set) -> float | None:
    """Return the null model's error of a set: of its topics by their cases."""
    topics = [report["topics"].get(topic, {}) for topic in one.keys]
    known = [(topic["null_mean_abs_pct"], topic["cases"]) for topic in topics if topic.get("cases")]
    known = [(null, cases) for null, cases in known if null is not None]
    return sum(null * cases for null, cases in known) / sum(cases for _, cases in known) if known else None


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


def refreshed(text: str, report: Report) -> str:
    """Return a page with the tables of a report, and their pictures below; areas it lacks stay."""
    for area, where in TABLES.items():
        if any(topic.startswith(f"{area}/") for topic in report["topics"]):
            text = where.sub(partial(_filled, report, area), text)
    return text


def _filled(report: Report, area: str, there: re.Match[str]) -> str:
    """Return an area's table and pictures; sets that the report has not keep what stands there."""
    draw(report, FIGURES, area)
    known = {line.split(" | ")[0]: line for line in there[2].splitlines()}
    made = list(table(report, area))
    lines = made[:2]
    rows = {line.split(" | ")[0]: line for line in made[2:]}
    sets = [one for one in SETS if one.area == area]
    for name in (f"| {one.name}" for one in sets):
        lines += [line for line in (rows.get(name, known.get(name)),) if line]
    files = dict.fromkeys(one.file for one in sets if (FIGURES / one.file).is_file())
    lines += ["", *(f"![{Path(file).stem}](../../validation/figures/{file})" for file in files)]
    return there[1] + "\n".join(lines) + "\n" + there[3]


def annotated(text: str, report: Report) -> str:
    """Return validation/README with the table of servers under closed loops, if the report has them."""
    lines = [*silicon_table(report), "", ranking(report)]
    found = any(topic.startswith("inference/silicon/") for topic in report["topics"])
    return SILICON.sub(lambda place: place[1] + "\n".join(lines) + "\n" + place[2], text) if found else text


def reports(paths: Sequence[str]) -> Report:
    """Return reports that are there as one."""
    topics: dict[str, Any] = {}
    for path in paths:
        topics |= json.loads(Path(path).read_text())["topics"]
    return {"topics": topics}


if __name__ == "__main__":
    measured = DataFolder(CHECKOUT_DATA, split=False)
    found = reports(sys.argv[1:]) if len(sys.argv) > 1 else validate(measured, tuple(TABLES))
    for area in TABLES:
        page = ACCURACY / f"{area}.md"
        page.write_text(refreshed(page.read_text(), found))
    NOTES.write_text(annotated(NOTES.read_text(), found))
