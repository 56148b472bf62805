"""The kernel's event queue: a 4-ary heap of distinct times, each with a bucket of unordered events.

Events of one instant need no order, because servers choose only after all events of the instant (R4). A push
takes constant time if its time is in the cache, as in symmetric collectives, else it moves up the heap. The
cache can lose a time whose slot another time takes; then the time has two buckets, which are popped together.
"""

from __future__ import annotations

from rapid_des.compiling import compilable
from rapid_des.engines.compiled.pools import TIME_CACHE, Calendar

HEAP, FREE_BUCKET, FREE_EVENT, PUSHED, USED = 0, 1, 2, 3, 4
_WORD, _GOLDEN = 0xFFFFFFFF, 0x61C88647
"""The mask and factor of 32-bit multiplicative hashing: the product stays below 2**63."""


@compilable
def push(calendar: Calendar, moment: int, kind: int, a: int, b: int) -> None:
    """Add an event; the caller has made sure that there is room."""
    count = calendar.counts
    event = count[FREE_EVENT]
    count[FREE_EVENT] = calendar.next[event]
    count[PUSHED] += 1
    count[USED] += 1
    calendar.kind[event] = kind
    calendar.a[event] = a
    calendar.b[event] = b
    # Bits 20 to 31 of the product are well mixed. A slot holds one time; a newer one replaces it.
    slot = (((moment & _WORD) * _GOLDEN) >> 20) & (TIME_CACHE - 1)
    if calendar.cached_time[slot] == moment:  # the bucket exists: no heap operation
        bucket = calendar.cached_bucket[slot]
        calendar.next[event] = calendar.first[bucket]
        calendar.first[bucket] = event
        return
    bucket = count[FREE_BUCKET]
    count[FREE_BUCKET] = calendar.first[bucket]
    calendar.first[bucket] = event
    calendar.next[event] = -1
    calendar.cached_time[slot] = moment
    calendar.cached_bucket[slot] = bucket
    _sift_up(calendar, moment, bucket)


@compilable
def _sift_up(calendar: Calendar, moment: int, bucket: int) -> None:
    """Insert a bucket into the heap: move parents with later times down until its place is found."""
    child = calendar.counts[HEAP]
    calendar.counts[HEAP] = child + 1
    while child > 0:
        parent = (child - 1) >> 2
        if calendar.time[parent] <= moment:
            break
        calendar.time[child] = calendar.time[parent]
        calendar.bucket[child] = calendar.bucket[parent]
        child = parent
    calendar.time[child] = moment
    calendar.bucket[child] = bucket


@compilable
def pop(calendar: Calendar) -> int:
    """Take the earliest bucket off the heap and return it; its time was `calendar.time[0]`."""
    earliest = calendar.bucket[0]
    length = calendar.counts[HEAP] - 1
    calendar.counts[HEAP] = length
    # The last leaf fills the gap at the top: earlier children move up until its place is found.
    moment, bucket = calendar.time[length], calendar.bucket[length]
    parent = 0
    while True:
        child = 4 * parent + 1
        if child >= length:
            break
        last = min(child + 4, length)
        least = child
        for other in range(child + 1, last):
            if calendar.time[other] < calendar.time[least]:
                least = other
        if calendar.time[least] >= moment:
            break
        calendar.time[parent] = calendar.time[least]
        calendar.bucket[parent] = calendar.bucket[least]
        parent = least
    calendar.time[parent] = moment
    calendar.bucket[parent] = bucket
    return earliest


@compilable
def recycle(calendar: Calendar, event: int) -> None:
    """Return an event's row to the pool."""
    calendar.next[event] = calendar.counts[FREE_EVENT]
    calendar.counts[FREE_EVENT] = event
    calendar.counts[USED] -= 1


@compilable
def recycle_bucket(calendar: Calendar, bucket: int) -> None:
    """Return a bucket's row to the pool.

    The cache keeps its entry for the bucket's time: events are pushed for later times only.
    """
    calendar.first[bucket] = calendar.counts[FREE_BUCKET]
    calendar.counts[FREE_BUCKET] = bucket
