"""The sections of comparisons and of reports that consist of facts and tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rapid_des.report.charts import Bars, Chart, HorizontalBar, PageSection, TextFile, Tile, Tiles
from rapid_des.report.charts.breakdown import part_name
from rapid_des.report.sweep_text import difference_report
from rapid_des.report.tables import Part, Plain, Table, added_text, change_text, seconds_text

_TERMS = 12


def sections_of(parts: Iterable[Part], title: str = "Report") -> list[PageSection]:
    """Return a report's parts as sections: each titled table begins one."""
    sections: list[tuple[str, list[Part | Chart | TextFile]]] = [(title, [])]
    for part in parts:
        if isinstance(part, Table) and part.title and part.rows:
            sections.append((part.title[:1].upper() + part.title[1:], []))
        sections[-1][1].append(part)
    return [PageSection(name, found) for name, found in sections]


def difference_sections(plain: Plain, sides: Sequence[Plain], names: tuple[str, str]) -> list[PageSection]:
    """Return the sections of two results: side by side, and what makes the difference.

    `plain` is what `compare --json` prints, `sides` are the two results.
    """
    before, after = plain["before_s"], plain["after_s"]
    tiles = [
        Tile("A", seconds_text(before), names[0]),
        Tile("B", seconds_text(after), names[1]),
        Tile("B against A", change_text(after, before), added_text(plain["added_ps"])),
        *difference_answers(plain),
    ]
    parts = dict.fromkeys(part for side in sides for part, time in side["breakdown_s"].items() if time)
    both = [
        HorizontalBar(f"{part_name(part)}, {letter}", time, seconds_text(time), colour)
        for part in parts
        for side, letter, colour in zip(sides, "AB", ("before", "after"), strict=True)
        for time in [side["breakdown_s"].get(part, 0.0)]
    ]
    report = [part for part in difference_report(plain, names) if not isinstance(part, str)]
    return [
        PageSection("In short", [Tiles(tiles)]),
        PageSection("Side by side", [Bars("where the time of each goes, on one scale", both)]),
        PageSection("What makes the difference", [_terms(plain["terms"]), *report]),
    ]


def difference_answers(plain: Plain) -> Iterator[Tile]:
    """Yield which part makes most of a difference, what bounds both sides, and what memory they need."""
    if any(row["added_ps"] for row in plain["parts"]):
        most = max(plain["parts"], key=lambda row: abs(row["added_ps"]))
        yield Tile("What makes most of it", part_name(most["part"]), added_text(most["added_ps"]))
    for key, label, text in (
        ("bound", "What bounds them", str),
        ("memory_bytes", "Memory they need", lambda size: f"{size / 2**30:.1f} GiB"),
    ):
        both = [text(value) for value in plain["figures"].get(key, {}).values()]
        if both:
            yield Tile(
                label, " and ".join(dict.fromkeys(both)), "A, then B" if len(set(both)) > 1 else "both"
            )


def _terms(terms: Sequence[Plain]) -> Bars:
    changed = [term for term in terms if term["added_ps"]][:_TERMS]
    bars = [
        HorizontalBar(
            f"{term['name']} ({term['part']})",
            abs(term["added_ps"]),
            added_text(term["added_ps"]),
            "after" if term["added_ps"] > 0 else "before",
        )
        for term in changed
    ]
    return Bars("the largest changes from A to B: blue what B saves, yellow what B adds", bars)
