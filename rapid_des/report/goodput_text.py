"""The report of a training run with failures in it."""

from __future__ import annotations

from collections.abc import Iterator

from rapid_des.report.tables import Column, Part, Plain, Table, seconds_text
from rapid_des.units import LongDuration, Size

_US_PER_S = 1_000_000
_S_PER_DAY, _MOST_DAYS = 86_400, 10_000


def goodput_report(plain: Plain, title: str) -> Iterator[Part]:
    """Yield a report of what a result's JSON says."""
    yield title
    yield (
        _figures(plain)
        | _checkpoints(plain)
        | _answers(plain)
        | {
            "simulations": f"{plain['simulations']:,} of a step{_at_least(plain)}",
            "replications": f"{plain['replications']:,} from seed {plain['seed']}",
        }
    )
    wall = plain["wall_s"]
    rows = [{"name": name.replace("_", " "), "time": time, "share": time / wall}
            for name, time in plain["time_s"].items()]  # fmt: skip
    names = (Column("name", "", width=24), Column("time", "", _long, 12), Column("share", "", ".2%", 8))
    yield Table("wall time by cause", names, rows)
    counts = sorted(plain["incidents"].items(), key=lambda each: -each[1])
    incidents = [{"name": name, "number": number} for name, number in counts if number]
    yield Table(
        "incidents by class", (Column("name", "", width=24), Column("number", "", ".4g", 12)), incidents
    )
    if "worth" in plain:
        gains = [{"change": each["change"], **each["gain"]} for each in plain["worth"]]
        named = (("mean", "gain"), ("low", "from"), ("high", "to"))
        columns = (Column(key, heading, "+.3%", 9) for key, heading in named)
        yield Table("what a change is worth", (Column("change", "", width=44), *columns), gains)


def _at_least(plain: Plain) -> str:
    """Return for how much time more parts were slow than are simulated together."""
    time = plain["at_least_s"]
    return f"; with many slow parts steps take longer than that, for {_long(time)}" if time else ""


def _figures(plain: Plain) -> dict[str, str]:
    facts = {
        "GPUs": f"{plain['gpus']:,}",
        "goodput": _interval(plain["goodput"], ".2%"),
        "ETTR": _interval(plain["ettr"], ".2%"),
        "MFU": _interval(plain["mfu"], ".2%"),
        "tokens a day": _interval(plain["tokens_per_day"], ".4g"),
        "step": f"{seconds_text(plain['step_time_s'])}, {plain['steps']:,.0f} in {_long(plain['wall_s'])}",
        "incidents": _interval(plain["incidents_total"], ",.1f"),
    }
    return facts | ({"cost": _interval(plain["cost"], ",.0f")} if "cost" in plain else {})


def _checkpoints(plain: Plain) -> dict[str, str]:
    facts, saved = dict[str, str](), plain["checkpoint"]
    if saved is not None:
        every = f"every {saved['steps_between']:,} steps ({_long(saved['interval_s'])})"
        facts["checkpoints"] = f"{Size(saved['bytes'])} {every}, stall {_long(saved['stall_s'])}"
    for near in plain["nearer_checkpoints"]:
        every = f"every {near['steps_between']:,} steps ({_long(near['interval_s'])})"
        facts[f"in memory of {near['place']}s"] = f"{every}, stall {_long(near['stall_s'])}"
    repaired = plain["nodes_in_repair"]
    facts["nodes in repair"] = f"{repaired['mean']:.3g} on average, at most {repaired['most']}"
    return facts


def _answers(plain: Plain) -> dict[str, str]:
    facts = dict[str, str]()
    if "compared" in plain:
        other = plain["compared"]
        facts[other["reliability"]] = f"goodput {_interval(other['goodput'], '.2%')}"
        facts["its gain"] = _interval(other["gain"], "+.3%")
    if "optimum" in plain:
        best = plain["optimum"]
        values = ", ".join(f"{key} {value}" for key, value in best["values"].items())
        facts["best"] = f"{values}: goodput {_interval(best['goodput'], '.2%')}"
        facts["today's regret"] = _interval(best["regret"], "+.3%")
    return facts


def _interval(estimate: Plain, form: str) -> str:
    if estimate["low"] is None:
        return format(estimate["mean"], form)
    return f"{estimate['mean']:{form}} (95 %: {estimate['low']:{form}} to {estimate['high']:{form}})"


def _long(seconds: float) -> str:
    days = seconds / _S_PER_DAY
    return f"{days:.4g} d" if 1 <= days < _MOST_DAYS else str(LongDuration(round(seconds * _US_PER_S)))
