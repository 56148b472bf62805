"""Nodes by label: names, process groups, peers and streams, each a number into a table of distinct ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from rapid_des.chakra.columns import Attribute, RawTable
from rapid_des.chakra.groups import DIMENSIONS
from rapid_des.chakra.trace import UNSTATED, NodeKind

Integers = NDArray[np.int64]
Label = TypeVar("Label", str, int, bytes)
_SHORT = 1024
"""Rows up to which Python's own dictionaries are faster than numpy's sorting."""


@dataclass(frozen=True)
class Labels:
    """A label for each node, or `UNSTATED`: positions in `texts`, which need not be in any order."""

    codes: Integers
    texts: list[str]

    def renamed(self, rename: Callable[[str], str]) -> Labels:
        """Return the labels under new names; names that become equal become one label."""
        table: dict[str, int] = {}
        new = [table.setdefault(rename(text), len(table)) for text in self.texts]
        codes = np.array([*new, UNSTATED], np.int64)[self.codes]
        return Labels(codes, list(table))


def by_first_appearance(
    codes: Integers, texts: Sequence[Label]
) -> tuple[NDArray[np.int32], tuple[Label, ...]]:
    """Return codes renumbered as they first appear (`UNSTATED` stays) and the texts that occur."""
    used = [code for code in _distinct(codes) if code != UNSTATED]
    new = np.full(len(texts) + 1, UNSTATED, np.int32)
    new[used] = np.arange(len(used), dtype=np.int32)
    return new[codes], tuple(texts[code] for code in used)


def _distinct(codes: Integers) -> list[int]:
    """Return the codes as they first appear."""
    if len(codes) <= _SHORT:
        return list(dict.fromkeys(codes.tolist()))
    used, first = np.unique(codes, return_index=True)
    distinct: list[int] = used[np.argsort(first, kind="stable")].tolist()
    return distinct


def attribute_labels(attribute: Attribute | None, size: int) -> Labels:
    """Return an attribute that is a text or a number as labels."""
    if attribute is None:
        return Labels(np.full(size, UNSTATED, np.int64), [])
    texts = [text.decode(errors="backslashreplace") for text in attribute.texts]
    codes = attribute.text.astype(np.int64)
    numbers, inverse = np.unique(attribute.value, return_inverse=True)
    numeric = attribute.stated & (codes == UNSTATED)
    codes[numeric] = inverse[numeric] + len(texts)
    return Labels(codes, texts + [str(number) for number in numbers.tolist()])


def group_labels(raw: RawTable) -> Labels:
    """Return the process group that each node names, by whichever attribute its writer uses."""
    size = len(raw)
    table: dict[str, int] = {}
    codes = np.full(size, UNSTATED, np.int64)
    for name in ("pg_name", "comm_group", "communicator_id"):
        if name not in raw.attributes:
            continue
        labels = attribute_labels(raw.attributes[name], size)
        merged = np.array([table.setdefault(text, len(table)) for text in labels.texts] + [UNSTATED])
        codes = np.where(codes == UNSTATED, merged[labels.codes], codes)
    dimensions = _dimension_labels(raw, table)
    return Labels(np.where(codes == UNSTATED, dimensions, codes), list(table))


def _dimension_labels(raw: RawTable, table: dict[str, int]) -> Integers:
    """Name the network dimensions that a collective spans, where it does not span all of them."""
    attribute = raw.attributes.get("involved_dim")
    if attribute is None:
        return np.full(len(raw), UNSTATED, np.int64)
    new = []
    for packed in attribute.texts:
        flags = packed[2:] if packed[:1] == b"\x0a" else packed[1::2]
        partial = 0 in flags and any(flags)
        name = DIMENSIONS + ",".join(str(int(flag > 0)) for flag in flags)
        new.append(table.setdefault(name, len(table)) if partial else UNSTATED)
    return np.array([*new, UNSTATED], np.int64)[attribute.text]


_STREAM_OF_KIND = {
    NodeKind.COMPUTE: "compute",
    NodeKind.SEND: "send",
    NodeKind.RECV: "recv",
    NodeKind.MEM_LOAD: "memory",
    NodeKind.MEM_STORE: "memory",
    NodeKind.STORAGE: "storage",
    NodeKind.DATA_OPERATION: "storage",
    NodeKind.METADATA: "metadata",
    NodeKind.INVALID: "metadata",
}
_STREAMS = [_STREAM_OF_KIND.get(kind, "compute") for kind in sorted(NodeKind)]
_COLLECTIVE = int(NodeKind.COLLECTIVE)


def stream_labels(
    raw: RawTable, kind: NDArray[np.int8], on_cpu: NDArray[np.bool_], groups: Labels, *, named: bool
) -> Labels:
    """Return each node's stream: what the file says, else one by kind, group and CPU thread.

    With `named`, the numbers in `stream` and `tid` are GPU streams and CPU threads.
    """
    table: dict[str, int] = {}

    def codes_of(labels: Labels, form: str) -> Integers:
        new = [table.setdefault(form.format(text), len(table)) for text in labels.texts]
        return np.array([*new, UNSTATED], np.int64)[labels.codes]

    def stated(name: str, form: str, otherwise: Integers) -> Integers:
        if name not in raw.attributes:
            return otherwise
        labels = attribute_labels(raw.attributes[name], len(raw))
        return np.where(labels.codes == UNSTATED, otherwise, codes_of(labels, form))

    codes = np.array([table.setdefault(text, len(table)) for text in _STREAMS])[kind]
    collective = kind == _COLLECTIVE
    by_group = codes_of(groups, "coll-{}")
    world = table.setdefault("coll-world", len(table))
    codes[collective] = np.where(by_group == UNSTATED, world, by_group)[collective]
    if named:
        codes = stated("stream", "stream-{}", codes)
    if on_cpu.any():
        single = np.full(len(raw), table.setdefault("cpu-0", len(table)))
        codes = np.where(on_cpu, stated("tid", "cpu-{}", single) if named else single, codes)
    codes = stated("rapid_stream", "{}", codes)
    return Labels(codes, list(table))
