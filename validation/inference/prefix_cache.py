"""Hit rates of caches of prefixes: what the authors of traces print beside what the cache of a server finds.

Requests come one after the other, as the authors count: each finds what all before it have left.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from rapid_des.serving.contents import Contents
from rapid_des.serving.prefix_cache import PrefixCache
from rapid_des.serving.workload import draw, parse_arrivals, parse_lengths
from validation.measurements import DataFolder, Record
from validation.scoring import Row, Topic

RATES = "prefix_cache/hit_rates.csv"
PAGE = 16
_MOST_REQUESTS = 10**6


def topics(data: DataFolder) -> Iterator[Topic]:
    """Yield `inference/prefix-cache`, in percent of prompt tokens, or of the largest hit rate."""
    records = data.read(RATES)
    if records:
        yield Topic(
            "inference/prefix-cache", lambda: [_row(record, data) for record in records],
            unit="percent", split=False,
        )  # fmt: skip


def _row(record: Record, data: DataFolder) -> Row:
    trace, capacity = data.find(f"prefix_cache/{record['trace']}"), record["capacity_tokens"]
    measured = float(record["hit_rate_pct"] or record["of_largest_pct"])
    if trace is None:
        return Row(record["case_id"], measured, None, unsupported=f"{record['trace']} is not here")
    share = 100 * hit_rate(trace, int(capacity) if capacity else None)
    if record["of_largest_pct"]:
        share /= hit_rate(trace, None)
    return Row(record["case_id"], measured, share, null=100.0)


@cache
def hit_rate(trace: Path, capacity: int | None) -> float:
    """Return the share of prompt tokens that a cache of so many tokens finds; None: it has no end."""
    lengths = parse_lengths("1", "prompt"), parse_lengths("1", "output")
    work = draw(parse_arrivals(f"trace file='{trace}'"), lengths, _MOST_REQUESTS, 0)
    found, contents = PrefixCache(PAGE), Contents(work.blocks)
    for number in range(len(work)):
        request = work.request(number, 0)
        request.path = contents.path(request)
        found.meet(request)
        found.admit(request)
        request.computed = request.prompt
        found.grow(request)
        found.leave(request)
        if capacity is not None:
            found.shrink(capacity // PAGE)
    return found.hits[0] / found.asked
