"""What trace sets hold and what is wrong with them, as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rapid_des.units import Duration, Size

_FINDINGS = 38
_RANKS = 64


def counted(count: int, noun: str) -> str:
    """Return a count with its noun.

    >>> counted(1, "file"), counted(2, "file")
    ('1 file', '2 files')
    """
    return f"{count} {noun}" + "s" * (count != 1)


def finding_lines(findings: Sequence[str]) -> Iterator[str]:
    """Yield how many findings there are, and the first of them."""
    yield counted(len(findings), "finding")
    yield from findings[:_FINDINGS]
    if len(findings) > _FINDINGS:
        yield f"… and {len(findings) - _FINDINGS} more (--json lists all)"


def statistics_lines(counts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the counts of a set, in total and by rank."""
    total = counts["total"]
    yield f"{total['ranks']} ranks, {total['nodes']} nodes, {total['dependencies']} dependencies"
    for kind, count in total["kinds"].items():
        yield f"  {kind:<20} {count}"
    for kind, count in total["collectives"].items():
        yield f"  {kind:<20} {count} collectives, {Size(total['collective_bytes'][kind])} of input"
    yield f"  {'sent':<20} {Size(total['sent_bytes'])}"
    yield f"  {'compute':<20} {Duration(total['compute_time'])} stated, {total['flops']:.4g} FLOP"
    yield f"  {'without duration':<20} {total['untimed']} compute nodes"
    yield "  rank      nodes  depth  compute"
    for row in counts["ranks"][:_RANKS]:
        yield f"  {row['rank']:<6} {row['nodes']:>8} {row['depth']:>6}  {Duration(row['compute_time'])}"
    if total["ranks"] > _RANKS:
        yield f"  … {total['ranks'] - _RANKS} more ranks (--json lists all)"
