"""A machine file's `base:`, which may stand in another folder and name files there."""

from __future__ import annotations

from pathlib import Path

from rapid_des.config.documents import Document, located, with_base
from rapid_des.config.specs import resolve


def machine_with_base(document: Document) -> Document:
    """Return a machine's document with its chain of bases merged in."""
    return with_base(document, _find, settle=_settled)


def _find(base: str, document: Document) -> Path:
    return resolve(base, "machine", folder=document.folder, named_in=str(document.path), key="base")


def _settled(document: Document) -> Document:
    """Return a document that names in full its device and its files of constants if they are beside it."""
    tree, folder = dict(document.tree), document.folder
    if isinstance(device := tree.get("device"), str):
        tree["device"] = located(device, folder)
    match tree.get("collectives"):
        case {"measured": dict() as measured, **others}:
            names = {
                key: located(name, folder) if isinstance(name, str) else name
                for key, name in measured.items()
            }
            tree["collectives"] = {**others, "measured": names}
    return Document(document.path, tree, document.settings)
