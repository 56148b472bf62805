"""A served workload in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rapid_des.units import PS_PER_S, Duration

_ROWS = (
    ("ttft", "time to first token", "ttft_s"),
    ("", "  queue", "queue_s"),
    ("", "  prefill", "prefill_s"),
    ("tpot", "time per output token", "tpot_s"),
    ("e2e", "end to end", "e2e_s"),
)


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
    for _, label, key in _ROWS:
        yield f"  {label:24}" + "".join(f"{_time(value):>12}" for value in plain[key].values())
    if plain["transfer_s"]:
        yield f"  {'keys and values travel':24}" + "".join(
            f"{_time(value):>12}" for value in plain["transfer_s"].values()
        )
    if plain["itl_s"]:
        yield f"  {'between two tokens':24}{'':>12}" + "".join(
            f"{_time(v):>12}" for v in plain["itl_s"].values()
        )


def _time(seconds: float | None) -> str:
    return "–" if seconds is None else str(Duration(round(seconds * PS_PER_S)))
