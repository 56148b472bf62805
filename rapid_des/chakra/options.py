"""What a person may decide about reading traces instead of letting the files decide."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rapid_des.chakra.dialects import DEPENDENCIES, DIALECTS, Dependencies
from rapid_des.chakra.generations import Generation
from rapid_des.errors import TraceError
from rapid_des.units import PS_PER_MS, PS_PER_NS, PS_PER_S, PS_PER_US

TIME_UNITS = {"ps": 1, "ns": PS_PER_NS, "us": PS_PER_US, "ms": PS_PER_MS, "s": PS_PER_S}
ELEMENT_BYTES = 2
"""What an element is taken for where a writer counts elements and nobody says their width; it is noted."""


CHOICES: dict[str, tuple[str, ...]] = {
    "dialect": ("auto", *DIALECTS),
    "dependencies": DEPENDENCIES,
    "time_unit": ("auto", *TIME_UNITS),
    "generation": ("auto", *(generation.value for generation in Generation)),
    "streams": ("auto", "ordered", "unordered"),
}
"""What each option may be."""


@dataclass(frozen=True)
class ReadOptions:
    """How to read a trace set; every default means that the files decide, and the choice is noted."""

    dialect: str = "auto"
    """A name in `DIALECTS`."""
    dependencies: Dependencies = "auto"
    time_unit: str = "auto"
    """A key of `TIME_UNITS`: what `duration_micros` really counts."""
    dtype_bytes: int | None = None
    """Bytes of an element, for writers that count elements; given for others, it multiplies theirs too."""
    groups: Path | None = None
    generation: str = "auto"
    """A value of `Generation`."""
    strict: bool = False
    """Refuse what would otherwise be repaired."""
    salvage: bool = False
    """Keep the whole nodes in front of a truncated or corrupt frame."""
    zero_is_world: bool = False
    """Take the group "0" for all ranks even where a group file defines it, as ASTRA-sim does."""
    dimensions: tuple[int, ...] = ()
    """Logical shape of the ranks, innermost first, for collectives that name dimensions (involved_dim)."""
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
