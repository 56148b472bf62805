"""How far a command is: a bar on the terminal for whoever waits, nothing where nobody looks.

Rich draws it, imported two seconds after a command began, if it still runs; colours as NO_COLOR says.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Lock, Timer
from typing import Any, TypeVar

from rapid_des.cli.main import printable
from rapid_des.cli.options import announce

AFTER_S = 2.0
"""How long a command runs before its bar is drawn."""

_Item = TypeVar("_Item")


class Bar:
    """What a command is doing, and how much of it is done; it is told from one thread, drawn by another."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._done, self._expected = 0, 0
        self._lock = Lock()
        self._drawn: Any = None
        self._closed = False

    def __call__(self, done: int, expected: int) -> None:
        """Take how much of one simulation is done, and about how much there is."""
        self._done, self._expected = min(done, expected), expected
        self._update()

    def name(self, title: str) -> None:
        """Say what is done now; how much of it there is comes later."""
        self.title, self._done, self._expected = title, 0, 0
        self._update()

    def part(self, title: str, number: int, parts: int) -> None:
        """Say which part is done now, after how many of how many."""
        self.title, self._done, self._expected = title, number, parts
        self._update()

    def draw(self) -> None:
        """Begin to draw."""
        from rich import progress
        from rich.console import Console

        with self._lock:
            if self._closed:
                return
            self._drawn = progress.Progress(
                progress.SpinnerColumn("line"),
                progress.TextColumn("{task.description}", markup=False),
                progress.BarColumn(),
                progress.TextColumn("{task.percentage:>3.0f} %", justify="right"),
                progress.TextColumn("{task.fields[rate]}"),
                progress.TimeRemainingColumn(elapsed_when_finished=True),
                console=Console(stderr=True),
                transient=True,
            )
            self._drawn.add_task(printable(self.title), total=None, rate="")
            self._drawn.start()
        self._update()

    def close(self) -> None:
        """Take the bar off the terminal."""
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
        self._drawn.update(task.id, description=printable(self.title), completed=self._done, rate=rate)


@contextmanager
def progress(title: str) -> Iterator[Bar]:
    """Show a bar while the block lasts, if stderr is a terminal."""
    bar = Bar(title)
    timer = Timer(AFTER_S, bar.draw)
    timer.daemon = True
    if sys.stderr.isatty():
        timer.start()
    try:
        yield bar
    finally:
        timer.cancel()
        bar.close()


def until_interrupted(items: Iterable[_Item]) -> tuple[list[_Item], bool]:
    """Return all items, or those that were there at ^C and True; without any the interrupt goes on."""
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
