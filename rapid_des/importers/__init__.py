"""Other tools' files as models, jobs and machines: one package for each tool, found by its entry point.

    hugging_face   `rapid-des import hf`: config.json to a model file
    megatron       `rapid-des import megatron`: the arguments of a launch script to a job file
    torchtitan     `rapid-des import torchtitan`: its TOML to a job file
    rapid_llm      `rapid-des import rapid-llm`: its two files to a job, a machine and a device file
    infragraph     the dimensions `shape: infragraph` of a machine file
    astra_sim      `rapid-des replay --astra-network …`: traces under ASTRA-sim's files and rules

An importer is an `Importer`, registered under a name in the entry points of the group `rapid_des.importers`.
It recognises a tool's file with `match` and reads it with `load`. `keys` reads a file so that each key is
mapped, refused by name, or ignored with a reason; `imported` checks the job that results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

from msgspec import Struct

from rapid_des.importers.keys import Ignored


class Imported(Protocol):
    """What an importer returns: files to write, and what the user must know of them."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What the imported files leave open or imply, one sentence each."""

    @property
    def ignored(self) -> tuple[Ignored, ...]:
        """The keys that change nothing, each with the reason."""

    @property
    def summary(self) -> str:
        """What was read, in some words: `llama, 6,738,415,616 parameters`."""

    def files(self, name: str) -> Mapping[str, str]:
        """Return the text of each file to write, by file name; `name` is how they start."""

    def as_json(self) -> dict[str, Any]:
        """Return what `--json` prints besides notes, ignored keys and the names of written files."""


class Option(Struct, frozen=True):
    """An option of `rapid-des import NAME`, passed to `load` by its keyword."""

    keyword: str
    help: str
    flag: str = ""
    """The flag without dashes; empty: the keyword."""
    kind: Literal["text", "count", "pairs"] = "text"
    """Text, a whole number from 1, or any number of `KEY=VALUE`, which are passed as a list of pairs."""
    metavar: str | None = None


class Importer(Struct, frozen=True):
    """How one tool's files are recognised and read."""

    summary: str
    """The help of `rapid-des import NAME`: one sentence that says which files it reads."""
    match: Callable[[Path], bool]
    """Whether a file or folder looks like the tool's; reading errors are no match."""
    load: Callable[..., Imported]
    """Called with the paths, `ignore` (the keys of `--ignore`) and the options; raises `ConfigError`."""
    writes: Literal["model", "job", "folder"]
    """A model file or a job file, printed unless `-o` names one, or several files in a folder."""
    paths: tuple[str, ...] = ("path",)
    """The names of the command's arguments, each a path."""
    options: tuple[Option, ...] = ()


GPUS = Option("gpus", "How many GPUs, where the file does not say it.", kind="count")
