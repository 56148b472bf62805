# ruff: noqa: C901, PLR0912, PLR0913, PLR0915, PLR1714 - the one file of compiled loops
"""Loops over bytes and edges: plain Python for small inputs, the same source compiled for large ones.

NOTE: these loops index bytes and arrays one element at a time because that is what numba compiles; a clear
protobuf loop over message objects reads a tenth of the bytes in the same time. Every kernel works on
Python integers and on 64-bit ones alike, so a `uint64` is carried as the `int64` of the same bits. A kernel
writes what it has to say into its last argument, `outcome`, and returns nothing, so that its machine code
can be called without numba: `on_bytes` and `on_arrays` choose by how much there is to do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rapid_des.arrays import Int64s
from rapid_des.compiling import CompiledKernel
from rapid_des.compiling.kinds import Int32Column, Int64Column, UInt8Column

INCOMPLETE = -1
TOO_LONG = -2


def scan_frames(
    buffer: UInt8Column, begin: int, starts: Int64Column, ends: Int64Column, outcome: Int64Column
) -> None:
    """Find whole frames from `begin` on: (number of frames, where the next one starts, 0 or an error).

    A frame that the buffer's end cuts gives `INCOMPLETE`, a length of more than ten bytes `TOO_LONG`.
    """
    size = len(buffer)
    position = begin
    count = 0
    problem = 0
    while problem == 0 and position < size and count < len(starts):
        length = 0
        shift = 0
        cursor = position
        byte = 128
        while problem == 0 and byte >= 128:
            if cursor >= size:
                problem = INCOMPLETE
            elif shift > 28:
                problem = TOO_LONG
            else:
                byte = buffer[cursor]
                cursor += 1
                length |= (byte & 127) << shift
                shift += 7
        if problem == 0 and length > size - cursor:
            problem = INCOMPLETE
        if problem == 0:
            starts[count] = cursor
            ends[count] = cursor + length
            count += 1
            position = cursor + length
    outcome[0] = count
    outcome[1] = position
    outcome[2] = problem


def scan_fields(
    buffer: UInt8Column,
    starts: Int64Column,
    ends: Int64Column,
    owner: Int32Column,
    field: Int64Column,
    value: Int64Column,
    payload_starts: Int64Column,
    payload_ends: Int64Column,
    outcome: Int64Column,
) -> None:
    """Split messages into fields: (number of fields, the first malformed message or -1).

    `starts` and `ends` are the messages'. For each field: its message, its number * 8 + wire type, the
    integer it holds (varint or fixed, as int64 bits), and the (start, end) of its bytes.
    """
    count = 0
    outcome[1] = -1
    for message in range(len(starts)):
        position = starts[message]
        end = ends[message]
        while position < end:
            tag = 0
            shift = 0
            byte = 128
            while byte >= 128:
                if position >= end or shift > 28:
                    outcome[1] = message
                    return
                byte = buffer[position]
                position += 1
                tag |= (byte & 127) << shift
                shift += 7
            wire = tag & 7
            begin = position
            number = 0
            if wire == 0 or wire == 2:
                shift = 0
                byte = 128
                while byte >= 128:
                    if position >= end or shift > 63:
                        outcome[1] = message
                        return
                    byte = buffer[position]
                    position += 1
                    if shift < 63:
                        number |= (byte & 127) << shift
                    elif byte & 1:
                        number += -9223372036854775808
                    shift += 7
                if wire == 2:
                    begin = position
                    if number < 0 or number > end - position:
                        outcome[1] = message
                        return
                    position += number
            elif wire == 1 or wire == 5:
                width = 8 if wire == 1 else 4
                if width > end - position:
                    outcome[1] = message
                    return
                for index in range(width):
                    byte = buffer[position + index]
                    if index == 7 and byte >= 128:
                        number += -9223372036854775808
                        byte -= 128
                    number |= (byte & 127) << (8 * index) if index == 7 else byte << (8 * index)
                position += width
            else:
                outcome[1] = message
                return
            if tag < 8 or tag > 4294967295:
                outcome[1] = message
                return
            owner[count] = message
            field[count] = tag
            value[count] = number
            payload_starts[count] = begin
            payload_ends[count] = position
            count += 1
    outcome[0] = count


def scan_varints(
    buffer: UInt8Column,
    starts: Int64Column,
    ends: Int64Column,
    values: Int64Column,
    counts: Int64Column,
    outcome: Int64Column,
) -> None:
    """Unpack spans of varints into `values`, as int64 bits, and `counts`: (number, first bad span or -1)."""
    count = 0
    outcome[1] = -1
    for span in range(len(starts)):
        position = starts[span]
        end = ends[span]
        first = count
        while position < end:
            number = 0
            shift = 0
            byte = 128
            while byte >= 128:
                if position >= end or shift > 63:
                    outcome[1] = span
                    return
                byte = buffer[position]
                position += 1
                if shift < 63:
                    number |= (byte & 127) << shift
                elif byte & 1:
                    number += -9223372036854775808
                shift += 7
            values[count] = number
            count += 1
        counts[span] = count - first
    outcome[0] = count


def intern_spans(
    buffer: UInt8Column,
    starts: Int64Column,
    ends: Int64Column,
    slots: Int32Column,
    codes: Int32Column,
    firsts: Int64Column,
    outcome: Int64Column,
) -> None:
    """Assign numbers to the distinct byte strings of spans as they first appear: (how many there are).

    `slots` is a hash table of -1s whose length is a power of two above twice the number of spans; `firsts`
    gets the span in which each distinct string was first seen.
    """
    mask = len(slots) - 1
    distinct = 0
    for span in range(len(starts)):
        start = starts[span]
        length = ends[span] - start
        key = length
        for index in range(length):
            key = (key * 31 + buffer[start + index]) & 4294967295
        slot = (key ^ (key >> 15)) & mask
        while True:
            code = slots[slot]
            if code < 0:
                slots[slot] = distinct
                firsts[distinct] = span
                codes[span] = distinct
                distinct += 1
                break
            other = starts[firsts[code]]
            same = ends[firsts[code]] - other == length
            index = 0
            while same and index < length:
                same = buffer[other + index] == buffer[start + index]
                index += 1
            if same:
                codes[span] = code
                break
            slot = (slot + 1) & mask
    outcome[0] = distinct


def ready_order(
    starts: Int64Column,
    children: Int64Column,
    waiting: Int64Column,
    heap: Int64Column,
    result: Int64Column,
    outcome: Int64Column,
) -> None:
    """Kahn's algorithm with a heap of ready positions: (how many it reaches); `heap` is room for it."""
    size = len(waiting)
    ready = 0
    for node in range(size):
        if waiting[node] == 0:
            heap[ready] = node
            ready += 1
    count = 0
    while ready > 0:
        smallest = heap[0]
        ready -= 1
        last = heap[ready]
        hole = 0
        while 2 * hole + 1 < ready:
            child = 2 * hole + 1
            if child + 1 < ready and heap[child + 1] < heap[child]:
                child += 1
            if heap[child] >= last:
                break
            heap[hole] = heap[child]
            hole = child
        heap[hole] = last
        result[count] = smallest
        count += 1
        for row in range(starts[smallest], starts[smallest + 1]):
            node = children[row]
            waiting[node] -= 1
            if waiting[node] == 0:
                hole = ready
                ready += 1
                while hole > 0 and heap[(hole - 1) // 2] > node:
                    heap[hole] = heap[(hole - 1) // 2]
                    hole = (hole - 1) // 2
                heap[hole] = node
    outcome[0] = count


def longest_paths(
    order: Int64Column,
    starts: Int64Column,
    needs: Int64Column,
    weights: Int64Column,
    lengths: Int64Column,
    outcome: Int64Column,
) -> None:
    """Fill `lengths` with the heaviest chain that ends in each node: (nothing); `order` is topological."""
    for index in range(len(order)):
        node = order[index]
        longest = 0
        for row in range(starts[node], starts[node + 1]):
            longest = max(longest, lengths[needs[row]])
        lengths[node] = longest + weights[node]
    outcome[0] = 0


Loop = Callable[..., None]

LOAD_AFTER = 1 << 16
"""The number of elements processed by plain loops after which cached machine code is loaded."""
COMPILE_ABOVE = 1 << 18
"""The number of elements above which one input is worth a compilation."""
COMPILE_AFTER = 1 << 21
"""The number of elements processed by plain loops after which small inputs are compiled for too."""
_plain_work = [0]
OUTCOMES = 3
"""The number of integers in a kernel's last argument, `outcome`."""


KERNELS = {
    loop: CompiledKernel(loop)
    for loop in (scan_frames, scan_fields, scan_varints, intern_spans, ready_order, longest_paths)
}


def _worth_it(loop: Loop, size: int) -> bool:
    """Return whether an input of `size` elements is worth loading or compiling machine code.

    NOTE: counts the work of this process, because a thousand small files are one large input. Both forms give
    the same outcome, so the count decides speed alone.
    """
    if _plain_work[0] + size > LOAD_AFTER:
        kernel = KERNELS[loop]
        wanted = size > COMPILE_ABOVE or _plain_work[0] + size > COMPILE_AFTER
        if not kernel.is_cold() or (wanted and not kernel.is_interpreted):
            return True
    _plain_work[0] += size
    return False


def on_bytes(loop: Loop, buffer: bytes, *arguments: Any) -> list[int]:
    """Run a loop on a buffer and return its outcome."""
    outcome = np.zeros(OUTCOMES, np.int64)
    if _worth_it(loop, len(buffer)):
        KERNELS[loop](np.frombuffer(buffer, np.uint8), *arguments, outcome)
    else:
        loop(buffer, *arguments, outcome)
    return outcome.tolist()


def on_arrays(loop: Loop, size: int, read: tuple[Int64s, ...], written: tuple[Int64s, ...]) -> list[int]:
    """Run a loop on arrays that it reads and arrays that it writes; `size` is its amount of work.

    NOTE: a small input goes in as lists, which Python indexes several times faster than arrays.
    """
    outcome = np.zeros(OUTCOMES, np.int64)
    if _worth_it(loop, size):
        KERNELS[loop](*map(_read_only, read), *written, outcome)
        return outcome.tolist()
    lists = [array.tolist() for array in written]
    loop(*(array.tolist() for array in read), *lists, outcome)
    for array, new in zip(written, lists, strict=True):
        array[:] = new
    return outcome.tolist()


def _read_only(array: Int64s) -> Int64s:
    """Return an array as kernels take what they only read, whatever the caller may do with it."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view
