"""Names that a package re-exports and imports when they are first used: the stub beside it lists them."""

from __future__ import annotations

import importlib
import re
from functools import cache
from pathlib import Path

_REEXPORT = re.compile(r"^from (\S+) import ([A-Za-z]\w*) as \2$", re.MULTILINE)


@cache
def homes(init: str) -> dict[str, str]:
    """Return the module of each name that the stub (`__init__.pyi`) of a package re-exports, by name.

    >>> import rapid_des
    >>> homes(rapid_des.__file__)["simulate"]
    'rapid_des.simulation'
    """
    stub = Path(init).with_suffix(".pyi").read_text(encoding="utf-8")
    return {name: module for module, name in _REEXPORT.findall(stub)}


def public_name(package: str, init: str, name: str) -> object:
    """Return what a package re-exports under a name; of `__all__`, all these names in order."""
    if name == "__all__":
        return sorted(homes(init))
    if name not in homes(init):
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return getattr(importlib.import_module(homes(init)[name]), name)
