"""One collective alone: run once, and as a template that takes no link."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rapid_des.program.program import (
    NONE,
    Group,
    Program,
    RankBinding,
    RankProgram,
    Records,
    Template,
    VisitKind,
)

Ints = NDArray[np.int64]
Run = Callable[[Program], Records]


def alone(program: Program, template: int, run: Run, ways: tuple[Ints, Ints, Ints]) -> Records | None:
    """Run one collective with nothing else around; None if transfers outlast its members.

    `ways` are the links of all its routes, where each route begins among them, and the hops' service classes.
    """
    one = program.templates[template]
    links, ends, classes = ways
    none = np.zeros(1, np.int32)
    bindings = [RankBinding(rank, 0, none, np.array([rank], np.int32)) for rank in range(one.members)]
    pairs = np.arange(len(ends) - 1, dtype=np.int32)
    records = run(
        Program(
            bindings=tuple(bindings),
            programs=(_one_member(),),
            groups=(Group("alone", np.arange(one.members, dtype=np.int32), 0, {0: pairs}),),
            templates=(one,),
            hops=program.hops,
            route_starts=ends,
            route_links=links.astype(np.int32),
            route_class=classes.astype(np.int32),
            links=int(links.max(initial=-1)) + 1,
        )
    )
    assert records.trail is not None, "a run alone records its hops"
    outlasted = records.trail.arrival.max(initial=0) > records.finish.max()
    return None if outlasted or (records.finish <= 0).any() else records


def _one_member() -> RankProgram:
    return RankProgram(
        kind=np.full(1, int(VisitKind.MEMBER), np.int8),
        server=np.full(1, NONE, np.int32),
        work=np.zeros(1, np.int64),
        priority=np.zeros(1, np.int64),
        link_priority=np.zeros(1, np.int32),
        release=np.full(1, NONE, np.int32),
        slot=np.zeros(1, np.int32),
        parent=np.full(1, NONE, np.int32),
        occurrence=np.zeros(1, np.int32),
        sub=np.zeros(1, np.int32),
        template=np.zeros(1, np.int32),
        need=np.zeros(1, np.int32),
        edge_starts=np.zeros(2, np.int64),
        edge_target=np.zeros(0, np.int32),
        edge_lag=np.zeros(0, np.int64),
        edge_at_start=np.zeros(0, np.bool_),
        server_capacity=np.zeros(0, np.int32),
        server_level=np.zeros(0, np.int8),
        node=np.full(1, NONE, np.int32),
    )


def done_after(one: Template, done: Ints) -> Template:
    """Return a template without links whose members are done at fixed times after the last has arrived."""
    members = one.members
    return Template(
        members=members,
        pair=np.full(1, NONE, np.int32),
        pair_source=np.zeros(0, np.int32),
        pair_destination=np.zeros(0, np.int32),
        source=np.zeros(1, np.int32),
        size=np.zeros(1, np.int32),
        need=np.full(1, members, np.int32),
        edge_starts=np.array([0, members], np.int64),
        edge_target=np.arange(1, members + 1, dtype=np.int32),
        edge_lag=done.astype(np.int64),
        edge_at_injection=np.zeros(members, np.bool_),
        arrival_starts=np.arange(members + 1, dtype=np.int64),
        arrival_target=np.zeros(members, np.int32),
        arrival_lag=np.zeros(members, np.int64),
        member_need=np.ones(members, np.int32),
        name=one.name,
    )
