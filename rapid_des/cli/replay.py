"""`rapid-des replay`: anybody's Chakra traces on a machine, or on ASTRA-sim's own input files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rapid_des.chakra import ReadOptions
from rapid_des.cli.main import progress
from rapid_des.cli.options import (
    echo,
    engine_options,
    fault_option,
    names_or_files,
    open_machine,
    output_options,
    require_outputs,
    run_choice,
    set_option,
    together,
    trace_options,
    write_outputs,
)
from rapid_des.cli.profile import asked, replayed
from rapid_des.errors import DeadlockError, InputError
from rapid_des.profiles.reading import is_host_trace, is_profile
from rapid_des.report.profile_text import asked_text, replayed_text
from rapid_des.report.result import Result
from rapid_des.report.result_text import astra_report, result_report
from rapid_des.report.rows import write_links
from rapid_des.simulation import load_trace
from rapid_des.simulation import replay as replay_traces
from rapid_des.units import seconds

if TYPE_CHECKING:
    from rapid_des.importers.astra_sim import AstraResult, Files

_WORKLOAD, _LOGS = "--workload-configuration", ("--logging-configuration=", "--logging-folder=")


class TakesAstraWords(click.Command):
    """A command that takes ASTRA-sim's `--workload-configuration=PREFIX` as its PREFIX, and logs nothing."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words of the command line without the name of that option, and without those of logs."""
        words = (word.removeprefix(f"{_WORKLOAD}=") for word in args if not word.startswith(_LOGS))
        return super().parse_args(ctx, [word for word in words if word != _WORKLOAD])


def _astra_option(name: str, theirs: str, *, text: str, **kind: Any) -> Callable[[Any], Any]:
    """Return an option whose second name is the one that ASTRA-sim gives it."""
    return click.option(
        f"--astra-{name}", f"--{theirs}", f"astra_{name.replace('-', '_')}", help=text, **kind
    )


_astra_options = together(
    _astra_option(
        "network", "network-configuration", metavar="N.yml", text="ASTRA-sim's network file, instead of --on."
    ),
    _astra_option("system", "system-configuration", metavar="S.json", text="ASTRA-sim's system file."),
    _astra_option(
        "groups", "comm-group-configuration", metavar="G.json", text="ASTRA-sim's communicator groups."
    ),
    _astra_option(
        "memory", "remote-memory-configuration", metavar="M.json", text="ASTRA-sim's remote memory file."
    ),
    _astra_option(
        "queues-per-dim",
        "num-queues-per-dim",
        metavar="N",
        type=int,
        default=1,
        text="Its queues per dimension.",
    ),
    click.option("--astra-dialect", default="stock", metavar="stock|extended", help="Rule of message sizes."),
)

_OF_MACHINES = {"machine": "on", "faults": "fault", "timeline": "timeline", "links_plot": "links-plot"}
_OF_TRACES = _OF_MACHINES | {
    "settings": "set",
    "links": "links",
    **{f"astra_{key}": f"astra-{key}" for key in ("network", "system", "groups", "memory")},
}
"""Options of replays on machines, and those that profiles have no use for, by their names in the command."""
_NO_USE = ("timeline", "links", "links_plot", "astra_network", "astra_system", "astra_groups", "astra_memory")
_OF_PROFILES = {"speed": "speed", "remove": "remove", "network": "network", "dp": "dp", "overlap": "overlap"}


@click.command(cls=TakesAstraWords)
@click.argument("prefix", shell_complete=names_or_files("trace"))
@click.argument("others", nargs=-1, metavar="[PROFILE…]")
@click.option(
    "--on",
    "machine",
    metavar="MACHINE",
    shell_complete=names_or_files("machine"),
    help="Machine file or preset.",
)
@set_option
@fault_option
@trace_options
@engine_options
@output_options
@_astra_options
@click.option(
    "--speed",
    multiple=True,
    metavar="CLASS=FACTORx",
    help="For a profile: how much faster kernels of a class, or the host, are, as gemm=1.3x or host=2x.",
)
@click.option(
    "--remove",
    multiple=True,
    metavar="CLASS",
    help="For a profile: kernels of a class, or the host, that take no time.",
)
@click.option(
    "--network",
    type=click.Choice(["measured", "simulated"]),
    help="For profiles: whether messages keep their time or are simulated on the machine.",
)
@click.option(
    "--overlap",
    type=click.Choice(["measured", "none", "full"]),
    help="For profiles: messages run alone, or only the next step waits for them.",
)
@click.option("--dp", metavar="N=M", help="For profiles: outermost groups of N ranks become groups of M.")
def replay(
    prefix: str, others: tuple[str, ...], machine: str | None, reading: ReadOptions, **options: Any
) -> None:
    """Replay the Chakra traces PREFIX.<rank>.et on a machine, or profiles of a run, one a rank.

    ASTRA-sim's own flags are taken too: put `rapid-des replay` in place of its binary.

    rapid-des replay traces/llama2_7b_train --on dgx_a100
    """
    require_outputs(options)
    if _is_profile(Path(prefix)) or (others and is_host_trace(Path(prefix))):
        _replay_profiles((prefix, *others), options | {"machine": machine})
        return
    _refuse(options, _OF_PROFILES, "Chakra traces; it is for profiles")
    if others:
        raise InputError(
            f"{others[0]}: Chakra traces have one PREFIX; several files are profiles, one a rank"
        )
    files = _astra_files(options)
    if files is not None:
        _replay_on_astra_files(prefix, files, options | {"machine": machine}, reading)
        return
    if machine is None:
        raise InputError("replay needs a machine: --on MACHINE (`rapid-des presets` lists them)")
    with progress(f"{prefix} on {machine}") as bar:
        traces = load_trace(prefix, reading)
        loaded = open_machine(machine, options["settings"], options["faults"], traces=traces)
        try:
            result = replay_traces(traces, loaded, engine=run_choice(options, bar), trail=options["messages"])
        except DeadlockError as error:
            hint = f"`rapid-des trace check {prefix}` looks for unmatched messages and near misses"
            raise DeadlockError(f"{error}\n  {hint}") from None
    title = f"{prefix} on {loaded.name}: {len(result.finish)} ranks"
    echo(options["as_json"], _with_ranks(result), result_report(result, title))
    write_outputs(result, options)


def _is_profile(path: Path) -> bool:
    """Return whether a file is a profile, or is named as one, so that what is wrong with it is said."""
    return is_profile(path) or (path.name.endswith((".json", ".json.gz")) and path.is_file())


def _replay_profiles(files: tuple[str, ...], options: dict[str, Any]) -> None:
    """Replay profiles: each as it was measured, or all on a machine that carries their messages."""
    if options["network"] != "simulated":
        _refuse(options, _OF_TRACES, "a profile whose messages keep their time; --network simulated")
        _refuse(options, {"dp": "dp"}, "a profile whose messages keep their time; --network simulated")
        with progress(files[0]) as bar:
            every = [
                replayed(file, options, run_choice(options, bar))
                for file in files
                if not is_host_trace(Path(file))
            ]
        plain = max(every, key=lambda each: each["step_time_s"])
        own = [file for file in files if not is_host_trace(Path(file))]
        name = own[every.index(plain)] + (f" (the slowest of {len(own)} ranks)" if len(own) > 1 else "")
        echo(options["as_json"], plain, replayed_text(plain, name))
        return
    _refuse(options, {key: _OF_TRACES[key] for key in _NO_USE}, "profiles")
    if options["machine"] is None:
        raise InputError("--network simulated needs a machine: --on MACHINE (`rapid-des presets` lists them)")
    with progress(files[0]) as bar:
        base = open_machine(options["machine"], ())
        changed = open_machine(options["machine"], options["settings"], options["faults"])
        plain = asked(files, (base, changed), options, run_choice(options, bar))
    echo(options["as_json"], plain, asked_text(plain, options))


def _refuse(options: dict[str, Any], names: dict[str, str], what: str) -> None:
    for key, option in names.items():
        if options[key]:
            raise InputError(f"--{option} does not go with {what}")


def _with_ranks(result: Result) -> dict[str, Any]:
    ranks = {
        str(rank): {"finish_s": seconds(time), "finish_ps": int(time)} for rank, time in result.finish.items()
    }
    return result.as_json() | {"ranks": ranks}


def _astra_files(options: dict[str, Any]) -> Files | None:
    """Return ASTRA-sim's files, or None if the command names none of them."""
    paths = {key: options[f"astra_{key}"] for key in ("network", "system", "groups", "memory")}
    if all(path is None for path in paths.values()):
        return None
    for key in ("network", "system"):
        if paths[key] is None:
            raise InputError(f"replay on ASTRA-sim's files needs --astra-{key} as well")
    from rapid_des.importers.astra_sim import Files

    return Files(
        **{key: path and Path(path) for key, path in paths.items()},
        queues=options["astra_queues_per_dim"],
        dialect=options["astra_dialect"],
    )


def _replay_on_astra_files(prefix: str, files: Files, options: dict[str, Any], reading: ReadOptions) -> None:
    """Replay and print every rank's finish and exposed communication in nanoseconds."""
    from rapid_des.importers.astra_sim import replay_astra

    _refuse(options, _OF_MACHINES | {"settings": "set"}, "--astra-network, whose file states the machine")
    with progress(f"{prefix} on {files.network}") as bar:
        result = replay_astra(prefix, files, engine=run_choice(options, bar), reading=reading)
    if options["links"] is not None:
        _write_astra_links(Path(options["links"]), result)
    echo(options["as_json"], result.tree(), astra_report(result, f"{prefix} on {files.network}"))


def _write_astra_links(path: Path, result: AstraResult) -> None:
    assert result.run is not None
    lowered, fabric, records = result.run.lowered, result.run.fabric, result.run.execution.records
    if lowered.program.links > len(fabric):
        raise InputError("--links: a remote memory is no link of the fabric; leave --links out")
    write_links(path, lowered.program, records, fabric)
