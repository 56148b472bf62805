"""What the page's processes run: a command into a folder, or a quick answer."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from rapid_des.bounded_cache import BoundedCache
from rapid_des.cli.main import WATCHER, Bar, main
from rapid_des.errors import RapidDesError

OUT, ERRORS, PROGRESS, ENDED = "out.json", "said.txt", "progress.json", "ended.json"
"""Files of a task: what its command printed on stdout and stderr, how far it is, and how it ended."""
CACHE = BoundedCache(1 << 28)
"""What the quick answers of this process share, prices and templates of collectives; and the answers."""
Reply: TypeAlias = dict[str, Any]


def begin(folder: str) -> None:
    """Make the page's folder the current one: the names of files in it are read from there."""
    os.chdir(folder)


def execute(words: Sequence[str], folder: str) -> None:
    """Run a command of the command line; what it prints and how it ends goes into a folder's files."""
    place, began, code = Path(folder), time.monotonic(), 0
    WATCHER.set(partial(_show, place / PROGRESS))
    with (
        (place / OUT).open("w", encoding="utf-8") as out,
        (place / ERRORS).open("w", encoding="utf-8") as said,
        redirect_stdout(out),
        redirect_stderr(said),
    ):
        try:
            main(words)
        except SystemExit as leaving:
            code = int(leaving.code or 0)
    replace_json(place / ENDED, {"code": code, "seconds": round(time.monotonic() - began, 3)})


def _show(path: Path, bar: Bar) -> None:
    replace_json(path, {"text": bar.said(), "share": bar.share, "rows": bar.rows()})


def replace_json(path: Path, plain: object) -> None:
    """Write a JSON file such that a reader sees the old or the new one whole."""
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(plain), encoding="utf-8")
    beside.replace(path)


def answered(function: Callable[..., Reply], *arguments: Any) -> Reply:
    """Return what a function returns, or an error that was raised on purpose with the key that it names."""
    try:
        return function(*arguments)
    except RapidDesError as error:
        return {"error": " ".join(str(error).split()), "key": getattr(error, "key", "")}
