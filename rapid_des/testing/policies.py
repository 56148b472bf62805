"""The check of serving policies: everybody is answered, nothing is lost, and steps may pass at once."""

from __future__ import annotations

import numpy as np

from rapid_des.arrays import Int64s
from rapid_des.serving.batch import Batch
from rapid_des.serving.engine import Engine
from rapid_des.serving.fleet import Fleet
from rapid_des.serving.policies import Policy, policy_of
from rapid_des.serving.result import ServeResult
from rapid_des.serving.routers import ROUTERS
from rapid_des.serving.workload import draw, parse_arrivals, parse_lengths

_REQUESTS = 60


class LinearCosts:
    """An iteration takes 1 ms, a microsecond a prompt token, and 10 ns a position that decoding sees."""

    shares = (1.0,)

    def time(self, batch: Batch) -> int:
        """Return the time of an iteration."""
        prompts = sum(chunk.query_length for chunk in batch.chunks)
        return 10**9 + 10**6 * prompts + 10**4 * batch.keys

    def ends(self, decodes: int, keys: Int64s) -> Int64s:
        """Return when each of several decode steps ends."""
        del decodes
        return np.cumsum(10**9 + 10**4 * keys)


def check_policy(name: str) -> None:
    """Check a policy of `serving.policy` with plenty of pages for the KV cache, and with few.

    All requests are answered, pages are given back, never more are held than there are. Steps that pass at
    once end as those that are simulated one by one; a policy for which that is wrong states `steady=False`.

    >>> check_policy("vllm_v1")
    """
    policy = policy_of(name)
    for pages in (10**6, 60):
        together, apart = (_served(policy, pages, stepwise=stepwise) for stepwise in (False, True))
        for column, values in together.items():
            assert (values == apart[column]).all(), f"{column} differs when each step is simulated"


def _served(policy: Policy, pages: int, *, stepwise: bool) -> dict[str, Int64s]:
    """Serve requests of all lengths and return their columns."""
    engine = Engine(policy=policy, costs=LinearCosts(), pages=pages, page_size=16, max_batched_tokens=8192,
                    max_sequences=256, stepwise=stepwise)  # fmt: skip
    lengths = (parse_lengths("lognormal mean=200 cv=0.7 most=500", "prompt"),
               parse_lengths("lognormal mean=60 cv=1 most=200", "output"))  # fmt: skip
    work = draw(parse_arrivals("poisson rate=20/s"), lengths, _REQUESTS, 1)
    fleet = Fleet(engine, work, ROUTERS["round_robin"])
    assert fleet.run(), "the server stands still"
    (replica,) = fleet.members
    waiting, running, held = replica.sizes
    assert (waiting, running) == (0, 0), f"{waiting} requests wait and {running} run at the end"
    assert held == 0, f"{held} pages are held at the end"
    result = ServeResult.of(fleet, name="check", gpus=1)
    assert len(result) == _REQUESTS, f"{len(result)} of {_REQUESTS} requests are answered"
    most = result.loads[0]["pages"].max()
    assert most <= pages, f"{most} of {pages} pages are held at once"
    return dict(result.requests)
