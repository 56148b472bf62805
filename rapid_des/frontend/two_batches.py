"""Passes of two half-batches that take turns, so that tokens of one travel while the other computes.

SGLang's two-batch overlap, vLLM's dual batch overlap and DeepSeek's own (github.com/deepseek-ai/profile-data)
cut the requests of a pass in two. The layers of both run as one stretch of program, cut behind the exchanges
of tokens among experts, and take turns there (`passes.interleaved`). What stands before the layers and behind
them runs once, for the whole batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import numpy as np

from rapid_des.frontend.job import Job
from rapid_des.frontend.operations import RequestGroup
from rapid_des.frontend.passes import interleaved
from rapid_des.frontend.spec import InferenceSpec
from rapid_des.frontend.template import INPUT, SECOND, PieceEdges, PricedPiece
from rapid_des.values import replace

Groups = tuple[RequestGroup, ...]


def splits(spec: InferenceSpec, tokens: int, *, decoding: bool) -> bool:
    """Return whether a pass of this many tokens of a rank runs as two half-batches."""
    if spec.two_batches is None:
        return False
    least = spec.two_batches.decode if decoding else spec.two_batches.prefill
    return least is not None and tokens >= max(2, least)


def halves(groups: Groups) -> tuple[Groups, Groups]:
    """Return two halves of a pass: as many decoding requests in each, and as many tokens of prompts.

    Prompts are cut in their order, and one of them perhaps in two.

    >>> first, second = halves((RequestGroup(3, 1, 700), RequestGroup(1, 10)))
    >>> [(group.count, group.query_length, group.cached) for group in first]
    [(2, 1, 700), (1, 5, 0)]
    >>> [(group.count, group.query_length, group.cached) for group in second]
    [(1, 1, 700), (1, 5, 5)]
    """
    decoding = [group for group in groups if group.decodes]
    prompts = [group for group in groups if not group.decodes]
    tokens = sum(group.count * group.query_length for group in prompts)
    chunks = list(cut(prompts, -(-tokens // 2))) if tokens else [(), ()]
    parts: tuple[list[RequestGroup], list[RequestGroup]] = [], []
    odd = 0
    for group in decoding:
        many = (group.count + 1 - odd) // 2
        odd ^= group.count % 2
        for part, count in zip(parts, (many, group.count - many), strict=True):
            part.extend([replace(group, count=count)] if count else [])
    return (*parts[0], *chunks[0]), (*parts[1], *chunks[1])


def cut(prompts: Sequence[RequestGroup], most: int) -> Iterator[Groups]:
    """Yield passes of at most this many tokens that compute prompts in their order, cut where a pass is full.

    >>> [[(group.count, group.query_length, group.cached, group.samples) for group in each]
    ...  for each in cut((RequestGroup(3, 10),), 16)]
    [[(1, 10, 0, 1), (1, 6, 0, 0)], [(1, 4, 6, 1), (1, 10, 0, 1)]]
    """
    room, chosen = most, list[RequestGroup]()
    for group in prompts:
        for _ in range(group.count):
            done = 0
            while done < group.query_length:
                tokens = min(room, group.query_length - done)
                ends = done + tokens == group.query_length
                chosen.append(RequestGroup(1, tokens, group.cached + done, group.samples if ends else 0))
                done, room = done + tokens, room - tokens
                if not room:
                    yield _joined(chosen)
                    room, chosen = most, []
    if chosen:
        yield _joined(chosen)


def _joined(requests: Iterable[RequestGroup]) -> Groups:
    """Return the groups with equal neighbours merged into one."""
    return tuple(replace(request, count=sum(1 for _ in alike)) for request, alike in groupby(requests))


def taking_turns(first: PricedPiece, second: PricedPiece) -> PricedPiece:
    """Return the layers of two half-batches as one piece; the result of the second is the last of all.

    Rows that see the cache are those of the first half, then those of the second.
    """
    both = interleaved(second, first)
    edges = both.piece.edges
    targets = np.where(edges.targets == SECOND, INPUT, edges.targets)
    of_second, of_first = both.rows
    seeing = (*of_first[list(first.cache_rows)], *of_second[list(second.cache_rows)])
    return replace(
        both.piece, edges=PieceEdges(edges.counts, targets), cache_rows=tuple(int(row) for row in seeing)
    )


def refusals(job: Job) -> Iterator[tuple[str, str]]:
    """Yield why a pass cannot run as two half-batches that take turns."""
    split, key = job.spec.parallelism, "inference.two_batches"
    if job.inference.two_batches is None:
        return
    if not (job.model.has_experts and split.ep > 1 and (split.tp == 1 or split.sequence_parallel)):
        needs = "experts, ep above 1, and tp 1 or sequence_parallel"
        yield key, f"no tokens travel among experts to compute beside; it needs {needs}"
    if split.cp > 1:
        yield key, f"cp {split.cp} splits the prompts already"
