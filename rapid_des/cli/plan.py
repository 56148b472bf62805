"""`rapid-des plan`, the best layouts of a job, and `rapid-des sensitivity`, what its step depends on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rapid_des.cli.asked_runs import asked_run, run_options
from rapid_des.cli.executing import chosen_executor, executor_options
from rapid_des.cli.main import Bar, progress
from rapid_des.cli.options import (
    OF_RUNS,
    Amount,
    echo_marked,
    job_options,
    json_option,
    one_of,
    open_job,
    plot_option,
)
from rapid_des.cli.pages import check_report, report_option, write_study_page
from rapid_des.cli.plan_rows import Found, check_asked, row_options
from rapid_des.cli.run import model_options
from rapid_des.cli.run_command import Named
from rapid_des.config.specs import resolve
from rapid_des.executors import Executor, InProcess
from rapid_des.report.charts.studies import plan_charts
from rapid_des.report.pictures.studies import draw_tornado
from rapid_des.report.plan_text import part_speedup_report, plan_report, sensitivity_report
from rapid_des.report.tables import Part
from rapid_des.report.writing import check_outputs
from rapid_des.simulation import MODES
from rapid_des.studies.choices import CHOICES, choices_of
from rapid_des.studies.model_jobs import job_of
from rapid_des.studies.plan import AUTO, HEADROOM, PlanRow, Wanted, plan
from rapid_des.studies.plan_runs import runs_of
from rapid_des.studies.sensitivity import SensitivityOptions, part_speedups, sensitivity
from rapid_des.studies.worker_pools import executor_of

if TYPE_CHECKING:
    from rapid_des.machine import Machine


@click.command("plan")
@job_options
@click.option("--gpus", type=click.IntRange(1), help="Number of GPUs; unset: all of the machine.")
@model_options
@click.option("--top", type=click.IntRange(1), default=5, show_default=True, help="Number of rows.")
@click.option(
    "--vary",
    multiple=True,
    metavar="NAME[=VALUE,…]",
    shell_complete=one_of(CHOICES),
    help=f"Take these values, or all there are, instead of the usual: {', '.join(CHOICES)}. Repeatable.",
)
@click.option(
    "--mode",
    type=click.Choice([AUTO, *MODES]),
    default=AUTO,
    show_default=True,
    help="Mode in which the rows are simulated; auto: flattened where that takes seconds, else hierarchical; "
    "analytical on over 512 GPUs.",
)
@click.option("--pruned", is_flag=True, help="List every other layout with the reason why it is no row.")
@click.option(
    "--price", type=Amount(0), help="Price of a GPU for an hour, in any currency: adds what a step costs."
)
@click.option(
    "--headroom",
    metavar="SHARE",
    type=Amount(0, 1, min_open=True),
    default=HEADROOM,
    show_default=True,
    help="Share of a GPU's memory up to which layouts for training are taken; of measured layouts up to 0.9 "
    "all ran.",
)
@click.option(
    "--within",
    "within_s",
    type=Amount(0),
    metavar="SECONDS",
    help="Stop after this time with what is known, and how much faster others could be.",
)
@click.option(
    "--sensitivity",
    "strongest",
    type=click.IntRange(0),
    metavar="N",
    help="Show the N rates, times and clocks on which the best layout's step depends the most. Unset: by "
    "part of the machine; 0: do not.",
)
@click.option(
    "--objective",
    type=click.Choice(["step_time_s", "tokens_per_day"]),
    default="step_time_s",
    show_default=True,
    help="tokens_per_day: the rows are played as runs with failures, and ranked by what these train.",
)
@run_options
@row_options
@report_option
@executor_options
@json_option
def plan_command(job: str, machine: str, settings: tuple[str, ...], **options: Any) -> None:
    """Find the best layouts of JOB over GPUs: model, batch and sequence length stay.

    JOB is a job, or a model: a file, a preset or a config.json of Hugging Face, with --tokens-per-batch.

    Every legal layout has a lower bound; the lowest are simulated, by closed forms, then in --mode,
    until no other layout can be faster than the rows, or, where that takes many simulations, than the
    first by more than measurements distinguish. ^C prints the best so far.

    rapid-des plan llama2_7b_train --on dgx_a100 --top 3 --vary tp=1,2 --write-job best.yaml
    rapid-des plan llama3_1_8b --on dgx_h100 --tokens-per-batch 1M --sequence 8192
    rapid-des plan llama2_7b_train --on dgx_a100 --why 2 --plot layouts.png
    """
    check_asked(options)
    check_report(options["report"], force=options["force"])
    run = asked_run(options)
    resolve(machine, "machine", folder=Path())  # a misspelt machine is said before what a model lacks
    source = job_of(job, options["tokens"], options["sequence"])
    vary = choices_of(options["vary"])
    wanted, loaded = open_job(source, machine, settings, reads=() if run is None else OF_RUNS)
    with progress("plan") as bar, _interruptible(options) as crew:
        names = ("gpus", "top", "mode", "pruned", "price", "headroom", "within_s")
        asked = Wanted(
            **{name: options[name] for name in names},
            vary=vary,
            on_progress=bar.part,
            on_start=lambda so_far: _show(bar, so_far),
        )
        best = plan(wanted, loaded, asked, crew)
        found = Found(best, best.as_json(), options)
        if run is not None and not best.interrupted:
            try:
                found.plain["runs"] = runs_of(best, loaded, run, bar.part)
            except KeyboardInterrupt:
                found.plain["interrupted"] = True
        parts = list(plan_report(found.plain, wanted.name, loaded.name))
        parts += _what_helps(found, loaded, crew, bar)
    of_model = {"--tokens-per-batch": options["tokens"], "--sequence": options["sequence"]}
    stated = (word for name, value in of_model.items() if value for word in (name, str(value)))
    words = [job, *stated, "--on", machine]
    parts += found.parts(Named(words, source, settings, wanted))
    echo_marked(options["as_json"], found.plain, parts, [(wanted, loaded)])
    title = f"{wanted.name} over {best.gpus} GPUs of {loaded.name}"
    found.write(title)
    write_study_page(options["report"], title, parts, found.plain, plan_charts(found.plain))
    if found.plain["interrupted"]:
        raise KeyboardInterrupt


def _show(bar: Bar, so_far: Callable[[], list[PlanRow]]) -> None:
    bar.rows = lambda: [row.as_json() for row in so_far()]


def _what_helps(found: Found, loaded: Machine, crew: Executor, bar: Bar) -> list[Part]:
    """Return what the best layout's step depends on; nothing after ^C, as the rows are known."""
    if found.plan.floor is not None or found.plain["interrupted"]:
        return []
    try:
        return list(_effects(found, loaded, crew, bar))
    except KeyboardInterrupt:
        found.plain["interrupted"] = True
        return []


def _effects(found: Found, loaded: Machine, crew: Executor, bar: Bar) -> Iterator[Part]:
    """Yield what the best layout's step depends on, by parameter or by part of the machine."""
    job, strongest = found.plan.job, found.options["strongest"]
    if strongest:
        effects = sensitivity(job, loaded, SensitivityOptions(on_progress=bar.part), crew).as_json()
        found.plain["sensitivity"] = effects
        yield from sensitivity_report(effects, f"the best layout of {job.name}", loaded.name, top=strongest)
    elif strongest is None:
        found.plain["leanings"] = [speedup.as_json() for speedup in part_speedups(job, loaded, crew)]
        yield from part_speedup_report(found.plain["leanings"])


def _interruptible(options: dict[str, Any]) -> Executor:
    """Return the executor; with a time limit never this process, whose simulations cannot be ended."""
    chosen = chosen_executor(options)
    if options["within_s"] is None or options["executor"] != "processes" or not isinstance(chosen, InProcess):
        return chosen
    return executor_of("processes", 2)


@click.command("sensitivity")
@job_options
@click.option(
    "--mode", type=click.Choice(list(MODES)), default="analytical", show_default=True, help="Steps' mode."
)
@click.option(
    "--change",
    type=Amount(0, 0.5, min_open=True),
    default=0.02,
    show_default=True,
    help="Share by which each parameter is moved down and up: 0.02 is 2 %.",
)
@click.option("--constants", is_flag=True, help="Move the constants of kernels too, one by one.")
@click.option("--top", type=click.IntRange(1), default=20, show_default=True, help="Number of rows to print.")
@plot_option
@executor_options
@json_option
def sensitivity_command(job: str, machine: str, settings: tuple[str, ...], **options: Any) -> None:
    """Show by how much the step of JOB changes with each rate, time and clock that it may depend on.

    The elasticity d ln step / d ln parameter by central differences, for the numbers of the machine, its
    device, the job's host and NCCL's constants. Numbers that state one thing are moved together.

    rapid-des sensitivity llama2_7b_train --on dgx_a100 --top 6 --plot tornado.png
    """
    check_outputs([], pictures=[options["plot"]], replace=options["force"])
    wanted, loaded = open_job(job, machine, settings)
    with progress("sensitivity") as bar:
        how = SensitivityOptions(options["mode"], options["change"], options["constants"], bar.part)
        effects = sensitivity(wanted, loaded, how, chosen_executor(options))
    plain = effects.as_json()
    parts = sensitivity_report(plain, wanted.name, loaded.name, top=options["top"])
    echo_marked(options["as_json"], plain, parts, [(wanted, loaded)])
    if options["plot"] is not None:
        draw_tornado(plain, options["plot"], f"{wanted.name} on {loaded.name}", options["top"])
