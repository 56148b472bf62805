"""A program as a handful of flat arrays: what the kernel reads and never writes.

The kernel follows integers from column to column and meets no Python object. A number in one table is a row
of another: `program.programs`, `templates` and `routes` stand one after the other in joined columns, and a
`first_…`, `…_starts` or `begin` column says where the rows of each begin. So a visit of a rank has two
numbers: its row among the visits of the programs (`Ranks.program[rank] + visit`), where many ranks read the
same columns, and its row among the records (`Ranks.flat[rank] + visit`), which are each rank's.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rapid_des.arrays import joined, joined_starts, starts_of
from rapid_des.compiling.kinds import BoolColumn, Int32Column, Int64Column, Int64Matrix
from rapid_des.engines.compiled.columns import Ranks, Tasks, Visits
from rapid_des.engines.compiled.plan_tables import NO_REPLANS, Replans
from rapid_des.program.program import (
    NO_DELAYS,
    NO_FLUID,
    NO_LOAD,
    NO_PAUSE,
    NO_QUEUE_PAIRS,
    NO_RATES,
    NO_SPRAY,
    NO_TAILS,
    NONE,
    DelayTable,
    Group,
    HopTable,
    PartTable,
    PauseTable,
    Program,
    RankProgram,
    RateTable,
    SprayTable,
    Template,
    Timetable,
    VisitKind,
    shapes,
)

Array = NDArray[Any]


class Network(NamedTuple):
    """Groups, routes, hop services and timetables.

    A group uses one or more templates; each use has a route for every (source, destination) pair of its
    template, in `pair_route` from `use_base` on. A route's links are a stretch of `route_links`; `occupancy`,
    `head` and `lag` are looked up by size row and the hop's class.
    """

    label: Int32Column
    use_starts: Int64Column
    use_template: Int32Column
    use_base: Int64Column
    pair_route: Int32Column
    route_starts: Int64Column
    route_links: Int32Column
    route_class: Int32Column
    occupancy: Int64Matrix
    head: Int64Matrix
    lag: Int64Matrix
    across: Int64Matrix
    along: Int64Matrix
    """As `TailTable` has them; empty where no last byte can be held back."""
    payload: Int64Column
    parts: Int32Column
    first_part: Int32Column
    last_part: Int32Column
    """By size row, as `PartTable` has them."""
    link_table: Int64Column
    link_time: Int64Column
    link_rate: Int64Column
    link_lag: Int64Column
    pace_table: Int64Column
    pace_time: Int64Column
    pace_rate: Int64Column
    """The timetables that senders go by as they hand parts over."""
    visit_table: Int32Column
    """By row of the records: which of the timetables below rules the visit, or NONE; empty if none does."""
    work_table: Int64Column
    work_time: Int64Column
    work_rate: Int64Column
    capacity: Int64Column
    wire: Int64Column
    ratio: Int64Matrix
    before: Int64Matrix
    after: Int64Matrix
    profile: Int32Column
    """The fluid mode's table (`FluidTable`), else empty."""
    back: Int32Column
    """By route its route back, in the fluid mode and with queue pairs."""
    allowance: Int64Matrix
    answer: Int64Matrix
    acknowledgements: Int64Column
    acknowledgement_time: Int64Column
    """As `QueuePairTable` has them, else empty."""
    pause: PauseTable
    """Where nothing pauses, it has no latencies."""
    rates: RateTable
    """Without marks its arrays are empty."""
    detour: Int32Column
    """Where links close (R8): the route that messages of a route take now, or below 0 if that is not known;
    else empty."""
    spray_starts: Int64Column
    spray_routes: Int32Column
    """As `SprayTable` has them, else empty."""
    minimal_routes: Int32Column
    """As `LoadTable` has them, else empty."""
    bias: Int64Column
    sprays: BoolColumn
    """Whether parts take several routes in turn, whether messages do blindly, and both by load."""


class Contentions(NamedTuple):
    """How visits that ranks serve at the same time slow each other (`Contention`); empty where none do."""

    weight: Int32Column
    """By row of `Visits`, as the next."""
    first: Int32Column
    """Where the shares of its kind begin, or NONE."""
    share: Int64Column


class Flat(NamedTuple):
    """A whole program for the kernel."""

    visits: Visits
    ranks: Ranks
    tasks: Tasks
    network: Network
    contention: Contentions
    delays: DelayTable
    replans: Replans


def flatten(program: Program) -> Flat:
    """Return the program's arrays; shared columns are copied once, whatever the number of ranks."""
    columns = _visits(program), _ranks(program), _tasks(program), _network(program)
    return Flat(*columns, _contentions(program), program.delays or NO_DELAYS, NO_REPLANS)


def _visits(program: Program) -> Visits:
    def column(of: Callable[[RankProgram], Array], dtype: type[np.generic] = np.int32) -> Array:
        return joined([of(part) for part in program.programs], dtype)

    return Visits(
        kind=column(lambda part: part.kind, np.int8),
        server=column(lambda part: part.server),
        work=column(lambda part: part.work, np.int64),
        priority=column(lambda part: part.priority, np.int64),
        link_priority=column(lambda part: part.link_priority, np.int64),
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


def _contentions(program: Program) -> Contentions:
    if not any(part.contention for part in program.programs):
        none = np.zeros(0, np.int32)
        return Contentions(none, none, none.astype(np.int64))
    weights, firsts, shares, begin = [], [], [], 0
    for part in program.programs:
        if (contention := part.contention) is None:
            weights.append(np.zeros(len(part), np.int32))
            firsts.append(np.full(len(part), NONE))
            continue
        weights.append(contention.weight)
        firsts.append(
            np.where(contention.kind == NONE, NONE, begin + contention.kind * contention.shares.shape[1])
        )
        shares.append(contention.shares.ravel())
        begin += contention.shares.size
    return Contentions(joined(weights, np.int32), joined(firsts, np.int32), joined(shares, np.int64))


def _ranks(program: Program) -> Ranks:
    parts = [program.programs[binding.program] for binding in program.bindings]
    first_visit = starts_of([len(part) for part in program.programs])
    waiting = [
        np.bincount(part.server[part.server != NONE], minlength=len(part.server_capacity))
        for part in program.programs
    ]
    servers = [len(part.server_capacity) for part in parts]
    rank_waiting = [waiting[binding.program] for binding in program.bindings]
    return Ranks(
        program=first_visit[np.array([binding.program for binding in program.bindings], np.int64)],
        flat=program.visits().astype(np.int64),
        slot=starts_of([len(binding.groups) for binding in program.bindings]),
        server=starts_of(servers),
        slot_group=joined([binding.groups for binding in program.bindings], np.int32),
        slot_member=joined([binding.members for binding in program.bindings], np.int32),
        of_server=np.repeat(np.arange(len(parts)), servers).astype(np.int32),
        capacity=joined([part.server_capacity for part in parts], np.int32),
        level=joined([part.server_level for part in parts], np.int8),
        heap=starts_of(joined(rank_waiting, np.int64).tolist()),
    )


def _tasks(program: Program) -> Tasks:
    def column(of: Callable[[Template], Array], dtype: type[np.generic] = np.int32) -> Array:
        return joined([of(template) for template in distinct], dtype)

    templates = [template.expanded() for template in program.templates]
    numbers: dict[Hashable, int] = {}
    shape = np.array([numbers.setdefault(shared, len(numbers)) for shared in shapes(templates)], np.int64)
    distinct = [templates[int(first)] for first in np.unique(shape, return_index=True)[1]]
    return Tasks(
        members=np.array([template.members for template in templates], np.int32),
        tasks=program.template_tasks.astype(np.int32),
        first_task=starts_of([len(template) for template in distinct])[shape],
        first_size=starts_of(program.template_tasks),
        first_member=starts_of([template.members for template in distinct])[shape],
        pair=column(lambda template: template.pair),
        source=column(lambda template: template.source),
        size=joined([template.size for template in templates], np.int32),
        need=column(lambda template: template.need),
        edge_starts=joined_starts([template.edge_starts for template in distinct]),
        edge_target=column(lambda template: template.edge_target),
        edge_lag=column(lambda template: template.edge_lag, np.int64),
        edge_at_injection=column(lambda template: template.edge_at_injection, np.bool_),
        arrival_starts=joined_starts([template.arrival_starts for template in distinct]),
        arrival_target=column(lambda template: template.arrival_target),
        arrival_lag=column(lambda template: template.arrival_lag, np.int64),
        member_need=column(lambda template: template.member_need),
        ahead=np.array([template.ahead for template in templates], np.bool_),
    )


def _network(program: Program) -> Network:
    visit_table, work_tables = _of_visits(program)
    fluid, pairs = program.fluid or NO_FLUID, program.queue_pairs or NO_QUEUE_PAIRS
    spray = program.spray or NO_SPRAY
    load, links = spray.load or NO_LOAD, program.link_timetables
    return Network(
        **_uses(program.groups),
        route_starts=program.route_starts.astype(np.int64),
        route_links=program.route_links.astype(np.int32),
        route_class=program.route_class.astype(np.int32),
        **_of_hops(program.hops),
        **_by_time("link", links, program.links),
        link_lag=joined([links[link].lag for link in sorted(links)], np.int64),
        **_by_time("pace", program.pace_timetables, program.links),
        visit_table=visit_table,
        **_by_time("work", dict(enumerate(work_tables)), len(work_tables)),
        capacity=fluid.capacity,
        wire=fluid.wire,
        ratio=fluid.ratio,
        before=fluid.before,
        after=fluid.after,
        profile=fluid.profile,
        back=fluid.back if program.fluid else pairs.back,
        allowance=np.ascontiguousarray(pairs.allowance, np.int64),
        answer=np.ascontiguousarray(pairs.answer, np.int64),
        acknowledgements=pairs.acknowledgements,
        acknowledgement_time=pairs.acknowledgement_time,
        pause=pairs.pause or NO_PAUSE,
        rates=pairs.rates or NO_RATES,
        detour=np.zeros(0, np.int32),
        spray_starts=spray.starts,
        spray_routes=spray.routes,
        minimal_routes=load.minimal,
        bias=np.array([load.bias], np.int64),
        sprays=_sprays(program.spray),
    )


def _uses(groups: Sequence[Group]) -> dict[str, Array]:
    """Return which templates each group runs, and over which routes."""
    uses = [sorted(group.routes.items()) for group in groups]
    flat = [routes for use in uses for _, routes in use]
    return {
        "label": np.array([group.label for group in groups], np.int32),
        "use_starts": starts_of([len(use) for use in uses]),
        "use_template": np.array([template for use in uses for template, _ in use], np.int32),
        "use_base": starts_of([len(routes) for routes in flat]),
        "pair_route": joined(flat, np.int32),
    }


def _of_hops(hops: HopTable) -> dict[str, Array]:
    """Return how long each size takes on each kind of route, and the parts in which it goes."""
    tails, rows = hops.tails or NO_TAILS, np.arange(len(hops.bytes), dtype=np.int32)
    parts = hops.parts or PartTable(np.ones_like(rows), rows, rows)
    times = {
        "occupancy": hops.occupancy,
        "head": hops.head,
        "lag": hops.lag,
        "across": tails.across,
        "along": tails.along,
        "payload": hops.bytes,
    }
    return {
        **{name: np.ascontiguousarray(column, np.int64) for name, column in times.items()},
        "parts": parts.count,
        "first_part": parts.first,
        "last_part": parts.last,
    }


def _sprays(spray: SprayTable | None) -> Array:
    """Return whether parts take routes in turn, messages blindly, parts by load, messages by load."""
    return np.arange(4) == (NONE if spray is None else 2 * (spray.load is not None) + spray.per_message)


def _of_visits(program: Program) -> tuple[Array, list[Timetable]]:
    """Return the timetable of each visit, by row of the records, and the different ones."""
    if not program.visit_timetables:
        return np.zeros(0, np.int32), []
    offsets = program.visits()
    rows = np.full(int(offsets[-1]), NONE, np.int32)
    numbers: dict[Timetable, int] = {}
    for (position, visit), table in program.visit_timetables.items():
        rows[offsets[position] + visit] = numbers.setdefault(table, len(numbers))
    return rows, list(numbers)


def _by_time(server: str, tables: Mapping[int, Timetable], servers: int) -> dict[str, Array]:
    """Return the columns of `Network` that say when which servers of one kind work at which rate."""
    stated = [tables[number] for number in sorted(tables)]
    steps = np.zeros(servers, np.int64)
    steps[sorted(tables)] = [len(table.time) for table in stated]
    return {
        f"{server}_table": starts_of(steps),
        f"{server}_time": joined([table.time for table in stated], np.int64),
        f"{server}_rate": joined([table.rate for table in stated], np.int64),
    }
