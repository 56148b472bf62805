"""The report of a server under load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rapid_des.report.tables import Column, Part, Plain, Table, counted, seconds_text

_CLIENT, _FRONT_ENDS, _ENCODERS = "  client", "    queue at front ends", "    encoders of images"
_ROWS = {
    "time to first token": "ttft_s",
    _CLIENT: "client_s",
    _FRONT_ENDS: "front_end_queue_s",
    _ENCODERS: "encoder_s",
    "  queue": "queue_s",
    "  prefill": "prefill_s",
    "time per output token": "tpot_s",
    "end to end": "e2e_s",
    "whole task": "task_s",
    "keys and values travel": "transfer_s",
    "between two tokens": "itl_s",
}


_CLASSES = (
    Column("name", "class", width=16),
    Column("model", "model", width=16),
    Column("requests", "answered", "{:,}".format),
    Column("shed", "turned away", "{:,}".format),
    Column("ttft mean", "first token", seconds_text),
    Column("ttft p99", "p99", seconds_text),
    Column("tpot mean", "per token", seconds_text),
    Column("tpot p99", "p99", seconds_text),
    Column("attained", "SLO kept", "{:.1%}".format),
)
_GROUPS = (
    Column("job", "job", width=24),
    Column("device", "device", width=16),
    Column("replicas", "replicas", "{:,}".format),
    Column("gpus", "GPUs", "{:,}".format),
    Column("requests", "answered", "{:,}".format),
    Column("output_tokens", "tokens out", "{:,}".format),
)


def serve_report(plain: Plain, title: str, replicas: int) -> Iterator[Part]:
    """Yield a report of what a result's JSON says."""
    held = plain["kv_occupancy"]
    answered = f"{plain['requests']:,} answered in {seconds_text(plain['elapsed_s'])}"
    yield title
    facts = {
        "GPUs": f"{plain['gpus']}, in {counted(replicas, 'replica')}",
        "requests": answered + (", interrupted" if plain["interrupted"] else ""),
        **_throughput(plain),
        **_attained(plain["goodput"]),
        **_expected(plain),
        **_sampling(plain["ci95"]),
        "KV cache": f"{held['mean']:.1%} of its pages held on average, at most {held['max']:.1%}",
    }
    if plain["tokens_a_step"] is not None:
        facts["drafts"] = f"{plain['tokens_a_step']:.3g} tokens a step of a request"
    if plain["turns_waited"]:
        facts["sessions"] = f"{plain['turns_waited']:,} turns waited for the answer before them"
    if plain["prefix_cache"] is not None:
        facts["prefix cache"] = _found(plain["prefix_cache"])
    elif plain["hash_ids"]:
        facts["prefix cache"] = "none: the trace's hash_ids are not read (state serving.prefix_cache)"
    if plain["tasks"]:
        facts["tasks"] = (
            f"{plain['tasks']['tasks']:,}, of {plain['tasks']['requests_a_task']:.3g} requests each"
        )
    facts |= _scaled(plain)
    if plain["shed"]:
        facts["turned away"] = f"{plain['shed']:,} requests"
    facts |= _energy(plain)
    facts |= _outages(plain, replicas)
    if plain["preemptions"]:
        facts["preemptions"] = f"{plain['preemptions']:,}"
    yield facts
    times = (Column(name, None, seconds_text, 10) for name in plain["ttft_s"])
    yield Table("", (Column("name", "", width=24), *times), list(_latencies(plain)))
    yield from _parts(plain)


_WINDOWS = (
    Column("from_s", "from", seconds_text, 12),
    Column("rate_per_s", "requests/s", "{:.3g}".format),
    Column("measured", "measured", "{:,}".format),
    Column("gpus", "GPUs up", "{:.4g}".format),
    Column("within", "within", "{:.1%}".format),
    Column("ttft_p99_s", "first token p99", seconds_text),
    Column("tpot_p99_s", "per token p99", seconds_text),
    Column("e2e_p99_s", "end to end p99", seconds_text),
)


def sampled_report(plain: Plain, title: str) -> Iterator[Part]:
    """Yield what windows say of a long day."""
    yield title
    shares = f"{plain['measured']:,} measured, {plain['simulated']:,} simulated"
    facts = {
        "GPUs": f"{plain['gpus']}",
        "requests": f"{plain['requests']:,} in {seconds_text(plain['elapsed_s'])}, of which {shares}",
        "throughput": f"{plain['requests_per_s']:.3g} requests/s",
    }
    if plain["goodput"] is not None:
        good = plain["goodput"]
        facts["SLO attainment"] = (
            f"{good['attained']:.2%} ± {good['ci95']:.2%} of requests within {good['slo']}"
        )
    if plain["gpu_s"] is not None:
        facts["GPU time"] = f"{plain['gpu_s'] / 3600:,.1f} GPU hours"
    facts |= _sampling({key: width and {"mean": width} for key, width in plain["ci95"].items()})
    if plain["interrupted"]:
        facts["interrupted"] = "the windows that are done follow"
    yield facts
    rows = {"time to first token": "ttft_s", "time per output token": "tpot_s", "end to end": "e2e_s"}
    times = (Column(name, None, seconds_text, 10) for name in plain["ttft_s"])
    yield Table(
        "",
        (Column("name", "", width=24), *times),
        [{"name": name, **plain[key]} for name, key in rows.items()],
    )
    yield Table("by window", _WINDOWS, plain["windows"])


def _parts(plain: Plain) -> Iterator[Table]:
    """Yield the requests by class, and the replicas by job, where there are several."""
    if plain["classes"]:
        yield Table("by class", _CLASSES, list(map(_of_class, plain["classes"])))
    if plain["groups"]:
        yield Table("by replicas", _GROUPS, plain["groups"])


def _of_class(row: Plain) -> Plain:
    """Return a class as a row: mean times and those that 99 % of its requests do not exceed."""
    times = {
        f"{name} {which}": row[f"{name}_s"][which] for name in ("ttft", "tpot") for which in ("mean", "p99")
    }
    return {**row, **times}


def _scaled(plain: Plain) -> dict[str, str]:
    """Return how many replicas were up, by pool, and the time of their GPUs."""
    pools = plain["autoscaling"] or ()
    sizes = [
        f"{pool['mean_replicas']:.3g} on average ({pool['least']} to {pool['most']}), "
        f"{pool['started']:,} started"
        for pool in pools
    ]
    if not sizes:
        return {}
    whole = plain["gpus"] * plain["elapsed_s"]
    return {"replicas": f"{'; '.join(sizes)}; {plain['gpu_s'] / max(whole, 1e-12):.0%} of all GPUs' time"}


def _energy(plain: Plain) -> dict[str, str]:
    """Return the energy by part, if it was asked for."""
    if "energy" not in plain:
        return {}
    if (energy := plain["energy"]) is None:
        return {"energy": "unknown: the device file states no `energy`, or no `idle_power`"}
    parts = ", ".join(
        f"{name.replace('_', ' ')} {part:.4g} J" for name, part in energy["joules_by_part"].items()
    )
    end = "read" if plain["task"] == "embed" else "out"
    each = f"{energy['joules_per_output_token']:.3g} J a token {end}"
    return {"energy": f"{energy['joules']:.4g} J: {parts}; {each} (modelled, for comparisons)"}


def _found(hits: Plain) -> str:
    """Return what share of prompts was found, and where."""
    tiers = {name: tokens for name, tokens in hits["found_tokens"].items() if tokens}
    where = ", ".join(f"{tokens / hits['prompt_tokens']:.1%} in {name}" for name, tokens in tiers.items())
    below = f" ({where})" if len(tiers) > 1 else ""
    return f"{hits['hit_rate']:.1%} of {hits['prompt_tokens']:,} prompt tokens found{below}"


def _throughput(plain: Plain) -> dict[str, str]:
    """Return the rates of the steady window, and those until the last answer."""
    requests, steady = plain["throughput"]["requests_per_s"], plain["steady_requests_per_s"]
    tokens, in_window, end = token_rates(plain)
    whole = f"{requests:.3g} requests/s, {tokens:,.0f} tokens/s {end}"
    if steady is None:
        return {"throughput": f"{whole}, drain included: too few requests for a steady rate"}
    interval = plain["throughput_interval"]
    between = "" if interval is None else f" ({interval[0]:.3g} to {interval[1]:.3g})"
    drain = f"the last {seconds_text(plain['drain_s'])}, when none came"
    return {
        "throughput": f"{steady:.3g} requests/s{between}, {in_window:,.0f} tokens/s {end}",
        "with the drain": f"{whole}: {drain}",
    }


def token_rates(plain: Plain) -> tuple[float, float, str]:
    """Return tokens a second until the last answer and in the steady window, and `out` or `in`."""
    rates, steady = plain["throughput"], plain["steady_requests_per_s"] or 0.0
    if plain["task"] == "generate":
        return rates["output_tokens_per_s"], plain["steady_output_tokens_per_s"] or 0.0, "out"
    read = rates["total_tokens_per_s"] - rates["output_tokens_per_s"]
    return read, read / max(rates["requests_per_s"], 1e-300) * steady, "in"


def _attained(good: Plain | None) -> dict[str, str]:
    """Return the goodput, and the share of requests within the limits."""
    if good is None:
        return {}
    every, during, otherwise = good["attained"].values()
    apart = "" if during is None else f": {during:.1%} of those that an outage met"
    if during is not None and otherwise is not None:
        apart += f", {otherwise:.1%} of the others"
    steady = good["steady_requests_per_s"]
    rate = good["requests_per_s"] if steady is None else steady
    return {
        "goodput": f"{rate:.3g} requests/s within {good['slo']}",
        "SLO attainment": "–" if every is None else f"{every:.1%} of requests{apart}",
    }


def _outages(plain: Plain, replicas: int) -> dict[str, str]:
    elapsed, facts = plain["elapsed_s"], dict[str, str]()
    kinds = {
        "outages": [stop for stop in plain["outages"] if stop["fault"] is None],
        "slow": [stop for stop in plain["outages"] if stop["fault"] is not None],
    }
    for name, stops in kinds.items():
        times = [min(stop["until_s"], elapsed) - stop["from_s"] for stop in stops]
        if stops:
            share = sum(times) / replicas / elapsed if elapsed else 0.0
            facts[name] = f"{len(stops):,}, {share:.1%} of all replicas' time"
    if kinds["outages"]:
        if plain["startup_s"]:
            facts["start-up"] = f"{seconds_text(plain['startup_s'])} a replica, loading of weights included"
        facts["sent again"] = f"{plain['retries']:,} requests"
    return facts | ({"lost": f"{plain['lost']:,} requests"} if plain["lost"] else {})


def _sampling(plain: Plain) -> dict[str, str]:
    """Return the sampling uncertainty of means, where there are enough requests for it."""
    names = {"ttft_s": "first token", "tpot_s": "per token", "e2e_s": "end to end"}
    widths = [f"{name} ± {seconds_text(plain[key]['mean'])}" for key, name in names.items() if plain[key]]
    return {"95% of draws": f"of means: {'; '.join(widths)}"} if widths else {}


def _expected(plain: Mapping[str, Any]) -> dict[str, str]:
    """Return the forecasts of mean times, if there is evidence."""
    names = {"ttft": "first token", "tpot": "per token"}
    spans = [
        f"{name} {{median}} ({{low}} to {{high}})".format_map(
            {end: seconds_text(time) for end, time in plain["forecast_s"][key].items()}
        )
        for key, name in names.items()
        if plain["forecast_s"][key]
    ]
    if not spans:
        return {}
    cases = max(each["cases"] for each in plain["intervals"].values())
    return {"forecast": f"of means, 80%: {'; '.join(spans)} (as {cases} sets of measured servers)"}


def _latencies(plain: Plain) -> Iterator[Plain]:
    tasks = plain["tasks"] or {}
    plain = {**plain, "task_s": tasks.get("time_s")}
    for label, key in _ROWS.items():
        if plain[key] and (label not in (_CLIENT, _FRONT_ENDS, _ENCODERS) or plain[key]["mean"]):
            yield {"name": label, **plain[key]}
