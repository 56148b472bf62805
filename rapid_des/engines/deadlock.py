"""Explains why a replay cannot finish: which visit waits for which."""

from __future__ import annotations

from collections.abc import Iterator

from rapid_des.errors import CannotFinishError, DeadlockError
from rapid_des.program.program import NONE, Namer, Program, Records, VisitKind
from rapid_des.program.timetable import FOREVER

_SHOWN = 20


def plain_name(program: Program) -> Namer:
    """Name a visit by rank and node position, where nothing better is known."""

    def name(position: int, visit: int) -> str:
        binding = program.bindings[position]
        node = int(program.programs[binding.program].node[visit])
        return f"rank {binding.rank} node {node}" if node != NONE else f"rank {binding.rank} step {visit}"

    return name


def explain_disagreement(program: Program, key: tuple[int, int, int], templates: tuple[int, int]) -> str:
    """Return the message that members of one instance issued different collectives (R5)."""
    first, second = (program.templates[index].name or f"template {index}" for index in templates)
    group = program.groups[key[0]]
    return (
        f"group {group.named(key[2])}: its members disagree on collective number {key[1]}: "
        f"one issued {first}, another {second}"
    )


def why_unfinished(program: Program, records: Records, name: Namer | None = None) -> CannotFinishError:
    """Return why some visits never finished: a `DeadlockError` that names what each one waits for.

    If they would finish after the last time of a simulation, it is a plain `CannotFinishError`.
    """
    unfinished = int((records.finish == NONE).sum())
    if records.beyond and not _stays_down(program):
        horizon = f"the time horizon of {FOREVER} ps (53 days)"
        late = f"{unfinished} of {len(records.finish)} steps end later"
        return CannotFinishError(f"the replay passes {horizon}: {late}")
    lines = list(_waits(program, records, name or plain_name(program)))
    more = [f"… and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    head = f"the replay cannot finish: {unfinished} of {len(records.finish)} steps never end"
    stopped = 0 if records.link_stopped is None else int((records.link_stopped == NONE).sum())
    if stopped:
        head += (
            f"; nodes keep {stopped} links stopped (switching.congestion.pause), and each waits for another"
        )
    return DeadlockError("\n  ".join([head, *lines[:_SHOWN], *more]))


def _stays_down(program: Program) -> bool:
    """Return whether a link or stream stays closed from some time on, so that visits wait for ever."""
    tables = (*program.link_timetables.values(), *program.visit_timetables.values())
    return any(len(table.rate) > 0 and table.rate[-1] == 0 for table in tables)


def _waits(program: Program, records: Records, name: Namer) -> Iterator[str]:
    """Yield a line for each member that waits in a collective, then those of `_blocked`."""
    offsets = program.visits()
    for position, binding in enumerate(program.bindings):
        table = program.programs[binding.program]
        start = records.start[offsets[position] : offsets[position + 1]]
        finish = records.finish[offsets[position] : offsets[position + 1]]
        for visit in ((start != NONE) & (finish == NONE) & (table.kind == VisitKind.MEMBER)).nonzero()[0]:
            slot = int(table.slot[visit])
            group = program.groups[int(binding.groups[slot])]
            others = [
                program.bindings[other].rank
                for other in group.bindings.tolist()
                if other != position
                and not _stands_at(program, records, other, group.name, int(table.sub[visit]))
            ]
            absent = f"; not there: rank {', '.join(map(str, others[:8]))}" if others else ""
            yield f"{name(position, int(visit))} waits in group {group.named(int(table.sub[visit]))}{absent}"
    yield from _blocked(program, records, name)


def _stands_at(program: Program, records: Records, position: int, group: str, sub: int) -> bool:
    """Return whether a rank has started, and not finished, a visit to the named group and sub-instance."""
    binding = program.bindings[position]
    table = program.programs[binding.program]
    offset = int(program.visits()[position])
    window = slice(offset, offset + len(table))
    waiting = (
        (records.start[window] != NONE) & (records.finish[window] == NONE) & (table.kind == VisitKind.MEMBER)
    )
    return any(
        program.groups[int(binding.groups[int(table.slot[visit])])].name == group
        and int(table.sub[visit]) == sub
        for visit in waiting.nonzero()[0]
    )


def _blocked(program: Program, records: Records, name: Namer) -> Iterator[str]:
    """Name, per rank, the first visit that is not ready and what it still needs."""
    offsets = program.visits()
    for position, binding in enumerate(program.bindings):
        table = program.programs[binding.program]
        window = slice(int(offsets[position]), int(offsets[position + 1]))
        never = (records.start[window] == NONE).nonzero()[0]
        if not len(never):
            continue
        finished = records.finish[window] != NONE
        for visit in never:
            sources = (table.edge_target == visit).nonzero()[0]
            before = table.edge_starts.searchsorted(sources, side="right") - 1
            missing = [int(source) for source in before if not finished[source]]
            started = [source for source in missing if records.start[window][source] != NONE]
            if started or not missing:
                said = ", ".join(name(position, source) for source in missing[:3]) or "its stream"
                yield f"{name(position, int(visit))} waits for {said}"
                break
