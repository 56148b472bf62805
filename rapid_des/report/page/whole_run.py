"""The page of a run that is still in memory: all sections."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct

from rapid_des.modes.blocks.bounds import most_busy
from rapid_des.modes.execution import Run
from rapid_des.report.charts import Chart, Lane, Lanes, PageSection, TextFile
from rapid_des.report.critical_path import CriticalPath
from rapid_des.report.explain_text import explain_report
from rapid_des.report.job_structure import Explanation
from rapid_des.report.link_measures import LinkMeasure, LinksSeen, links_seen
from rapid_des.report.page.details import path_spans, roofline_section, run_of, stage_memory, timeline_section
from rapid_des.report.page.fabric import fabric_section
from rapid_des.report.page.run import (
    basis_section,
    breakdown_section,
    changes_section,
    energy_bars,
    headline,
    memory_bars,
    path_parts,
)
from rapid_des.report.result import Result
from rapid_des.report.tables import Column, Part, Table, columns
from rapid_des.report.why_text import SimulatedChange
from rapid_des.values import replace

_TABLES = {
    "process groups": "Process groups",
    "messages": "Messages",
    "operators": "Operators",
    "memory": "Memory",
}
"""The sections that tables of `run --explain` belong to, by the beginning of their titles."""


class Explained(Struct, frozen=True):
    """What is known of a run besides its result."""

    path: CriticalPath
    changes: Sequence[SimulatedChange]
    structure: Explanation
    inputs: Sequence[TextFile]
    traced: Run | None = None
    """The run once more with every hop of its messages, where they are not too many."""


def run_sections(result: Result, explained: Explained) -> list[PageSection]:
    """Return the sections of a run in the order of a reader's questions."""
    plain, path, changes = result.as_json(), explained.path, explained.changes
    tables = _tables(result, explained.structure)
    memory: list[Part | Chart | TextFile] = [memory_bars(plain)] if "memory_bytes" in plain else []
    memory += [*stage_memory(result), *tables["Memory"]]
    return [
        headline(plain, changes),
        breakdown_section(plain),
        changes_section(int(result.step_time), changes),
        PageSection("Critical path", [*path_parts(path), *_path_alone(result, path)]),
        timeline_section(result, path),
        PageSection("Memory", memory),
        PageSection("Energy", list(energy_bars(plain))),
        roofline_section(result),
        PageSection("Operators", tables["Operators"] or [_operators(result)]),
        fabric_of(result, explained.traced),
        PageSection("Messages", tables["Messages"]),
        PageSection("Process groups", tables["Process groups"]),
        PageSection("Structure", tables["Structure"]),
        basis_section(plain, explained.inputs),
    ]


def _tables(result: Result, structure: Explanation) -> dict[str, list[Part | Chart | TextFile]]:
    """Return what `run --explain` prints, by section."""
    found: dict[str, list[Part | Chart | TextFile]] = {name: [] for name in (*_TABLES.values(), "Structure")}
    section = "Structure"
    for part in explain_report(result, structure):
        if isinstance(part, Table):
            section = next(
                (name for begin, name in _TABLES.items() if part.title.startswith(begin)), "Structure"
            )
        found[section].append(part)
    return found


def _operators(result: Result) -> Table:
    """Return the operators of the critical rank by their time, which is all that modes of blocks know."""
    whole = max(sum(result.computed.values()), 1)
    times = sorted(result.computed.items(), key=lambda entry: (-entry[1], entry[0]))
    rows = [{"operator": name, "time_ps": time, "share": time / whole} for name, time in times]
    names = (*columns("operator"), Column("time_ps", "time"), *columns(share=("share", ".2%")))
    return Table(f"operators of rank {result.critical_rank}; share of its compute", names, rows)


def _path_alone(result: Result, path: CriticalPath) -> Iterator[Lanes]:
    """Yield the critical path on an axis of its own where the simulated part is not the whole step."""
    run = run_of(result)
    if run is None or path.step_time != run.execution.records.makespan:
        legend = [(cause, cause) for cause in path.by_cause]
        yield Lanes(
            "the critical path over the whole step",
            int(path.step_time),
            [Lane("critical path", path_spans(path.parts))],
            legend,
        )


def fabric_of(result: Result, traced: Run | None) -> PageSection:
    """Return the fabric with what its links did in the run, or once more with every hop in `traced`."""
    if result.run is None:
        return _fabric_of_blocks(result)
    run = result.run if traced is None else traced
    return fabric_section(run.machine, links_seen(run), result.links())


def _fabric_of_blocks(result: Result) -> PageSection:
    """Return the fabric of a run whose blocks were simulated apart: how busy its links are at most."""
    if result.blocks is None:
        return PageSection("Fabric", [], "This result has lost its run, and with it what its links did.")
    machine, step = result.blocks.run.machine, max(int(result.step_time), 1)
    shares = np.minimum(most_busy(result.blocks) / step, 1)
    seen = LinksSeen([LinkMeasure("utilisation at most", shares, "% busy at most")])
    said = (
        f"Mode {result.mode} simulates blocks and what is between them apart: how busy a link is at most, "
        "if all who take it send as much as the busiest of them. The mode flattened has each link's own time."
    )
    section = fabric_section(machine, seen, ())
    return replace(section, lead=said)
