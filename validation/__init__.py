"""Predictions against measurements: how they are scored, and where the topics come from.

It is part of the repository and not of the wheel: run `python cli.py validate` in a checkout, with
`--data DIR` for measurements of your own.

To add a family, write a module in `operators` or `network` with a function

    def topics(data: DataFolder) -> Iterable[Topic]

and one line in `PROVIDERS`. The function reads its CSV files with `data.read("folder/file.csv")` (a list of
dicts of text; `[]` if the file is absent, which the report then lists), groups the rows by the topic they
belong to, and yields `Topic(name, rows)`, where `rows` is a function without arguments that makes the
predictions: it runs only if the topic is asked for. Each `Row` holds the case (from the column `case_id`, or
from a fixed table in the module), the measurement, the prediction, and the null model's (in `scoring`). A row
that the model does not represent gets `predicted=None` and the reason in `unsupported`; nothing is dropped in
silence. Rows that are known to be bad go to topics named `…/excluded-REASON`.
"""

from __future__ import annotations

import importlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence

from rapid_des.device.calibration import is_calibration
from rapid_des.errors import InputError
from validation.jobs.sources import source_of
from validation.measurements import DataFolder, open_folder
from validation.scoring import Report, Row, Topic, by_source, score

__all__ = ["DataFolder", "Row", "Topic", "is_calibration", "open_folder", "score", "validate"]

PROVIDERS: dict[str, str] = {
    "operators.gemm:topics": "operators/gemm",
    "operators.moe:topics": "operators/moe",
    "operators.gemm:traffic_topics": "operators/traffic",
    "operators.attention:topics": "operators/",
    "operators.vector:topics": "operators/",
    "operators.learned:topics": "operators/learned",
    "operators.overlap:topics": "operators/overlap",
    "operators.others:topics": "operators/other",
    "network.nccl:topics": "network/",
    "network.nccl:shaped_topics": "network/",
    "network.serving_kernels:topics": "network/",
    "network.as_run:topics": "network/as-run/",
    "network.packets:ns3_topics": "network/",
    "network.packets:grid_topics": "network/",
    "network.pauses:pause_topics": "network/",
    "network.marks:mark_topics": "network/",
    "network.start_up:start_up_topics": "network/dcqcn/",
    "network.regret:regret_topics": "network/auto/",
    "network.adaptive:adaptive_topics": "network/adaptive/",
    "training.published:topics": "training/",
    "training.tables:topics": "training/",
    "training.plain:topics": "training/",
    "training.dgxc:topics": "training/dgxc",
    "training.mlperf:topics": "training/mlperf",
    "training.bridge:topics": "training/megatron-bridge",
    "training.nanotron:topics": "training/nanotron",
    "training.small:topics": "training/",
    "training.nanotron:memory_topics": "memory/nanotron",
    "training.tables:memory_topics": "memory/torchtitan",
    "inference.trtllm:topics": "inference/trtllm",
    "inference.tables:topics": "inference/",
    "inference.silicon:topics": "inference/silicon",
    "inference.traces:topics": "inference/vllm-traces",
    "inference.expert_fleets:topics": "inference/expert-fleets",
    "inference.prefix_cache:topics": "inference/prefix-cache",
    "runs:topics": "goodput/",
    "ranking:topics": "ranking/",
    "profiles:topics": "profiles/",
    "own_steps:topics": "calibration/",
    "peers:topics": "peers/",
}
"""Module and function here, and what its topics' names start with: a provider is asked only if a wanted
prefix may be its."""
WITHOUT_FILES = {"network/dcqcn/", "network/auto/", "network/adaptive/", "calibration/"}
"""Starts of topics that compare simulations with each other, or read what ships: no measured file."""


def validate(
    data: DataFolder,
    prefixes: Sequence[str] = (),
    *,
    report: Callable[[str, int, int], None] = lambda *_: None,
) -> Report:
    """Return `{"topics": {name: figures}, "constants": …, "absent": [files]}` for the chosen topics.

    `report` is told each topic that is begun, how many were before it and how many there are. A keyboard
    interrupt ends it with what is done, if anything is; topics that are not, or in part, are in "unfinished".
    """
    chosen = select(list(all_topics(data, prefixes)), prefixes, data)
    constants: dict[str, object] = {}
    reports: dict[str, Report] = {}
    number = 0

    def watch(done: int, parts: int) -> None:
        report(f"{chosen[number].name}: jobs", done, parts)

    try:
        for topic in chosen:
            topic.begin(watch)
        for number, topic in enumerate(chosen):
            report(topic.name, number, len(chosen))
            reports[topic.name] = score(topic, split=data.split)
            constants |= topic.constants
    except KeyboardInterrupt:
        partly = _as_far_as_done([topic for topic in chosen if topic.name not in reports], data)
        if not reports and not partly:
            raise
        unfinished = [topic.name for topic in chosen if topic.name not in reports]
        reports |= partly
    else:
        unfinished = []
    absent = list(data.absent)
    return {
        "topics": reports,
        "by_source": _by_source([topic for topic in chosen if topic.name in reports]),
        "constants": constants,
        "absent": absent,
        "unfinished": unfinished,
    }


def _by_source(topics: Sequence[Topic]) -> Report:
    """Return the figures of each source of measured times of jobs, over all its topics that are scored."""
    rows: dict[str, list[Row]] = defaultdict(list)
    for topic in topics:
        if topic.job_errors is not None and topic.unit in ("s", "ms") and "excluded" not in topic.name:
            rows[source_of(topic.name)] += topic.rows()
    return {source: by_source(found) for source, found in sorted(rows.items())}


def _as_far_as_done(topics: Sequence[Topic], data: DataFolder) -> dict[str, Report]:
    """Return the figures of what was begun, of those of its rows that are done."""
    begun = [(topic, topic.abandon) for topic in topics if topic.abandon is not None]
    for _, abandon in begun:
        abandon()
    reports = {topic.name: score(topic, split=data.split) for topic, _ in begun}
    return {name: report for name, report in reports.items() if report["rows"] or report.get("shares_pct")}


def all_topics(data: DataFolder, prefixes: Sequence[str] = ()) -> Iterator[Topic]:
    """Yield the topics of the providers that may have a wanted prefix, in the table's order."""
    starts = set(PROVIDERS.values())
    if prefixes:
        starts = {start for start in starts if any(_may_have(start, prefix) for prefix in prefixes)}
    elif not data.split:  # a user's folder: what is in it is asked for
        starts -= WITHOUT_FILES
    return _topics_of(data, starts)


def _may_have(start: str, prefix: str) -> bool:
    return start.startswith(prefix) or prefix.startswith(start)


def _topics_of(data: DataFolder, starts: Collection[str]) -> Iterator[Topic]:
    for provider, start in PROVIDERS.items():
        if start in starts:
            module, function = provider.split(":")
            yield from getattr(importlib.import_module(f"{__package__}.{module}"), function)(data)


def select(topics: Sequence[Topic], prefixes: Sequence[str], data: DataFolder) -> list[Topic]:
    """Return the topics whose name starts with one of the prefixes (all without any), sorted by name.

    A prefix of none is an `InputError`, which names the files of its topics where the folder lacks them all.
    """
    names = [topic.name for topic in topics]
    for prefix in prefixes:
        if not any(name.startswith(prefix) for name in names):
            raise InputError(_without_files(data, prefix) or _unknown(prefix, names))
    chosen = [topic for topic in topics if not prefixes or topic.name.startswith(tuple(prefixes))]
    return sorted(chosen, key=lambda topic: topic.name)


def _without_files(data: DataFolder, prefix: str) -> str:
    """Return that the folder has no file for a prefix; empty if it has, or no provider knows the prefix."""
    starts = {start for start in PROVIDERS.values() if start.startswith(prefix)}
    if not starts:
        starts = {
            max((start for start in PROVIDERS.values() if prefix.startswith(start)), key=len, default="")
        }
    folder = DataFolder(data.path, split=data.split)
    if any(True for _ in _topics_of(folder, starts)) or not folder.absent:
        return ""
    files = ", ".join(folder.absent)
    looked = f"looked for {files} (or .gz of it); --data names the folder"
    return f"{data.path} holds no measured file for {prefix!r}; {looked}"


def _unknown(prefix: str, names: Sequence[str]) -> str:
    loaded = {"/".join(name.split("/")[:2]) for name in names}
    others = {start for start in PROVIDERS.values() if not any(name.startswith(start) for name in names)}
    return f"no topic starts with {prefix!r}; topics: {', '.join(sorted(loaded | others))}"
