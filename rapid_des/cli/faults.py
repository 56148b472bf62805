"""`rapid-des faults`: what faults of links, GPUs, NICs, switches and servers cost a job."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from rapid_des.bounded_cache import BoundedCache
from rapid_des.cli.executing import chosen_executor, executor_options, mode_option, require_some
from rapid_des.cli.main import Bar, announce, progress
from rapid_des.cli.options import (
    echo_marked,
    engine_choice,
    engine_option,
    fault_option,
    job_options,
    json_option,
    open_job,
    plot_option,
    together,
)
from rapid_des.cli.pages import check_report, report_option, write_study_page
from rapid_des.errors import InputError
from rapid_des.network.faults import parse_fault
from rapid_des.network.faults.models import FaultDraws, Variates, parse_model
from rapid_des.report.charts.studies import sample_page
from rapid_des.report.pictures.overview import draw
from rapid_des.report.study_text import criticality_report, sample_report, scenario_report
from rapid_des.report.writing import check_outputs
from rapid_des.studies.criticality import KINDS, PLURALS, criticality
from rapid_des.studies.fault_rows import FaultSample
from rapid_des.studies.fault_sample import SAMPLINGS, faults_sample, study_points
from rapid_des.studies.faults import How, scenario
from rapid_des.studies.points import Point

_study_options = together(job_options, fault_option, mode_option("flattened"), engine_option, json_option)


_draw_options = together(
    fault_option,
    click.option(
        "--draws",
        default=300,
        show_default=True,
        type=click.IntRange(1),
        help="Most draws of each job or point.",
    ),
    click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Seed of all draws."),
    click.option(
        "--until",
        metavar="'mean ±0.5%'",
        help="Stop once the 95 % interval of mean, p95 or cvar95 is this narrow.",
    ),
    click.option(
        "--sampling",
        type=click.Choice(SAMPLINGS),
        default="independent",
        show_default=True,
        help="latin: rounds of 30, each number once in each thirtieth; exact: all places, equal ones once.",
    ),
    click.option(
        "--top",
        default=5,
        show_default=True,
        type=click.IntRange(1),
        help="Number of the slowest draws to show.",
    ),
    click.option(
        "-o", "--output", type=click.Path(path_type=Path), help="Folder to keep draws; goes on there."
    ),
    executor_options,
    plot_option,
    report_option,
    json_option,
)
_sample_options = together(
    job_options,
    click.option(
        "--job", "jobs", multiple=True, metavar="JOB", help="Another job under the same draws. Repeatable."
    ),
    _draw_options,
    click.option("--replay", type=click.IntRange(0), metavar="ID", help="Run this draw alone, in full."),
    mode_option("hierarchical"),
    engine_option,
)


@click.group()
def faults() -> None:
    """Show what link, GPU and node faults cost a job."""


@faults.command("run")
@_study_options
def run(job: str, machine: str, settings: tuple[str, ...], faults: tuple[str, ...], **options: Any) -> None:
    """Compare JOB with faults and without: the step time, and which collectives, links and ranks wait.

    rapid-des faults run llama2_7b_train --on torus_2d_a100 --fault 'link=0-1 bandwidth=0.25'
    """
    if not faults:
        raise InputError("faults run needs at least one --fault 'KEY=VALUE …'")
    wanted, loaded = open_job(job, machine, settings)
    given = [parse_fault(text) for text in faults]
    with progress("faults") as bar:
        compared = scenario(wanted, loaded, given, _how(options, bar))
    plain = compared.as_json()
    echo_marked(options["as_json"], plain, scenario_report(plain), [(wanted, loaded)])


@faults.command("criticality")
@_study_options
@click.option("--derate", default=0.5, show_default=True, help="Share of its speed that a part keeps.")
@click.option(
    "--kind", "kinds", multiple=True, type=click.Choice(list(PLURALS)), help="Kind of parts. Repeatable."
)
@click.option("--top", type=click.IntRange(1), help="Number of rows to print.")
@click.option("--every", is_flag=True, help="Simulate every part, even where symmetry gives its cost.")
@plot_option
def criticality_command(
    job: str, machine: str, settings: tuple[str, ...], faults: tuple[str, ...], **options: Any
) -> None:
    """Rank the parts of a machine by what a slower one costs the step of JOB.

    A link, NIC, switch or endpoint (a GPU as a node of the fabric) loses bandwidth on all its links, a GPU
    its own speed, a node (a server) both.

    rapid-des faults criticality llama2_7b_train --on torus_2d_a100
    """
    check_outputs([], pictures=[options["plot"]], replace=options["force"])
    wanted, loaded = open_job(job, machine, settings, faults)
    kinds = [PLURALS[kind] for kind in options["kinds"]] or KINDS
    with progress("criticality") as bar:
        how = _how(options, bar)
        ranked = criticality(wanted, loaded, derate=options["derate"], kinds=kinds, how=how)
    parts = criticality_report(ranked.as_json(), options["top"])
    echo_marked(options["as_json"], ranked.as_json(options["top"]), parts, [(wanted, loaded)])
    if options["plot"] is not None:
        draw(ranked.heat_map(loaded), options["plot"])
    if ranked.left:
        raise KeyboardInterrupt


@faults.command("sample")
@_sample_options
def sample(
    job: str, machine: str, settings: tuple[str, ...], faults: tuple[str, ...], **options: Any
) -> None:
    """Run draws of --fault on JOB: mean, percentiles and the mean of the worst twentieth of the step.

    Numbers may be distributions, places random: 'random=links count=1 bandwidth=normal(0.5,0.1)'. Draws
    follow from --seed, their ids and the fabric alone: other jobs see the same ones. Allowed are normal,
    lognormal, uniform, exponential, weibull, poisson, binomial, choice(VALUE:WEIGHT,…) and
    empirical(FILE.csv[,COLUMN]).

    rapid-des faults sample llama2_7b_train --on torus_2d_a100 --draws 30 \
        --fault 'random=links count=1 bandwidth=normal(0.5,0.1)'
    """
    check_outputs([], pictures=[options["plot"]], replace=options["force"])
    check_report(options["report"], force=options["force"])
    if options["replay"] is not None:
        _replay(job, machine, settings, faults, options)
        return
    _sampled(_points((job, *options["jobs"]), machine, settings, options), faults, options)


@faults.command("study")
@click.argument("study", type=click.Path(path_type=Path))
@_draw_options
def study(study: Path, faults: tuple[str, ...], **options: Any) -> None:
    """Run the same draws of --fault on every point of STUDY, a file as `rapid-des sweep` has it.

    Numbers and places of --fault are those of `rapid-des faults sample`.

    rapid-des faults study llama2_7b_splits --draws 30 \
        --fault 'random=gpus count=1 compute=uniform(0.5,0.9)'
    """
    check_outputs([], pictures=[options["plot"]], replace=options["force"])
    check_report(options["report"], force=options["force"])
    with progress(study.stem):
        points = study_points(study)
    _sampled(points, faults, options)


def _sampled(points: dict[str, Point], faults: Sequence[str], options: dict[str, Any]) -> None:
    with progress("faults") as bar, chosen_executor(options) as executor:
        sampled = faults_sample(
            points,
            faults=faults,
            draws=options["draws"],
            seed=options["seed"],
            sampling=options["sampling"],
            until=options["until"],
            folder=options["output"],
            executor=executor,
            on_progress=bar.part,
        )
    parts, cache = list(sample_report(sampled.as_json(options["top"]))), BoundedCache()
    jobs = (points[name].resolved(cache) for name in sampled.configurations)  # without those refused
    echo_marked(options["as_json"], sampled.as_json(), parts, jobs)
    plain = sampled.as_json()
    title = f"{', '.join(points)} under {'; '.join(faults)}"
    write_study_page(options["report"], title, parts, plain, sample_page(plain))
    if options["plot"] is not None:
        sampled.plot(options["plot"])
    if sampled.left:
        raise KeyboardInterrupt
    require_some(*_ends(sampled))


def _ends(sampled: FaultSample) -> tuple[int, list[str], str]:
    """Return the arguments of `require_some`: draws of one configuration, or several configurations."""
    ran = sum(bool(sampled.of(name)) for name in sampled.configurations)
    errors = {row.configuration: row.error.partition(":")[0] for row in sampled.rows if row.error}
    if len(errors) + len(sampled.refused) > 1:
        return ran, [*errors.values(), *(InputError.__name__ for _ in sampled.refused)], "configurations"
    return ran, [row.error.partition(":")[0] for row in sampled.rows if row.error], "draws"


def _points(
    jobs: Sequence[str], machine: str, settings: tuple[str, ...], options: dict[str, Any]
) -> dict[str, Point]:
    """Return one point for each job, by the job's name."""
    points = dict[str, Point]()
    for name in jobs:
        wanted, loaded = open_job(name, machine, settings)
        if wanted.name in points:
            raise InputError(f"--job {name}: another job here is called {wanted.name!r} too; rename a file")
        points[wanted.name] = Point(wanted, loaded, mode=options["mode"], engine=options["engine"])
    return points


def _replay(
    job: str, machine: str, settings: tuple[str, ...], faults: tuple[str, ...], options: dict[str, Any]
) -> None:
    """Run one draw as `faults run` does, and print that command."""
    wanted, loaded = open_job(job, machine, settings)
    models = tuple(parse_model(text) for text in faults)
    draws = FaultDraws(models, loaded.healthy, loaded.spec.gpus_per_node)
    if not models or options["sampling"] == "exact":
        raise InputError("--replay: needs --fault, and draws: --sampling independent or latin")
    drawn = draws.draw(Variates(options["seed"], options["replay"], options["sampling"]))
    stated = [f"--fault {shlex.quote(fault.words)}" for fault in drawn]
    sets = [f"--set {shlex.quote(setting)}" for setting in settings]
    announce(
        " ".join(["rapid-des faults run", job, "--on", machine, *sets, "--mode", options["mode"], *stated])
    )
    if not drawn:
        raise InputError(f"--replay {options['replay']}: this draw hits nothing: the machine is healthy")
    with progress("faults") as bar:
        plain = scenario(wanted, loaded, drawn, _how(options, bar)).as_json()
    echo_marked(options["as_json"], plain, scenario_report(plain), [(wanted, loaded)])


def _how(options: dict[str, Any], bar: Bar) -> How:
    return How(
        mode=options["mode"],
        engine=engine_choice(options["engine"], progress=bar),
        report=bar.name,
        symmetry=not options.get("every", False),
    )
