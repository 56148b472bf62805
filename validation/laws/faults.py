"""Laws of faults: what must hold of a run with parts that are slow or down, constantly or for a while."""

from __future__ import annotations

from collections import Counter

from networkx import Graph, bridges

import rapid_des as rd
from validation.laws.draws import LASTS
from validation.laws.trial import DoesNotApplyError, Trial, differ

_MANY_HOPS = 6_000
"""Hops up to which a case is interpreted too."""
_NEARLY = 0.04
"""What turns taken in another order may change, and latencies of packets that a timetable does not slow:
2.8 % of a step with many small messages over links that keep 3 % of their bandwidth."""


def lasting(trial: Trial) -> str:
    """Check that a constant fault is one from 0 s on, and one that ends after the run."""
    fault = trial.case.fault
    times = ("from=0s", f"from=0s {LASTS}", LASTS, "from_progress=0")
    results = [("constant", trial.run(fault))]
    results += [(when, trial.run(f"{fault} {when}")) for when in times]
    return differ(results)


def begun(trial: Trial) -> str:
    """Check that a fault from the first picosecond on is nearly a constant one: rates of timetables do it.

    Algorithms are chosen, and windows sized, for constant faults and not for those that come.
    """
    window = trial.case.machine["switching"].get("congestion", {}).get("control") == "window"
    stated = trial.case.machine["collectives"].get("default", "auto") != "auto"
    if not trial.case.is_native or not stated or window:
        raise DoesNotApplyError("choices depend on constant faults")
    constant, late = (trial.run(f"{trial.case.fault}{when}") for when in ("", " from=1ps"))
    off = late.step_time / constant.step_time - 1
    return f"{off:+.2%}" if abs(off) > _NEARLY else ""


def identity(trial: Trial) -> str:
    """Check that faults which change nothing, or come after the run, change nothing."""
    outage = "all=links down=true from=10000s"
    faults = [
        ["all=links bandwidth=1"], ["all=links bandwidth=1 latency=0s from=0s until=1us"],
        ["all=links packet_loss=0 packet=4KiB retransmission=go_back_n"], ["gpu=0 compute=1 hbm=1"],
        ["all=gpus compute=1 from=1us until=20us"], [f"{trial.case.fault} from=10000s"], [outage],
        [f"{outage} policy=reroute detection=1us"], [f"{outage} policy=replan detection=0s"],
    ]  # fmt: skip
    if trial.holds_back:
        del faults[-2:]
    chosen = trial.case.chance.sample(faults, 4)
    return differ([("healthy", trial.healthy), *((texts[0], trial.run(*texts)) for texts in chosen)])


def engines(trial: Trial) -> str:
    """Check that both engines agree to the tick, healthy, slowed for a while, and with a link that closes."""
    if trial.healthy.hops > _MANY_HOPS:
        raise DoesNotApplyError("many hops")
    step = int(trial.healthy.step_time)
    chance = trial.case.chance
    begin, end = (step * each // 100 for each in sorted(chance.sample(range(100), 2)))
    link = chance.choice(_links(trial.machine))
    when = _window(begin, end)
    policies = ["wait", "reroute detection=2us", "replan detection=0s"]
    policy = chance.choice(policies[: 1 if trial.holds_back else None])
    faults = ((), (f"{trial.case.fault} {when}",), (f"link={link} down=true {when} policy={policy}",))
    for texts in faults:
        both = [(engine, trial.run(*texts, engine=engine)) for engine in ("simpy", "compiled")]
        wrong = differ(both)
        if wrong:
            return f"{texts}: {wrong}"
    return ""


def _window(begin: int, end: int) -> str:
    return f"from={begin}ps until={end}ps"


def _links(machine: rd.Machine) -> list[str]:
    """Return what faults call the links between two nodes, both directions."""
    fabric = machine.healthy
    names = [fabric.link_name(link).split(">") for link in range(len(fabric.source))]
    return sorted({"-".join(sorted(ends)) for ends in names})


def outage(trial: Trial) -> str:
    """Check that a step survives a short outage, of an only link above all, and how much later it ends.

    It may be later by more than the outage. Whoever waited for the link comes late to what follows, and the
    messages of others, who went on, are in front of his on links that they would have had to themselves.
    A link serves each message once: all that the busiest one serves is what may be in front.
    """
    step = int(trial.healthy.step_time)
    chance = trial.case.chance
    link = chance.choice(_only_links(trial.machine) or _links(trial.machine))
    begin, lasts = step * chance.randint(0, 90) // 100, max(step // chance.choice([100, 20, 5]), 1)
    for policy in ("wait", "reroute detection=1us", "replan detection=1us")[
        : 1 if trial.holds_back else None
    ]:
        fault = f"link={link} down=true {_window(begin, begin + lasts)} policy={policy}"
        try:
            ended = trial.run(fault)
        except rd.CannotFinishError as error:
            return f"{fault}: {error}"
        served = Counter[str]()  # picoseconds
        for row in ended.links():
            served[row.link] += round(row.busy_s * 1e12)
        later, busiest = int(ended.step_time) - step - lasts, max(served.values())
        if later > busiest:
            return f"{fault}: {later} ps later than by the outage, the busiest link serves {busiest} ps"
    return ""


def _only_links(machine: rd.Machine) -> list[str]:
    """Return those links between two nodes around which there is no other route."""
    fabric = machine.healthy
    graph = Graph(zip(fabric.source.tolist(), fabric.destination.tolist(), strict=True))
    cut = {frozenset(ends) for ends in bridges(graph)}
    ends = zip(fabric.source.tolist(), fabric.destination.tolist(), strict=True)
    apart = {link for link, pair in enumerate(ends) if frozenset(pair) in cut}
    return sorted({"-".join(sorted(fabric.link_name(link).split(">"))) for link in apart})
