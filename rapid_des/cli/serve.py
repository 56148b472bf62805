"""`rapid-des serve`: a job as a server under load."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from rapid_des.cli.main import announce, progress
from rapid_des.cli.options import (
    OF_SERVERS,
    echo_marked,
    fault_option,
    force_option,
    job_options,
    json_option,
    open_job,
)
from rapid_des.cli.pages import check_report, report_option, write_study_page
from rapid_des.errors import InputError
from rapid_des.frontend import Job, load_job
from rapid_des.machine import Machine, load_machine
from rapid_des.report.charts.servers import served_page
from rapid_des.report.serve_text import sampled_report, serve_report
from rapid_des.report.tables import counted
from rapid_des.report.writing import check_outputs
from rapid_des.serving.energy import served_energy
from rapid_des.serving.groups import besides_of
from rapid_des.serving.named_workloads import WORKLOADS
from rapid_des.serving.pools import embeds
from rapid_des.serving.result import ServeResult
from rapid_des.serving.sampled import Windows, serve_sampled
from rapid_des.serving.server import serve as run_server
from rapid_des.serving.slo import Slo
from rapid_des.studies.model_jobs import names_model, serving_document
from rapid_des.units import EventRate, seconds

_OF_ALL = ("rows", "plot", "timeline", "report", "energy", "outages")
"""Options of a run in which every request is served."""
workload_option = click.option(
    "--workload",
    type=click.Choice(sorted(WORKLOADS)),
    help="The shape of a public trace, where --arrivals, --prompt and --output do not say otherwise.",
)


def workload_texts(options: Mapping[str, Any]) -> dict[str, str | None]:
    """Return --arrivals (or --rate), --prompt and --output, as --workload has them where none is stated."""
    if options.get("rate") is not None:
        if options["arrivals"] is not None:
            raise InputError("--rate and --arrivals both say when requests come: state one")
        try:
            EventRate.parse(options["rate"])
        except ValueError as error:
            raise InputError(f"--rate: {error}") from None
        options = {**options, "arrivals": f"poisson rate={options['rate']}"}
    named, names = WORKLOADS.get(options["workload"]), ("arrivals", "prompt", "output")
    return {name: options.get(name) or getattr(named, name, None) for name in names}


def open_server(
    reference: str,
    machine: str,
    settings: tuple[str, ...],
    options: Mapping[str, Any],
    *,
    layout: bool = True,
) -> tuple[Job, Machine]:
    """Return the job that is named, or one that serves the model that is named, which is then said.

    `layout`: whether that job's own layout is the one that runs.
    """
    faults = options.get("faults", ())
    if not names_model(reference):
        return open_job(reference, machine, settings, faults, reads=OF_SERVERS)
    document = serving_document(reference, load_machine(machine), settings)
    job, loaded = open_job(document, machine, settings, faults, reads=OF_SERVERS)
    _say_server(reference, job, workload_texts(options), layout=layout)
    return job, loaded


def _say_server(reference: str, job: Job, texts: Mapping[str, str | None], *, layout: bool) -> None:
    """Say how a model is served that was named in place of a job; `layout`: as the job has it."""
    split, lengths = job.spec.parallelism, job.spec.inference
    assert lengths is not None
    prompt, output = texts["prompt"] or lengths.prompt_length, texts["output"] or lengths.output_length
    said = f"{reference} is a model. {job.software.name} serves it"
    if layout:
        inner = {"pp": split.pp, "cp": split.cp}
        axes = [f"tp {split.tp}", *(f"{axis} {size}" for axis, size in inner.items() if size > 1)]
        said += (
            f" with {', '.join(axes)} on {counted(split.dp, 'replica')} (--set parallelism.tp=…, software=…)"
        )
    if "trace " not in f"{texts['arrivals']} ":
        said += f"; tokens of prompts: {prompt}, of answers: {output} (--prompt, --output)"
    announce(said)


@click.command()
@job_options
@fault_option
@click.option("--rate", metavar="4/s", help="Requests come independently at this rate (a Poisson process).")
@click.option(
    "--arrivals",
    metavar="'KIND KEY=VALUE …'",
    help="When requests come, as in: clients count=32, or trace file=requests.csv. Else the job's.",
)
@workload_option
@click.option(
    "--requests", type=click.IntRange(1, 10**7), default=1000, show_default=True, help="Number of requests."
)
@click.option(
    "--prompt", metavar="'KIND KEY=VALUE …'", help="Tokens of prompts, as in: lognormal mean=1024 cv=0.8"
)
@click.option("--output", metavar="'KIND KEY=VALUE …'", help="Tokens that requests ask for, as in: 256")
@click.option(
    "--seed", type=click.IntRange(0, 2**32), default=0, show_default=True, help="Seed of all draws."
)
@click.option(
    "--outage",
    "outages",
    multiple=True,
    metavar="'KEY=VALUE …'",
    help="A replica or GPU that fails, as in: replica=1 at=30s down=60s, or reliability=FILE. Repeatable.",
)
@click.option(
    "--sample",
    metavar="'every=1h window=2min warmup=1min'",
    help="Serve windows of a long time only, as they stand for the rest of it.",
)
@click.option("--energy", is_flag=True, help="Add the energy by part: GPUs, network and hosts.")
@click.option("--slo", metavar="'ttft=2s tpot=50ms'", help="Limits of which the goodput is counted.")
@click.option("--rows", metavar="OUT.csv", help="Write a row a request: CSV, or Parquet if so named.")
@click.option(
    "--plot",
    metavar="OUT.png",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Draw latencies, and the load over time.",
)
@click.option("--timeline", metavar="OUT.json[.gz]", help="Write a track a request for ui.perfetto.dev.")
@report_option
@force_option
@json_option
def serve(job: str, machine: str, settings: tuple[str, ...], **options: Any) -> None:
    """Serve requests that come over time by JOB, or by a model, on a machine.

    JOB is a job or a model: a file, a preset or a config.json of Hugging Face.

    rapid-des serve llama3_1_70b_serve --on dgx_h100 --requests 500 --slo "ttft=200ms tpot=20ms"
    rapid-des serve llama3_1_8b --on dgx_h100 --rate 20/s --prompt 2048 --output 256 --requests 200
    """
    check_outputs(
        [options["rows"], options["timeline"]], pictures=[options["plot"]], replace=options["force"]
    )
    check_report(options["report"], force=options["force"])
    slo = None if options["slo"] is None else Slo.parse(options["slo"])
    wanted, loaded = open_server(job, machine, settings, options)
    if options["outages"]:
        wanted = load_job(wanted, settings={"serving.outages": options["outages"]})
    if slo is not None:
        slo = slo.of_requests(embeds=embeds(wanted))
    title = f"{job} on {loaded.name}"
    asked = {name: options[name] for name in ("requests", "seed")} | workload_texts(options)
    if options["sample"] is not None:
        _sampled(wanted, loaded, slo, asked, {**options, "job": job})
        return
    with progress(title) as bar:
        result = run_server(wanted, loaded, watch=bar, **asked)
    _write(result, options)
    plain = result.as_json(slo)
    interrupted = result.interrupted or (options["energy"] and not _add_energy(plain, result, wanted, loaded))
    parts = list(serve_report(plain, title, len(result.loads)))
    besides = [(beside.job, beside.machine) for beside in besides_of(wanted)]
    echo_marked(options["as_json"], plain, parts, [(wanted, loaded), *besides])
    limits = {} if slo is None else {name: seconds(limit) for name, limit in slo.limits.items()}
    charts = served_page(result, limits, plain)
    write_study_page(options["report"], title, parts, plain, charts, plot=options["plot"])
    if interrupted:
        raise KeyboardInterrupt


def _add_energy(plain: dict[str, Any], result: ServeResult, job: Job, machine: Machine) -> bool:
    """Add what was spent; False after ^C, as what was served is known."""
    try:
        spent = served_energy(result, job, machine)
    except KeyboardInterrupt:
        return False
    plain["energy"] = spent and spent.as_json()
    return True


def _write(result: ServeResult, options: Mapping[str, Any]) -> None:
    """Write the files that were asked for."""
    if result.interrupted:
        announce("interrupted: what is answered follows")
    for name, write in (("rows", result.write_requests), ("timeline", result.write_timeline)):
        if options[name] is not None:
            write(options[name])


def _sampled(
    job: Job, machine: Machine, slo: Slo | None, asked: Mapping[str, Any], options: Mapping[str, Any]
) -> None:
    """Serve windows alone, and print what they say of the whole time."""
    given = [name for name in _OF_ALL if options[name]]
    if given:
        option = given[0].removesuffix("s") if given[0] == "outages" else given[0]
        raise InputError(f"--sample says nothing of single requests or replicas: leave --{option} out")
    title = f"{options['job']} on {machine.name}"
    with progress(title) as bar:
        windows = Windows.parse(options["sample"])
        plain = serve_sampled(job, machine, windows, slo=slo, watch=bar, **asked).as_json()
    echo_marked(options["as_json"], plain, list(sampled_report(plain, title)), [(job, machine)])
    if plain["interrupted"]:
        raise KeyboardInterrupt
