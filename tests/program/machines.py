"""Small machines for replay tests, written as a machine file states them."""

from __future__ import annotations

import atexit
import json
import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from rapid_des.machine import Machine, load_machine

_FOLDER = Path(mkdtemp(prefix="rapid-des-tests-"))
atexit.register(shutil.rmtree, _FOLDER)

STORE = {"mode": "store_and_forward"}
"""Whole messages from link to link."""


def ring(size, **keys):
    """A ring of 1 GB/s links (1 byte a nanosecond) with 100 ns."""
    return dimension("ring", size, **keys)


def switch(size, **keys):
    """One switch, likewise."""
    return dimension("switch", size, **keys)


def dimension(shape, size, *, name=None, bandwidth="1 GB/s", latency="100 ns", **keys):
    """One dimension as a machine file states it."""
    return {
        "name": name or shape,
        "shape": shape,
        "size": size,
        "bandwidth": bandwidth,
        "latency": latency,
        **keys,
    }


def machine(*dimensions, switching=STORE, collectives=None, order="innermost_first", **keys) -> Machine:
    """A machine of A100s on these dimensions, innermost first."""
    tree = {
        "name": "small",
        "device": "a100_sxm_80gb",
        "fabric": [dimension | {"name": f"d{place}"} for place, dimension in enumerate(dimensions)],
        "routing": {"order": order, "tie": "positive"},
        "switching": switching,
        "collectives": collectives or {"default": "ring"},
        **keys,
    }
    return _loaded(json.dumps(tree))


@cache
def _loaded(text: str) -> Machine:
    path = _FOLDER / f"machine{len(list(_FOLDER.iterdir()))}.yaml"
    path.write_text(text, encoding="utf-8")
    return load_machine(path)
