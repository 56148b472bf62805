"""Messages packet by packet, beside ns-3 and ASTRA-sim, on our goldens: figure 9 of RAPID-LLM (2512.19606).

    python -m validation.figure_9 [OUT.png]

prints by class of traffic how far ASTRA-sim's congestion-aware backend, our `cut_through` (as in machine
files) and our `fluid` mode are from ns-3, and draws every case. The paper released no numbers of its cases.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from validation.measurements import open_folder
from validation.network.packets import NS3_CLASSES, NS3_FOLDERS, ns3_topics

OUT = Path(__file__).parent / "figures" / "figure_9.png"
OURS = {"cut_through": "network/ns3-modes/cut_through/", "fluid": "network/ns3/"}
COLOURS = {"ASTRA-sim": "#b5b5b5", "cut_through": "#1f6fb4", "fluid": "#e08214"}
MARKS = {"ASTRA-sim": ("s", 26), "cut_through": ("o", 40), "fluid": ("D", 12)}
"""Shapes and areas such that marks at one place are all seen."""


@dataclass(frozen=True)
class Case:
    """One case's errors against ns-3 by who predicts, in percent; ASTRA-sim's only where it ran."""

    name: str
    kind: str
    errors: dict[str, float]


def cases() -> list[Case]:
    """Return all cases with their errors, by class."""
    data = open_folder(None)
    astra = {record["case"]: record["astra_ns"] for record in data.read(f"{NS3_FOLDERS[0]}/index.csv")}
    rows = {
        topic.name: topic.rows() for topic in ns3_topics(data) if topic.name.startswith(tuple(OURS.values()))
    }
    found = []
    for kind in NS3_CLASSES:
        modes = {mode: {row.case_id: row for row in rows[f"{prefix}{kind}"]} for mode, prefix in OURS.items()}
        for name, row in modes["fluid"].items():
            errors = {"ASTRA-sim": _error(float(astra[name]) / 1000, row.measured)} if astra[name] else {}
            errors |= {mode: _error(own[name].predicted or 0.0, row.measured) for mode, own in modes.items()}
            found.append(Case(name, kind, errors))
    return found


def _error(predicted: float, measured: float) -> float:
    return 100 * (predicted / measured - 1)


def table(found: Sequence[Case]) -> Iterable[str]:
    """Yield the lines of a table of mean and worst absolute errors by class."""
    yield "| traffic | cases | " + " | ".join(f"{who}, mean / worst" for who in COLOURS) + " |"
    yield "|---|---:|" + "---:|" * len(COLOURS)
    for kind in NS3_CLASSES:
        own = [case for case in found if case.kind == kind]
        cells = [_cell([abs(case.errors[who]) for case in own if who in case.errors]) for who in COLOURS]
        yield f"| {kind} | {len(own)} | " + " | ".join(cells) + " |"


def _cell(errors: Sequence[float]) -> str:
    few = f" ({len(errors)})"
    return f"{sum(errors) / len(errors):.1f} / {max(errors):.1f} %{few}" if errors else "–"


def draw(found: Sequence[Case], out: Path) -> None:
    """Draw a line a case with a mark for everyone who predicts it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 0.19 * len(found) + 1.2), layout="constrained")
    axes = figure.subplots()
    for who, colour in COLOURS.items():
        marked = [(case.errors[who], place) for place, case in enumerate(found) if who in case.errors]
        shape, area = MARKS[who]
        times, places = zip(*marked, strict=True)
        axes.scatter(times, places, color=colour, marker=shape, s=area, label=who, zorder=3)
    for place, (case, above) in enumerate(zip(found[1:], found, strict=False), start=1):
        if case.kind != above.kind:
            axes.axhline(place - 0.5, color="#cccccc", linewidth=0.8)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xscale("symlog", linthresh=10)
    ticks = (-50, -20, -10, -5, 0, 5, 10, 20, 50, 100, 200, 500)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xlim(-60, 900)
    axes.set_yticks(range(len(found)), [f"{case.name} ({case.kind})" for case in found], fontsize=6)
    axes.set_ylim(len(found) - 0.4, -0.6)
    axes.set_xlabel("predicted over ns-3's last byte, percent (linear from -10 to 10)")
    axes.grid(axis="x", color="#eeeeee")
    axes.legend(loc="lower right", fontsize=8)
    figure.savefig(out, dpi=110)


if __name__ == "__main__":
    everything = cases()
    print("\n".join(table(everything)))
    draw(everything, Path(sys.argv[1]) if len(sys.argv) > 1 else OUT)
