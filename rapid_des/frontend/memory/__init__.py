"""Memory of a rank from events: operators allocate and free named tensors in the order of the schedule.

    operator lists ──► events ──► training ──► StageMemory: peak by tensor, a moment for each pass
                        weights, gradients, optimizer, buffers, the framework's own ──┘
    passes of requests ──► serving

Which of the two a job needs, and whether it fits, `rapid_des.frontend.build` says; `advice` says what helps
if not. Not counted: statistics of norms (8 bytes a row). What a framework takes besides the model is its
profile's (`rapid_des.frontend.spec`).
"""

from rapid_des.frontend.memory.advice import shortage as shortage
from rapid_des.frontend.memory.events import CATEGORIES as CATEGORIES
from rapid_des.frontend.memory.events import JobMemory as JobMemory
from rapid_des.frontend.memory.events import Moment as Moment
from rapid_des.frontend.memory.events import SectionMemory as SectionMemory
from rapid_des.frontend.memory.events import StageMemory as StageMemory
from rapid_des.frontend.memory.events import Tensor as Tensor
from rapid_des.frontend.memory.events import section_memory as section_memory
from rapid_des.frontend.memory.events import shown as shown
from rapid_des.frontend.memory.serving import KvCapacity as KvCapacity
from rapid_des.frontend.memory.serving import kv_capacity as kv_capacity
