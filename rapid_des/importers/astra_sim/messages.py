"""Ranks that only compute and exchange messages: their tables are lowered as one, which is cut afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rapid_des.arrays import Int64s, joined_starts, rows_of, starts_by, starts_of
from rapid_des.chakra.trace import NodeKind, NodeTable, RankTrace
from rapid_des.importers.astra_sim.algorithms import PhaseTemplates
from rapid_des.importers.astra_sim.files import Setup
from rapid_des.importers.astra_sim.ranks import IssueOrder, NodePlace, TableLowering, place_in
from rapid_des.program.channels import ChannelSlots
from rapid_des.program.program import NONE, RankProgram
from rapid_des.values import fields, replace

_TOGETHER = (NodeKind.COLLECTIVE, NodeKind.MEM_LOAD, NodeKind.MEM_STORE)
_BY_VISIT = (
    "kind", "server", "work", "priority", "link_priority", "release", "parent", "occurrence", "sub",
    "template", "need",
)  # fmt: skip


def lower_together(
    setup: Setup, templates: PhaseTemplates, traces: Sequence[RankTrace], orders: Sequence[IssueOrder]
) -> tuple[list[RankProgram], ChannelSlots]:
    """Return the programs of ranks that only compute and exchange messages, and the slots of all."""
    starts = starts_of([len(trace.nodes) for trace in traces])
    peer_starts = starts_of([len(trace.peers) for trace in traces])

    def place(node: int) -> NodePlace:
        number = int(np.searchsorted(starts, node, side="right")) - 1
        return place_in(traces[number], node - int(starts[number]))

    nodes = _joined([trace.nodes for trace in traces], starts, peer_starts)
    order = IssueOrder(
        np.concatenate([order.position for order in orders]),
        _shifted([order.nodes for order in orders], starts),
    )
    lowering = TableLowering(setup, templates, nodes, place)
    program, slots = lowering.lower(order), lowering.channels
    # Peers and nodes are numbered trace after trace, and slots in the order of nodes: a trace's are a range.
    owner = np.searchsorted(peer_starts, slots.peer, side="right") - 1
    slots = replace(slots, starts=starts_by(owner, len(traces)), peer=slots.peer - peer_starts[owner])
    return _cut(program, starts, slots.starts), slots


def is_alone(nodes: NodeTable) -> bool:
    """Return whether a table has neither collectives nor uses of memory, so that others can join it."""
    return not np.isin(nodes.kind, _TOGETHER).any()


def _joined(tables: Sequence[NodeTable], starts: Int64s, peer_starts: Int64s) -> NodeTable:
    """Return the nodes of all tables as one table, whose peers are numbered trace after trace."""
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(table, name) for table in tables])
        for name in fields(NodeTable)
        if name not in {"names", "streams", "dependency_starts"}
    }
    row = rows_of(np.diff(starts))
    columns["peer"] += np.where(columns["peer"] == NONE, 0, peer_starts[row]).astype(np.int32)
    columns["dependencies"] = _shifted([table.dependencies for table in tables], starts)
    dependency_starts = joined_starts([table.dependency_starts for table in tables])
    return NodeTable(names=(), streams=(), dependency_starts=dependency_starts, **columns)


def _shifted(columns: Sequence[NDArray[Any]], starts: Int64s) -> Int64s:
    """Return columns of positions one after the other, each moved by the start of its table."""
    lengths = [len(column) for column in columns]
    return np.concatenate(columns) + np.repeat(starts[:-1], lengths)


def _cut(program: RankProgram, starts: Int64s, slot_starts: Int64s) -> list[RankProgram]:
    """Return the programs of tables that were lowered as one; every visit is a node."""
    row = rows_of(np.diff(starts))
    edge_row = np.repeat(row, np.diff(program.edge_starts))
    columns = {
        **{name: getattr(program, name) for name in _BY_VISIT},
        "node": program.node - starts[row].astype(np.int32),
        "slot": program.slot - np.where(program.slot == NONE, 0, slot_starts[row]).astype(np.int32),
    }
    edge_target = program.edge_target - starts[edge_row].astype(np.int32)
    programs = []
    for begin, end in pairwise(starts.tolist()):
        edge_starts = program.edge_starts[begin : end + 1]
        out = slice(int(edge_starts[0]), int(edge_starts[-1]))
        programs.append(
            RankProgram(
                edge_starts=edge_starts - edge_starts[0],
                edge_target=edge_target[out],
                edge_lag=program.edge_lag[out],
                edge_at_start=program.edge_at_start[out],
                server_capacity=program.server_capacity,
                server_level=program.server_level,
                **{name: column[begin:end] for name, column in columns.items()},
            )
        )
    return programs
