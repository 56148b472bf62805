"""What the page asks as the words of a command line, which are checked before anything reads them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from rapid_des.config import Spec
from rapid_des.config.specs import Kind, preset_names
from rapid_des.errors import ConfigError, InputError

_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}\.yaml\Z")
_RATE = re.compile(r"/s(?![A-Za-z0-9_./\\-])")
_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "run": ("mode",),
    "plan": ("gpus", "top", "mode", "within"),
    "serve": ("arrivals", "workload", "requests", "prompt", "output", "seed", "slo"),
    "report": (),
}
"""The options that the page may state, by command."""
MOST_LISTED = 200
REPORT = "report.html"
"""The page that a command writes, in the folder of its task."""


class Asked(Spec, frozen=True):
    """A question of the page."""

    command: str
    """One of `run`, `plan`, `serve`, `report`."""
    job: str
    machine: str
    settings: tuple[str, ...] = ()
    """The values of --set."""
    faults: tuple[str, ...] = ()
    """The values of --fault."""
    options: dict[str, str] = {}
    """Options by their names, without dashes."""

    def subject(self) -> list[str]:
        """Return the words that name the job, the machine, and what is changed in them."""
        words = [self.job, "--on", self.machine]
        words += [f"--set={setting}" for setting in self.settings]
        return words + [f"--fault={fault}" for fault in self.faults]

    def words(self) -> list[str]:
        """Return the words of the command, without `rapid-des`."""
        if self.command == "report":
            return ["report", shlex.join(self.subject()), "-o", REPORT]
        options = [f"--{name}={value}" for name, value in self.options.items() if value]
        options += [] if self.command == "run" else ["--report", REPORT]
        return [self.command, *self.subject(), *options]


def check_asked(asked: Asked, folder: Path) -> None:
    """Raise `InputError` unless a question is one of the page, which reads no file outside `folder`."""
    if asked.command not in _OPTIONS:
        raise InputError(f"command {asked.command!r} is not one of {', '.join(_OPTIONS)}")
    check_name(asked.job, "job", folder)
    check_name(asked.machine, "machine", folder)
    if asked.command == "plan" and asked.faults:
        raise InputError("plan takes no faults: mend all links first")
    unknown = [name for name in asked.options if name not in _OPTIONS[asked.command]]
    if unknown:
        raise InputError(f"--{unknown[0]} is not an option of {asked.command} on this page")
    for setting in asked.settings:
        key, _, value = setting.partition("=")
        if names_path(value):
            raise ConfigError(f"{value!r} names a path; the page reads presets and its own folder", key=key)
    for text in (*asked.faults, *asked.options.values()):
        if names_path(text):
            raise InputError(f"{text!r} names a path; the page reads presets and its own folder")


def names_path(text: str) -> bool:
    """Return whether a value could name a file outside the page's folder.

    >>> names_path("2 TB/s"), names_path("poisson rate=4/s"), names_path("../a"), names_path("/etc/s")
    (False, False, True, True)
    """
    return bool(re.search(r"[/\\~\x00]|\.\.", _RATE.sub("", text)))


def check_name(name: str, kind: Kind, folder: Path) -> None:
    """Raise `InputError` unless a name is that of a preset or of a file in the page's folder."""
    if name not in names(kind, folder):
        raise InputError(f"{kind} {name!r} is no preset and no file in the folder of the page")


def names(kind: Kind, folder: Path) -> list[str]:
    """Return the files of a folder that may be of a kind, and the presets of the kind."""
    found = sorted(path.name for path in folder.glob("*.yaml") if _FILE.match(path.name) and path.is_file())
    return [*found[:MOST_LISTED], *preset_names(kind)]


def file_name(text: str) -> str:
    """Return the name of a new file; `InputError` where it could leave the folder."""
    name = text if text.endswith(".yaml") else f"{text}.yaml"
    if not _FILE.match(name):
        raise InputError(f"{text!r} is no name for a file; allowed: letters, digits, _, - and .")
    return name
