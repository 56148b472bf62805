"""Results as parts of the report's page: what is shown beside the form. Runs in the page's processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rapid_des.cli.options import read_machine, split_settings
from rapid_des.cli.ui.form import form
from rapid_des.cli.ui.worker import CACHE, Reply
from rapid_des.frontend import Job, load_job
from rapid_des.machine import Machine
from rapid_des.report.charts import PageSection
from rapid_des.report.page.document import page, sections_html
from rapid_des.report.page.fabric import fabric_charts
from rapid_des.report.page.saved import saved_run
from rapid_des.report.page.studies import difference_sections
from rapid_des.simulation import simulate
from rapid_des.studies.difference import difference

QUICK = "analytical"
"""The mode of quick answers."""
_DECODE_STEPS = 9
"""The number of decode steps that a quick answer simulates; those between them are interpolated."""
_ROOM = 12_000
"""The number of nodes in the boxes of a fabric that can be opened."""
Subject = tuple[str, str, Sequence[str], Sequence[str]]
"""The names of a job and a machine, settings and faults."""


def opened(subject: Subject) -> tuple[Job, Machine]:
    """Return a job and a machine with settings and faults, as commands read them."""
    job, machine, settings, faults = subject
    split = split_settings(settings)
    loaded = read_machine(machine, split, faults)
    return load_job(job, settings=split["job"]), loaded


def quick(subject: Subject) -> Reply:
    """Return a step by closed forms at once; a slider often comes back to where it was.

    Of a batch of requests it simulates some of the decode steps; `said` has what is left out.
    """
    job, machine = opened(subject)
    said = "closed forms, no waiting on shared links"
    requests = job.spec.inference
    if requests is not None and requests.decode_steps == "all" and requests.steps - 1 > _DECODE_STEPS:
        job = load_job(job, settings={"inference.decode_steps": _DECODE_STEPS})
        said += f", {_DECODE_STEPS} of the decode steps"

    def answer() -> Reply:
        plain = simulate(job, machine, mode=QUICK, allow_oom=True, cache=CACHE).as_json()
        return {"plain": plain, "html": run_html(plain), "said": said}

    key = ("answer", job, machine)
    return CACHE.get_or_make(key, answer, weight=lambda reply: 4 * len(reply["html"]))


def keys(subject: Subject) -> Reply:
    """Return the form of a job and a machine."""
    job, machine = opened(subject)
    return {"keys": form(job, machine), "gpus": machine.fabric.gpus, "serves": job.spec.inference is not None}


def fabric(subject: Subject) -> Reply:
    """Return the machine's fabric as a drawing whose cables have names."""
    _, machine = opened(subject)
    return {"html": sections_html([PageSection("Fabric", fabric_charts(machine, room=_ROOM))])}


def file_text(subject: Subject, kind: str) -> Reply:
    """Return the job or the machine as a file states it."""
    job, machine = opened(subject)
    return {"text": job.as_yaml() if kind == "job" else machine.as_yaml(), "name": kind}


def run_html(plain: Mapping[str, Any]) -> str:
    """Return what `run --json` printed as sections."""
    return sections_html(saved_run(plain, "run"))


def compared(sides: tuple[Mapping[str, Any], Mapping[str, Any]], names: tuple[str, str]) -> Reply:
    """Return two results side by side as a page of its own."""
    plain = difference(*sides).as_json()
    sections = difference_sections(plain, sides, names)
    return {
        "html": page(" against ".join(names), sections, plain, command=f"rapid-des compare {' '.join(names)}")
    }
