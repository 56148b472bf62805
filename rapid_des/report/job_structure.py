"""The structure of a job, to check it against theory: groups, stages, and every message."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from rapid_des.chakra.trace import UNSTATED, CollectiveType, NodeKind, NodeTable
from rapid_des.frontend.groups import GROUP_SLOTS, GROUPS
from rapid_des.frontend.inference import pass_lists, passes
from rapid_des.frontend.job import Job
from rapid_des.frontend.operations import Operation
from rapid_des.frontend.parts import ModelSection, section_parameters, training_lists
from rapid_des.frontend.routing import LayerLoad, layer_loads
from rapid_des.frontend.schedules.schedule import PassKind, Placement
from rapid_des.frontend.trace import JobTrace

_LAYER = re.compile(r"\bL(\d+)\.")


class GroupKind(Struct, frozen=True):
    """One kind of process group."""

    name: str
    axes: tuple[str, ...]
    members: int
    count: int
    first: tuple[int, ...]
    """The ranks of the first group."""


class MessageKind(Struct, frozen=True):
    """Equal messages of a stage's rank: the same in every layer and micro-batch."""

    stage: int
    name: str
    """Name of the message, with `L*` for the layer."""
    what: str
    """Operation: the collective, `send` or `recv`."""
    group: str
    """The kind of process group; empty for a send or receive."""
    members: int
    size: int
    """comm_size in bytes: the input buffer of one member."""
    count: int
    """Number of messages in one step (or batch of requests), as simulated."""
    layers: int
    """Number of the stage's layers that send it, 0 for none; each runs it count / layers times."""


class SectionWork(Struct, frozen=True):
    """What one rank computes of a section in one pass of one micro-batch."""

    kernels: int
    collectives: int


class SectionKind(Struct, frozen=True):
    """One distinct section of the model: embedding, head, or equal layers."""

    name: str
    """Name; of layers the names of their halves, `experts` for routed experts."""
    layers: tuple[int, ...]
    """Numbers of its layers in the model; empty for embedding and head."""
    parameters: int
    """Number of parameters of one rank, in one such section."""
    passes: Mapping[PassKind, SectionWork]


class Explanation(Struct, frozen=True):
    """The derived structure of a job."""

    groups: tuple[GroupKind, ...]
    layers: tuple[int, ...]
    """Number of layers of each part of the model."""
    placement: Placement
    """The part of the model that each chunk holds, by stage and chunk."""
    sections: tuple[SectionKind, ...]
    messages: tuple[MessageKind, ...]
    loads: tuple[LayerLoad, ...] = ()
    """Loads of layers whose experts get unequal numbers of copies."""


def explain(trace: JobTrace) -> Explanation:
    """Return the process groups, the layers of each part, and all messages as the trace has them."""
    job = trace.job
    loads = layer_loads(job)
    return Explanation(_groups(trace), job.layers, job.placement, _sections(job), _messages(trace), loads)


def _groups(trace: JobTrace) -> tuple[GroupKind, ...]:
    """Return the kinds of groups that some stage communicates in, in the order of the traffic table."""
    numbers: dict[str, list[int]] = {}
    for name in trace.traces.groups:
        kind, _, number = name.partition(".")
        if kind in GROUPS:
            numbers.setdefault(kind, []).append(int(number))
    return tuple(
        GroupKind(
            name,
            GROUPS[name],
            trace.job.members(name),
            len(numbers[name]),
            trace.traces.groups[f"{name}.{min(numbers[name])}"],
        )
        for name in GROUP_SLOTS
        if name in numbers
    )


def _sections(job: Job) -> tuple[SectionKind, ...]:
    """Return the sections of the model with what a rank holds and runs of each; of requests their prefill."""
    lists: dict[ModelSection, dict[PassKind, tuple[Operation, ...]]] = {}
    if job.spec.phase == "training":
        for key, operations in training_lists(job).items():
            lists.setdefault(key.section, {})[key.phase] = operations
    else:
        prefill = pass_lists(job, passes(job)[0])
        lists = {section: {"forward": operations} for section, operations in prefill.items()}
    return tuple(
        SectionKind(
            *_name_and_layers(job, section),
            parameters=parameters.total(),
            passes={phase: _work(operations) for phase, operations in lists[section].items()},
        )
        for section, parameters in section_parameters(job).items()
    )


def _name_and_layers(job: Job, section: ModelSection) -> tuple[str, tuple[int, ...]]:
    if section.name != "block":
        return section.name, ()
    halves = job.kinds[section.kind].layer.halves
    names = ("experts" if half.parameters.experts else half.name for half in halves)
    layers = [layer for layer, kind in enumerate(job.kind_of_layer) if kind == section.kind]
    return " + ".join(names), tuple(layers)


def _work(operations: tuple[Operation, ...]) -> SectionWork:
    kernels = sum(operation.operator is not None for operation in operations)
    return SectionWork(kernels, len(operations) - kernels)


def _messages(trace: JobTrace) -> tuple[MessageKind, ...]:
    messages: list[MessageKind] = []
    for stage, table in enumerate(trace.tables):
        entry = trace.traces.ranks[trace.stage_of_rank.index(stage)]
        slots = [name.partition(".")[0] for name in entry.groups]
        for (name, kind, collective, slot, size), numbers in _alike(table).items():
            if kind == NodeKind.COLLECTIVE:
                group = slots[slot]
                what = CollectiveType(collective).name.lower()
                number = trace.job.members(group)
            else:
                group, what, number = "", NodeKind(kind).name.lower(), 2
            layers = len(numbers.keys() - {""})
            messages.append(MessageKind(stage, name, what, group, number, size, numbers.total(), layers))
    return tuple(messages)


def _alike(table: NodeTable) -> dict[tuple[str, int, int, int, int], Counter[str]]:
    """Return how often each kind of message occurs in each layer, in order of first occurrence."""
    rows = np.flatnonzero(np.isin(table.kind, (NodeKind.COLLECTIVE, NodeKind.SEND, NodeKind.RECV)))
    names = [_LAYER.sub("L*.", name) for name in table.names]
    layers = [layer[1] if (layer := _LAYER.search(name)) else "" for name in table.names]
    columns = (table.name, table.kind, table.collective, table.group, table.size)
    counts: dict[tuple[str, int, int, int, int], Counter[str]] = {}
    for name, kind, collective, group, size in zip(
        *(column[rows].tolist() for column in columns), strict=True
    ):
        slot = group if kind == NodeKind.COLLECTIVE else UNSTATED
        alike = counts.setdefault((names[name], kind, collective, slot, size), Counter())
        alike[layers[name]] += 1
    return counts
