"""The nanotron sweep on H100 with EFA: times, which configurations fit, and the memory of those."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import accumulate

from rapid_des.values import replace
from validation.jobs.cases import Case, Outcome
from validation.jobs.decoders import LLAMA, Dimensions, Style, decoder, training_flops
from validation.jobs.origins import SOFTWARE, place
from validation.jobs.rows import Figure, MeasuredJob, allocated_gib, job_topics, read_rows, reserved_gib
from validation.jobs.training_trees import Batch, Layout, training_job
from validation.measurements import DataFolder, Record, UnsupportedRow
from validation.scoring import Topic
from validation.training import runs

FILE = "rapid/hf_ultrascale_nanotron_h100_bench_measured.csv"
_GPU = "H100-SXM-80GB (EFA)"
_NODE = 8
_CAPACITY = 81_559 << 20
"""Bytes of an H100, as its driver reports."""
_WIDTHS = {2048: 8192, 3072: 8192, 4096: 14336, 8192: 28672, 16384: 53248}
"""Of the feed-forward by hidden size, where a row has none."""
_TIED = Style("swiglu", "rms_norm", "rope", tied=True)
_MANY, _CONTRADICTED = 8, 3.0
"""Micro-batches of which a step's ends are little; how many times another row's time says that one waited."""
_TIED_UP_TO = 3072
"""Hidden size up to which embedding and head are one, where a row does not say."""

_KINDS: Mapping[str, tuple[str, Figure]] = {
    "Alloc": ("allocated", allocated_gib),
    "Res": ("reserved", reserved_gib),
}
"""Topic and figure by the column's name, which says GB and means GiB (nanotron's `create_table_log`)."""


def topics(data: DataFolder) -> Iterator[Topic]:
    """Yield `training/nanotron/step|fits|allocated|reserved`."""
    records = data.read(FILE)
    ran = [record for record in records if record["status"] == "Success"]
    steps = read_rows(ran, partial(_step, contradicted(ran)), _named)
    yield from job_topics(steps, runs(), unit="s", split=data.split, ranked=True)
    known = [record for record in records if record["status"] in ("Success", "OOM")]
    fits = read_rows(known, _fits, lambda record: ("training/nanotron/fits", record["name"]))
    yield from job_topics(fits, runs(), unit="fits", split=data.split)
    memory = (row for kind in _KINDS for row in read_rows(ran, partial(_memory, kind), partial(_of, kind)))
    yield from job_topics(memory, runs(), unit="GiB", split=data.split)


def memory_topics(data: DataFolder) -> Iterator[Topic]:
    """Yield `memory/nanotron`, the peaks that PyTorch held."""
    ran = [record for record in data.read(FILE) if record["status"] == "Success"]
    rows = read_rows(ran, _held, lambda record: ("memory/nanotron", record["name"]))
    yield from job_topics(rows, runs(), unit="GiB", split=data.split)


def _held(record: Record) -> MeasuredJob:
    return replace(_memory("Res", record), topic="memory/nanotron")


def _named(record: Record) -> tuple[str, str]:
    """Return the topic of a row's time, and the row's name."""
    topic = "training/nanotron/step" + "/tp-over-nodes" * bool(record["tp"] and record.count("tp") > _NODE)
    fixed = record["after_pp_fix"] == "True"
    return topic + "/excluded-before-pipeline-fix" * (not fixed), record["name"]


def _of(kind: str, record: Record) -> tuple[str, str]:
    return f"training/nanotron/{_KINDS[kind][0]}", record["name"]


def contradicted(ran: Iterable[Record]) -> frozenset[str]:
    """Return the names of rows that another row contradicts, whatever is predicted of them.

    A micro-batch takes over three times as long as another's of the same model, tp, pp and micro-batch that
    differs in dp alone. Of eight micro-batches or more, so that a step's ends count little.
    """
    alike: dict[object, dict[str, float]] = defaultdict(dict)
    for record in ran:
        with suppress(UnsupportedRow):  # which is said where the row itself is read
            passes = record.count("batch_accum")
            if record["after_pp_fix"] == "True" and passes >= _MANY:
                split = (record["tp"], record["pp"], record["mbs"], _tied(record))
                time = _step_time(record) / (passes + record.count("pp") - 1)
                alike[dimensions(record), split][record["name"]] = time
    limits = ((times, _CONTRADICTED * min(times.values())) for times in alike.values())
    return frozenset(name for times, limit in limits for name, time in times.items() if time > limit)


def _step_time(record: Record) -> float:
    batch = _batch(record)
    return batch.sequences * batch.length / (record.time("tok/s/gpu") * _layout(record).gpus)


def _step(known: frozenset[str], record: Record) -> MeasuredJob:
    """Return a row of time; those before the pipeline was mended (column `after_pp_fix`) say nothing.

    Rows that others contradict (`known`) stand apart.

    The file's bandwidths (all-reduce, all-gather) are of one buffer whatever the nodes: `aws_p5_x32` gives
    them at 32 MiB, where they fall as nodes grow; its links are not changed for them.
    """
    batch, gpus = _batch(record), _layout(record).gpus
    flops = training_flops(dimensions(record), gated=True, sequence=batch.length, sequences=batch.sequences)
    if record["after_pp_fix"] != "True":
        raise UnsupportedRow("stages waited for each other")
    topic = _named(record)[0] + "/excluded-contradicted" * (record["name"] in known)
    return _row(record, topic, _step_time(record), flops / gpus)


def _row(record: Record, topic: str, measured: float, basis: float = 0.0) -> MeasuredJob:
    case = _case(record, only_memory=not basis)
    return MeasuredJob(topic, record["name"], measured, cases=(case,), basis=basis)


def _fits(record: Record) -> MeasuredJob:
    """Return a row of the verdict: what is measured is 1, a prediction 0 or 2 is wrong.

    2: the model says that it fits, and it ran out of memory; 0 the other way about.
    """
    row = _row(record, "training/nanotron/fits", 1.0)
    ran = record["status"] == "Success"
    return MeasuredJob(
        row.topic,
        row.case_id,
        1.0,
        _right_of_success if ran else _right_of_failure,
        row.cases,
        row.unsupported,
    )


def _right_of_success(outcome: Outcome) -> float:
    return 1.0 if outcome.memory_bytes <= _CAPACITY else 0.0


def _right_of_failure(outcome: Outcome) -> float:
    return 1.0 if outcome.memory_bytes > _CAPACITY else 2.0


def _memory(kind: str, record: Record) -> MeasuredJob:
    """Return a row of what the first stage's first rank logs after a step, in GiB.

    nanotron resets PyTorch's peaks between the passes and the optimizer: allocated is the optimizer's peak.
    """
    topic, figure = _KINDS[kind]
    row = _row(record, f"training/nanotron/{topic}", record.time(f"Mem {kind} (GB)"))
    return MeasuredJob(row.topic, row.case_id, row.measured, figure, row.cases, row.unsupported)


def _case(record: Record, *, only_memory: bool) -> Case:
    layout, software = _layout(record), SOFTWARE["nanotron"]
    style = _TIED if _tied(record) else LLAMA
    model = decoder(style, dimensions(record), positions=record.count("seq_len"))
    more = {
        "training": {"zero_stage": record.count("zero_stage", least=0)},
        "vocabulary_multiple": 1,
    }
    tree = training_job(model, layout, _batch(record), software, more)
    return Case.of(tree, place(_GPU, layout.gpus), only_memory=only_memory)


def _tied(record: Record) -> bool:
    stated = record["tie_word_embeddings"]
    return stated == "True" if stated else record.count("hidden_size") <= _TIED_UP_TO


def dimensions(record: Record) -> Dimensions:
    """Return a model's dimensions; rows that failed name grouped heads in their name alone."""
    hidden, heads = record.count("hidden_size"), record.count("num_heads")
    grouped = 8 if record["name"].endswith("gqa8") else heads
    return Dimensions(
        layers=record.count("num_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=record.count("num_kv_heads") if record["num_kv_heads"] else grouped,
        ffn=record.count("interm_dim") if record["interm_dim"] else _WIDTHS[hidden],
        vocabulary=record.count("vocab_size"),
    )


def _batch(record: Record) -> Batch:
    """Return the batch; the file's `gbs` is in sequences where the run succeeded, else in tokens."""
    micro_batch, passes = record.count("mbs"), record.count("batch_accum")
    return Batch(micro_batch * passes * record.count("dp"), micro_batch, record.count("seq_len"))


def _layout(record: Record) -> Layout:
    pp = record.count("pp")
    return Layout(
        tp=record.count("tp"),
        pp=pp,
        dp=record.count("dp"),
        sequence_parallel=True,
        layers=by_cost(dimensions(record), pp) if pp > 1 else "even",
    )


def by_cost(size: Dimensions, stages: int) -> tuple[int, ...]:
    """Return the layers of each stage: it ends when its share of all matrices, the head's too, is reached.

    That gives the first stage's parameters (column `Local Params`) in 676 of 687 rows after the fix.

    >>> by_cost(Dimensions(28, 3072, 32, 32, 8192, 131072), 8)
    (4, 4, 4, 4, 4, 4, 4, 0)
    """
    layer = 4 * size.hidden * size.hidden + 3 * size.ffn * size.hidden
    whole = size.layers * layer + size.vocabulary * size.hidden
    counts, stage = [0] * stages, 0
    for cost in accumulate([layer] * size.layers):
        counts[stage] += 1
        while stage < stages - 1 and cost * stages >= whole * (stage + 1):
            stage += 1
    return tuple(counts)
