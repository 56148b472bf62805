"""`profile show` in ten lines: steps, where the time goes, the slowest kernels, the slowest rank."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from shlex import quote
from typing import Any

from rapid_des.profiles.kernel_classes import CLASSES
from rapid_des.report.tables import Column, Part, Table, change_text, columns, counted, seconds_text
from rapid_des.units import PS_PER_S

_WORDS = {
    "compute": "compute",
    "exposed_communication": "exposed communication",
    "exposed_copies": "exposed copies of memory",
    "host": "host (not launched yet)",
    "waiting": "waiting for another stream, an event or a launch",
}
_OVERLAPS = {
    "none": "none: a message starts when all streams are done, and all wait for it",
    "full": "full: only the next step waits for messages, which bounds what overlap can give",
}
_MOVES = ("communication", "copy")
"""Classes that are no kernels of compute."""
_STEP_OF_CHAIN = re.compile(r"\.\d+\.\w+\Z")
"""What eager chains add to the names of their kernels, as in ffn.norm.0.cast."""
_MOST_OPERATORS = 12
"""The operators that are shown; `--json` has all of them."""
_LONGEST_NAME = 70
"""Letters of a kernel's name that are shown: template arguments make some thousands long."""
_LONGEST_READ = 4096
_WRAPPERS = ("Kernel", "Kernel2", "device_kernel", "cutlass_kernel")
"""The ends of names of kernels that run whatever their template is given, as cutlass::Kernel."""


def profile_text(plain: Mapping[str, Any], *, top: int) -> Iterator[Part]:
    """Yield the report of `ProfileReport.as_json`."""
    steps, step = plain["steps_s"], plain["step_time_s"]
    ranks = plain["ranks"]
    yield f"{counted(len(ranks), 'rank')}, {counted(len(steps), 'step')}: {seconds_text(step)} a step" + (
        f" (rank {_rank(ranks[0])}, the slowest)" if len(ranks) > 1 else ""
    )
    steady = [steps[number] for number in plain["steady_steps"]]
    facts = {"steps": f"{seconds_text(min(steady))} to {seconds_text(max(steady))}"}
    if len(steady) < len(steps):
        facts["left out"] = (
            f"{counted(len(steps) - len(steady), 'step')} without device work, or far from the median"
        )
    if later := max(ranks, key=lambda rank: rank["later_device_events"])["later_device_events"]:
        facts["not kept"] = f"{later:,} later device events of a rank; the earliest stay"
    facts["classified"] = f"{plain['classified_share']:.1%} of device time has a known class"
    if not plain["operators"]:
        facts["classified"] = "no device event: this rank's trace is of the host alone"
    yield facts
    yield _shares("where a step's time goes", {_WORDS[k]: v for k, v in plain["breakdown_s"].items()}, step)
    yield _shares("kernels by class, streams together", plain["classes_s"], step)
    yield _shares("collectives", plain["communication_s"], step)
    rows = [
        {"name": folded(row["name"]), **{key: row[key] for key in ("class", "count", "time_s")}}
        for row in plain["operators"][:top]
    ]
    yield Table("slowest kernels, of all steady steps", columns("name", "class", "count", "time_s"), rows)
    if step:
        yield from _next(plain)
    if len(ranks) > 1:
        each = [{"rank": _rank(row), **{key: row[key] for key in ("file", "step_time_s")}} for row in ranks]
        yield Table("ranks, the slowest first", columns("rank", "step_time_s", "file"), each)


def _next(plain: Mapping[str, Any]) -> Iterator[str]:
    """Yield the command that says what a change of the longest part would bring, if there is one."""
    part = max(plain["breakdown_s"], key=plain["breakdown_s"].__getitem__)
    kernels = {
        kind: time for kind, time in plain["classes_s"].items() if kind in CLASSES and kind not in _MOVES
    }
    busiest = max(kernels, key=kernels.__getitem__, default="")
    if part == "waiting" or (part == "compute" and not busiest):
        return
    change, what = {
        "host": (
            "--remove host",
            "what the step would take if its host were never late, as with CUDA graphs",
        ),
        "exposed_communication": ("--overlap full", "what hiding its messages would bring at most"),
        "exposed_copies": ("--remove copy", "what hiding its copies would bring at most"),
    }.get(part, (f"--speed {busiest}=2x", f"what kernels of class {busiest} twice as fast would bring"))
    yield f"next: {what}:\n  rapid-des replay {quote(plain['ranks'][0]['file'])} {change}"


def replayed_text(plain: Mapping[str, Any], title: str) -> Iterator[Part]:
    """Yield the report of `ReplayedStep.as_json`."""
    measured, simulated = plain["measured_s"], plain["step_time_s"]
    yield f"{title}: step {plain['step']} of the profile, {counted(plain['device_events'], 'device event')}"
    changed = ", ".join(
        f"{kind} {factor:g}x" if factor else f"{kind} takes no time"
        for kind, factor in plain["speed"].items()
    )
    yield {
        "measured": seconds_text(measured),
        "replayed": f"{seconds_text(simulated)} ({change_text(simulated, measured)})",
        **({"faster": changed} if changed else {}),
        **({"no kernel of": ", ".join(plain["unmet"])} if plain["unmet"] else {}),
        **({"overlap": _OVERLAPS[plain["overlap"]]} if plain["overlap"] in _OVERLAPS else {}),
    }
    yield "messages take what they took, waits for other ranks included"


def asked_text(plain: Mapping[str, Any], options: Mapping[str, Any]) -> Iterator[Part]:
    """Yield the report of `AskedProfiles.as_json`, with what was asked for."""
    measured, before, after = (plain[f"{name}_s"] for name in ("measured", "unchanged", "step_time"))
    copied = f", {plain['copied_ranks']:,} of them copies of their peers" if plain["copied_ranks"] else ""
    yield f"{plain['machine']}: {counted(plain['ranks'], 'rank')}{copied}"
    names = {"speed": "speed", "remove": "remove", "settings": "set", "faults": "fault"}
    asked = [f"--{name} {text}" for key, name in names.items() for text in options[key]]
    asked += [f"--{name} {options[name]}" for name in ("dp", "overlap") if options[name]]
    facts = {
        "measured": f"{seconds_text(measured)}, the base of what follows",
        "as it was": f"{seconds_text(before)} simulated ({change_text(before, measured)})",
    }
    if asked:
        facts["changed"] = " ".join(asked)
        facts["simulated"] = f"{seconds_text(after)} ({change_text(after, before)})"
        expected = plain["expected_s"]
        facts["expected"] = f"{seconds_text(expected)}: measured times the ratio of the simulated steps"
    yield facts
    kept = plain["collectives_as_measured"]
    yield f"{counted(plain['collectives_simulated'], 'message')} of the step simulated on the machine" + (
        f"; {kept:,} of unknown bytes or ranks keep their time" if kept else ""
    )
    skews = [abs(skew) for skew in plain["clock_skew_s"].values()]
    if len(skews) > 1:
        yield f"clocks were up to {seconds_text(max(skews))} apart, as collectives show: this is removed"


def comparison_text(plain: Mapping[str, Any], title: str) -> Iterator[Part]:
    """Yield the report of `ProfileComparison.as_json`."""
    measured, predicted = plain["measured_s"], plain["predicted_s"]
    yield title
    yield {
        "measured": seconds_text(measured),
        "predicted": f"{seconds_text(predicted)} ({change_text(predicted, measured)})",
    }
    parts = [
        {"part": _WORDS[name], **_times(row), "of_step": row["difference_s"] / measured if measured else 0.0}
        for name, row in plain["parts"].items()
        if row["measured_s"] or row["predicted_s"]
    ]
    named = [Column("part", ""), Column("measured", "measured"), Column("predicted", "predicted")]
    yield Table("what a step's time is", [*named, Column("of_step", "of the step", "+.1%")], parts)
    rows = [
        {
            "class": name,
            **_times(row),
            "ratio": row["ratio"],
            **{f"{side}_count": row[f"{side}_count"] for side in ("measured", "predicted")},
        }
        for name, row in plain["classes"].items()
    ]
    counts = [Column("measured_count", "kernels", ",.0f"), Column("predicted_count", "predicted", ",.0f")]
    named = [Column("class", "class"), *named[1:], Column("ratio", "ratio", ".2f"), *counts]
    yield Table("kernels and messages by class, streams together", named, rows)
    yield from _operators(plain)


def _operators(plain: Mapping[str, Any]) -> Iterator[Part]:
    """Yield the kernels and operators that were matched, those that differ most first."""
    every = sorted(plain["operators"], key=lambda row: -abs(row["difference_s"]))
    step = plain["measured_s"]
    rows = [
        {
            "operator": _operators_text(row["operators"]) or "the model has none",
            "classes": ", ".join(row["classes"]) or "none",
            **_times(row),
            "of_step": row["difference_s"] / step if step else 0.0,
            **{f"{side}_count": row[f"{side}_count"] for side in ("measured", "predicted")},
        }
        for row in every[:_MOST_OPERATORS]
    ]
    named = [
        *(Column("measured", "measured"), Column("predicted", "predicted")),
        *(Column("of_step", "of the step", "+.1%"), Column("measured_count", "kernels", ",.0f")),
        *(
            Column("predicted_count", "operators", ",.0f"),
            Column("operator", ""),
            Column("classes", "kernels of"),
        ),
    ]
    yield Table("kernels matched by size and order, those that differ most first", named, rows)
    difference = sum(row["difference_s"] for row in every)
    rest = difference - sum(row["difference_s"] for row in every[:_MOST_OPERATORS])
    once = plain["at_once"]["difference_s"]
    compute = plain["parts"]["compute"]["difference_s"]
    yield {
        "all operators": _signed(difference)
        + (f", {_signed(rest)} of them not shown" if len(every) > len(rows) else ""),
        "that run at once": _signed(-once),
        "compute": _signed(compute),
    }
    if not plain["products_have_shapes"]:
        yield "products are not matched by size: record_shapes=True of the profiler records their shapes"


def _signed(time: float) -> str:
    """Return a difference in seconds with its sign."""
    return ("-" if time < 0 else "+") + seconds_text(abs(float(f"{time:.4g}")))


def _operators_text(operators: Sequence[str]) -> str:
    """Return the names of operators, those of one pass with the pass said once, without steps of chains.

    >>> _operators_text(["forward.ffn.norm.0.cast", "forward.ffn.norm", "optimizer"])
    'forward ffn.norm; optimizer'
    """
    passes = dict[str, list[str]]()
    for name in operators:
        first, _, module = name.partition(".")
        module = _STEP_OF_CHAIN.sub("", module) if len(operators) > 1 else module
        modules = passes.setdefault(first, [])
        modules += [module] if module and module not in modules else []
    return "; ".join(f"{first} {', '.join(modules)}".strip() for first, modules in passes.items())


def _times(row: Mapping[str, Any]) -> dict[str, str]:
    return {side: seconds_text(float(f"{row[f'{side}_s']:.4g}")) for side in ("measured", "predicted")}


def _rank(row: Mapping[str, Any]) -> str:
    return "?" if row["rank"] is None else str(row["rank"])


def folded(name: str) -> str:
    """Return a kernel's name without its arguments, and of a wrapper what it wraps.

    >>> folded("void gelu<float>(float*, (anonymous namespace)::Shape)")
    'gelu<float>'
    >>> folded("void cutlass::Kernel<cutlass_80_tensorop_bf16_s16816gemm_relu_256x128_32x3_tn_align8>(P)")
    'cutlass_80_tensorop_bf16_s16816gemm_relu_256x128_32x3_tn_align8'
    """
    plain = name.replace("(anonymous namespace)::", "").removeprefix("void ")
    depth, end = 0, len(plain)
    for place, letter in enumerate(plain[:_LONGEST_READ]):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and not depth:
            end = place
            break
    plain = plain[:end].strip() or name
    if len(plain) > _LONGEST_NAME and "<" in plain:
        base, _, given = plain.partition("<")
        plain = given.rstrip("> ").partition(",")[0] if base.endswith(_WRAPPERS) else plain
    return plain if len(plain) <= _LONGEST_NAME else f"{plain[: _LONGEST_NAME - 1]}…"


def _four_digits(seconds: float) -> int:
    """Return picoseconds of which four digits are shown."""
    return round(float(f"{seconds:.4g}") * PS_PER_S)


def _shares(title: str, times: Mapping[str, float], step: float) -> Table:
    rows = [
        {"name": name, "time_ps": _four_digits(time), "share": time / step if step else 0.0}
        for name, time in times.items()
        if time > 0
    ]
    named = [Column("name", "", width=45), Column("time_ps", ""), Column("share", "", ".1%", 6)]
    return Table(title, named, rows)
