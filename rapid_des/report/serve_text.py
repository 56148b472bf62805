"""A served workload in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rapid_des.units import PS_PER_S, Duration

_CLIENT = "  client"
_ROWS = {
    "time to first token": "ttft_s",
    _CLIENT: "client_s",
    "  queue": "queue_s",
    "  prefill": "prefill_s",
    "time per output token": "tpot_s",
    "end to end": "e2e_s",
}


def serve_lines(plain: Mapping[str, Any], title: str, replicas: int) -> Iterator[str]:
    """Yield the lines of a report: what a result's JSON says."""
    rates, held = plain["throughput"], plain["kv_occupancy"]
    yield title
    yield f"  GPUs             {plain['gpus']}, in {replicas} replica{'s' * (replicas > 1)}"
    yield f"  requests         {plain['requests']:,} answered in {_time(plain['elapsed_s'])}" + (
        ", interrupted" if plain["interrupted"] else ""
    )
    tokens = rates["output_tokens_per_s"]
    yield f"  throughput       {rates['requests_per_s']:.3g} requests/s, {tokens:,.0f} tokens/s out"
    if plain["goodput"] is not None:
        good = plain["goodput"]
        yield f"  goodput          {good['requests_per_s']:.3g} requests/s within {good['slo']}"
    if plain["intervals"]:
        yield f"  80% intervals    {_intervals(plain['intervals'])}"
    yield f"  KV cache         {held['mean']:.1%} of its pages held on average, at most {held['max']:.1%}"
    if plain["outages"]:
        elapsed = plain["elapsed_s"]
        out = sum(min(stop["until_s"], elapsed) - stop["from_s"] for stop in plain["outages"])
        share = out / replicas / elapsed if elapsed else 0.0
        yield f"  outages          {len(plain['outages'])}, {share:.1%} of all replicas' time"
        yield f"  sent again       {plain['retries']:,} requests"
    if plain["lost"]:
        yield f"  lost             {plain['lost']:,} requests"
    if plain["preemptions"]:
        yield f"  preemptions      {plain['preemptions']:,}"
    yield ""
    yield f"  {'':24}" + "".join(f"{name:>12}" for name in plain["ttft_s"])
    yield from _latencies(plain)


def _intervals(plain: Mapping[str, Any]) -> str:
    names = {"first_token": "first token", "per_token": "per token"}
    spans = [
        f"{name} {' to '.join(map(_time, plain[key]['seconds']))}"
        for key, name in names.items()
        if key in plain
    ]
    interval = plain["per_token"] if "per_token" in plain else plain["first_token"]
    return f"of means: {'; '.join(spans)} (as {interval['cases']} sets of measured servers)"


def _latencies(plain: Mapping[str, Any]) -> Iterator[str]:
    rows = {label: plain[key] for label, key in _ROWS.items()}
    if not plain["client_s"]["mean"]:
        del rows[_CLIENT]
    if plain["transfer_s"]:
        rows["keys and values travel"] = plain["transfer_s"]
    if plain["itl_s"]:
        rows["between two tokens"] = plain["itl_s"]
    for label, times in rows.items():
        yield f"  {label:24}" + "".join(f"{_time(value):>12}" for value in times.values())


def _time(seconds: float | None) -> str:
    return "–" if seconds is None else str(Duration(round(seconds * PS_PER_S)))
