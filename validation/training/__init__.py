"""Measured training steps and memory beside runs of the jobs."""

from __future__ import annotations

from functools import cache

from validation.jobs.workers import Runs


@cache
def runs() -> Runs:
    """Return what this process has run of training jobs."""
    return Runs()
