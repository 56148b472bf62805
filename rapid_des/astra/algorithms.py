"""The names that system files give to collective algorithms, what each needs, and the templates they make."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isqrt

from rapid_des.astra.direct import direct
from rapid_des.astra.files import Setup
from rapid_des.astra.lockstep import halving_doubling, hypercube, mesh, ring, torus2d
from rapid_des.astra.phases import A2A, AG, AR, RS, CollectivePhase
from rapid_des.astra.tree import double_binary_tree
from rapid_des.bounded_cache import BoundedCache
from rapid_des.chakra.trace import CollectiveType
from rapid_des.errors import ConfigError
from rapid_des.program.program import Template
from rapid_des.program.services import Sizes
from rapid_des.program.templates import Templates


@dataclass(frozen=True)
class PhaseAlgorithm:
    """How a collective among n members becomes a template, and what it can do."""

    build: Callable[[CollectivePhase, Sizes], Template]
    collectives: frozenset[CollectiveType] = frozenset((AR, AG, RS, A2A))
    members: Callable[[int], bool] = lambda n: n > 1
    wanted: str = "more than one member"
    extended: bool = False
    """Only the extended dialect has it."""


def _is_power_of_two(n: int) -> bool:
    return n > 1 and n & (n - 1) == 0


def _is_square(n: int) -> bool:
    return n > 1 and isqrt(n) ** 2 == n


ALGORITHMS: Mapping[str, PhaseAlgorithm] = {
    "ring": PhaseAlgorithm(ring),
    "direct": PhaseAlgorithm(direct),
    "halvingDoubling": PhaseAlgorithm(
        halving_doubling, frozenset((AR, AG, RS)), _is_power_of_two, "a power of two of members"
    ),
    "doubleBinaryTree": PhaseAlgorithm(
        double_binary_tree, frozenset((AR,)), _is_power_of_two, "a power of two of members"
    ),
    "mesh": PhaseAlgorithm(mesh, extended=True),
    "hypercube": PhaseAlgorithm(hypercube, extended=True),
    "torus2d": PhaseAlgorithm(
        torus2d, members=_is_square, wanted="a square number of members", extended=True
    ),
}

_FLAT = {"oneRing": "ring", "oneDirect": "direct", "oneHalvingDoubling": "halvingDoubling"}
_TAGS = 500_000_000
"""That simulator takes tags modulo this."""

_WINDOW = re.compile(r"((?:d|oneD)irect)(\d+)\Z")


def is_flat(name: str) -> bool:
    """Tell whether an implementation runs on one ring over all ranks instead of along the dimensions."""
    return _kind(name) in _FLAT


def build(phase: CollectivePhase, rows: Sizes) -> Template:
    """Return the template of a phase; a `ConfigError` says what the algorithm can not do."""
    kind = _kind(phase.algorithm)
    name = _FLAT.get(kind, kind)
    known = [key for key, entry in ALGORITHMS.items() if phase.dialect == "extended" or not entry.extended]
    if name not in known:
        allowed = ", ".join([*known, *_FLAT])
        raise ConfigError(f"{phase.algorithm!r} is not one of {allowed}, direct with a window as in direct4")
    algorithm = ALGORITHMS[name]
    if phase.collective not in algorithm.collectives:
        allowed = ", ".join(sorted(kind.name for kind in algorithm.collectives))
        raise ConfigError(f"{phase.title}: {name} serves {allowed} only")
    if not algorithm.members(phase.members):
        raise ConfigError(f"{phase.title}: {name} needs {algorithm.wanted}")
    return algorithm.build(phase, rows)


def _kind(name: str) -> str:
    window = _WINDOW.match(name)
    return window[1] if window else name


class PhaseTemplates:
    """Numbers the templates of one program, and the channels that tags and sizes of messages tell apart."""

    def __init__(self, setup: Setup) -> None:
        self.sizes = Sizes()
        self._shared = Templates(self.sizes, BoundedCache())
        self._file = str(setup.files.system)
        self._channels: dict[tuple[int, int], int] = {}

    @property
    def numbered(self) -> tuple[Template, ...]:
        """The templates by number."""
        return tuple(self._shared.numbered)

    def phase(self, phase: CollectivePhase) -> int:
        """Return the template number of a collective's phase."""
        return self._shared.number(phase, lambda: self._build(phase))

    def message(self, size: int) -> int:
        """Return the template number of a message."""
        return self._shared.number(("message", size), lambda: self._shared.message(size))

    def visit(self, size: int) -> int:
        """Return the template number of a use of remote memory."""
        name = f"{size} B from or to remote memory"
        return self._shared.number(("visit", size), lambda: self._shared.transfer(size, name, members=1))

    def channel(self, tag: int, size: int) -> int:
        """Return what tells messages between the same two ranks apart: their tag and size."""
        return self._channels.setdefault((tag % _TAGS, size), len(self._channels))

    def _build(self, phase: CollectivePhase) -> Template:
        try:
            return build(phase, self.sizes)
        except ConfigError as error:
            raise ConfigError(str(error), file=self._file) from None
