"""The laws: what must hold of any job on any machine, whatever the right number is.

Each is a function of a trial that returns how the law is broken, or an empty text. `DoesNotApplyError` says
why it speaks of no such case.

No law here: that more bandwidth, or less work, is never slower. Links and streams take what is there in a
stated order, so that a step may take longer when one part of it takes less (Graham, SIAM J. Appl. Math.
17(2), 1969).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from unittest.mock import patch

import numpy as np

import rapid_des as rd
from rapid_des.arrays import Int64s
from rapid_des.chakra.trace import NodeTable, TraceSet
from rapid_des.modes.symmetry import Budget, fold
from rapid_des.program.lowering import lower
from rapid_des.units import Bandwidth, Duration
from rapid_des.values import replace
from validation.laws.draws import Tree
from validation.laws.faults import begun, engines, identity, lasting, outage
from validation.laws.trial import DoesNotApplyError, Trial, differ

Law = Callable[[Trial], str]
_ROUNDED = 1e-6
"""What times are rounded by, as a share: work at a shared rate ends at a whole picosecond."""
_LINE = 2e-3
"""How far from a line a server takes costs to lie on it (`serving.interpolation`)."""


def parts(trial: Trial) -> str:
    """Check that each rank's parts add up to its end, in every mode, and that none is below 0."""
    for mode in rd.MODES:
        try:
            result = trial.run(trial.case.fault, mode=mode)
        except rd.UnsupportedByEngine:
            continue
        wrong = _wrong_parts(result, mode)
        if wrong:
            return wrong
    return ""


def _wrong_parts(result: rd.Result, mode: str) -> str:
    if sum(result.breakdown.values()) != result.step_time or result.step_time != max(result.finish.values()):
        return f"{mode}: parts {sum(result.breakdown.values())}, step {int(result.step_time)}"
    for rank, finish in result.finish.items():
        spent = result.rank_breakdown(rank)
        if sum(spent.values()) != finish or min(spent.values()) < 0:
            return f"{mode}: rank {rank} ends at {int(finish)}, its parts {spent}"
    return ""


def doubled(trial: Trial) -> str:
    """Check that a step takes twice as long where all durations, times of bytes and latencies are doubled."""
    if not trial.case.is_native:
        raise DoesNotApplyError("libraries have times of their own")
    slow = rd.load_machine(_slowed(trial.case.machine), device_settings={"hbm.bandwidth": "0.5x"})
    once = rd.replay(trial.traces, trial.machine)
    twice = rd.replay(_stretched(trial.traces), slow)
    longer = int(2 * once.step_time)
    return (
        ""
        if abs(twice.step_time - longer) <= _ROUNDED * longer
        else f"{int(twice.step_time)} ps, not {longer}"
    )


def _slowed(machine: Tree) -> Tree:
    """Return a machine with half the bandwidths and twice the latencies."""

    def slowed(key: str, value: object) -> object:
        if isinstance(value, dict):
            return {name: slowed(name, inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [slowed(key, inner) for inner in value]
        if key == "bandwidth":
            return Bandwidth(Bandwidth.parse(value) // 2).exact()
        return Duration(2 * Duration.parse(value)).exact() if key == "latency" else value

    return {key: slowed(key, value) for key, value in machine.items()}


def _stretched(traces: TraceSet) -> TraceSet:
    """Return traces whose durations are doubled."""
    tables: dict[NodeTable, NodeTable] = {}
    for nodes in {rank.nodes for rank in traces.ranks}:
        tables[nodes] = replace(nodes, duration=_twice(nodes.duration), issued=_twice(nodes.issued))
    ranks = tuple(replace(rank, nodes=tables[rank.nodes]) for rank in traces.ranks)
    return replace(traces, ranks=ranks)


def _twice(times: Int64s) -> Int64s:
    return np.where(times > 0, 2 * times, times)


def replayed(trial: Trial) -> str:
    """Check that a job's traces replay as the job runs."""
    again = rd.replay(trial.traces, trial.machine)
    return "" if again.finish == trial.healthy.finish else f"{again.step_time}, not {trial.healthy.step_time}"


def modes(trial: Trial) -> str:
    """Check that each mode's bound holds the flattened step, healthy and faulted; no step is small."""
    with patch("rapid_des.modes.blocks.bounds._MOST_RANKS", 0):
        for faults in ((), (trial.case.fault,)):
            step = trial.run(*faults).step_time
            for mode in rd.MODES[1:]:
                wrong = _outside_bound(trial, mode, faults, int(step))
                if wrong:
                    return wrong
    return ""


def _outside_bound(trial: Trial, mode: str, faults: Sequence[str], step: int) -> str:
    try:
        bound = trial.run(*faults, mode=mode).mode_bound
    except rd.UnsupportedByEngine:
        return ""
    assert bound is not None, "every mode but the flattened one has a bound"
    if bound.low <= step <= bound.high:
        return ""
    low, high = (f"{end / step - 1:+.2%}" for end in (bound.low, bound.high))
    return f"{mode} {faults}: {low} to {high} of flattened {step} ps"


def folding(trial: Trial) -> str:
    """Check that what is simulated for ranks that live alike is what all of them do."""
    from rapid_des.engines import compiled

    program = lower(trial.traces, trial.machine).program
    folded = fold(program, Budget(inf, discarded=1))
    if folded is None:
        raise DoesNotApplyError("no ranks live alike")
    records = compiled.run(folded.program)
    if records.ties and not folded.keeps_order:
        raise DoesNotApplyError("links choose by rank")
    whole, unfolded = compiled.run(program), folded.unfolded(program, records)
    same = all(
        np.array_equal(getattr(whole, name), getattr(unfolded, name))
        for name in ("start", "finish", "met", "link_bytes", "link_busy", "link_wait")
    )
    return "" if same else f"{unfolded.makespan} ps folded, {whole.makespan} whole"


def names(trial: Trial) -> str:
    """Check that names of the machine and its dimensions change nothing."""
    fabric = [{**each, "name": f"other{place}"} for place, each in enumerate(trial.case.machine["fabric"])]
    other = rd.simulate(trial.job, trial.settings(name="renamed", fabric=fabric))
    return differ([("healthy", trial.healthy), ("renamed", other)])


def one_request(trial: Trial) -> str:
    """Check that a server that has one request takes as long as the static run of it.

    A server simulates passes of 2, 4, 8, … tokens, and others where these do not lie on lines. A prompt of
    such a length takes what the static run takes. What messages of other lengths take grows by whole packets
    and segments, and jumps where another algorithm is the fastest: a server may be off by what a sixteenth
    more or fewer tokens change, and by what it takes for a line.
    """
    chance = trial.case.chance
    length = chance.choice([8, 17, 128, 300])
    wanted = {"batch": 1, "prompt_length": length, "output_length": chance.choice([1, 2, 17, 48])}
    tree: Tree = {
        "model": trial.case.job["model"], "phase": "inference", "parallelism": {"tp": chance.choice([1, 2])},
        "software": chance.choice(["vllm-0.x", "vllm-0.12", "sglang", "trtllm-1"]), "inference": wanted,
        "host": None,
    }  # fmt: skip
    job, few = rd.load_job(tree), -(-length // 16)
    first, total = _static(trial, tree, length)
    served = rd.serve(job, trial.machine, requests=1, arrivals="clients count=1")
    low = high = first
    if length & (length - 1):
        low, high = (_static(trial, tree, length + more)[0] for more in (-few, few))
    line = _ROUNDED if low == high else _LINE
    if not low - line * first <= served.ttft[0] <= high + line * first:
        return f"first token served after {int(served.ttft[0])} ps, static {first}, {low} to {high}: {wanted}"
    decoded, static = int(served.e2e[0] - served.ttft[0]), total - first
    if abs(decoded - static) > _LINE * static:
        return f"decoded in {decoded} ps, static {static} ps: {wanted}"
    return ""


def _static(trial: Trial, tree: Tree, length: int) -> tuple[int, int]:
    """Return when a request with a prompt of a length has its first and its last token, in picoseconds."""
    job = rd.load_job({**tree, "inference": {**tree["inference"], "prompt_length": length}})
    result = rd.simulate(job, trial.machine)
    assert result.figures is not None and result.figures.requests is not None, "it is inference"
    return int(result.figures.requests.first_token), int(result.figures.requests.total)


def order(trial: Trial) -> str:
    """Check that a plan's rows come in order of their steps: no bound from below is above its step."""
    if trial.case.seed % 8:
        raise DoesNotApplyError("of every eighth case only")
    vary: Tree = {"micro_batch": [1], "recompute": ["none"], "schedule": ["1f1b"], "zero_stage": None}
    wanted = rd.Wanted(gpus=min(trial.machine.fabric.gpus, 4), top=20, mode="flattened", vary=vary)
    rows = rd.plan(trial.job, trial.machine, wanted).rows
    steps = [int(row.step_time) for row in rows]
    early = next((place for place in range(1, len(steps)) if steps[place] < steps[place - 1]), None)
    return (
        "" if early is None else f"row {early + 1} takes {steps[early]} ps, the one before {steps[early - 1]}"
    )


LAWS: Mapping[str, Law] = {
    "lasting": lasting,
    "begun": begun,
    "identity": identity,
    "parts": parts,
    "doubled": doubled,
    "replayed": replayed,
    "modes": modes,
    "engines": engines,
    "folding": folding,
    "outage": outage,
    "names": names,
    "one_request": one_request,
    "order": order,
}
