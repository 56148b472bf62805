"""A served workload in words."""

from __future__ import annotations

from collections.abc import Iterator

from rapid_des.serving.result import SHARES, ServeResult, Slo
from rapid_des.units import PS_PER_S, Duration

_ROWS = (
    ("ttft", "time to first token", "ttft_s"),
    ("", "  queue", "queue_s"),
    ("", "  prefill", "prefill_s"),
    ("tpot", "time per output token", "tpot_s"),
    ("e2e", "end to end", "e2e_s"),
)


def serve_lines(result: ServeResult, title: str, slo: Slo | None = None) -> Iterator[str]:
    """Yield the lines of a report."""
    plain = result.as_json(slo)
    rates, held = plain["throughput"], plain["kv_occupancy"]
    yield title
    yield f"  GPUs             {result.gpus}, in {len(result.loads)} replica{'s' * (len(result.loads) > 1)}"
    yield f"  requests         {len(result):,} answered in {Duration(result.elapsed)}" + (
        ", interrupted" if result.interrupted else ""
    )
    tokens = rates["output_tokens_per_s"]
    yield f"  throughput       {rates['requests_per_s']:.3g} requests/s, {tokens:,.0f} tokens/s out"
    if slo is not None:
        yield f"  goodput          {result.goodput(slo):.3g} requests/s within {slo.text}"
    yield f"  KV cache         {held['mean']:.1%} of its pages held on average, at most {held['max']:.1%}"
    if plain["outages"]:
        out = sum(min(end, result.elapsed) - begin for _, begin, end in result.stops)
        share = out / len(result.loads) / max(result.elapsed, 1)
        yield f"  outages          {len(result.stops)}, {share:.1%} of all replicas' time"
        yield f"  sent again       {plain['retries']:,} requests"
    if result.lost:
        yield f"  lost             {result.lost:,} requests"
    if plain["preemptions"]:
        yield f"  preemptions      {plain['preemptions']:,}"
    yield ""
    yield f"  {'':24}" + "".join(f"{name:>12}" for name in ("mean", *SHARES))
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
