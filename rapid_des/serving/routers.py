"""Which replica gets a request: one small function a rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rapid_des.serving.replica import Replica
from rapid_des.serving.requests import Request

Router = Callable[[Sequence[Replica], Request], Replica]


def round_robin(replicas: Sequence[Replica], request: Request) -> Replica:
    """Take turns."""
    return replicas[request.number % len(replicas)]


ROUTERS: Mapping[str, Router] = {"round_robin": round_robin}
