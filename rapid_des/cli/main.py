"""The entry point, and what all commands share: errors, announcements and progress bars.

A command is imported only when it is called. An error becomes one line and an exit code. A progress bar is
drawn on a terminal; elsewhere a line now and then says what a command is doing. Rich draws the bar; it is
imported only if a command still runs after two seconds.
NO_COLOR switches colours off.
"""

from __future__ import annotations

import atexit
import difflib
import gc
import importlib
import inspect
import io
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from threading import Event, Lock, Thread, Timer
from typing import Any, TypeVar

import click

from rapid_des import __version__
from rapid_des.cli.interrupts import end
from rapid_des.errors import RapidDesError
from rapid_des.extensions import failure_of_part
from rapid_des.inputs import printable

COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("rapid_des.cli.run:run", "Predict a job's step time on a machine."),
    "why": ("rapid_des.cli.why:why", "Explain what a job's step waits for, and what would help."),
    "serve": ("rapid_des.cli.serve:serve", "Simulate a server that requests reach over time."),
    "capacity": ("rapid_des.cli.capacity:capacity", "Find a server's highest load, and a load's fleet."),
    "rollout": ("rapid_des.cli.rollout:rollout", "Predict a step of reinforcement learning."),
    "goodput": ("rapid_des.cli.goodput:goodput", "Predict a training run of weeks with failures in it."),
    "replay": ("rapid_des.cli.replay:replay", "Replay Chakra traces on a machine."),
    "calibrate": (
        "rapid_des.cli.calibrate:calibrate",
        "Write the files of your own machine from measurements.",
    ),
    "profile": ("rapid_des.cli.profile:profile", "Explain profiles of PyTorch runs."),
    "trace": ("rapid_des.cli.trace:trace", "Show, check, convert and write Chakra traces."),
    "topology": ("rapid_des.cli.topology:topology", "Show, route, check and benchmark a machine's fabric."),
    "operator": ("rapid_des.cli.operator:operator", "Price one operator on a device, with the reasons."),
    "gemm": ("rapid_des.cli.operator:sharded_gemm", "Price a GEMM sharded over tensor-parallel GPUs."),
    "device": ("rapid_des.cli.device:device", "Show, sample, fit and calibrate devices."),
    "faults": ("rapid_des.cli.faults:faults", "Show what link and GPU faults cost a job."),
    "plan": ("rapid_des.cli.plan:plan_command", "Find the best layouts of a job over GPUs."),
    "sweep": ("rapid_des.cli.studies:sweep", "Simulate every point of a study file."),
    "search": ("rapid_des.cli.studies:search", "Find the best points of a study without all of them."),
    "show": ("rapid_des.cli.studies:show", "Print and plot the results of a study."),
    "compare": ("rapid_des.cli.studies:compare", "Explain the difference between two results."),
    "report": ("rapid_des.cli.report:report", "Write a page of a result, or of two side by side."),
    "ui": ("rapid_des.cli.ui.command:ui", "Ask and answer in a browser on this machine."),
    "sensitivity": ("rapid_des.cli.plan:sensitivity_command", "Show what a job's step depends on."),
    "validate": ("rapid_des.cli.validate:validate", "Print predictions against measurements."),
    "bench": ("rapid_des.cli.bench:bench", "Measure the simulator's own speed."),
    "new": ("rapid_des.cli.new:new", "Write a job, machine, device or study file to edit."),
    "schema": ("rapid_des.cli.schema:schema", "Print the JSON Schema of a file kind."),
    "explain": ("rapid_des.cli.schema:explain_key", "Explain a key of a file."),
    "import": (
        "rapid_des.cli.importing:import_group",
        "Write job and machine files from other tools' files.",
    ),
    "presets": ("rapid_des.cli.schema:presets", "List the presets that ship with rapid-des."),
}


_NEW_OBJECTS = 50_000
"""Threshold of the garbage collector; see `rapid_des.processes`."""
_NUMBERS = {"integer": "N", "integer range": "N", "float": "NUMBER", "float range": "NUMBER"}
"""What help pages call the types of numbers."""
_MOST_LINES = 40
_FRAMES = 6
_FEW = 8
"""Most commands of a group that a message names."""
AFTER_S = 2.0
"""Seconds after which a command's progress bar is drawn."""
LINES_S = (10.0, 60.0)
"""Seconds after which a command that runs without a terminal says what it is doing, and then each time."""

_Item = TypeVar("_Item")


class LazyGroup(click.Group):
    """A command group that imports a command only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the commands in the table's order."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import the command that was asked for."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name][0].split(":")
        gc.disable()
        command: click.Command = getattr(importlib.import_module(module), attribute)
        gc.freeze()  # what was imported stays: no search for dead objects goes through it
        gc.enable()
        if signal.getsignal(signal.SIGINT) is end:  # it ended the process until here
            signal.signal(signal.SIGINT, signal.default_int_handler)
        _prepare(command)
        return command

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; end quietly if the reader of stdout has left, as `head` does."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


def _prepare(command: click.Command) -> None:
    """Keep examples in help pages as lines that can be pasted, and say numbers in plain words."""
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    command.help = "\n\n".join(
        # an example that a docstring continues on a further line is one line
        "\b\n" + re.sub(r"(?<=\S) {2,}", " ", text) if text.lstrip().startswith("rapid-des ") else text
        for text in paragraphs
    )
    for option in command.params:
        if option.metavar is None and isinstance(option, click.Option) and option.type.name in _NUMBERS:
            option.metavar = _NUMBERS[option.type.name]
    for inside in command.commands.values() if isinstance(command, click.Group) else ():
        _prepare(inside)
        inside.short_help = " ".join(inside.help.split("\n\n")[0].split()) if inside.help else None


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rapid-des")
def cli() -> None:
    """Predict how long distributed LLM training and inference take, and what faults cost."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; every deliberate error is one to forty lines on stderr and its exit code."""
    gc.set_threshold(_NEW_OBJECTS)
    atexit.register(gc.freeze)  # at its end the process gives all back at once
    _replace_unknown_letters()
    try:
        words = tuple(sys.argv[1:] if arguments is None else arguments)
        cli(words, prog_name="rapid-des", standalone_mode=False, obj=words)
    except RapidDesError as error:
        _leave(f"error: {error}", error.exit_code)
    except click.UsageError as error:
        _leave(_usage(error), 2)
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        _leave(shown.getvalue(), 2)
    except (click.Abort, KeyboardInterrupt) as left:  # click has ended the line that ^C stands on
        text = str(left) or str(left.__cause__ or "")  # click's Abort has the KeyboardInterrupt as its cause
        _leave(f"interrupted at: {text}" if text else "interrupted", 130)
    except OSError as error:
        _leave(f"error: {error.filename or 'input or output'}: {error.strerror or error}", 2)
    except MemoryError:
        _leave("error: out of memory; a smaller job, fewer ranks or --mode hierarchical needs less", 3)
    except Exception as defect:  # noqa: BLE001 - the last door: what gets here is a defect of ours
        part = failure_of_part(defect)
        _leave(f"error: {part}" if part else _report(defect), 2 if part else 1)


def command_words() -> tuple[str, ...]:
    """Return the arguments with which the program was called."""
    context = click.get_current_context(silent=True)
    return () if context is None or context.find_root().obj is None else tuple(context.find_root().obj)


def _replace_unknown_letters() -> None:
    """Replace letters that the terminal's encoding lacks by █ or a question mark."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _leave(text: str, code: int) -> None:
    lines = [printable(line) for line in text.splitlines() if line.strip()]
    if len(lines) > _MOST_LINES:
        lines = [*lines[: _MOST_LINES - 1], f"… and {len(lines) - _MOST_LINES + 1} more lines"]
    click.echo("\n".join(lines), err=True)
    sys.exit(code)


def _usage(error: click.UsageError) -> str:
    """Return what is wrong with a command's arguments in one line, or its help if there are none."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return error.format_message()
    if error.ctx is None:
        hint = ""
    elif isinstance(error.ctx.command, click.Group):
        hint = _commands_near(error.ctx.command.list_commands(error.ctx), error.format_message())
    else:
        hint = _example(error)
    help_page = "" if error.ctx is None else f"; {error.ctx.command_path} --help says more"
    return f"error: {_in_plain_words(error).rstrip('.')}{hint}{help_page}"


def _in_plain_words(error: click.UsageError) -> str:
    """Return what click says in one line, with `whole number` for its `valid integer range`."""
    said = " ".join(error.format_message().split())
    for name, words in (("integer", "whole number"), ("float", "number")):
        said = re.sub(f"is not a valid {name}( range)?", f"is not a {words}", said)
    return said


def _commands_near(names: Sequence[str], problem: str) -> str:
    """Return which commands a mistyped one may mean; of a few, which there are."""
    if len(names) <= _FEW:
        return f"; allowed: {', '.join(names)}"
    near = [name for word in problem.split("'")[1:2] for name in difflib.get_close_matches(word, names, n=1)]
    return f"; did you mean {near[0]!r}?" if near else ""


def _example(error: click.UsageError) -> str:
    """Return the example of the command's help page where an argument is missing."""
    if not isinstance(error, click.MissingParameter) or error.ctx is None:
        return ""
    page = (error.ctx.command.help or "").replace("\\\n", "")
    lines = [" ".join(line.split()) for line in page.splitlines() if line.strip().startswith("rapid-des ")]
    return f", as in: {lines[0]}" if lines else ""


def _report(defect: Exception) -> str:
    frames = traceback.extract_tb(defect.__traceback__)[-_FRAMES:]
    places = [f"  {frame.filename}:{frame.lineno} in {frame.name}" for frame in frames]
    what = f"{type(defect).__name__}: {defect}".splitlines()[0]
    return "\n".join([f"error: a defect of rapid_des, please report it: {what}", *places])


def announce(text: str) -> None:
    """Print on stderr what the command is doing."""
    click.echo(printable(text), err=True)


class Bar:
    """A progress bar, updated by one thread and drawn by another.

    `rows` returns what is known of the answer already, as plain data.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.rows: Callable[[], list[Mapping[str, Any]]] = list
        self._done, self._expected = 0, 0
        self._lock = Lock()
        self._drawn: Any = None
        self._closed = False

    def __call__(self, done: int, expected: int) -> None:
        """Update how much of the current simulation is done, of about how much."""
        self._done, self._expected = min(done, expected), expected
        self._update()

    def name(self, title: str) -> None:
        """Set the description of the current work."""
        self.title, self._done, self._expected = title, 0, 0
        self._update()

    def about(self, subject: str) -> Callable[[str], None]:
        """Return what sets the description to a subject and what is done with it."""
        return lambda what: self.name(f"{subject}: {what}")

    def part(self, title: str, number: int, parts: int) -> None:
        """Set the current part and the count of finished parts; 0 parts: number not known yet."""
        self.title, self._done, self._expected = title, number, parts
        self._update()

    @property
    def share(self) -> float | None:
        """The share of the current work that is done; None where that is not known."""
        return self._done / self._expected if self._expected else None

    def said(self) -> str:
        """Return what is going on as a line."""
        if not self._done:
            return self.title
        return f"{self.title}: {self._done:,}" + (f" of {self._expected:,}" if self._expected else "")

    def draw(self) -> None:
        """Start drawing."""
        from rich import progress
        from rich.console import Console

        with self._lock:
            if self._closed:
                return
            self._drawn = progress.Progress(
                progress.SpinnerColumn("line"),
                progress.TextColumn("{task.description}", markup=False),
                progress.BarColumn(),
                progress.TextColumn("{task.fields[share]}", justify="right"),
                progress.TextColumn("{task.fields[rate]}"),
                progress.TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._drawn.add_task(printable(self.title), total=None, share="", rate="")
            self._drawn.start()
        self._update()

    def close(self) -> None:
        """Remove the bar from the terminal."""
        with self._lock:
            self._closed = True
            if self._drawn is not None:
                self._drawn.stop()

    def _update(self) -> None:
        if self._drawn is None:
            return
        (task,) = self._drawn.tasks
        if self._done < task.completed or self._expected != (task.total or 0):
            self._drawn.reset(task.id, total=self._expected or None)
        rate = f"{task.speed:,.0f}/s" if task.speed else ""
        share = f"{self._done / self._expected:>4.0%}".replace("%", " %") if self._expected else ""
        share = share or (f"{self._done:,}" if self._done else "")
        title = printable(self.title)
        self._drawn.update(task.id, description=title, completed=self._done, share=share, rate=rate)


WATCHER: ContextVar[Callable[[Bar], None] | None] = ContextVar("WATCHER", default=None)
"""Called several times a second with the bar of the command that runs, where it is set."""
_WATCHED_S = 0.25


@contextmanager
def progress(title: str) -> Iterator[Bar]:
    """Show a bar while the block lasts; where stderr is no terminal, a line now and then.

    What others print meanwhile, as Ray does when a node dies, goes to stderr: stdout is for the answer.
    """
    bar = Bar(title)
    timer = Timer(AFTER_S, bar.draw)
    timer.daemon = True
    ended = Event()
    watcher = WATCHER.get()
    if watcher is not None:
        Thread(target=_watched, args=(bar, ended, watcher), daemon=True).start()
    elif sys.stderr.isatty():
        timer.start()
    elif sys.stderr is sys.__stderr__:
        Thread(target=_lines, args=(bar, ended), daemon=True).start()
    try:
        with redirect_stdout(sys.stderr):
            yield bar
    except KeyboardInterrupt as left:
        if str(left) or bar.title == title:  # said already, or no part of the work has been named
            raise
        raise KeyboardInterrupt(bar.said()) from None
    finally:
        timer.cancel()
        ended.set()
        bar.close()


def _watched(bar: Bar, ended: Event, watcher: Callable[[Bar], None]) -> None:
    """Show the bar to a watcher now and then, until the work has ended."""
    while not ended.wait(_WATCHED_S):
        watcher(bar)


def _lines(bar: Bar, ended: Event) -> None:
    """Say now and then what is going on, until it has ended."""
    first, later = LINES_S
    wait = first
    while not ended.wait(wait):
        announce(f"… {bar.said()}")
        wait = later


def until_interrupted(items: Iterable[_Item]) -> tuple[list[_Item], bool]:
    """Return all items and False, or those before ^C and True; without any the interrupt goes on."""
    gathered: list[_Item] = []
    try:
        for item in items:
            gathered.append(item)  # noqa: PERF402 - extend would lose what is finished
    except KeyboardInterrupt:
        if not gathered:
            raise
        announce("interrupted: what is finished follows")
        return gathered, True
    return gathered, False


if __name__ == "__main__":
    main()
