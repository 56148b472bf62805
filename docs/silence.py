"""How long the documentation's commands print nothing on a terminal.

    python -m docs.silence                    # all commands of README and docs
    python -m docs.silence plan capacity      # those whose words have one of these

Each command runs in a terminal of its own, with the files of its page. Printed are its seconds by the
clock and of processor, the longest time without output by the clock, its exit code and its words. A bar
that moves counts as output. On a busy machine times by the clock are longer.
"""

import os
import pty
import re
import select
import shlex
import subprocess
import sys
import time
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from tempfile import TemporaryDirectory

import click
from msgspec import Struct

from validation.refresh_docs import write_files

ROOT = Path(__file__).parents[1]
SHORT_S = 2.0
"""Commands that take less are not printed."""
LIMIT_S = 600.0
_COMMAND = re.compile(r"^(?:\$ )?(rapid-des [a-z][^|\n#]*)", re.MULTILINE)


class Timed(Struct, frozen=True):
    """How long a command took, in seconds."""

    words: str
    whole_s: float
    processor_s: float
    silent_s: float
    code: int


def commands() -> dict[str, str]:
    """Return each command of README and docs, and the text of a page that has it."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    texts = [
        page.read_text(encoding="utf-8").replace("\\\n", " ")
        for page in pages
        if "generated" not in page.parts
    ]
    blocks = [
        (block, text)
        for text in texts
        for block in re.findall(r"```(?:sh|console|text)\n.*?```", text, re.DOTALL)
    ]
    return {" ".join(words.split()): text for block, text in blocks for words in _COMMAND.findall(block)}


def timed(words: str, folder: Path) -> Timed:
    """Run a command in a terminal and return its longest silence; it is stopped after `LIMIT_S`."""
    command = [sys.executable, str(ROOT / "cli.py"), *shlex.split(words)[1:]]
    ours, theirs = pty.openpty()
    before = getrusage(RUSAGE_CHILDREN)
    begun = said = time.monotonic()
    process = subprocess.Popen(
        command, cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True
    )
    os.close(theirs)
    silent = 0.0
    while time.monotonic() - begun < LIMIT_S and _reads(ours, begun + LIMIT_S - time.monotonic()):
        silent, said = max(silent, time.monotonic() - said), time.monotonic()
    if process.poll() is None:
        process.terminate()
    code = process.wait()
    now, after = time.monotonic(), getrusage(RUSAGE_CHILDREN)
    os.close(ours)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Timed(words, now - begun, processor, max(silent, now - said), code)


def _reads(terminal: int, patience_s: float) -> bool:
    """Wait so long for output; return whether there was some before the other side closed the terminal."""
    ready, _, _ = select.select([terminal], [], [], max(0.0, patience_s))
    try:
        return bool(ready) and bool(os.read(terminal, 2**16))
    except OSError:  # what Linux says when nobody holds the other side any more
        return False


def main(wanted: list[str]) -> None:
    """Print how long commands are silent, each as soon as it has ended."""
    click.echo("whole s  processor s  silent s  code  command")
    for words, text in commands().items():
        if words == "rapid-des ui" or (wanted and not any(word in words for word in wanted)):
            continue
        with TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "validation").symlink_to(ROOT / "validation")
            write_files(text, folder)
            row = timed(words, folder)
        if row.whole_s >= SHORT_S:
            click.echo(
                f"{row.whole_s:7.1f}  {row.processor_s:11.1f}  {row.silent_s:8.1f}  {row.code:4}  {row.words}"
            )


if __name__ == "__main__":
    main(sys.argv[1:])
