"""The `rapid-des run` command line of a job that differs from the one that a user named."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from rapid_des.cli.options import split_settings
from rapid_des.config import Document
from rapid_des.config.specs import to_tree
from rapid_des.errors import RapidDesError
from rapid_des.frontend import Job, load_job
from rapid_des.simulation import MODES

_MISSING: object = object()


class Named(Struct, frozen=True):
    """A job as a user named it on a command line."""

    words: Sequence[str]
    """The words that name the job or the model and the machine, as both commands take them."""
    source: str | Document
    """The file or preset that holds the job, or the job that trains the model."""
    settings: Sequence[str]
    """The user's `--set` options."""
    job: Job
    """The job with these settings."""


def run_command(named: Named, job: Job, mode: str) -> str | None:
    """Return the command that simulates `job` in a mode; None where settings cannot state the job."""
    changes = list(_changes(to_tree(named.job.spec, "job"), to_tree(job.spec, "job")))
    settings = [*named.settings, *(f"job.{key}={_text(value)}" for key, value in changes)]
    try:
        again = load_job(named.source, settings=split_settings(settings)["job"])
    except RapidDesError:
        return None
    if again.spec != job.spec:
        return None
    words = ["rapid-des", "run", *named.words]
    words += [word for setting in settings for word in ("--set", setting)]
    return shlex.join(words + (["--mode", mode] if mode != MODES[0] else []))


def _changes(before: Any, after: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the key path and the new value of each entry that differs, mappings entered."""
    if not (isinstance(before, dict) and isinstance(after, dict)):
        if before != after:
            yield path, after
        return
    for key in [*after, *(key for key in before if key not in after)]:
        old, new = before.get(key, _MISSING), after.get(key)
        yield from _changes(old, new, f"{path}.{key}" if path else key)


def _text(value: Any) -> str:
    """Return a value as `--set` reads it, short: `[tp,cp]`, `full`, `true`."""
    if isinstance(value, list):
        return f"[{','.join(map(_text, value))}]"
    return value if isinstance(value, str) else json.dumps(value)
