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
from rapid_des.frontend.routing import LayerLoad
from rapid_des.frontend.schedules.schedule import PassKind
from rapid_des.report.job_structure import Explanation, MessageKind, SectionKind
from rapid_des.report.result import Result
from rapid_des.report.tables import Row, spans, table
from rapid_des.units import Duration, Size
from rapid_des.values import asdict

_MIB, _GIB = 2**20, 2**30
_FIRST = 8
"""Largest group of which all ranks are listed."""
_SHORT = 8
"""Longest size, in characters, that is printed exactly."""
_NUMBERED = re.compile(r"\.\d+$")
_PHASES: tuple[PassKind, ...] = ("forward", "backward")
_REST = "between passes and once a step"


def explain_lines(result: Result, explanation: Explanation) -> Iterator[str]:
    """Yield groups, stages, sections, memory, messages and operators as tables of at most 120 columns."""
    stages = () if result.figures is None else result.figures.memory.stages
    yield from table("process groups", ("kind", "axes", "members", "count", "first group"), "<<>><", (
        (each.name, ".".join(each.axes), f"{each.members:,}", f"{each.count:,}", _ranks(each.first))
        for each in explanation.groups
    ))  # fmt: skip
    yield from table("layers of each stage, parameters of one of its ranks",
        ("stage", "layers", "which", "parameters"), ">><>", _stage_rows(explanation, stages))  # fmt: skip
    yield from table("a rank's share of a section: kernels + collectives, of one micro-batch",
        ("section", "layers", "which", "parameters", *_PHASES), "<><>>>",
        map(_section_row, explanation.sections))  # fmt: skip
    yield from table("copies of tokens that experts get, as multiples of the mean",
        ("layers", "which", "busiest expert", "busiest rank", "idlest rank"), "><>>>",
        map(_load_row, explanation.loads))  # fmt: skip
    yield from memory_lines(stages)
    yield from _message_lines(result, explanation)
    yield from _operator_lines(result)


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


def _load_row(load: LayerLoad) -> Row:
    figures = (load.busiest_expert, load.busiest_rank, load.idlest_rank)
    return (f"{len(load.layers)}", _short(spans(load.layers)), *(f"{figure:.3f}" for figure in figures))


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) <= _FIRST:
        return " ".join(map(str, ranks))
    return f"{' '.join(map(str, ranks[: _FIRST - 2]))} … {ranks[-1]}"


def _size(size: int) -> str:
    exact = f"{Size(size)}"
    return exact if len(exact) <= _SHORT or size < _MIB else f"{size / _MIB:.4g} MiB"


def _short(text: str, width: int = 44) -> str:
    return text if len(text) <= width else f"{text[: width - 2]} …"


def _layers_by_part(stage: int, explanation: Explanation) -> list[list[int]]:
    """Return the layers of each chunk of a stage, numbered through the model."""
    ends = list(accumulate(explanation.layers, initial=0))
    return [list(range(ends[part], ends[part + 1])) for part in explanation.placement[stage]]


def _stage_rows(explanation: Explanation, stages: Sequence[StageMemory]) -> Iterator[Row]:
    for stage in stages:
        layers = list(chain(*_layers_by_part(stage.stage, explanation)))
        yield f"{stage.stage}", f"{len(layers)}", _short(spans(layers), 72), f"{stage.parameters:,}"


def _section_row(section: SectionKind) -> Row:
    layers = f"{len(section.layers)}" if section.layers else ""
    works = (section.passes.get(phase) for phase in _PHASES)
    shown = ("" if work is None else f"{work.kernels} + {work.collectives}" for work in works)
    return section.name, layers, _short(spans(section.layers)), f"{section.parameters:,}", *shown


class _Messages(Struct, frozen=True):
    """Messages of a stage that differ only in a bucket's number and size."""

    name: str
    what: str
    group: str
    runs: str
    sizes: tuple[int, ...]
    by: str


def _message_lines(result: Result, explanation: Explanation) -> Iterator[str]:
    stages: dict[_Messages, list[int]] = {}
    for stage, alike in groupby(explanation.messages, lambda message: message.stage):
        for messages in _folded(result, list(alike)):
            stages.setdefault(messages, []).append(stage)
    by_phase: dict[str, list[Row]] = {phase: [] for phase in (*_PHASES, _REST)}
    for each, where in stages.items():
        phase, _, name = each.name.partition(".")
        phase, name = (phase, name) if phase in _PHASES else (_REST, each.name)
        size = f"{'' if len(each.sizes) == 1 else '≤ '}{_size(max(each.sizes))}"
        by_phase[phase].append((name, spans(where), each.what, each.group, size, each.runs, each.by))
    header = ("name", "stage", "what", "group", "bytes", "runs", "served by")
    for phase, rows in by_phase.items():
        yield from table(f"messages of a rank, {phase}", header, "<><<>><", rows)
    if any(by_phase.values()):
        yield "\n  bytes: a member's input buffer; runs: layers x passes, or how many in all"
    if result.run is None:
        yield f"  messages are those of the flattened trace: mode {result.mode} does not run each of them"


def _folded(result: Result, messages: Sequence[MessageKind]) -> Iterator[_Messages]:
    """Yield a stage's messages, those of numbered buckets together."""
    alike: dict[tuple[str, str, str, int], list[MessageKind]] = {}
    for message in messages:
        numberless = _NUMBERED.sub(".*", message.name)
        size = message.size if numberless == message.name else 0
        alike.setdefault((numberless, message.what, message.group, size), []).append(message)
    for (name, what, group, _), members in alike.items():
        by = dict.fromkeys(how for member in members for how in _served_by(result, member))
        sizes = tuple(sorted({member.size for member in members}))
        yield _Messages(name, what, group, _runs(members), sizes, ", ".join(by))


def _runs(members: Sequence[MessageKind]) -> str:
    count, layers = sum(member.count for member in members), members[0].layers
    regular = len(members) == 1 and layers and count % layers == 0
    return f"{layers} x {count // layers:,}" if regular else f"{count:,}"


def _served_by(result: Result, message: MessageKind) -> list[str]:
    """Return the algorithm and protocol of such messages in the run; empty where it is not known."""
    served = () if result.basis is None else result.basis.served
    wanted = message.what, message.members, message.size
    same = (
        library_row
        for library_row in served
        if (library_row.operation, library_row.ranks, library_row.size_bytes) == wanted
    )
    return list(
        dict.fromkeys(f"{library_row.algorithm} {library_row.protocol}".rstrip() for library_row in same)
    )


def _operator_lines(result: Result) -> Iterator[str]:
    if result.run is None:
        yield "  FLOPs and bytes of each operator are printed in mode flattened"
        return
    rows = result.operators()
    whole = max(sum(row.time_s for row in rows), 1e-12)
    header = ("operator", "runs", "FLOP a run", "HBM B a run", "time", "share", "TFLOP/s", "bound")
    yield from table(
        f"operators of rank {result.critical_rank}; share of its {whole:.6g} s of compute",
        header,
        "<>>>>>><",
        (
            (
                row.operator,
                f"{row.runs:,}",
                f"{row.flops / row.runs:.4g}",
                f"{row.hbm_bytes / row.runs:.4g}",
                f"{Duration(round(row.time_s * 1e12))}",
                f"{row.time_s / whole:.2%}",
                f"{row.flops / max(row.time_s, 1e-12) / 1e12:.1f}",
                row.bound,
            )
            for row in rows
        ),
    )


_GIB = 2**30
_STAGES = 4
"""Up to this many different stages are printed by tensor; of more the first, the fullest, the last."""
_TENSORS = 16
"""Number of tensors of a stage that are printed; the others are summed up."""


def memory_lines(stages: Sequence[StageMemory]) -> Iterator[str]:
    """Yield every stage by category at its fullest, and the largest tensors of some then."""
    names = [name for name in CATEGORIES if any(stage.categories.get(name) for stage in stages)]
    title = "memory of a rank of each stage at its fullest, GiB"
    yield from table(title, ("stage", "peak", *names), ">" * (2 + len(names)), _memory_rows(stages, names))
    header = ("tensor", "category", "number", "size", "share")
    for tensors, members in _distinct(stages):
        title = f"memory by tensor, a rank of stage {spans(members)} at its fullest"
        yield from table(title, header, "<<>>>", _tensor_rows(tensors))


def _memory_rows(stages: Sequence[StageMemory], names: Sequence[str]) -> Iterator[Row]:
    for sizes, alike in groupby(stages, lambda stage: (stage.peak, dict(stage.categories))):
        parts = [f"{sizes[1].get(name, 0) / _GIB:.3f}" for name in names]
        yield spans([stage.stage for stage in alike]), f"{sizes[0] / _GIB:.3f}", *parts


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


def _tensor_rows(tensors: Sequence[Tensor]) -> Iterator[Row]:
    whole = max(sum(tensor.size for tensor in tensors), 1)
    for name, category, size, number in tensors[:_TENSORS]:
        yield name, category, f"{number:,}", shown(size), f"{size / whole:.1%}"
    rest = tensors[_TENSORS:]
    if rest:
        size = sum(tensor.size for tensor in rest)
        yield f"{len(rest)} others", "", "", shown(size), f"{size / whole:.1%}"


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
