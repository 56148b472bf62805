"""Jobs that represent a server's replica, and single passes of it."""

from __future__ import annotations

from msgspec import structs

from rapid_des.frontend.job import Job
from rapid_des.frontend.operations import RequestGroup
from rapid_des.units import Duration
from rapid_des.values import replace


def with_at_most_drafted(job: Job, tokens: int) -> Job:
    """Return the job with at most `tokens` drafted tokens a step, or without drafting."""
    spec = job.inference.speculative
    if spec is None:
        return job
    few = structs.replace(spec, tokens=tokens, acceptance=spec.acceptance[:tokens]) if tokens else None
    inference = structs.replace(job.inference, speculative=few)
    return replace(job, spec=structs.replace(job.spec, inference=inference))


def sharing(job: Job) -> int:
    """Return how many replicas of a job share experts, and step together."""
    split = job.spec.parallelism
    return max(1, split.ep * split.expert_degree // (split.tp * split.cp))


def of_replica(job: Job) -> Job:
    """Return the job of one replica, or of those that share its experts, each with the same batch."""
    split, together = job.spec.parallelism, sharing(job)
    if split.dp == together:
        return job
    return replace(job, spec=structs.replace(job.spec, parallelism=structs.replace(split, dp=together)))


def in_a_row(job: Job, copies: int) -> Job:
    """Return the job of several replicas, each with the same batch."""
    split = job.spec.parallelism
    repeated = structs.replace(split, dp=split.dp * copies)
    return replace(job, spec=structs.replace(job.spec, parallelism=repeated)) if copies > 1 else job


def prompts_of(job: Job, tokens: int) -> tuple[RequestGroup, ...]:
    """Return this many tokens as prompts of the largest length, and one shorter one."""
    longest = min(tokens, job.model.spec.max_positions - 1)
    whole, rest = divmod(tokens, longest)
    return (RequestGroup(whole, longest), *((RequestGroup(1, rest),) if rest else ()))


def without_host(job: Job) -> Job:
    """Return the job without the cost of issuing by a host."""
    host = job.host
    if host is None:
        return job
    none = Duration(0)
    idle = structs.replace(host, kernel=none, collective=none, graph=None, step=None, request=None)
    return replace(job, spec=structs.replace(job.spec, host=idle))
