"""Routers: a small function for each rule, which says which replica gets a request.

- `round_robin`: in turn.
- `random`: any, by a hash of the request's number.
- `least_requests`: who has the fewest requests that are not answered (nginx's least_conn).
- `least_tokens`: who has the fewest tokens still to compute and to make (vLLM's and Dynamo's load).
- `most_free_pages`: who has the most free pages, less what waits for pages there.
- `session`: requests of one session to one replica, by a hash.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from zlib import crc32

from rapid_des.serving.replica import Replica
from rapid_des.serving.requests import Request

Router = Callable[[Sequence[Replica], Request], Replica]


def round_robin(replicas: Sequence[Replica], request: Request) -> Replica:
    """Return each replica in turn."""
    return replicas[request.number % len(replicas)]


def random(replicas: Sequence[Replica], request: Request) -> Replica:
    """Return a replica by a hash of the request's number."""
    return _hashed(replicas, f"request {request.number}")


def least_requests(replicas: Sequence[Replica], request: Request) -> Replica:
    """Return the replica with the fewest requests, of several the first."""
    del request
    return min(replicas, key=lambda replica: replica.outstanding)


def least_tokens(replicas: Sequence[Replica], request: Request) -> Replica:
    """Return the replica with the fewest tokens to compute and to make."""
    del request
    return min(replicas, key=lambda replica: replica.outstanding_tokens)


def most_free_pages(replicas: Sequence[Replica], request: Request) -> Replica:
    """Return the replica with the most pages that neither running nor waiting requests need."""
    del request
    return max(replicas, key=lambda replica: replica.spare_pages)


def session(replicas: Sequence[Replica], request: Request) -> Replica:
    """Return the replica of the request's session."""
    return _hashed(replicas, f"session {request.session}")


def _hashed(replicas: Sequence[Replica], text: str) -> Replica:
    return replicas[crc32(text.encode()) % len(replicas)]


ROUTERS: Mapping[str, Router] = {
    "round_robin": round_robin,
    "random": random,
    "least_requests": least_requests,
    "least_tokens": least_tokens,
    "most_free_pages": most_free_pages,
    "session": session,
}
