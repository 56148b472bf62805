"""Conditions on links and nodes: `dimension = rail and source.a0 < 4`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rapid_des.errors import TopologyError
from rapid_des.network.fabric import UNSTATED, Fabric, Ints
from rapid_des.network.nodes import find_node
from rapid_des.units import Bandwidth, Duration

_CONDITION = re.compile(r"([a-z][a-z0-9_.]*)\s*(!=|<=|>=|=|<|>)\s*(.+)\Z")
_OPERATIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def links_where(fabric: Fabric, conditions: str | None) -> Ints:
    """Return the ids of the links that meet the conditions.

    Fields: dimension, bandwidth, latency, source, destination, and source.a0 … for GPUs' coordinates.
    """
    columns: dict[str, Ints] = {
        "dimension": fabric.dimension.astype(np.int64),
        "bandwidth": fabric.bandwidth,
        "latency": fabric.latency,
    }
    for name, ends in (("source", fabric.source), ("destination", fabric.destination)):
        columns[name] = ends.astype(np.int64)
        columns |= {f"{name}.{axis}": column for axis, column in _axes(fabric, columns[name]).items()}
    return np.flatnonzero(_mask(fabric, columns, conditions, len(fabric)))


def nodes_where(fabric: Fabric, conditions: str | None, ids: Ints) -> Ints:
    """Return those of a kind's nodes `ids` that meet conditions on id (0, 1, …) and coordinates a0, a1, …."""
    columns = {"id": np.arange(len(ids)), **_axes(fabric, ids)}
    return ids[_mask(fabric, columns, conditions, len(ids))]


def _axes(fabric: Fabric, nodes: Ints) -> dict[str, Ints]:
    """Return coordinates, UNSTATED for nodes that are no GPUs."""
    columns, stride = {}, 1
    for axis, size in enumerate(fabric.axes):
        columns[f"a{axis}"] = np.where(nodes < fabric.gpus, nodes // stride % size, UNSTATED)
        stride *= size
    return columns


def _mask(
    fabric: Fabric, columns: Mapping[str, Ints], conditions: str | None, count: int
) -> NDArray[np.bool_]:
    mask = np.ones(count, bool)
    for condition in re.split(r"\s+and\s+", conditions.strip()) if conditions else ():
        match = _CONDITION.match(condition.strip())
        if match is None or match[1] not in columns:
            allowed = f"FIELD =|!=|<|<=|>|>= VALUE with FIELD of {', '.join(columns)}"
            raise TopologyError(f"where: {condition!r} is no condition; allowed: {allowed}")
        column = columns[match[1]]
        met = _OPERATIONS[match[2]](column, _constant(fabric, match[1], match[3]))
        mask &= met & (column != UNSTATED)
    return mask


def _constant(fabric: Fabric, field: str, text: str) -> int:
    if field == "dimension":
        if text not in fabric.dimensions:
            raise TopologyError(f"where: no dimension {text!r}; allowed: {', '.join(fabric.dimensions)}")
        return fabric.dimensions.index(text)
    if field in {"source", "destination"}:
        return find_node(fabric, text)
    try:
        if field in {"bandwidth", "latency"}:
            return int((Bandwidth if field == "bandwidth" else Duration).parse(text))
        return int(text)
    except ValueError as error:
        raise TopologyError(f"where: {field}: {error}") from None
