"""The one place that starts processes: each an interpreter of its own, which ends when this one does.

loky starts them: it is kept by the authors of joblib, is small, and imports nothing of the caller's script,
which the standard library's pool does. (joblib itself takes items from another thread than the caller's, and
so cannot follow an order that depends on what was found.) Three things are added on POSIX systems:

- The current folder is not on their path. loky starts workers by `python -m` and resource trackers by
  `python -c`, and both put that folder first. `PYTHONSAFEPATH` in their environment forbids that.
- They do not see ^C, which is for the process that waits for them. SIGINT is blocked while they start; a
  process inherits what is blocked.
- They end with this process, even if it is killed. Each holds the reading end of a pipe whose writing end is
  here. When that closes, the kernel sends SIGIO, whose default action ends a process: no code that holds
  Python's lock can delay it.
"""

from __future__ import annotations

import gc
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Self
from weakref import WeakSet

_NEW_OBJECTS = 50_000
"""The number of new objects after which Python searches for dead reference cycles.

Its default of 700 costs a tenth of a large run, which makes many lasting objects and few cycles.
"""
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_NO_LIMIT = {"LOKY_MAX_MEMORY_LEAK_SIZE": "1e18"}
"""Disables a limit of loky, which would replace workers that grow by 300 MB, as their caches may."""
_OF_TRACKERS = {"PYTHONSAFEPATH": "1", "PYTHONWARNINGS": "ignore"}
"""Trackers give back the semaphores of processes that were killed, and would warn of each."""


class Worker:
    """A process that runs functions one after the other; they, their arguments and results are pickled.

    A future raises `BrokenProcessPool` if the process died.

    >>> with Worker() as worker:
    ...     worker.submit(divmod, 7, 2).result()
    (3, 1)
    """

    def __init__(self) -> None:
        from loky.process_executor import ProcessPoolExecutor

        # without psutil and pgrep loky says that it ends no processes of its process: these hold a pipe too
        warnings.filterwarnings("ignore", "Failed to kill subprocesses")
        theirs, self._lifeline = Pipe(duplex=False)
        threads = {name: os.environ.get(name, "1") for name in _ONE_THREAD}
        warned = os.environ.get("PYTHONWARNINGS", "")
        with _starting():  # its locks start a tracker
            self._executor = ProcessPoolExecutor(
                1,
                initializer=_begin,
                initargs=(theirs,),
                env={**_OF_TRACKERS, **threads, **_NO_LIMIT, "PYTHONWARNINGS": warned},
            )
        self._theirs = theirs  # until the process has it
        self._has_started = False
        _OPEN.add(self)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Submit a function call; the first call starts the process."""
        try:
            with nullcontext() if self._has_started else _starting():
                self._has_started = True
                future: Future[Any] = self._executor.submit(function, *arguments)
        except BrokenProcessPool as died:
            future = Future[Any]()
            future.set_exception(died)
        return future

    def release(self) -> None:
        """End the process without waiting for that."""
        self._lifeline.close()

    def close(self) -> None:
        """End the process, whatever it does."""
        self.release()
        self._executor.shutdown(kill_workers=True)
        self._theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_OPEN = WeakSet[Worker]()


def end_all() -> None:
    """End all processes whose blocks were not left: at its exit Python would wait for what they do."""
    for worker in list(_OPEN):
        worker.release()


@contextmanager
def _starting() -> Iterator[None]:
    """Start processes that import nothing from the current folder and do not receive ^C."""
    from loky.backend import resource_tracker

    known = {name: os.environ.get(name) for name in _OF_TRACKERS}
    os.environ |= _OF_TRACKERS  # trackers take the environment as it is
    try:
        _standard_tracker()  # it unblocks SIGINT, hence first
        resource_tracker.ensure_running()
        with _interrupts_blocked():
            yield
    finally:
        for name, value in known.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _standard_tracker() -> None:
    if os.name == "posix":
        from multiprocessing import resource_tracker

        resource_tracker.ensure_running()


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(lifeline: Connection) -> None:
    """Begin the life of a process."""
    _end_with(lifeline)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # stdout is for the answer of the process that waits
    gc.set_threshold(_NEW_OBJECTS)
    gc.freeze()  # what was imported stays


def _end_with(lifeline: Connection) -> None:
    """End this process when the other end of a pipe, on which nothing is ever written, closes."""
    if os.name != "posix":
        return
    import fcntl

    descriptor = lifeline.fileno()
    with suppress(OSError):  # a system without signals for pipes
        signal.signal(signal.SIGIO, signal.SIG_DFL)
        fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)
    _KEPT.append(lifeline)  # collected, it would close
    if lifeline.poll():  # it was closed before
        os._exit(1)


_KEPT: list[Connection] = []
