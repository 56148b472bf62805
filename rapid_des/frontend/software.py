"""Software profiles: what differs by framework or serving engine, and not by silicon.

A job chooses one by name (`software: megatron-2025`, of `workloads/software`), by path, or holds its keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import structs

from rapid_des.config import Document, Spec, decode, load_document, resolve
from rapid_des.network.collective_specs import LibraryChoice

USUAL: Mapping[str, str] = {"training": "megatron-2025", "inference": "vllm-0.x"}
"""The profile of a job that names none."""


class Software(Spec, frozen=True):
    """A software profile: whose kernels and communication libraries run, and what it does by default."""

    name: str
    """Framework or engine, and the version whose behaviour is meant."""
    kernels: str | None = None
    """Whose kernels run: a scope of the device's constants (`vllm`, `trtllm`, …). Unset: the device file's
    `conditions.library`."""
    attention: str | None = None
    """Whose attention kernels run, where not the library's: a scope too (`flash-2`). Unset: as `kernels`."""
    communication: LibraryChoice = LibraryChoice()
    """Communication libraries by kind of group. Those of which nothing was measured on a machine's fabric
    are not used there; nothing stated: no library, transfers at the links' own rates."""
    defaults: dict[str, Any] = {}
    """Keys of a job and their values where it states none: fusion, overlap, formats, memory reserved."""

    def __hash__(self) -> int:
        return hash((self.name, self.kernels, self.attention, self.communication))

    def libraries_json(self) -> str:
        """Return the communication libraries as a trace carries them."""
        return msgspec.json.encode(self.communication).decode()


def software_of(document: Document) -> Software:
    """Return the profile that a job's document names or holds, else the usual one of its phase."""
    stated, phase = document.tree.get("software"), document.tree.get("phase")
    if isinstance(stated, dict):
        return decode(Document(document.path, {"software": stated}, document.settings), _Holder).software
    usual = USUAL["inference" if phase == "inference" else "training"]
    name = usual if stated is None else str(stated)
    folder, named_in = document.path.parent, str(document.path)
    path = resolve(name, "software", folder=folder, named_in=named_in, key="software")
    return decode(load_document(path), Software)


def with_defaults(document: Document, software: Software) -> Document:
    """Return a job's document with what its software does by default where it says nothing."""
    phase = document.tree.get("phase")
    defaults = {key: value for key, value in software.defaults.items() if key not in USUAL or key == phase}
    return Document(document.path, _under(document.tree, defaults), document.settings)


def applied(software: Software) -> Software:
    """Return a profile whose defaults a job's keys hold by now."""
    return structs.replace(software, defaults={})


class _Holder(Spec, frozen=True):
    """What a job file holds a profile in."""

    software: Software


def _under(stated: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return stated keys with defaults where they say nothing; sections are joined key by key."""
    joined = dict(stated)
    for key, value in defaults.items():
        present = joined.get(key)
        if key not in joined:
            joined[key] = value
        elif isinstance(present, dict) and isinstance(value, dict):
            joined[key] = _under(present, value)
    return joined
