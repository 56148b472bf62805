"""Programs by hand: visits, edges, templates and links in a few lines.

sketch = Sketch()
rank = sketch.rank()
first = rank.compute(10)
rank.compute(5, after=[(first, 3)])              # 3 ps after the finish of `first`
rank.compute(5, after=[(first, 3, "start")])     # 3 ps after its start
run(sketch.program()).start
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rapid_des.program.program import (
    NONE,
    Contention,
    Group,
    HopTable,
    Program,
    RankBinding,
    RankProgram,
    Template,
    VisitKind,
    WorkLevel,
)

PS_PER_BYTE = 1000
COLUMNS = {
    "kind": np.int8,
    "server": np.int32,
    "work": np.int64,
    "priority": np.int64,
    "link_priority": np.int64,
    "release": np.int32,
    "slot": np.int32,
    "parent": np.int32,
    "occurrence": np.int32,
    "sub": np.int32,
    "template": np.int32,
    "node": np.int32,
}
_CONTENTION = (("weight", 0), ("slowed", NONE))
DEFAULTS = {"work": 0, "priority": 0, "link_priority": 0, "sub": 0}


class RankSketch:
    """One rank's visits; every method returns the new visit."""

    def __init__(self, capacities, levels) -> None:
        self.capacities, self.levels = capacities, levels
        self.rows: list[dict[str, int]] = []
        self.after: list[list[tuple[int, int, str]]] = []
        self.need: dict[int, int] = {}
        self.groups: list[int] = []
        self.members: list[int] = []
        self.shares: np.ndarray | None = None

    def compute(self, work, *, server=0, after=(), **columns) -> int:
        return self._visit(VisitKind.COMPUTE, after, work=work, server=server, **columns)

    def join(self, work=0, *, after=(), **columns) -> int:
        return self._visit(VisitKind.JOIN, after, work=work, **columns)

    def hold(self, slot=NONE, *, server=0, after=(), **columns) -> int:
        """Holds its server until `release(hold, visit)` says."""
        return self._visit(VisitKind.HOLD, after, slot=slot, server=server, **columns)

    def release(self, hold, visit) -> None:
        self.rows[hold]["release"] = visit

    def member(self, slot, template, *, server=0, after=(), **columns) -> int:
        return self._visit(VisitKind.MEMBER, after, slot=slot, template=template, server=server, **columns)

    def slot(self, group, member) -> int:
        """This rank is `member` of `group`."""
        self.groups.append(group)
        self.members.append(member)
        return len(self.groups) - 1

    def slows(self, *shares) -> None:
        """Visits of column `slowed` k work at shares[k][sum] of the rate, by the others' column `weight`."""
        self.shares = np.array(shares, np.int32)

    def _visit(self, kind, after, **columns) -> int:
        place = len(self.rows)
        self.rows.append({"kind": kind, "node": place, **columns})
        self.after.append([_edge(*edge) if isinstance(edge, tuple) else _edge(edge) for edge in after])
        return place

    def sealed(self) -> RankProgram:
        edges = sorted(
            (origin, target, how == "start", lag)
            for target, row in enumerate(self.after)
            for origin, lag, how in row
        )
        counts = (
            np.bincount([edge[0] for edge in edges], minlength=len(self.rows))
            if edges
            else (np.zeros(len(self.rows), np.int64))
        )
        need = [self.need.get(visit, len(row)) for visit, row in enumerate(self.after)]
        return RankProgram(
            **{
                name: np.array([row.get(name, DEFAULTS.get(name, NONE)) for row in self.rows], dtype)
                for name, dtype in COLUMNS.items()
            },
            need=np.array(need, np.int32),
            edge_starts=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
            edge_target=np.array([edge[1] for edge in edges], np.int32),
            edge_lag=np.array([edge[3] for edge in edges], np.int64),
            edge_at_start=np.array([edge[2] for edge in edges], np.bool_),
            server_capacity=np.array(self.capacities, np.int32),
            server_level=np.array(self.levels, np.int8),
            contention=None if self.shares is None else self._contention(),
        )

    def _contention(self) -> Contention:
        weight, kind = ([row.get(name, without) for row in self.rows] for name, without in _CONTENTION)
        return Contention(np.array(weight, np.int32), np.array(kind, np.int32), self.shares)


class Sketch:
    """Ranks, links, groups and templates."""

    def __init__(self) -> None:
        self.ranks: list[RankSketch] = []
        self.links: list[tuple[int, int | None]] = []
        self.sizes: list[int] = []
        self.groups: list[tuple[Any, Any]] = []
        self.templates: list[tuple[Any, ...]] = []
        self.routes: list[tuple[int, ...]] = []

    def rank(self, *, capacities=(1, 1, 1), levels=None) -> RankSketch:
        """One more rank with servers of these capacities, streams unless `levels` says otherwise."""
        levels = levels or [WorkLevel.STREAM] * len(capacities)
        self.ranks.append(RankSketch(capacities, levels))
        return self.ranks[-1]

    def link(self, *, lag=0, head=None) -> int:
        """A link of 1000 ps a byte; the next hop is ready `head` bytes (default all) plus `lag` on."""
        self.links.append((lag, head))
        return len(self.links) - 1

    def template(self, members, tasks, done, *, name="") -> int:
        """`tasks`: dicts of source, destination, size, after [(task, lag, "injection" or "arrival")], gates
        [(member, lag)] and need; `done`: member to [(task, lag)] beyond its own arrival."""
        self.templates.append((members, tasks, done, name))
        return len(self.templates) - 1

    def message(self, size, *, name="") -> int:
        """Member 0 sends to member 1; both are done when it is there."""
        task = {"source": 0, "destination": 1, "size": size, "gates": [(0, 0)]}
        return self.template(2, [task], {0: [(0, 0)], 1: [(0, 0)]}, name=name)

    def group(self, ranks, ways) -> int:
        """`ways`: template to {(source, destination): links of the route}."""
        self.groups.append((ranks, ways))
        return len(self.groups) - 1

    def meet(self, ranks, ways) -> list[int]:
        """A group with each rank's slot for it, in member order."""
        group = self.group([self.ranks.index(rank) for rank in ranks], ways)
        return [rank.slot(group, member) for member, rank in enumerate(ranks)]

    def program(self, **others) -> Program:
        templates = tuple(self._template(*template) for template in self.templates)
        groups = tuple(self._group(place, *group) for place, group in enumerate(self.groups))
        starts = np.concatenate(([0], np.cumsum([len(route) for route in self.routes]))).astype(np.int64)
        flat = np.array([link for route in self.routes for link in route], np.int32)
        sizes = np.array(self.sizes or [0], np.int64)
        occupancy = np.maximum(1, sizes[:, None] * PS_PER_BYTE * np.ones(max(len(self.links), 1), np.int64))
        heads = [
            [size if head is None else min(head, size) for _, head in self.links or [(0, None)]]
            for size in sizes.tolist()
        ]
        lags = np.array([lag for lag, _ in self.links or [(0, None)]], np.int64)
        return Program(
            bindings=tuple(
                RankBinding(place, place, np.array(rank.groups, np.int32), np.array(rank.members, np.int32))
                for place, rank in enumerate(self.ranks)
            ),
            programs=tuple(rank.sealed() for rank in self.ranks),
            groups=groups,
            templates=templates,
            hops=HopTable(
                occupancy=occupancy,
                head=np.maximum(1, np.array(heads, np.int64) * PS_PER_BYTE),
                lag=np.broadcast_to(lags, occupancy.shape).copy(),
                bytes=sizes,
            ),
            route_starts=starts,
            route_links=flat,
            route_class=flat.copy(),
            links=len(self.links),
            **others,
        )

    def _size(self, size) -> int:
        if size not in self.sizes:
            self.sizes.append(size)
        return self.sizes.index(size)

    def _template(self, members, tasks, done, name) -> Template:
        pairs = sorted({(task["source"], task["destination"]) for task in tasks if "destination" in task})
        edges = sorted(
            [
                (before, place, lag, how == "injection")
                for place, task in enumerate(tasks)
                for before, lag, how in task.get("after", ())
            ]
            + [(task, len(tasks) + member, lag, False) for member, row in done.items() for task, lag in row]
        )
        arrivals = sorted(
            [
                (member, place, lag)
                for place, task in enumerate(tasks)
                for member, lag in task.get("gates", ())
            ]
            + [(member, len(tasks) + member, 0) for member in range(members)]
        )
        need = [task.get("need", len(task.get("after", ())) + len(task.get("gates", ()))) for task in tasks]
        return Template(
            members=members,
            pair=np.array(
                [
                    pairs.index((task["source"], task["destination"])) if "destination" in task else NONE
                    for task in tasks
                ],
                np.int32,
            ),
            pair_source=np.array([source for source, _ in pairs], np.int32),
            pair_destination=np.array([destination for _, destination in pairs], np.int32),
            source=np.array([task["source"] for task in tasks], np.int32),
            size=np.array([self._size(task.get("size", 0)) for task in tasks], np.int32),
            need=np.array(need, np.int32),
            edge_starts=_starts([edge[0] for edge in edges], len(tasks)),
            edge_target=np.array([edge[1] for edge in edges], np.int32),
            edge_lag=np.array([edge[2] for edge in edges], np.int64),
            edge_at_injection=np.array([edge[3] for edge in edges], np.bool_),
            arrival_starts=_starts([edge[0] for edge in arrivals], members),
            arrival_target=np.array([edge[1] for edge in arrivals], np.int32),
            arrival_lag=np.array([edge[2] for edge in arrivals], np.int64),
            member_need=np.array([len(done.get(member, ())) + 1 for member in range(members)], np.int32),
            name=name,
        )

    def _group(self, place, ranks, ways) -> Group:
        routes = {}
        for template, of_pairs in ways.items():
            first = len(self.routes)
            self.routes += [of_pairs[pair] for pair in sorted(of_pairs)]
            routes[template] = np.arange(first, len(self.routes), dtype=np.int32)
        return Group(name=f"group{place}", bindings=np.array(ranks, np.int32), routes=routes)


def _edge(visit, lag=0, anchor="finish"):
    return visit, lag, anchor


def _starts(origins, count):
    return np.concatenate(([0], np.cumsum(np.bincount(np.array(origins, np.int64), minlength=count)))).astype(
        np.int64
    )
