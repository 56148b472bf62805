"""What is wrong with a trace, as values: each names file or rank, node and what was expected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rapid_des.errors import TraceError

Severity = Literal["error", "repaired", "warning"]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: an `error` stops a replay, `repaired` was dropped, a `warning` is odd."""

    kind: str
    message: str
    """Names the place; one line."""
    severity: Severity = "error"
    file: str = ""
    rank: int | None = None
    node: int | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


class FoundError(TraceError):
    """A finding that stops reading; the message is the finding's."""

    def __init__(self, finding: Finding) -> None:
        self.finding = finding
        super().__init__(finding.message)
