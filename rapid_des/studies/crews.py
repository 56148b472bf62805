"""The executors by name, and their workers: processes on this machine, or actors on a Ray cluster."""

from __future__ import annotations

import gc
import os
import queue
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import connection
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from rapid_des.errors import InputError
from rapid_des.report.writing import require_extra
from rapid_des.studies.executors import Executor, InProcess
from rapid_des.studies.remote import HELLO, Desk, Remote

EXECUTORS = ("processes", "local", "ray")
"""Names of executors; `local` is in this process."""
_SERVE = (
    "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "from rapid_des.studies.crews import serve; serve({descriptor})"
)
_NEW_OBJECTS = 50_000
"""See `rapid_des.cli.main`."""


def executor_of(name: str = "processes", workers: int | None = None, address: str | None = None) -> Executor:
    """Return an executor by its name, with so many workers (default: all cores, or all that a cluster has).

    `address` is that of a Ray cluster; without it `ray` starts one here. `InputError` if it can not be had.

    >>> executor_of("local").workers
    1
    """
    if name not in EXECUTORS:
        raise InputError(f"executor {name!r} is not one of {', '.join(EXECUTORS)}")
    if workers is not None and (not isinstance(workers, int) or workers < 1):
        raise InputError(f"workers {workers!r}; allowed: a whole number from 1 on")
    if address is not None and name != "ray":
        raise InputError(f"an address is for the executor ray, not for {name}")
    if name == "ray":
        crew = RayCrew(address)
        return Remote(crew, workers or crew.cpus)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if name == "local" or (workers or cores) == 1:
        return InProcess()
    return Remote(ProcessCrew(), workers or cores)


@dataclass(eq=False)
class _Process:
    process: subprocess.Popen[bytes]
    pipe: Connection


class ProcessCrew:
    """Workers as processes with an interpreter of their own: nothing of the caller's script is imported.

    They ignore ^C, which is for who employs them, and end when the pipe to that one does.
    """

    def hire(self) -> _Process:
        """Start a process."""
        ours, theirs = Pipe()
        paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
        alone = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", _SERVE.format(descriptor=theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**alone, **os.environ, "PYTHONPATH": paths},
            )
        return _Process(process, ours)

    def tell(self, worker: _Process, message: bytes) -> None:
        """Send a message."""
        with suppress(OSError):  # it died, as `listen` will say
            worker.pipe.send_bytes(message)

    def listen(self, workers: list[_Process], *, wait: bool) -> list[tuple[_Process, list[bytes] | str]]:
        """Return what has been sent by those that have sent something, or how they ended."""
        ready = connection.wait([worker.pipe for worker in workers], None if wait else 0)
        return [(worker, self._said(worker)) for worker in workers if worker.pipe in ready]

    def _said(self, worker: _Process) -> list[bytes] | str:
        said: list[bytes] = []
        try:
            while worker.pipe.poll():
                said.append(worker.pipe.recv_bytes())
        except (EOFError, OSError):
            if not said:  # else it is told the next time
                return _ended(worker.process.wait())
        return said

    def dismiss(self, worker: _Process) -> None:
        """Kill a process."""
        worker.pipe.close()
        worker.process.kill()
        worker.process.wait()

    def close(self) -> None:
        """Do nothing: processes share nothing."""


def _ended(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def serve(descriptor: int) -> None:
    """Do what comes through a pipe until it closes: the life of a worker."""
    pipe, messages = Connection(descriptor), queue.SimpleQueue[bytes]()
    threading.Thread(target=_receive, args=(pipe, messages), daemon=True).start()
    gc.set_threshold(_NEW_OBJECTS)
    gc.freeze()
    desk = Desk()
    _answer(pipe, HELLO)
    while True:
        for answer in desk.answers(messages.get()):
            _answer(pipe, answer)


def _answer(pipe: Connection, answer: bytes) -> None:
    """Send an answer; if who employs the process has been killed there is nobody to tell that."""
    try:
        pipe.send_bytes(answer)
    except OSError:
        os._exit(0)


def _receive(pipe: Connection, messages: queue.SimpleQueue[bytes]) -> None:
    """Take messages in as they come, so that nobody waits to send one; end the process with the pipe."""
    while True:
        try:
            messages.put(pipe.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)


@dataclass(eq=False)
class _Actor:
    handle: Any
    pending: list[Any] = field(default_factory=list)
    """What it was asked and has not answered, in order."""


class RayCrew:
    """Workers as Ray actors, a core each, on an existing cluster or on one that is started here.

    Who has called `ray.init` before keeps that connection; else it ends with the block that asks for workers.
    """

    def __init__(self, address: str | None = None) -> None:
        require_extra("ray", "ray", "the executor ray")
        import ray

        self._ray, self._address = ray, address
        self._is_guest = ray.is_initialized()
        self._connect()
        self.cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._kind = ray.remote(num_cpus=1, max_restarts=0)(ActorDesk)

    def _connect(self) -> None:
        if self._ray.is_initialized():
            return
        dashboard = False if self._address is None else None
        try:
            self._ray.init(address=self._address, log_to_driver=False, include_dashboard=dashboard)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise InputError(f"no Ray cluster at {self._address!r}: {str(error).splitlines()[0]}") from None

    def close(self) -> None:
        """End the connection, whose threads would print what Ray says of its nodes."""
        if not self._is_guest:
            self._ray.shutdown()

    def hire(self) -> _Actor:
        """Start an actor."""
        self._connect()
        handle = self._kind.remote()
        return _Actor(handle, [handle.hello.remote()])

    def tell(self, worker: _Actor, message: bytes) -> None:
        """Send a message."""
        worker.pending.append(worker.handle.answers.remote(message))

    def listen(self, workers: list[_Actor], *, wait: bool) -> list[tuple[_Actor, list[bytes] | str]]:
        """Return what the first to finish answered, or how it ended."""
        first = {worker.pending[0]: worker for worker in workers}
        ready, _ = self._ray.wait(list(first), num_returns=1, timeout=None if wait else 0)
        return [(first[reference], self._said(first[reference])) for reference in ready]

    def _said(self, worker: _Actor) -> list[bytes] | str:
        try:
            answers: list[bytes] = self._ray.get(worker.pending.pop(0))
        except self._ray.exceptions.RayActorError as error:
            return str(error).splitlines()[0]
        return answers

    def dismiss(self, worker: _Actor) -> None:
        """Kill an actor."""
        self._ray.kill(worker.handle)


class ActorDesk:
    """A desk whose messages come by Ray."""

    def __init__(self) -> None:
        self._desk = Desk()

    def hello(self) -> list[bytes]:
        """Tell that it has started."""
        return [HELLO]

    def answers(self, message: bytes) -> list[bytes]:
        """Return the answers to a message."""
        return list(self._desk.answers(message))
