"""How large a job may be."""

from __future__ import annotations

from rapid_des.frontend.job import Job

NODES_A_LAYER = 40
MOST_NODES = 2**25
MOST_GPUS = 2**22


def too_long(job: Job) -> str | None:
    """Return why no trace can hold a job: a rank's program is one table in memory."""
    passes = job.micro_batches
    if job.spec.phase == "inference":
        steps = job.inference.decode_steps
        passes *= job.inference.output_length if steps == "all" else steps + 1
    nodes = passes * max(job.layers) * len(job.placement[0]) * NODES_A_LAYER
    if nodes <= MOST_NODES:
        return None
    problem = f"{passes} passes of {max(job.layers)} layers are about {nodes} nodes a rank"
    return f"{problem}, at most {MOST_NODES} fit a trace"
