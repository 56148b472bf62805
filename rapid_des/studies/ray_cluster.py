"""Workers that are tasks of a Ray cluster: an existing cluster, or one that is started here.

Ray finds a core for each task, keeps the processes that run tasks, and ends them with this process.
"""

from __future__ import annotations

import os
import site
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rapid_des.errors import InputError


class RayCluster:
    """A connection to a cluster; an earlier connection by `ray.init` is used and stays open."""

    def __init__(self, address: str | None = None) -> None:
        import ray
        from ray import exceptions as raised

        self._ray: Any = ray
        self.died: tuple[type[BaseException], ...] = (
            raised.WorkerCrashedError,
            raised.NodeDiedError,
            raised.OutOfMemoryError,
        )
        self._address = address
        self._is_guest = ray.is_initialized()
        self._connect()
        self.cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))

    def _connect(self) -> None:
        if self._ray.is_initialized():
            return
        dashboard = False if self._address is None else None
        try:
            with _elsewhere():
                self._ray.init(
                    address=self._address,
                    log_to_driver=False,
                    include_dashboard=dashboard,
                    runtime_env={"env_vars": _environment()},
                )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise InputError(f"no Ray cluster at {self._address!r}: {str(error).splitlines()[0]}") from None

    def worker(self) -> _RayWorker:
        """Return a worker that runs one task at a time."""
        self._connect()
        return _RayWorker(self._ray)

    def shared(self, pickled: bytes) -> Any:
        """Return a reference to a value, which is sent to each node once."""
        return SharedValue(self._ray.put(pickled))

    def close(self) -> None:
        """Close the connection, whose threads would print messages about nodes."""
        if not self._is_guest:
            self._ray.shutdown()


class SharedValue:
    """A value in Ray's object store."""

    def __init__(self, reference: Any) -> None:
        self._reference = reference

    def loaded(self) -> bytes:
        """Return the value."""
        import ray

        value: bytes = ray.get(self._reference)
        return value


class _RayWorker:
    """One task at a time; a process that Ray chooses runs it."""

    def __init__(self, ray: Any) -> None:
        self._cancel = ray.cancel
        self._task = ray.remote(num_cpus=1, max_retries=0)(_call)
        self._last: Any = None

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Call a function in the cluster; return the future of its result."""
        self._last = self._task.remote(str(Path.cwd()), function, *arguments)
        future: Future[Any] = self._last.future()
        return future

    def release(self) -> None:
        """Cancel the task that was submitted last."""
        if self._last is not None:
            self._cancel(self._last, force=True)

    def close(self) -> None:
        """Do nothing: Ray ends its processes."""


def _call(folder: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a folder, to which paths may be relative; another node may lack the folder."""
    with suppress(OSError):
        os.chdir(folder)
    return function(*arguments)


def _environment() -> dict[str, str]:
    """Return the environment of Ray's workers: this package is on their path, the current folder is not."""
    home = str(Path(__file__).parents[2])
    paths = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    if home not in site.getsitepackages():
        paths.append(home)
    known = {"PYTHONPATH": os.pathsep.join(paths)} if paths else {}
    return {**known, "PYTHONSAFEPATH": "1"}


@contextmanager
def _elsewhere() -> Iterator[None]:
    """Change to the root folder: Ray puts the current folder of the first client on its workers' path."""
    here = Path.cwd()
    os.chdir(here.anchor)
    try:
        yield
    finally:
        os.chdir(here)
