"""A program as a handful of flat arrays: what the kernel reads and never writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from rapid_des.engines.compiled.joining import Array, begins_of, joined_columns, joined_starts
from rapid_des.program.program import (
    NO_FLUID,
    NONE,
    PartTable,
    Program,
    RankProgram,
    Template,
    Timetable,
    VisitKind,
)
from rapid_des.program.templates import structure


class Visits(NamedTuple):
    """The columns of all rank programs one after the other."""

    kind: Array
    server: Array
    work: Array
    priority: Array
    link_priority: Array
    release: Array
    holder: Array
    slot: Array
    parent: Array
    occurrence: Array
    sub: Array
    template: Array
    need: Array
    edge_starts: Array
    edge_target: Array
    edge_lag: Array
    edge_at_start: Array


class Ranks(NamedTuple):
    """Where each rank's visits, slots and servers begin, and what its slots and servers are."""

    program: Array
    flat: Array
    slot: Array
    server: Array
    slot_group: Array
    slot_member: Array
    of_server: Array
    capacity: Array
    level: Array
    heap: Array
    """Where the waiting visits of each server are kept."""


class Tasks(NamedTuple):
    """The columns of all templates one after the other; what templates share stands here once."""

    members: Array
    tasks: Array
    first_task: Array
    first_size: Array
    first_member: Array
    pair: Array
    source: Array
    size: Array
    need: Array
    edge_starts: Array
    edge_target: Array
    edge_lag: Array
    edge_at_injection: Array
    arrival_starts: Array
    arrival_target: Array
    arrival_lag: Array
    member_need: Array


class Ways(NamedTuple):
    """Groups, routes, hop services and timetables."""

    label: Array
    use_starts: Array
    use_template: Array
    use_base: Array
    pair_route: Array
    route_starts: Array
    route_links: Array
    route_class: Array
    occupancy: Array
    head: Array
    lag: Array
    payload: Array
    parts: Array
    first_part: Array
    last_part: Array
    """By size row, as `PartTable` has them."""
    link_table: Array
    link_time: Array
    link_rate: Array
    link_lag: Array
    stream_table: Array
    stream_time: Array
    stream_rate: Array
    capacity: Array
    wire: Array
    ratio: Array
    before: Array
    after: Array
    profile: Array
    back: Array
    """The fluid mode's table (`FluidTable`), else empty."""


class Flat(NamedTuple):
    """A whole program for the kernel."""

    visits: Visits
    ranks: Ranks
    tasks: Tasks
    ways: Ways


def flatten(program: Program) -> Flat:
    """Return the program's arrays; shared columns are copied once, whatever the number of ranks."""
    return Flat(_visits(program), _ranks(program), _tasks(program), _ways(program))


def _visits(program: Program) -> Visits:
    def column(of: Callable[[RankProgram], Array], dtype: type[np.generic] = np.int32) -> Array:
        return joined_columns([of(part) for part in program.programs], dtype)

    return Visits(
        kind=column(lambda part: part.kind, np.int8),
        server=column(lambda part: part.server),
        work=column(lambda part: part.work, np.int64),
        priority=column(lambda part: part.priority, np.int64),
        link_priority=column(lambda part: part.link_priority),
        release=column(lambda part: part.release),
        holder=column(_holders),
        slot=column(lambda part: part.slot),
        parent=column(lambda part: part.parent),
        occurrence=column(lambda part: part.occurrence),
        sub=column(lambda part: part.sub),
        template=column(lambda part: part.template),
        need=column(lambda part: part.need),
        edge_starts=joined_starts([part.edge_starts for part in program.programs]),
        edge_target=column(lambda part: part.edge_target),
        edge_lag=column(lambda part: part.edge_lag, np.int64),
        edge_at_start=column(lambda part: part.edge_at_start, np.bool_),
    )


def _holders(part: RankProgram) -> Array:
    """Return for each visit the HOLD that its finish releases, or NONE."""
    holders = np.full(len(part), NONE, np.int32)
    holds = np.flatnonzero(part.kind == VisitKind.HOLD)
    holders[part.release[holds]] = holds
    return holders


def _ranks(program: Program) -> Ranks:
    parts = [program.programs[binding.program] for binding in program.bindings]
    first_visit = begins_of([len(part) for part in program.programs])
    waiting = [
        np.bincount(part.server[part.server != NONE], minlength=len(part.server_capacity))
        for part in program.programs
    ]
    return Ranks(
        program=first_visit[np.array([binding.program for binding in program.bindings], np.int64)],
        flat=program.visits().astype(np.int64),
        slot=begins_of([len(binding.groups) for binding in program.bindings]),
        server=begins_of([len(part.server_capacity) for part in parts]),
        slot_group=joined_columns([binding.groups for binding in program.bindings], np.int32),
        slot_member=joined_columns([binding.members for binding in program.bindings], np.int32),
        of_server=np.repeat(np.arange(len(parts)), [len(part.server_capacity) for part in parts]).astype(
            np.int32
        ),
        capacity=joined_columns([part.server_capacity for part in parts], np.int32),
        level=joined_columns([part.server_level for part in parts], np.int8),
        heap=begins_of(
            joined_columns([waiting[binding.program] for binding in program.bindings], np.int64).tolist()
        ),
    )


def _tasks(program: Program) -> Tasks:
    def column(of: Callable[[Template], Array], dtype: type[np.generic] = np.int32) -> Array:
        return joined_columns([of(template) for template in distinct], dtype)

    templates = program.templates
    numbers: dict[tuple[int, ...], int] = {}
    shape = np.array([numbers.setdefault(structure(one), len(numbers)) for one in templates], np.int64)
    distinct = [templates[int(place)] for place in np.unique(shape, return_index=True)[1]]
    return Tasks(
        members=np.array([template.members for template in templates], np.int32),
        tasks=program.template_tasks.astype(np.int32),
        first_task=begins_of([len(template) for template in distinct])[shape],
        first_size=begins_of(program.template_tasks),
        first_member=begins_of([template.members for template in distinct])[shape],
        pair=column(lambda template: template.pair),
        source=column(lambda template: template.source),
        size=joined_columns([template.size for template in templates], np.int32),
        need=column(lambda template: template.need),
        edge_starts=joined_starts([template.edge_starts for template in distinct]),
        edge_target=column(lambda template: template.edge_target),
        edge_lag=column(lambda template: template.edge_lag, np.int64),
        edge_at_injection=column(lambda template: template.edge_at_injection, np.bool_),
        arrival_starts=joined_starts([template.arrival_starts for template in distinct]),
        arrival_target=column(lambda template: template.arrival_target),
        arrival_lag=column(lambda template: template.arrival_lag, np.int64),
        member_need=column(lambda template: template.member_need),
    )


def _ways(program: Program) -> Ways:
    routes = [group.routes for group in program.groups]
    uses = [list(own.items()) if len(own) < 2 else sorted(own.items()) for own in routes]
    flat = [routes for use in uses for _, routes in use]
    link_tables = [program.link_timetables.get(link) for link in range(program.links)]
    stream_tables = [
        program.stream_timetables.get((position, server))
        for position, binding in enumerate(program.bindings)
        for server in range(len(program.programs[binding.program].server_capacity))
    ]
    fluid = program.fluid or NO_FLUID
    rows = np.arange(len(program.hops.bytes), dtype=np.int32)
    parts = program.hops.parts or PartTable(np.ones_like(rows), rows, rows)
    return Ways(
        label=np.array([group.label for group in program.groups], np.int32),
        use_starts=begins_of([len(use) for use in uses]),
        use_template=np.array([template for use in uses for template, _ in use], np.int32),
        use_base=begins_of([len(routes) for routes in flat]),
        pair_route=joined_columns(flat, np.int32),
        route_starts=program.route_starts.astype(np.int64),
        route_links=program.route_links.astype(np.int32),
        route_class=program.route_class.astype(np.int32),
        occupancy=np.ascontiguousarray(program.hops.occupancy, np.int64),
        head=np.ascontiguousarray(program.hops.head, np.int64),
        lag=np.ascontiguousarray(program.hops.lag, np.int64),
        payload=np.ascontiguousarray(program.hops.bytes, np.int64),
        parts=parts.count,
        first_part=parts.first,
        last_part=parts.last,
        **_by_time("link", link_tables),
        link_lag=_steps(link_tables, lambda table: table.lag),
        **_by_time("stream", stream_tables),
        capacity=fluid.capacity,
        wire=fluid.wire,
        ratio=fluid.ratio,
        before=fluid.before,
        after=fluid.after,
        profile=fluid.profile,
        back=fluid.back,
    )


def _by_time(server: str, tables: Sequence[Timetable | None]) -> dict[str, Array]:
    """Return the columns of `Ways` that say when one kind of server works at which rate."""
    return {
        f"{server}_table": _rows(tables),
        f"{server}_time": _steps(tables, lambda table: table.time),
        f"{server}_rate": _steps(tables, lambda table: table.rate),
    }


def _rows(tables: Sequence[Timetable | None]) -> Array:
    return begins_of([0 if table is None else len(table.time) for table in tables])


def _steps(tables: Sequence[Timetable | None], of: Callable[[Timetable], Array]) -> Array:
    return joined_columns([of(table) for table in tables if table is not None], np.int64)
