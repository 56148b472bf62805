"""A program as flat arrays, which the kernel reads and never writes.

The kernel follows integers from column to column and meets no Python object. A number in one table is a row
of another: programs, templates and routes are stored one after the other in joined columns, and a `first_…`
or `…_starts` column holds the first row of each. So a visit of a rank has two numbers: its row among the
visits of the programs (`Ranks.program[rank] + visit`), which ranks with the same program share, and its row
among the records (`Ranks.flat[rank] + visit`), which belongs to one rank.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rapid_des.arrays import joined, joined_starts, starts_of
from rapid_des.compiling.kinds import BoolColumn, Int32Column, Int64Column, Int64Matrix
from rapid_des.engines.compiled.columns import NO_REPLANS, Ranks, Replans, Tasks, Visits
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
    template, in `pair_route` from `use_base` on. `occupancy`, `head` and `lag` are looked up by the message's
    size row and the hop's service class.
    """

    label: Int32Column
    """[group] its label, by which link statistics are split."""
    use_starts: Int64Column
    """[group] its first use."""
    use_template: Int32Column
    """[use] its template."""
    use_base: Int64Column
    """[use] its first row of `pair_route`."""
    pair_route: Int32Column
    """[use, pair] the route of the pair."""
    route_starts: Int64Column
    """[route] its first hop; one entry more holds the total."""
    route_links: Int32Column
    """[hop] its link."""
    route_class: Int32Column
    """[hop] its service class: the column of the service tables."""
    occupancy: Int64Matrix
    """[size row, service class] picoseconds at rate 1 that the link is busy."""
    head: Int64Matrix
    """[size row, service class] picoseconds at rate 1 until the next hop may start, without `lag`."""
    lag: Int64Matrix
    """[size row, service class] picoseconds of latency."""
    across: Int64Matrix
    """[size row, service class] as in `TailTable`; empty if no last byte can be held back."""
    along: Int64Matrix
    """[size row, service class] as in `TailTable`; empty if no last byte can be held back."""
    payload: Int64Column
    """[size row] bytes of payload."""
    parts: Int32Column
    """[size row] the number of parts of such a message."""
    first_part: Int32Column
    """[size row] the size row of all parts but the last."""
    last_part: Int32Column
    """[size row] the size row of the last part."""
    link_table: Int64Column
    """[link] the first step of its timetable; one entry more holds the total."""
    link_time: Int64Column
    """[step] the time in picoseconds from which it holds."""
    link_rate: Int64Column
    """[step] the rate in 1 / `FULL_RATE`."""
    link_lag: Int64Column
    """[step] extra latency in picoseconds."""
    pace_table: Int64Column
    """[link] the first step of the timetable by which senders hand parts over."""
    pace_time: Int64Column
    """[step] the time in picoseconds from which it holds."""
    pace_rate: Int64Column
    """[step] the rate in 1 / `FULL_RATE`."""
    visit_table: Int32Column
    """[row of the records] the timetable that rules the visit, or NONE; empty if no visit has any."""
    work_table: Int64Column
    """[timetable] its first step."""
    work_time: Int64Column
    """[step] the time in picoseconds from which it holds."""
    work_rate: Int64Column
    """[step] the rate in 1 / `FULL_RATE`."""
    capacity: Int64Column
    """[link] fluid mode: bytes a second, as in `FluidTable`; else empty, as the next four."""
    wire: Int64Column
    """[size row] bytes on the wire."""
    ratio: Int64Matrix
    """[size row, profile] the load of acknowledgements on the route back."""
    before: Int64Matrix
    """[size row, profile] picoseconds from the injection until the flow joins its links."""
    after: Int64Matrix
    """[size row, profile] picoseconds from the flow's end until the message arrives."""
    profile: Int32Column
    """[route] fluid mode: its profile; else empty."""
    back: Int32Column
    """[route] the route of its acknowledgements, in the fluid mode and with queue pairs; else empty."""
    allowance: Int64Matrix
    """[size row, service class] parts that a queue pair sends without an acknowledgement; empty without queue
    pairs, as the next three."""
    answer: Int64Matrix
    """[size row, service class] picoseconds from a part's arrival until its sender may hand over another."""
    acknowledgements: Int64Column
    """[size row] the number of acknowledgements of a part."""
    acknowledgement_time: Int64Column
    """[link] picoseconds that an acknowledgement occupies it."""
    pause: PauseTable
    """The thresholds of buffers (R13); its latencies are empty if no link pauses."""
    rates: RateTable
    """The rules of marks and rates (R14); its arrays are empty if no part is marked."""
    detour: Int32Column
    """[route] the route that its messages take now, where links close (R8); below 0 if that is not known;
    empty where no link closes."""
    spray_starts: Int64Column
    """[route] its first row of `spray_routes`, as in `SprayTable`; empty without spraying."""
    spray_routes: Int32Column
    """[row] a route that parts or messages may take instead; empty without spraying."""
    minimal_routes: Int32Column
    """[route] the number of its rows that are no detours, as in `LoadTable`; empty without loads."""
    bias: Int64Column
    """One entry: the picoseconds that a detour must save (R12)."""
    sprays: BoolColumn
    """Flags: parts take routes in turn, messages take them by a hash, parts choose by load, messages do."""


class Contentions(NamedTuple):
    """How visits that a rank serves at the same time slow each other (`Contention`); empty if none do."""

    weight: Int32Column
    """[row of `Visits`] its weight in the sum of its rank."""
    first: Int32Column
    """[row of `Visits`] the first share of its kind in `share`, or NONE: others do not slow it."""
    share: Int64Column
    """[kind, sum of the others' weights] the remaining share of the rate in 1 / `timetable.ALONE`."""


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
        # Shares of all programs are one column; `first` is the row of the visit's kind at sum 0.
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

    # Templates of one shape share all columns but sizes; `shape` maps each template to its shape.
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
    # Features that the program lacks have empty columns: the kernel has one type of every argument.
    visit_table, work_tables = _visit_timetables(program)
    fluid, pairs = program.fluid or NO_FLUID, program.queue_pairs or NO_QUEUE_PAIRS
    spray = program.spray or NO_SPRAY
    load, links = spray.load or NO_LOAD, program.link_timetables
    return Network(
        **_template_uses(program.groups),
        route_starts=program.route_starts.astype(np.int64),
        route_links=program.route_links.astype(np.int32),
        route_class=program.route_class.astype(np.int32),
        **_hop_columns(program.hops),
        **_timetable_columns("link", links, program.links),
        link_lag=joined([links[link].lag for link in sorted(links)], np.int64),
        **_timetable_columns("pace", program.pace_timetables, program.links),
        visit_table=visit_table,
        **_timetable_columns("work", dict(enumerate(work_tables)), len(work_tables)),
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


def _template_uses(groups: Sequence[Group]) -> dict[str, Array]:
    """Return the columns of `Network` with the templates that each group runs, and their routes."""
    uses = [sorted(group.routes.items()) for group in groups]
    flat = [routes for use in uses for _, routes in use]
    return {
        "label": np.array([group.label for group in groups], np.int32),
        "use_starts": starts_of([len(use) for use in uses]),
        "use_template": np.array([template for use in uses for template, _ in use], np.int32),
        "use_base": starts_of([len(routes) for routes in flat]),
        "pair_route": joined(flat, np.int32),
    }


def _hop_columns(hops: HopTable) -> dict[str, Array]:
    """Return the columns of `Network` with the service of each size, and the parts of messages."""
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
    """Return `Network.sprays`: which of four kinds of spraying the program has."""
    return np.arange(4) == (NONE if spray is None else 2 * (spray.load is not None) + spray.per_message)


def _visit_timetables(program: Program) -> tuple[Array, list[Timetable]]:
    """Return the number of each visit's timetable, by row of the records, and the distinct timetables."""
    if not program.visit_timetables:
        return np.zeros(0, np.int32), []
    offsets = program.visits()
    rows = np.full(int(offsets[-1]), NONE, np.int32)
    numbers: dict[Timetable, int] = {}
    for (position, visit), table in program.visit_timetables.items():
        rows[offsets[position] + visit] = numbers.setdefault(table, len(numbers))
    return rows, list(numbers)


def _timetable_columns(server: str, tables: Mapping[int, Timetable], servers: int) -> dict[str, Array]:
    """Return the columns of `Network` with the rates of one kind of servers over time."""
    stated = [tables[number] for number in sorted(tables)]
    steps = np.zeros(servers, np.int64)
    steps[sorted(tables)] = [len(table.time) for table in stated]
    return {
        f"{server}_table": starts_of(steps),
        f"{server}_time": joined([table.time for table in stated], np.int64),
        f"{server}_rate": joined([table.rate for table in stated], np.int64),
    }
