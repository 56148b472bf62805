"""Commands that run in processes of their own; a folder keeps what each was asked and what it said."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import msgspec

from rapid_des import __version__
from rapid_des.cli.ui.words import REPORT, Asked
from rapid_des.cli.ui.worker import ENDED, ERRORS, OUT, PROGRESS, begin, execute, replace_json
from rapid_des.config.documents import read_text
from rapid_des.errors import InputError
from rapid_des.processes import Worker

_ASKED = "asked.json"
_STOPPED = "the page's process ended before the work did"


class Task:
    """A command that waits, runs or has ended. Its folder's name is its number."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = "waiting"

    @property
    def number(self) -> str:
        """The name under which the page knows it."""
        return self.folder.name

    def read(self, name: str) -> Any:
        """Return what a JSON file of its folder holds; None where it is not there or not whole."""
        try:
            return json.loads(read_text(self.folder / name))
        except (InputError, ValueError):
            return None

    def text(self, name: str) -> str:
        """Return a text file of its folder; empty where it is not there."""
        path = self.folder / name
        return read_text(path) if path.is_file() else ""

    def status(self) -> dict[str, Any]:
        """Return what the page shows of it while it waits or runs, and in the history."""
        asked = self.read(_ASKED) or {}
        known: dict[str, Any] = {"number": self.number, "state": self.state, **asked}
        if self.state == "running":
            return known | {"progress": self.read(PROGRESS)}
        ended = self.read(ENDED) if self.state == "ended" else None
        if ended:
            known |= ended
            known["error"] = self.error(ended["code"])
        return known

    def error(self, code: int) -> str:
        """Return the line that says why it failed; empty if it did not."""
        lines = self.text(ERRORS).splitlines() if code else []
        return lines[-1].removeprefix("error: ") if lines else ""


class TaskFolder:
    """All tasks of a page, in a folder: as many run at once as there are processes, others wait."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.folder = folder
        self._lock = Lock()
        self._idle: list[Worker] = []
        self._free = workers
        self._running: dict[str, Worker] = {}
        self._tasks: dict[str, Task] = {}
        folder.mkdir(parents=True, exist_ok=True)
        for place in sorted(folder.iterdir()):
            if place.name.isdecimal() and (place / _ASKED).is_file():
                self._tasks[place.name] = task = Task(place)
                task.state = "ended" if (place / ENDED).is_file() else "stopped"

    def start(self, asked: Asked) -> Task:
        """Start a command, or return the task that has answered the same question of unchanged files."""
        plain = msgspec.json.decode(msgspec.json.encode(asked))
        files = {path.name: path.stat().st_mtime_ns for path in self.folder.parent.glob("*.yaml")}
        question = {"asked": plain, "version": __version__, "files": files}
        with self._lock:
            for task in reversed(self._tasks.values()):
                known = task.read(_ASKED) if task.state != "cancelled" else None
                if known and all(known.get(key) == value for key, value in question.items()) and _good(task):
                    return task
            task = Task(self._new_folder())
            made = {**question, "words": asked.words(), "made": time.time()}
            replace_json(task.folder / _ASKED, made)
            self._tasks[task.number] = task
            self._run_waiting()
        return task

    def _new_folder(self) -> Path:
        number = 1 + max(map(int, self._tasks), default=0)
        while True:
            place = self.folder / f"{number:06}"
            try:
                place.mkdir()
            except FileExistsError:  # of another page on the same folder
                number += 1
            else:
                return place

    def _run_waiting(self) -> None:
        for task in self._tasks.values():
            if task.state == "waiting" and self._free:
                self._free -= 1
                worker = self._idle.pop() if self._idle else Worker()
                worker.submit(begin, str(self.folder.parent))
                task.state, self._running[task.number] = "running", worker
                words = task.read(_ASKED)["words"]
                words = [str(task.folder / word) if word == REPORT else word for word in words]
                words.append("--json")
                future = worker.submit(execute, words, str(task.folder))
                future.add_done_callback(partial(self._ended, task))

    def _ended(self, task: Task, done: Future[None]) -> None:
        died = done.exception()
        with self._lock:
            worker = self._running.pop(task.number, None)
            if worker is None:  # it was cancelled
                return
            self._free += 1
            if died is None:
                self._idle.append(worker)
            else:
                worker.release()
                (task.folder / ERRORS).write_text(f"error: the process ended: {died}\n", encoding="utf-8")
                replace_json(task.folder / ENDED, {"code": 3, "seconds": None})
            task.state = "ended"
            self._run_waiting()

    def cancel(self, task: Task) -> None:
        """End a task's process, or take it out of those that wait; its folder goes."""
        with self._lock:
            worker = self._running.pop(task.number, None)
            if worker is None and task.state != "waiting":
                return
            task.state = "cancelled"
            if worker is not None:
                self._free += 1
        if worker is not None:
            worker.close()
        with self._lock:
            shutil.rmtree(task.folder, ignore_errors=True)
            self._run_waiting()

    def task(self, number: str) -> Task:
        """Return a task; `InputError` if there is none of this number."""
        task = self._tasks.get(number)
        if task is None:
            raise InputError(f"there is no run {number!r}")
        return task

    def result(self, number: str) -> dict[str, Any]:
        """Return what a task's command printed; `InputError` where it printed no result."""
        plain = self.task(number).read(OUT)
        if not isinstance(plain, dict):
            raise InputError(f"run {number} has no result: {_STOPPED}")
        return plain

    def newest(self, most: int) -> Iterator[dict[str, Any]]:
        """Yield what is known of the newest tasks."""
        kept = [task for task in reversed(list(self._tasks.values())) if task.state != "cancelled"]
        return (task.status() for task in kept[:most])

    def close(self) -> None:
        """End all processes."""
        for worker in (*self._running.values(), *self._idle):
            worker.close()


def _good(task: Task) -> bool:
    """Return whether a task answers, or is about to."""
    ended = task.read(ENDED)
    return task.state in {"waiting", "running"} or bool(ended and ended["code"] == 0)
