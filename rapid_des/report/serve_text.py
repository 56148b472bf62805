"""Results of serving as text."""

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
    yield from _kept(plain["goodput"])
    if plain["intervals"]:
        yield f"  80% intervals    {_intervals(plain['intervals'])}"
    yield from _sampling(plain["ci95"])
    yield f"  KV cache         {held['mean']:.1%} of its pages held on average, at most {held['max']:.1%}"
    if plain["tokens_a_step"] is not None:
        yield f"  drafts           {plain['tokens_a_step']:.3g} tokens a step of a request"
    yield from _outages(plain, replicas)
    if plain["preemptions"]:
        yield f"  preemptions      {plain['preemptions']:,}"
    yield ""
    yield f"  {'':24}" + "".join(f"{name:>12}" for name in plain["ttft_s"])
    yield from _latencies(plain)


def _kept(good: Mapping[str, Any] | None) -> Iterator[str]:
    if good is None:
        return
    yield f"  goodput          {good['requests_per_s']:.3g} requests/s within {good['slo']}"
    every, during, otherwise = good["attained"].values()
    apart = "" if during is None else f": {during:.1%} of those that an outage met"
    if during is not None and otherwise is not None:
        apart += f", {otherwise:.1%} of the others"
    yield (
        f"  kept by          {every:.1%} of requests{apart}" if every is not None else "  kept by          –"
    )


def _outages(plain: Mapping[str, Any], replicas: int) -> Iterator[str]:
    elapsed = plain["elapsed_s"]
    kinds = {
        "outages": [stop for stop in plain["outages"] if stop["fault"] is None],
        "slow": [stop for stop in plain["outages"] if stop["fault"] is not None],
    }
    for name, stops in kinds.items():
        times = [min(stop["until_s"], elapsed) - stop["from_s"] for stop in stops]
        if stops:
            share = sum(times) / replicas / elapsed if elapsed else 0.0
            yield f"  {name:17}{len(stops):,}, {share:.1%} of all replicas' time"
    if kinds["outages"]:
        if plain["startup_s"]:
            yield f"  start-up         {_time(plain['startup_s'])} a replica, its weights among it"
        yield f"  sent again       {plain['retries']:,} requests"
    if plain["lost"]:
        yield f"  lost             {plain['lost']:,} requests"


def _sampling(plain: Mapping[str, Any]) -> Iterator[str]:
    """Yield the sampling uncertainty of means, where there are enough requests to tell."""
    names = {"ttft_s": "first token", "tpot_s": "per token", "e2e_s": "end to end"}
    widths = [f"{name} ± {_time(plain[key]['mean'])}" for key, name in names.items() if plain[key]]
    if widths:
        yield f"  95% of draws     of means: {'; '.join(widths)}"


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
