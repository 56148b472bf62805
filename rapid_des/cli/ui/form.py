"""The keys of a job and a machine with values, units and meanings, for the page's form."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import inspect

from rapid_des.config import Spec
from rapid_des.config.descriptions import Field, described, structs_of
from rapid_des.config.specs import to_tree
from rapid_des.device.spec import DeviceSpec
from rapid_des.frontend import Job, JobSpec
from rapid_des.machine import Machine, MachineSpec

_QUANTITY = re.compile(r"(-?\d+(?:\.\d+)?(?:e[-+]?\d+)?)(?: ?([A-Za-zµ][A-Za-z/µ]*))?\Z")
_LONGEST = 300


def form(job: Job, machine: Machine) -> list[dict[str, Any]]:
    """Return every key that --set takes and that holds one value: the job's, the machine's, its device's."""
    roots: dict[str, tuple[type[Spec], Mapping[str, Any]]] = {
        "job": (JobSpec, to_tree(job.spec, "job")),
        "machine": (MachineSpec, to_tree(machine.spec, "machine")),
        "device": (DeviceSpec, to_tree(machine.device.spec, "device")),
    }
    return [
        row
        for root, (spec, tree) in roots.items()
        for row in _rows(inspect.type_info(spec), tree, root)
        if row["key"] not in _CHOSEN
    ]


_CHOSEN = {"job.name", "machine.name", "device.name", "machine.device", "job.phase"}


def _rows(kind: inspect.Type, tree: Mapping[str, Any], above: str) -> Iterator[dict[str, Any]]:
    fields: dict[str, tuple[Field, inspect.Type]] = {}
    for struct in structs_of(kind):
        if struct.tag_field is None or tree.get(struct.tag_field) == struct.tag:
            fields |= {field.name: (field, below) for field, below in described(struct)}
    for key, value in tree.items():
        path = f"{above}.{key}"
        field, below = fields.get(key, (None, inspect.AnyType()))
        if isinstance(value, dict):
            yield from _rows(below, value, path)
        elif isinstance(value, list):
            for number, item in enumerate(value):
                if isinstance(item, dict):
                    yield from _rows(below, item, f"{path}.{number}")
        else:
            yield _row(path, value, field)


def _row(path: str, value: object, field: Field | None) -> dict[str, Any]:
    written = str(value).lower() if isinstance(value, bool) or value is None else str(value)
    row: dict[str, Any] = {"key": path, "value": written}
    if field is not None:
        row |= {"meaning": field.meaning[:_LONGEST], "allowed": field.allowed[:_LONGEST]}
    match = None if isinstance(value, bool) else _QUANTITY.match(written)
    if match:
        row |= {"number": float(match[1]), "unit": match[2] or "", "whole": isinstance(value, int)}
    return row
