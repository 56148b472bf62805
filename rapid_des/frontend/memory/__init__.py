"""Memory of a rank from events: operators allocate and free named tensors in the order of the schedule.

    operator lists ──► events ──► training ──► StageMemory: peak by tensor, a moment for each pass
                                  standing: weights, gradients, optimizer, buffers, the framework's own
    passes of requests ──► serving

Not counted: statistics of norms (8 bytes a row). What a framework takes besides the model is its profile's
(`rapid_des.frontend.reserve`).
"""

from rapid_des.frontend.memory.advice import check_memory, memory, shortage
from rapid_des.frontend.memory.events import SectionMemory, section_memory
from rapid_des.frontend.memory.serving import KvCapacity, kv_capacity
from rapid_des.frontend.memory.tensors import CATEGORIES, JobMemory, Moment, StageMemory, Tensor, shown

__all__ = [
    "CATEGORIES",
    "JobMemory",
    "KvCapacity",
    "Moment",
    "SectionMemory",
    "StageMemory",
    "Tensor",
    "check_memory",
    "kv_capacity",
    "memory",
    "section_memory",
    "shortage",
    "shown",
]
