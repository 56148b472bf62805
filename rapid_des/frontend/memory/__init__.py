"""Memory of a rank from events: operators allocate and free named tensors in the order of the schedule.

    operator lists ──► events ──► training ──► StageMemory: peak by tensor, a moment for each pass
                        weights, gradients, optimizer, buffers, the framework's own ──┘
    passes of requests ──► serving

Which of the two a job needs, and whether it fits, `rapid_des.frontend.build` says; `advice` says what helps
if not. Not counted: statistics of norms (8 bytes a row). What a framework takes besides the model is its
profile's (`rapid_des.frontend.reserve`).
"""

from rapid_des.frontend.memory.advice import shortage
from rapid_des.frontend.memory.events import (
    CATEGORIES,
    JobMemory,
    Moment,
    SectionMemory,
    StageMemory,
    Tensor,
    section_memory,
    shown,
)
from rapid_des.frontend.memory.serving import KvCapacity, kv_capacity

__all__ = [
    "CATEGORIES",
    "JobMemory",
    "KvCapacity",
    "Moment",
    "SectionMemory",
    "StageMemory",
    "Tensor",
    "kv_capacity",
    "section_memory",
    "shortage",
    "shown",
]
