"""The kernel's event queue: a 4-ary heap of distinct times, each with a bucket of events in any order.

Events of one instant need no order, because servers choose only once an instant's events have all happened
(R4). A push costs O(1) when its time was pushed before (a symmetric collective), else a walk up the heap;
the cache from times to buckets may forget, then a time has two buckets, which are popped together.
"""

from __future__ import annotations

from rapid_des.compiling import compilable
from rapid_des.engines.compiled.pools import TIME_CACHE, Calendar

HEAP, FREE_BUCKET, FREE_EVENT, PUSHED, USED = 0, 1, 2, 3, 4
_WORD, _GOLDEN = 0xFFFFFFFF, 0x61C88647
"""32-bit multiplicative hashing: the product stays below 2**63."""


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
    slot = (((moment & _WORD) * _GOLDEN) >> 20) & (TIME_CACHE - 1)
    if calendar.cached_time[slot] == moment:
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
    _rise(calendar, moment, bucket)


@compilable
def _rise(calendar: Calendar, moment: int, bucket: int) -> None:
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
    """Give an event's place back."""
    calendar.next[event] = calendar.counts[FREE_EVENT]
    calendar.counts[FREE_EVENT] = event
    calendar.counts[USED] -= 1


@compilable
def recycle_bucket(calendar: Calendar, bucket: int) -> None:
    """Give a bucket's place back."""
    calendar.first[bucket] = calendar.counts[FREE_BUCKET]
    calendar.counts[FREE_BUCKET] = bucket
