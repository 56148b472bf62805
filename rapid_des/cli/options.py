"""Options that several commands share, one decorator a kind: what they mean, and what a shell completes."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click
from click.shell_completion import CompletionItem

from rapid_des.cli.main import announce
from rapid_des.config import Document
from rapid_des.config.specs import Kind, preset_names, trace_names
from rapid_des.errors import ConfigError, InputError
from rapid_des.inputs import printable
from rapid_des.network.faults import parse_fault
from rapid_des.report.tables import Part, text
from rapid_des.report.writing import check_outputs
from rapid_des.units import whole_number

if TYPE_CHECKING:
    from rapid_des.chakra import TraceSet
    from rapid_des.frontend import Job
    from rapid_des.machine import Machine
    from rapid_des.modes.execution import EngineChoice
    from rapid_des.program.lowering import Lowered
    from rapid_des.report.result import Result
    from rapid_des.report.timeline import Extract

Command = TypeVar("Command", bound=Callable[..., Any])
Settings = dict[str, list[tuple[str, str]]]
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


class Amount(click.FloatRange):
    """A finite number in a range: click itself accepts `nan` in every range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number that a text stands for."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is no finite number.", param, ctx)
        return number


ROOTS = ("job", "machine", "device")
_ROOTED = tuple(f"{root}." for root in ROOTS)


def names_or_files(kind: Kind | Literal["trace"]) -> Complete:
    """Return what completes a preset's name; where none begins so, the shell completes files."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
        names = trace_names() if kind == "trace" else preset_names(kind)
        return _beginning(names, incomplete) or [CompletionItem(incomplete, type="file")]

    return complete


def one_of(choices: Iterable[str]) -> Complete:
    """Return what completes one of some words."""
    known = tuple(choices)

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
        return _beginning(known, incomplete)

    return complete


def setting_keys(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
    """Complete a key of --set, one step at a time: `device.clock.su` to `device.clock.sustained=`."""
    from rapid_des.cli.setting_keys import keys_beginning

    return _beginning(keys_beginning(incomplete), incomplete)


def _with_roots(ctx: click.Context, param: click.Parameter, settings: tuple[str, ...]) -> tuple[str, ...]:  # noqa: ARG001
    """Return settings with the file each belongs to: `parallelism.tp=4` is `job.parallelism.tp=4`."""
    if all(setting.startswith(_ROOTED) for setting in settings):
        return settings
    from rapid_des.cli.setting_keys import with_root

    return tuple(map(with_root, settings))


def _beginning(known: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in known if name.startswith(incomplete)]


def together(*decorators: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Return one decorator for several options, which the help lists in the given order."""

    def decorate(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
set_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_with_roots,
    shell_complete=setting_keys,
    help="Override a key of the job, machine or device: parallelism.tp=4; device.hbm.bandwidth=2x doubles. "
    "Repeatable.",
)
fault_option = click.option(
    "--fault",
    "faults",
    multiple=True,
    metavar="'KEY=VALUE …'",
    help="A fault in the words of machine files, as in: link=0-1 bandwidth=0.5. Repeatable.",
)
engine_option = click.option(
    "--engine",
    default="auto",
    show_default=True,
    metavar="auto|simpy|compiled",
    shell_complete=one_of(("auto", "simpy", "compiled")),
    help="The engine that runs it.",
)
force_option = click.option("--force", is_flag=True, help="Write over files that are there.")
plot_option = together(
    click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), help="Draw it: PNG, SVG or PDF."),
    force_option,
)

on_options = together(
    click.option(
        "--on",
        "machine",
        required=True,
        metavar="MACHINE",
        shell_complete=names_or_files("machine"),
        help="Machine file or preset.",
    ),
    set_option,
)
"""The option of a machine in addition to something else, and its settings."""
job_options = together(click.argument("job", shell_complete=names_or_files("job")), on_options)
"""JOB on a machine; `open_job` reads them."""
machine_options = together(
    click.argument("machine", shell_complete=names_or_files("machine")), set_option, fault_option, json_option
)
"""MACHINE alone; `open_machine` reads them."""
engine_options = together(
    engine_option,
    click.option(
        "--no-shortcuts", is_flag=True, help="Simulate every rank, also those that provably do the same."
    ),
)
output_options = together(
    click.option(
        "--timeline",
        metavar="OUT.json[.gz]",
        help="Write a timeline of the ranks for ui.perfetto.dev; OUT.pftrace has flows and counters too.",
    ),
    click.option("--ranks", metavar="0,4,8-15", help="With --timeline: only these ranks."),
    click.option(
        "--window", metavar="FROM:UNTIL", help="With --timeline: only what falls into 10ms:20ms, or 10ms:."
    ),
    click.option(
        "--messages", is_flag=True, help="With --timeline: links and messages too; simulates every rank."
    ),
    click.option(
        "--links", metavar="OUT.csv", help="Write what every link carried: CSV, or Parquet if so named."
    ),
    click.option(
        "--links-plot", metavar="OUT.png", help="Draw the fabric with the links' utilisation as colour."
    ),
    click.option(
        "--force", is_flag=True, help="Write over files that are there, and timelines however large."
    ),
    json_option,
)
"""The output files of a run."""


def _integers(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...]:  # noqa: ARG001
    try:
        return tuple(whole_number(part.strip(), 1, 2**24) for part in value.split(",")) if value else ()
    except ValueError as error:
        raise click.BadParameter(f"{error}; a list such as 8,8") from error


def trace_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say how traces are read; the command gets them as `reading: ReadOptions`."""
    from rapid_des.chakra.dialects import CHOICES, ReadOptions

    def choice(name: str, field: str, words: str) -> Callable[[Any], Any]:
        return click.option(name, field, type=click.Choice(CHOICES[field]), default="auto", help=words)

    options: dict[str, Callable[[Any], Any]] = {
        "dialect": choice("--dialect", "dialect", "Whose conventions."),
        "dependencies": choice("--deps", "dependencies", "Which dependencies count."),
        "time_unit": choice("--time-unit", "time_unit", "Of durations: what duration_micros really counts."),
        "dtype_bytes": click.option(
            "--dtype-bytes", type=int, help="Bytes of an element, for writers that count elements."
        ),
        "groups": click.option(
            "--groups", type=click.Path(path_type=Path), help="Process groups: {name: [ranks]} as JSON."
        ),
        "generation": choice("--generation", "generation", "Wire form."),
        "streams": choice("--streams", "streams", "Order of streams."),
        "dimensions": click.option(
            "--dimensions", callback=_integers, help="Logical shape of the ranks, innermost first: 8,8."
        ),
        "zero_is_world": click.option(
            "--zero-is-world", is_flag=True, help='Take group "0" for all ranks, as ASTRA-sim does.'
        ),
        "strict": click.option("--strict", is_flag=True, help="Refuse what would otherwise be repaired."),
        "salvage": click.option(
            "--salvage", is_flag=True, help="Keep the whole nodes before a damaged place."
        ),
    }

    @wraps(command)
    def with_reading(**values: Any) -> Any:
        return command(reading=ReadOptions(**{name: values.pop(name) for name in options}), **values)

    return together(*options.values())(with_reading)


def split_settings(settings: Iterable[str], allowed: tuple[str, ...] = ROOTS) -> Settings:
    """Return --set options by the file they change."""
    result: Settings = {root: [] for root in ROOTS}
    for setting in settings:
        key, equals, value = setting.partition("=")
        root, _, rest = key.strip().partition(".")
        if not equals or not rest or root not in allowed:
            choices = ", ".join(f"{root}.KEY=VALUE" for root in allowed)
            from rapid_des.cli.setting_keys import meant

            problem = f"{setting!r} is not of the form {choices}{meant(key.strip(), allowed)}"
            raise ConfigError(problem, file="--set")
        result[root].append((rest, value))
    return result


def open_machine(
    machine: str,
    settings: Sequence[str],
    faults: Iterable[str] = (),
    *,
    besides: Sequence[str] = (),
    priced: bool = False,
    traces: TraceSet | None = None,
) -> Machine:
    """Return the machine with --set and --fault; settings that change nothing are named on stderr.

    `besides` are settings that other options stand for; `priced` says whether operators are priced on its
    device: else nothing depends on that; `traces` are what is replayed on it.
    """
    faults = tuple(faults)

    def opened(chosen: Sequence[str]) -> Machine:
        return read_machine(machine, split_settings((*chosen, *besides), ("machine", "device")), faults)

    loaded = opened(settings)
    if settings and not priced:
        from rapid_des.studies.settings import idle_settings

        idle = idle_settings(settings, lambda chosen: (None, opened(chosen)), (None, loaded), traces=traces)
        for line in idle:
            announce(line)
    return loaded


OF_SERVERS = ("--set job.serving.", "--set job.memory.", "--set job.host.")
OF_RUNS = ("--set machine.storage", "--set machine.gpus_per_node=", "--set device.host.")
"""What a run with failures reads besides its step: where checkpoints go, and what a node is."""


def open_job(
    job: str | Document,
    machine: str,
    settings: Sequence[str],
    faults: Iterable[str] = (),
    *,
    reads: tuple[str, ...] = (),
) -> tuple[Job, Machine]:
    """Return the job and the machine with --set and --fault; idle settings are named on stderr.

    `reads`: how the settings begin that are read besides those of a step.
    """
    wanted, loaded, idle = open_job_with_notes(job, machine, settings, faults)
    for line in idle:
        if not line.startswith(reads):
            announce(line)
    return wanted, loaded


def open_job_with_notes(
    job: str | Document,
    machine: str,
    settings: Sequence[str],
    faults: Iterable[str],
    *,
    analytic: bool = False,
) -> tuple[Job, Machine, tuple[str, ...]]:
    """Return the job, the machine, and a line for every setting that changes nothing.

    `analytic`: of a run in the mode of closed forms.
    """
    from rapid_des.frontend import load_job

    faults = tuple(faults)

    def opened(chosen: Sequence[str]) -> tuple[Job, Machine]:
        split = split_settings(chosen)
        loaded = read_machine(machine, split, faults)
        return load_job(job, settings=split["job"]), loaded

    wanted, loaded = opened(settings)
    if not settings:
        return wanted, loaded, ()
    from rapid_des.studies.settings import idle_settings

    return wanted, loaded, idle_settings(settings, opened, (wanted, loaded), analytic=analytic)


def read_machine(machine: str, chosen: Settings, faults: Iterable[str]) -> Machine:
    """Return the machine with settings and --fault."""
    from rapid_des.machine import load_machine

    return load_machine(
        machine,
        settings=chosen["machine"],
        device_settings=chosen["device"],
        faults=[parse_fault(text) for text in faults],
    )


def require_outputs(options: dict[str, Any]) -> None:
    """Raise `InputError` if a file of `output_options` cannot be written; called before the work."""
    for name in ("ranks", "window", "messages"):
        if options[name] and options["timeline"] is None:
            raise InputError(f"--{name} says what is on a timeline: it needs --timeline OUT.json")
    if options["timeline"] is not None:
        timeline_extract(options)
    paths, pictures = [options["timeline"], options["links"]], [options["links_plot"]]
    if any((*paths, *pictures)):
        check_outputs(paths, pictures=pictures, replace=options["force"])


def timeline_extract(options: dict[str, Any]) -> Extract:
    """Return the extract of a run that --ranks and --window select for its timeline."""
    from rapid_des.report.timeline import Extract

    return Extract.parse(options["ranks"], options["window"])


def write_outputs(result: Result, options: dict[str, Any]) -> None:
    """Write the files of `output_options` that were asked for."""
    writers: dict[str, Callable[[str], object]] = {
        "timeline": lambda path: result.write_timeline(
            path, timeline_extract(options), bounded=not options["force"]
        ),
        "links": result.write_links,
        "links_plot": result.plot_links,
    }
    for name, write in writers.items():
        if options[name] is not None:
            write(options[name])


def echo(as_json: bool, plain: object, parts: Iterable[Part]) -> None:
    """Print plain data as JSON if asked for, else the report, which fits a terminal; nothing is cut."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    click.echo(json.dumps(plain, indent=1) if as_json else printable("\n".join(text(parts, width))))


def echo_marked(
    as_json: bool, plain: Mapping[str, Any], parts: Iterable[Part], points: Iterable[tuple[Job, Machine]]
) -> None:
    """Print as `echo` does, and which devices of jobs on machines have no measurements as stated."""
    from rapid_des.report.evidence import unmeasured, unmeasured_lines

    devices = list(dict.fromkeys(name for job, machine in points for name in unmeasured(job, machine.device)))
    echo(as_json, {**plain, "not_validated": devices}, chain(parts, unmeasured_lines(devices)))


def engine_choice(
    engine: str, *, no_shortcuts: bool = False, progress: Callable[[int, int], None] | None
) -> EngineChoice:
    """Return the choice of --engine and --no-shortcuts; compiling is announced on stderr."""
    from rapid_des.modes.execution import EngineChoice

    return EngineChoice(engine, announce=announce, fold=not no_shortcuts, progress=progress)


def run_choice(options: dict[str, Any], progress: Callable[[int, int], None]) -> EngineChoice:
    """Return the choice of `engine_options` for a run that leaves `output_options` behind.

    A timeline that would be too large is refused before the simulation.
    """
    choice = engine_choice(options["engine"], no_shortcuts=options["no_shortcuts"], progress=progress)
    if options["timeline"] is None or options["force"]:
        return choice
    from rapid_des.modes.execution import expected_hops
    from rapid_des.report.timeline import check_size
    from rapid_des.values import replace

    extract = timeline_extract(options)

    def inspect(lowered: Lowered) -> None:
        check_size(lowered, extract, messages=expected_hops(lowered.program) if options["messages"] else 0)

    return replace(choice, inspect=inspect)
