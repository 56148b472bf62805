"""`rapid-des run`: a job on a machine."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from rapid_des.bounded_cache import BoundedCache
from rapid_des.cli.main import announce, progress, until_interrupted
from rapid_des.cli.options import (
    echo,
    engine_options,
    fault_option,
    job_options,
    one_of,
    open_job_with_notes,
    output_options,
    require_outputs,
    run_choice,
    together,
    write_outputs,
)
from rapid_des.cli.pages import check_report, report_option, run_page, write_page
from rapid_des.errors import InputError
from rapid_des.report.result_text import modes_report, result_report
from rapid_des.report.writing import check_outputs
from rapid_des.simulation import MODES, each_mode, simulate
from rapid_des.values import replace

if TYPE_CHECKING:
    from rapid_des.config import Document
    from rapid_des.frontend import Job
    from rapid_des.machine import Machine
    from rapid_des.report.result import Result


model_options = together(
    click.option(
        "--tokens-per-batch",
        "tokens",
        metavar="4M",
        help="Tokens of a training step, where JOB is a model; K, M and G are powers of 1,024.",
    ),
    click.option(
        "--sequence",
        metavar="8K",
        help="Tokens of a sequence, where JOB is a model; unset: 4,096, or all that it has positions for.",
    ),
)
"""A model in place of JOB; `given_job` reads them."""


def given_job(reference: str, tokens: str | None, sequence: str | None) -> str | Document:
    """Return the job that is named, or where `model_options` are given one that trains the model named."""
    if tokens is None and sequence is None:
        return reference
    from rapid_des.studies.model_jobs import job_of

    return job_of(reference, tokens, sequence)


@click.command()
@job_options
@fault_option
@click.option(
    "--mode", metavar="MODE", shell_complete=one_of(MODES), help=f"{', '.join(MODES)}; the first if absent."
)
@click.option("--strict", is_flag=True, help="Refuse modes that leave out waiting on shared links.")
@click.option("--allow-oom", is_flag=True, help="Simulate a job that does not fit into memory too; say so.")
@click.option("--compare-modes", is_flag=True, help="Run every mode; print the gaps and times.")
@click.option(
    "--schedule-plot", metavar="OUT.png", help="Draw the pipeline's passes as they ran, stages as rows."
)
@click.option("--memory-plot", metavar="OUT.png", help="Draw the memory of each stage over the step's time.")
@click.option("--explain", is_flag=True, help="Print groups, messages, operators and memory too.")
@report_option
@model_options
@engine_options
@output_options
def run(job: str, machine: str, settings: tuple[str, ...], faults: tuple[str, ...], **options: Any) -> None:
    """Predict a step of JOB on a machine: time, breakdown, memory.

    JOB is a job file or a preset; with --tokens-per-batch a model, whose layout --set states.

    rapid-des run llama2_7b_train --on dgx_a100 --set parallelism.tp=4
    """
    _require(options)
    analytic = options["mode"] == "analytical"
    wanted, loaded, idle = open_job_with_notes(
        given_job(job, options["tokens"], options["sequence"]), machine, settings, faults, analytic=analytic
    )
    title = f"{job} on {loaded.name}"
    if options["compare_modes"]:
        for line in idle:
            announce(line)
        _compare_modes(wanted, loaded, title, options)
        return
    with progress(title) as bar:
        engine = run_choice(options, bar)
        mode = options["mode"] or MODES[0]
        cache = BoundedCache() if options["explain"] or options["report"] else None
        result = simulate(
            wanted,
            loaded,
            mode=mode,
            engine=engine,
            trail=options["messages"],
            strict=options["strict"],
            allow_oom=options["allow_oom"],
            cache=cache,
        )
    result = replace(result, notes=(*idle, *result.notes))
    plain, parts = result.as_json() if options["as_json"] else {}, result_report(result, title)
    if options["explain"]:
        from rapid_des.modes.pricing import price
        from rapid_des.report.explain_text import explain_json, explain_report
        from rapid_des.report.job_structure import explain

        explanation = explain(price(wanted, loaded, cache=cache))
        plain["explain"] = explain_json(result, explanation)
        parts = chain(parts, explain_report(result, explanation))
    echo(options["as_json"], plain, parts)
    write_outputs(result, options)
    _draw(result, options, title)
    if options["report"]:
        sections = run_page(result, (wanted, loaded), (engine, cache))
        write_page(options["report"], title, sections, result.as_json())


def _compare_modes(job: Job, machine: Machine, title: str, options: dict[str, Any]) -> None:
    with progress(title) as bar:
        pairs, interrupted = until_interrupted(each_mode(job, machine, engine=run_choice(options, bar)))
    results = dict(pairs)
    plain = {m: {"refused": r} if isinstance(r, str) else r.as_json() for m, r in results.items()}
    echo(options["as_json"], plain, modes_report(results))
    if interrupted:
        raise KeyboardInterrupt


_PICTURES = ("schedule_plot", "memory_plot")
"""Options of pictures that have a title."""


def _draw(result: Result, options: dict[str, Any], title: str) -> None:
    for name, draw in zip(_PICTURES, (result.plot_schedule, result.plot_memory), strict=True):
        if options[name] is not None:
            draw(options[name], title=title)


def _require(options: dict[str, Any]) -> None:
    """Raise `InputError` if options exclude each other, or if a file cannot be written."""
    if options["compare_modes"]:
        _refuse_with_modes(options)
    require_outputs(options)
    if options["report"]:
        check_report(options["report"], force=options["force"])
    pictures = [options[name] for name in _PICTURES if options[name]]
    if pictures:
        check_outputs([], pictures=pictures, replace=options["force"])


def _refuse_with_modes(options: dict[str, Any]) -> None:
    for name in ("mode", "timeline", "links", "links_plot", *_PICTURES, "explain", "allow_oom", "report"):
        if options[name] not in (None, False):
            raise InputError(f"--{name.replace('_', '-')} does not go with --compare-modes")
