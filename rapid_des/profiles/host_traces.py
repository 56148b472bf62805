"""PyTorch's execution traces of the host (Chakra), which say the shapes of products that a profile lacks.

    host trace, one iteration ──┐ the n-th product of a name is the n-th of each iteration
    profile of the same run  ───┴──► shapes of the profile's products

A trace counts its operators by `rf_id` in the order in which they began. A profile has them by their start.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zlib import error as ZlibError  # noqa: N812 - the module has no other name for it

import msgspec
from msgspec import Struct

from rapid_des.errors import TraceError
from rapid_des.inputs import Kind, read_input, unpack_input
from rapid_des.profiles.events import GZIP

_HOST_TRACE = Kind("a host trace", 1 << 31)
PRODUCTS = frozenset({"aten::mm", "aten::addmm", "aten::bmm"})

Shapes = Mapping[str, Sequence[str]]
"""The shapes and number formats of the products of one iteration, by operator, in order."""


class _HostNode(Struct, frozen=True, gc=False):
    """An operator of the host; schemas from 1.0.3 on keep more in `inputs` and `attrs`."""

    name: str = ""
    id: Any = 0
    rf_id: Any = None
    inputs: Any = None
    input_shapes: Any = None
    input_types: Any = None
    attrs: Any = None

    @property
    def order(self) -> int:
        """The number by which operators began."""
        stated = [
            each.get("value")
            for each in self.attrs or ()
            if isinstance(each, dict) and each.get("name") == "rf_id"
        ]
        number = stated[0] if stated else self.rf_id
        return number if isinstance(number, int) else 0

    @property
    def shapes(self) -> str:
        """The shapes and number formats of its inputs."""
        if isinstance(self.inputs, dict):
            return f"{self.inputs.get('shapes')} {self.inputs.get('types')}"
        return f"{self.input_shapes} {self.input_types}"


class _HostTrace(Struct, frozen=True):
    schema: str
    nodes: list[_HostNode]


def read_host_trace(path: Path) -> Shapes:
    """Return the shapes of the products of a host trace; `TraceError` names what is wrong."""
    text = read_input(path, _HOST_TRACE)
    try:
        text = unpack_input(path, _HOST_TRACE) if text.startswith(GZIP) else text
        nodes = msgspec.json.decode(text, type=_HostTrace).nodes
    except (EOFError, OSError, ZlibError) as problem:
        raise TraceError(f"{path}: the gzip file is damaged or cut off ({problem})") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
        raise TraceError(f"{path}: is no host trace of PyTorch: {problem}") from None
    found = defaultdict[str, list[str]](list)
    for node in sorted((node for node in nodes if node.name in PRODUCTS), key=lambda node: node.order):
        found[node.name].append(node.shapes[:400])
    return found


def linked(products: Sequence[tuple[int, str, int]], host: Shapes, where: str) -> dict[int, str]:
    """Return the shapes of a profile's products (start, operator, its number), by their number.

    `TraceError` if the profile has not a whole number of iterations of the host trace.
    """
    shapes: dict[int, str] = {}
    seen = defaultdict[str, list[int]](list)
    for _, name, number in sorted(products):
        seen[name].append(number)
    for name, numbers in seen.items():
        known = host.get(name, ())
        if not known or len(numbers) % len(known):
            raise TraceError(
                f"{where}: has {len(numbers)} {name}, which is no multiple of the host trace's {len(known)}; "
                "link traces of the same run"
            )
        shapes |= {number: known[place % len(known)] for place, number in enumerate(numbers)}
    return shapes
