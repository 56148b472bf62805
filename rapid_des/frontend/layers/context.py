"""The core of attention over sequences that context parallelism splits: what ranks exchange, and when.

`all_gather`: keys and values of all parts before the core, their gradients added up after its backward.

A ring: a rank's block of keys and values goes round, while each rank's queries attend to the block that is
there (Liu et al. 2023, arXiv 2310.01889). Rank i holds pieces i and 2·n - 1 - i of the sequence, so that
causal work is alike: its own block under the mask, of a block before its own all queries the early piece, of
a block after it the late queries all keys (Brandon et al. 2023, arXiv 2311.09431, balance by stripes). Half
of all pairs each time; the rank in the middle, which has as many of one as of the other, stands for all.
Partial results are joined by their softmax statistics. Backward the blocks come back, and each takes along
what ranks before added to its gradients: a step sends keys, values and their gradients.

By heads: an all-to-all gives each rank all positions of some heads, another takes the result back (Jacobs et
al. 2023, arXiv 2309.14509). Both together: by heads among ranks that follow one another, a ring of these.
"""

from __future__ import annotations

from typing import Unpack

from rapid_des.device.operators import Attention, Vector
from rapid_des.frontend.layers.layer import CORE, AttentionCore, of_documents
from rapid_des.frontend.operations import Counts, OperatorList, Shard
from rapid_des.frontend.spec import ParallelismSpec
from rapid_des.values import replace

_RING = "attention.kv_ring"


def context_refusal(core: AttentionCore, split: ParallelismSpec) -> str | None:
    """Return why a job's cp cannot split the core; None if it can."""
    heads = split.head_degree
    if not core.causal:
        return "its pieces of a sequence balance the work of a causal mask, and attention has none"
    if core.reach and heads < split.cp and split.cp_kind != "all_gather":
        what = f"a window of {core.window}" if core.window else f"attention in chunks of {core.chunk}"
        problem = f"{what} leaves blocks of a ring without work, and ranks unbalanced"
        return f"cp_kind {split.cp_kind}: {problem}: take all_gather or ulysses"
    local, keys = core.heads // split.tp, max(1, core.kv_heads // split.tp)
    if local % heads or keys % heads:
        what = f"{local} query and {keys} key-value heads of a tp rank do not divide"
        return f"cp_kind {split.cp_kind}: {what} by the {heads} ranks of cp that share them"
    return None


def core_forward(
    core: AttentionCore,
    operations: OperatorList,
    shard: Shard,
    name: str = CORE,
    /,
    **counts: Unpack[Counts],
) -> None:
    """Append the core with its exchanges; the counts go to its last kernel."""
    if shard.cp_kind == "all_gather":
        _gather(core, operations, shard)
        core.append(operations, shard, name, **counts)
        return
    inner, local = _by_heads(core, shard)
    if shard.cp_heads > 1:
        swap(operations, shard, "attention.qkv.to_heads", _inputs(core, shard))
        counts["core"] = counts.get("core", 0) + counts.get("output", 0)  # the result in both layouts
    if local.cp > 1:
        _ring_forward(inner, operations, local, name, **counts)
    else:
        inner.append(operations, local, name, **counts)
    if shard.cp_heads > 1:
        swap(operations, shard, "attention.output.from_heads", core.result_width(shard))


def core_backward(
    core: AttentionCore, operations: OperatorList, shard: Shard, /, **counts: Unpack[Counts]
) -> None:
    """Append the backward of the core, after the core again where that is recomputed; else as forward."""
    if shard.cp_kind == "all_gather":
        _gather(core, operations, shard)
        core.append_backward(operations, shard, **counts)
        _gather(core, operations, shard, role="cp.scatter")
        return
    if shard.core_again:
        output = shard.activation_bytes(shard.tokens * core.result_width(shard))
        held = core.saved_bytes(shard) + output * (shard.cp_heads > 1)
        core_forward(core, operations, shard, f"{CORE}.recompute", held=held)
    inner, local = _by_heads(core, shard)
    if shard.cp_heads > 1:
        swap(operations, shard, "attention.output.to_heads", core.result_width(shard))
    if local.cp > 1:
        _ring_backward(inner, operations, local, **counts)
    else:
        inner.append(operations, local, CORE, backward=True, **counts)
    if shard.cp_heads > 1:
        swap(operations, shard, "attention.qkv.from_heads", _inputs(core, shard))


def _inputs(core: AttentionCore, shard: Shard) -> int:
    """Return the columns of a rank's queries, keys and values."""
    return core.query_width(shard) + _block_width(core, shard)


def _block_width(core: AttentionCore, shard: Shard) -> int:
    return core.key_width(shard) + core.value_width(shard)


def _gather(core: AttentionCore, operations: OperatorList, shard: Shard, role: str = "cp.gather") -> None:
    """Append the gather of keys and values, or the sum of their gradients, of all sequence parts."""
    elements = shard.sequences * shard.key_length * _block_width(core, shard)
    name = "attention.kv_gather" if role == "cp.gather" else "attention.kv_gradient_scatter"
    operations.message(name, role, shard.message(role, elements), output=shard.activation_bytes(elements))


def _by_heads(core: AttentionCore, shard: Shard) -> tuple[AttentionCore, Shard]:
    """Return the core and the positions that a rank has after the exchange of heads."""
    head_degree = shard.cp_heads
    kv_heads = max(shard.tp, core.kv_heads) // head_degree
    heads = replace(core, heads=core.heads // head_degree, kv_heads=kv_heads)
    return heads, replace(shard, query_length=shard.query_length * head_degree, cp=shard.cp_ring, cp_heads=1)


def swap(operations: OperatorList, shard: Shard, name: str, columns: int, *, role: str = "cp.heads") -> None:
    """Append the exchange of positions for heads, or back; `role` says among which ranks.

    What is sent is sorted by whom it goes to, what comes by position and head.
    """
    size = shard.message(role, shard.tokens * columns)
    sort = shard.vector("transpose", shard.tokens, columns)
    operations.kernel(f"{name}.sort", sort, output=size)
    operations.message(name, role, size, output=size)
    operations.kernel(f"{name}.join", sort, output=size)


def join_parts(operations: OperatorList, shard: Shard, heads: int, width: int) -> None:
    """Append the sum of the results of ranks that attended to a part of the KV cache each.

    `heads` and `width` are a token's. Each rank weighs its result by the softmax statistics of all parts
    (Flash-Decoding, Dao et al. 2023, over ranks).
    """
    rows = shard.tokens * heads
    statistics = shard.message("cp.statistics", rows, "fp32")
    operations.message("attention.statistics.gather", "cp.statistics", statistics)
    operations.kernel("attention.statistics.scale", shard.vector("multiply", rows, width // heads))
    elements = shard.tokens * width
    output = shard.activation_bytes(elements)
    operations.message("attention.parts.sum", "cp.sum", shard.message("cp.sum", elements), output=output)


def swap_states(operations: OperatorList, shard: Shard, name: str, columns: int) -> None:
    """Append the exchange of positions for a recurrent layer's heads, where there is context parallelism."""
    if shard.cp > 1:
        swap(operations, shard, name, columns, role="cp.states")


def of_heads(shard: Shard) -> Shard:
    """Return the shard between exchanges over cp: all positions of as many heads less."""
    return replace(shard, tp=shard.tp * shard.cp, query_length=shard.query_length * shard.cp, cp=1)


def _ring_forward(
    core: AttentionCore, operations: OperatorList, shard: Shard, name: str, /, **counts: Unpack[Counts]
) -> None:
    """Append a ring's passes: while one block is attended to the next comes; then results are joined."""
    size = shard.message("cp.ring", shard.tokens * _block_width(core, shard))
    newest, ring = operations.last, shard.cp
    there: tuple[int, ...] = ()
    passes: list[int] = []
    for place in range(ring):
        ready, part = (*there, newest), _part(shard, place)
        if place < ring - 1:
            there = operations.pass_on(_RING, "cp.ring", size, step=1, after=ready)
        *early, kernel = _pairs(core, shard, place, backward=False)
        for other in early:
            operations.kernel(f"{name}.{part}.documents", other, after=ready)
        output = shard.activation_bytes(_rows(shard, place) * core.result_width(shard))
        newest = operations.kernel(f"{name}.{part}", kernel, after=ready, output=output)
        passes.append(newest)
        if place:
            statistics = Vector("row_scalar", _rows(shard, place) * core.local_heads(shard), 1, "fp32")
            newest = operations.kernel(f"{name}.{part}.statistics", statistics, after=newest)
    for place in range(1, ring):
        waits = (newest, *passes) if place == 1 else operations.last
        merge = shard.vector("residual_add", _rows(shard, place), core.result_width(shard))
        if place == ring - 1:
            operations.kernel(name, merge, after=waits, **counts)
        else:
            operations.kernel(f"{name}.{_part(shard, place)}.merge", merge, after=waits)


def _ring_backward(
    core: AttentionCore, operations: OperatorList, shard: Shard, /, **counts: Unpack[Counts]
) -> None:
    """Append a ring's passes back, from the block that came last to the rank's own.

    Each sends on the block that is there, but for the last, and the gradients of the one before it.
    """
    width, ring = _block_width(core, shard), shard.cp
    size = shard.message("cp.ring", shard.tokens * width)
    newest = operations.last
    there: tuple[int, ...] = ()
    for place in reversed(range(ring)):
        ready, part = (*there, newest), _part(shard, place)
        block, gradients = place > 0, place < ring - 1
        name = f"{_RING}_gradient" if not block else f"{_RING}_and_gradient" if gradients else _RING
        there = operations.pass_on(name, "cp.ring", (block + gradients) * size, step=-1, after=ready)
        *early, kernel = _pairs(core, shard, place, backward=True)
        for other in early:
            operations.kernel(f"{CORE}.{part}.documents", other, after=ready)
        output = shard.activation_bytes(shard.tokens * _inputs(core, shard))
        newest = operations.kernel(f"{CORE}.{part}", kernel, after=ready, output=output)
        if gradients:
            queries = shard.vector("residual_add", _rows(shard, place), core.query_width(shard))
            newest = operations.kernel(f"{CORE}.{part}.query_gradient", queries, after=newest)
            sums, waits = shard.vector("residual_add", shard.tokens, width), (*there, newest)
            if place:
                newest = operations.kernel(f"{CORE}.kv_gradient", sums, after=waits)
            else:
                operations.kernel(CORE, sums, after=waits, **counts)


def _part(shard: Shard, place: int) -> str:
    """Return the pairs that a rank computes with the block of `place` ranks before, for the middle rank."""
    if place == 0:
        return "own"
    return "early_keys" if place <= shard.cp // 2 else "late_queries"


def _rows(shard: Shard, place: int) -> int:
    """Return how many query positions see the block `place` ranks back."""
    return shard.tokens // 2 if _part(shard, place) == "late_queries" else shard.tokens


def _pairs(core: AttentionCore, shard: Shard, place: int, *, backward: bool) -> tuple[Attention, ...]:
    """Return the kernels of a rank's queries and the block `place` ranks back: one a length of documents."""
    return tuple(_pair(core, some, _part(shard, place), backward=backward) for some in of_documents(shard))


def _pair(core: AttentionCore, shard: Shard, part: str, *, backward: bool) -> Attention:
    whole, half = shard.query_length, shard.query_length // 2
    if part == "own":
        return core.diagonal(shard, backward=backward)
    queries, keys = (whole, half) if part == "early_keys" else (half, whole)
    return core.block(shard, queries, keys, backward=backward)
