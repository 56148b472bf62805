"""Routers: functions that choose the replica of a request.

- `round_robin`: each in turn.
- `random`: any, by a hash of the request's number.
- `least_requests`: the one with the fewest unanswered requests (nginx's least_conn).
- `least_tokens`: the one with the fewest tokens still to compute and to make (vLLM's and Dynamo's load).
- `least_time`: the same by time, as replicas of several kinds need it: tokens of prompts and tokens to make,
  each times its pace at the replica.
- `most_free_pages`: the one with the most free pages, less those that waiting requests need.
- `session`: the same one for all requests of a session, by a hash.
- `prefix_aware`: the one with the fewest tokens still to compute and to make, those of the request that are
  not found there included (as the cost of Dynamo's KV router weighs overlap against load).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from zlib import crc32

from rapid_des.serving.replica import Replica
from rapid_des.serving.requests import Request

Router = Callable[[Sequence[Replica], Request], Replica]


def round_robin(replicas: Sequence[Replica], request: Request) -> Replica:
    """Return each replica in turn."""
    return replicas[request.turn % len(replicas)]


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


def least_time(replicas: Sequence[Replica], request: Request) -> Replica:
    """Return the replica that would be done with its tokens and those of the request first."""
    return min(replicas, key=lambda replica: replica.time_with(request))


def most_free_pages(replicas: Sequence[Replica], request: Request) -> Replica:
    """Return the replica with the most pages that neither running nor waiting requests need."""
    del request
    return max(replicas, key=lambda replica: replica.spare_pages)


def session(replicas: Sequence[Replica], request: Request) -> Replica:
    """Return the replica of the request's session."""
    return _hashed(replicas, f"session {request.session}")


def prefix_aware(replicas: Sequence[Replica], request: Request) -> Replica:
    """Return the replica with the fewest tokens to do, with those of the request that it does not find."""
    return min(replicas, key=lambda replica: replica.outstanding_tokens - replica.content.found(request))


def _hashed(replicas: Sequence[Replica], text: str) -> Replica:
    return replicas[crc32(text.encode()) % len(replicas)]


ROUTERS: Mapping[str, Router] = {
    "round_robin": round_robin,
    "random": random,
    "least_requests": least_requests,
    "least_tokens": least_tokens,
    "least_time": least_time,
    "most_free_pages": most_free_pages,
    "session": session,
    "prefix_aware": prefix_aware,
}
