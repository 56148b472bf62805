"""The conventions of each writer of Chakra traces: one table, selected by evidence in the files or by name.

`ReadOptions` is what a person may decide about reading instead of letting the files decide.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from msgspec import Struct

from rapid_des.chakra.generations import Generation
from rapid_des.chakra.trace import CollectiveType
from rapid_des.errors import TraceError
from rapid_des.units import PS_PER_MS, PS_PER_NS, PS_PER_S, PS_PER_US

Dependencies = Literal["auto", "data", "ctrl", "both"]
DEPENDENCIES: tuple[Dependencies, ...] = ("auto", "data", "ctrl", "both")


class Evidence(Struct, frozen=True):
    """The features of a file that identify its writer."""

    generation: Generation | None
    schema: str
    version: str
    metadata_names: frozenset[str]
    input_text: str
    attributes: frozenset[str]
    names: tuple[str, ...]
    """The distinct node names of the file."""
    has_data: bool
    has_ctrl: bool

    def any_name(self, *marks: str) -> bool:
        """Return whether a node's name contains one of `marks`."""
        return any(mark in name for name in self.names for mark in marks)


class Dialect(Struct, frozen=True):
    """One writer's conventions; `recognise` says whether a file is its work, `because` why in words."""

    name: str
    recognise: Callable[[Evidence], bool]
    because: str
    dependencies: Dependencies = "auto"
    """The fields that hold predecessors. `auto` takes ctrl where a rank has nothing else, both fields where
    their union is acyclic and has no dangling ids, else data.
    """
    time_unit: int = PS_PER_US
    """Picoseconds in one unit of `duration_micros`."""
    sizes_in_elements: bool = False
    in_order: bool = False
    """Whether the nodes on one stream or thread run in ascending order of their ids."""
    streams_named: bool = False
    """Whether the numeric `stream` and `tid` attributes are GPU streams and CPU threads."""
    complete: bool = False
    """Whether a node states everything that is known about it, so that a missing duration is unknown."""


def _is_stage(seen: Evidence) -> bool:
    old = seen.generation == Generation.V0_0_1 and seen.any_name("_X1COMM", "_X2COMM", "@0_COMP")
    return seen.schema == "symbolic_tensor_network" or old


def _is_text(seen: Evidence) -> bool:
    return "input_file" in seen.metadata_names or seen.any_name("COMP_NODE_", "COMM_COLL_NODE_")


def _is_rapid_llm(seen: Evidence) -> bool:
    return seen.has_ctrl and not seen.has_data and not seen.schema and "is_cpu_op" in seen.attributes


_GENERATOR_NAMES = {"", *(kind.name for kind in CollectiveType)} | {
    f"{kind}_NODE"
    for kind in ("METADATA", "MEM_LOAD", "MEM_STORE", "COMP", "COMM_SEND", "COMM_RECV", "COMM_COLL")
}

DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        Dialect(
            "rapid-des",
            lambda seen: "rapid_format" in seen.metadata_names,
            "metadata has rapid_format",
            dependencies="data",
            in_order=True,
            complete=True,
        ),
        Dialect(
            "pytorch",
            lambda seen: bool(seen.attributes & {"op_schema", "rf_id"}),
            "nodes have op_schema or rf_id",
            dependencies="data",
            in_order=True,
            streams_named=True,
        ),
        Dialect("stage", _is_stage, "schema or names of STAGE", sizes_in_elements=True),
        Dialect(
            "llmservingsim2",
            lambda seen: seen.generation == Generation.SHIFTED,
            "node types are shifted by one",
            dependencies="data",
            time_unit=PS_PER_NS,
        ),
        Dialect(
            "llmservingsim1",
            lambda seen: seen.generation == Generation.V0_0_1 and "tensor_loc" in seen.attributes,
            "0.0.1 with tensor locations",
            time_unit=PS_PER_NS,
        ),
        Dialect(
            "msccl",
            lambda seen: "tb_id" in seen.attributes or seen.input_text.lstrip().startswith("<algo"),
            "a collective's algorithm as sends and receives",
        ),
        Dialect("text", _is_text, "names or metadata of the text converter"),
        Dialect("rapid-llm", _is_rapid_llm, "dependencies in ctrl_deps only", dependencies="ctrl"),
        Dialect(
            "generator",
            lambda seen: bool(seen.version) and bool(seen.names) and set(seen.names) <= _GENERATOR_NAMES,
            "nodes are named after their types",
        ),
        Dialect("plain", lambda _: True, "no writer recognised"),
    )
}


def detect(seen: Evidence) -> Dialect:
    """Return the first dialect of the table whose mark a file bears."""
    return next(dialect for dialect in DIALECTS.values() if dialect.recognise(seen))


TIME_UNITS = {"ps": 1, "ns": PS_PER_NS, "us": PS_PER_US, "ms": PS_PER_MS, "s": PS_PER_S}
ELEMENT_BYTES = 2
"""The assumed bytes of an element where a writer counts elements without a width; reading notes the
assumption.
"""


CHOICES: dict[str, tuple[str, ...]] = {
    "dialect": ("auto", *DIALECTS),
    "dependencies": DEPENDENCIES,
    "time_unit": ("auto", *TIME_UNITS),
    "generation": ("auto", *(generation.value for generation in Generation)),
    "streams": ("auto", "ordered", "unordered"),
}
"""The values that each option allows, by option name."""


class ReadOptions(Struct, frozen=True):
    """How to read a trace set; every default means that the files decide, and the choice is noted.

    >>> ReadOptions(time_unit="ns", strict=True).dialect
    'auto'
    """

    dialect: str = "auto"
    """The dialect: `auto` or a name in `DIALECTS`."""
    dependencies: Dependencies = "auto"
    time_unit: str = "auto"
    """The unit of `duration_micros`: `auto` or a key of `TIME_UNITS`."""
    dtype_bytes: int | None = None
    """The bytes of an element for writers that count elements. For other writers it multiplies the stated
    sizes too.
    """
    groups: Path | None = None
    generation: str = "auto"
    """The wire generation: `auto` or a value of `Generation`."""
    strict: bool = False
    """Whether an input that would need a repair is refused instead."""
    salvage: bool = False
    """Whether the whole nodes before a truncated or corrupt frame are kept."""
    zero_is_world: bool = False
    """Whether the group "0" means all ranks even where a group file defines it, as in ASTRA-sim."""
    dimensions: tuple[int, ...] = ()
    """The logical shape of the ranks, innermost dimension first, for collectives with `involved_dim`."""
    streams: Literal["auto", "ordered", "unordered"] = "auto"

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                raise TraceError(f"{name}: {value!r} is not one of {', '.join(allowed)}")
        if self.dtype_bytes is not None and not 0 < self.dtype_bytes <= 16:
            raise TraceError(f"--dtype-bytes: {self.dtype_bytes} is out of range; allowed: 1 to 16")
        if any(size < 1 for size in self.dimensions):
            raise TraceError(f"--dimensions: {self.dimensions} has a size below 1")
