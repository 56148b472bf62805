"""Costs of iterations that run as two half-batches which take turns (`inference.two_batches`).

Kernels are those of both halves; the rest, what a simulated pass takes beyond them, is of flattened runs, as
half-batches take turns across layers.
"""

from __future__ import annotations

from collections.abc import Callable

from rapid_des.bounded_cache import BoundedCache
from rapid_des.frontend.job import Job
from rapid_des.frontend.two_batches import cut, splits
from rapid_des.machine import Machine
from rapid_des.serving.batch import Batch
from rapid_des.serving.costs import PassCosts
from rapid_des.serving.kernels import Kernels


def costs_of(job: Job, machine: Machine, cache: BoundedCache | None = None, *, copies: int = 1) -> PassCosts:
    """Return the costs of a job's replica; `copies` as in `PassCosts`."""
    kind = PassCosts if job.inference.two_batches is None else HalfBatchCosts
    return kind(job, machine, cache, copies=copies)


class HalfBatchCosts(PassCosts):
    """Costs of a job whose passes run as two half-batches."""

    def _splits(self, tokens: int, *, decoding: bool) -> bool:
        return splits(self._job.inference, tokens, decoding=decoding) and tokens > self.checked

    def _of_both(self, price: Callable[[int, bool], Kernels], tokens: int, decoding: bool) -> Kernels:
        """Return the kernels that depend on the number of tokens, of both halves."""
        if not self._splits(tokens, decoding=decoding):
            return price(tokens, decoding)
        unit = self.checked if decoding else 1
        later = tokens // unit // 2 * unit
        return price(tokens - later, decoding).then(price(later, decoding))

    def _body(self, tokens: int, decoding: bool) -> Kernels:
        return self._of_both(super()._body, tokens, decoding)

    def _experts(self, tokens: int, decoding: bool) -> Kernels:
        return self._of_both(super()._experts, tokens, decoding)

    def _attention_at(self, decodes: int, length: int, decoding: bool) -> Kernels:
        price = super()._attention_at
        if not decoding or not self._splits(decodes * self.checked, decoding=True):
            return price(decodes, length, decoding)
        later = decodes // 2
        return price(decodes - later, length, decoding).then(price(later, length, decoding))

    def _seen(self, batch: Batch, decoding: bool) -> Kernels:
        if decoding or not self._splits(batch.tokens, decoding=False):
            return super()._seen(batch, decoding)
        prompts, later = list(cut(batch.chunks, -(-batch.prompt_tokens // 2))), batch.decodes // 2
        decodes = batch.decodes - later, later
        keys = [batch.keys * part // max(1, batch.decodes) for part in decodes]
        seen = Kernels(0, 0)
        for part, sum_of_keys, chunks in zip(decodes, keys, (*prompts, (), ())[:2], strict=True):
            seen = seen.then(super()._seen(Batch(part, sum_of_keys, chunks, batch.checked), decoding))
        return seen
