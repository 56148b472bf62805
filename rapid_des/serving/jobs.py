"""The job of one replica of a server, or of several alike."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from rapid_des.frontend.job import Job


def sharing(job: Job) -> int:
    """Return how many replicas of a job share experts, and step together."""
    split = job.spec.parallelism
    return max(1, split.ep * split.expert_ways // (split.tp * split.cp))


def of_replica(job: Job) -> Job:
    """Return the job of one replica, or of those that share its experts, each with the same batch."""
    split, together = job.spec.parallelism, sharing(job)
    if split.dp == together:
        return job
    return replace(job, spec=structs.replace(job.spec, parallelism=structs.replace(split, dp=together)))


def in_a_row(job: Job, copies: int) -> Job:
    """Return the job of so many replicas, each with the same batch."""
    split = job.spec.parallelism
    repeated = structs.replace(split, dp=split.dp * copies)
    return replace(job, spec=structs.replace(job.spec, parallelism=repeated)) if copies > 1 else job
