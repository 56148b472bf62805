"""What `run --explain` prints after a report: the derived job, for people who check it against theory.

With its memory: stages by category, their largest tensors, the passes of a step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, groupby
from typing import Any

from msgspec import Struct

from rapid_des.frontend.memory import CATEGORIES, StageMemory, Tensor, shown
from rapid_des.frontend.schedules.schedule import PassKind
from rapid_des.report.job_structure import Explanation, MessageKind, SectionKind
from rapid_des.report.result import Result
from rapid_des.report.tables import Column, Part, Plain, Table, columns, spans
from rapid_des.units import Size
from rapid_des.values import asdict

_MIB, _GIB = 2**20, 2**30
_FIRST = 8
"""Largest group of which all ranks are listed."""
_SHORT = 8
"""Longest size, in characters, that is printed exactly."""
_NUMBERED = re.compile(r"\.\d+$")
_PHASES: tuple[PassKind, ...] = ("forward", "backward")
_REST = "between passes and once a step"


def explain_report(result: Result, explanation: Explanation) -> Iterator[Part]:
    """Yield groups, stages, sections, memory, messages and operators as tables."""
    stages = () if result.figures is None else result.figures.memory.stages
    names = columns(name="kind", axes=("axes", ".".join), members=("members", ","), count=("count", ","))
    groups = [asdict(each) for each in explanation.groups]
    yield Table("process groups", (*names, Column("first", "first group", _ranks)), groups)
    which = columns(number="layers", layers=("which", spans))
    named = columns("stage") + which + columns(parameters=("parameters", ","))
    rows = [_stage_row(stage, explanation) for stage in stages]
    yield Table("layers of each stage, parameters of one of its ranks", named, _with_numbers(rows))
    named = columns(name="section") + which + columns(parameters=("parameters", ",")) + columns(*_PHASES)
    rows = [{**asdict(each), **_works(each)} for each in explanation.sections]
    title = "a rank's share of a section: kernels + collectives, of one micro-batch"
    yield Table(title, named, _with_numbers(rows))
    loads = (Column(name, show=".3f") for name in ("busiest_expert", "busiest_rank", "idlest_rank"))
    rows = [asdict(load) for load in explanation.loads]
    title = "copies of tokens that experts get, as multiples of the mean"
    yield Table(title, (*which, *loads), _with_numbers(rows))
    yield from memory_tables(stages)
    yield from _messages(result, explanation)
    yield from _operators(result)


def _stage_row(stage: StageMemory, explanation: Explanation) -> dict[str, Any]:
    layers = list(chain(*_layers_by_part(stage.stage, explanation)))
    return {"stage": stage.stage, "layers": layers, "parameters": stage.parameters}


def _with_numbers(rows: Sequence[Plain]) -> list[Plain]:
    """Return rows with the numbers of their layers."""
    return [{**row, "number": len(row["layers"])} for row in rows]


def _works(section: SectionKind) -> dict[str, str]:
    """Return the kernels and collectives of a section by phase."""
    return {phase: f"{work.kernels} + {work.collectives}" for phase, work in section.passes.items()}


def explain_json(result: Result, explanation: Explanation) -> dict[str, Any]:
    """Return plain data for JSON; sizes in bytes, times in seconds, `operators` null in modes of blocks."""
    stages = () if result.figures is None else result.figures.memory.stages
    operators = None if result.run is None else [asdict(row) for row in result.operators()]
    return {
        "groups": [asdict(group) for group in explanation.groups],
        "stages": [
            {
                "stage": stage.stage,
                "layers": _layers_by_part(stage.stage, explanation),
                "parameters": stage.parameters,
                **stage_json(stage),
            }
            for stage in stages
        ],
        "sections": [asdict(section) for section in explanation.sections],
        "messages": [
            asdict(message) | {"served_by": _served_by(result, message)} for message in explanation.messages
        ],
        "expert_loads": [asdict(load) for load in explanation.loads],
        "operators_rank": None if operators is None else result.critical_rank,
        "operators": operators,
    }


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) <= _FIRST:
        return " ".join(map(str, ranks))
    return f"{' '.join(map(str, ranks[: _FIRST - 2]))} … {ranks[-1]}"


def _sizes(sizes: Sequence[int]) -> str:
    size = max(sizes)
    exact = f"{Size(size)}"
    most = "" if len(sizes) == 1 else "≤ "
    return most + (exact if len(exact) <= _SHORT or size < _MIB else f"{size / _MIB:.4g} MiB")


def _layers_by_part(stage: int, explanation: Explanation) -> list[list[int]]:
    """Return the layers of each chunk of a stage, numbered through the model."""
    ends = list(accumulate(explanation.layers, initial=0))
    return [list(range(ends[part], ends[part + 1])) for part in explanation.placement[stage]]


class _StageMessages(Struct, frozen=True):
    """Messages of a stage that differ only in a bucket's number and size."""

    name: str
    what: str
    group: str
    runs: str
    sizes: tuple[int, ...]
    by: str


def _messages(result: Result, explanation: Explanation) -> Iterator[Part]:
    stages: dict[_StageMessages, list[int]] = {}
    for stage, alike in groupby(explanation.messages, lambda message: message.stage):
        for messages in _folded(result, list(alike)):
            stages.setdefault(messages, []).append(stage)
    by_phase: dict[str, list[Plain]] = {phase: [] for phase in (*_PHASES, _REST)}
    for each, where in stages.items():
        phase, _, name = each.name.partition(".")
        phase, name = (phase, name) if phase in _PHASES else (_REST, each.name)
        by_phase[phase].append({**asdict(each), "name": name, "stage": where})
    names = columns(name="name", stage=("stage", spans), what="what", group="group")
    names += (Column("sizes", "bytes", _sizes, side=">"), Column("runs", side=">"), *columns(by="served by"))
    for phase, rows in by_phase.items():
        yield Table(f"messages of a rank, {phase}", names, rows)
    if any(by_phase.values()):
        yield "bytes: a member's input buffer; runs: layers x passes, or how many in all"
    if result.run is None:
        yield f"messages are those of the flattened trace: mode {result.mode} does not run each of them"


def _folded(result: Result, messages: Sequence[MessageKind]) -> Iterator[_StageMessages]:
    """Yield a stage's messages, those of numbered buckets together."""
    alike: dict[tuple[str, str, str, int], list[MessageKind]] = {}
    for message in messages:
        numberless = _NUMBERED.sub(".*", message.name)
        size = message.size if numberless == message.name else 0
        alike.setdefault((numberless, message.what, message.group, size), []).append(message)
    for (name, what, group, _), members in alike.items():
        by = dict.fromkeys(how for member in members for how in _served_by(result, member))
        sizes = tuple(sorted({member.size for member in members}))
        yield _StageMessages(name, what, group, _runs(members), sizes, ", ".join(by))


def _runs(members: Sequence[MessageKind]) -> str:
    count, layers = sum(member.count for member in members), members[0].layers
    regular = len(members) == 1 and layers and count % layers == 0
    return f"{layers} x {count // layers:,}" if regular else f"{count:,}"


def _served_by(result: Result, message: MessageKind) -> list[str]:
    """Return the algorithm and protocol of such messages in the run; empty where it is not known."""
    served = () if result.basis is None else result.basis.served
    wanted = message.what, message.members, message.size
    same = (each for each in served if (each.operation, each.ranks, each.size_bytes) == wanted)
    return list(dict.fromkeys(f"{each.algorithm} {each.protocol}".rstrip() for each in same))


def _operators(result: Result) -> Iterator[Part]:
    if result.run is None:
        yield "FLOPs and bytes of each operator are printed in mode flattened"
        return
    rows = result.operators()
    whole = max(sum(row.time_s for row in rows), 1e-12)
    each = [
        {
            **asdict(row),
            "flops": row.flops / row.runs,
            "hbm_bytes": row.hbm_bytes / row.runs,
            "share": row.time_s / whole,
            "rate": row.flops / max(row.time_s, 1e-12) / 1e12,
        }
        for row in rows
    ]
    names = columns("operator") + columns(
        runs=("runs", ","), flops=("FLOP a run", ".4g"), hbm_bytes=("HBM B a run", ".4g"), time_s="time"
    )
    names += columns(share=("share", ".2%"), rate=("TFLOP/s", ".1f"), bound="bound")
    title = f"operators of rank {result.critical_rank}; share of its {whole:.6g} s of compute"
    yield Table(title, names, each)


_STAGES = 4
"""Up to this many different stages are printed by tensor; of more the first, the fullest, the last."""
_TENSORS = 16
"""Number of tensors of a stage that are printed; the others are summed up."""


def memory_tables(stages: Sequence[StageMemory]) -> Iterator[Table]:
    """Yield every stage by category at its fullest, and the largest tensors of some then."""
    names = [name for name in CATEGORIES if any(stage.categories.get(name) for stage in stages)]
    rows = [
        {**dict.fromkeys(names, 0), "stage": [stage.stage for stage in alike], "peak": peak, **categories}
        for (peak, categories), alike in groupby(stages, lambda stage: (stage.peak, dict(stage.categories)))
    ]
    sizes = (Column(name, None, lambda size: f"{size / _GIB:.3f}") for name in ("peak", *names))
    stage = Column("stage", None, spans, side=">")
    yield Table("memory of a rank of each stage at its fullest, GiB", (stage, *sizes), rows)
    kept = columns("tensor", "category", "number", size=("size", shown), share=("share", ".1%"))
    for tensors, members in _distinct(stages):
        title = f"memory by tensor, a rank of stage {spans(members)} at its fullest"
        yield Table(title, kept, list(_tensor_rows(tensors)))


def _distinct(stages: Sequence[StageMemory]) -> Iterator[tuple[tuple[Tensor, ...], list[int]]]:
    """Yield what neighbouring stages hold and which they are; of more than a few the ends and the fullest."""
    runs = [
        (tensors, [stage.stage for stage in alike])
        for tensors, alike in groupby(stages, lambda stage: stage.tensors)
    ]
    shown_runs = {0, len(runs) - 1, max(range(len(runs)), key=lambda run: sum(t.size for t in runs[run][0]))}
    for number, run in enumerate(runs):
        if len(runs) <= _STAGES or number in shown_runs:
            yield run


def _tensor_rows(tensors: Sequence[Tensor]) -> Iterator[Plain]:
    whole = max(sum(tensor.size for tensor in tensors), 1)
    for name, category, size, number in tensors[:_TENSORS]:
        yield {"tensor": name, "category": category, "number": number, "size": size, "share": size / whole}
    rest = tensors[_TENSORS:]
    if rest:
        size = sum(tensor.size for tensor in rest)
        yield {"tensor": f"{len(rest)} others", "size": size, "share": size / whole}


def stage_json(stage: StageMemory) -> dict[str, Any]:
    """Return a stage's memory as plain data for JSON, in bytes.

    The timeline has each pass of the schedule and the optimizer's step at its fullest moment.
    """
    return {
        "memory_bytes": stage.peak,
        "memory_breakdown_bytes": dict(stage.categories),
        "memory_activations_bytes": stage.activations,
        "memory_allocator_bytes": stage.reserved,
        "memory_tensors": [tensor._asdict() for tensor in stage.tensors],
        "memory_timeline": [
            {
                "phase": moment.name,
                "micro_batch": moment.micro_batch,
                "chunk": moment.chunk,
                "bytes": {name: size for name, size in moment.categories.items() if size},
            }
            for moment in stage.timeline
        ],
    }
