"""Optimizers: the states that each keeps of a parameter, and the kernels of its update.

An 8-bit Adam keeps its moments in a byte each, with one fp32 scale for 256 of them (block-wise quantisation,
Dettmers et al. 2022, arXiv 2110.02861; bitsandbytes has blocks of 256). Muon (Jordan et al. 2024; Liu et al.
2025, arXiv 2502.16982) keeps one momentum of each matrix of a layer and orthogonalises it by five
Newton-Schulz iterations of three products in bf16; tables, heads, norms and biases are AdamW's. A rank
orthogonalises the part that tp leaves it by itself (Megatron Core's `blockwise`), and where replicas split
the optimizer, its share of the matrices, each whole. The products of matrices of one shape are priced, and
issued, as one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rapid_des.device.operators import Gemm, Operator, Vector
from rapid_des.device.vector_kinds import update_kind
from rapid_des.frontend.job import Job
from rapid_des.frontend.parts import PieceKey, stage_sections, training_lists
from rapid_des.frontend.shard import byte_count
from rapid_des.frontend.template import Domain
from rapid_des.units import ceil_divide

ITERATIONS = 5
"""Of Newton-Schulz, as Muon is published."""
_BLOCK = 256
"""Values that share a scale of four bytes."""


@dataclass(frozen=True)
class OptimizerKind:
    """What one optimizer keeps of a parameter."""

    states: tuple[str, ...]
    blocks: bool = False
    """Whether states are quantised to a byte in blocks; else they have the job's `precision.optimizer`."""

    def state_bytes(self, elements: int, dtype: str) -> int:
        """Return the bytes of one state of so many parameters."""
        return elements + 4 * ceil_divide(elements, _BLOCK) if self.blocks else byte_count(elements, dtype)


_MOMENTS = ("first moments", "second moments")
_MUON = OptimizerKind(("momentum",))
OPTIMIZERS: Mapping[str, OptimizerKind] = {
    "adam": OptimizerKind(_MOMENTS),
    "adamw": OptimizerKind(_MOMENTS),
    "adam_8bit": OptimizerKind(_MOMENTS, blocks=True),
    "sgd": OptimizerKind(("momentum",)),
    "muon": OptimizerKind(_MOMENTS),
}
"""By `training.optimizer`; `muon`: of what is no matrix of a layer. Each is a kernel of its own too."""


class Matrix(NamedTuple):
    """A weight matrix of a rank, its shorter side first."""

    domain: Domain
    rows: int
    columns: int


def matrices(job: Job, stage: int) -> Counter[Matrix]:
    """Return the matrices of a stage's layers that Muon updates, on one rank."""
    lists = training_lists(job)
    found: Counter[Matrix] = Counter()
    for section, count in stage_sections(job, stage).items():
        for each in lists[PieceKey(section, "backward")] if section.name == "block" else ():
            if isinstance(each.operator, Gemm) and each.operator.accumulate:
                sides = sorted((each.operator.m, each.operator.n))
                found[Matrix(each.domain, *sides)] += count * each.operator.batch
    return found


def states(job: Job, stage: int, domain: Domain, elements: int) -> Iterator[tuple[str, int]]:
    """Yield the optimizer's states of a rank's `elements` by name, with the bytes that it holds of each."""
    kind, dtype = OPTIMIZERS[job.training.optimizer], job.spec.precision.optimizer
    orthogonal = _orthogonal(job, stage, domain)
    for name in kind.states:
        yield name, kind.state_bytes(job.shardings[domain].held("optimizer", elements - orthogonal), dtype)
    for name in _MUON.states if orthogonal else ():
        yield name, _MUON.state_bytes(job.shardings[domain].held("optimizer", orthogonal), dtype)


def _orthogonal(job: Job, stage: int, domain: Domain) -> int:
    """Return how many parameters of a domain are in matrices that the optimizer orthogonalises."""
    if job.training.optimizer != "muon":
        return 0
    found = matrices(job, stage)
    return sum(n * one.rows * one.columns for one, n in found.items() if one.domain == domain)


def update_kernels(job: Job, stage: int, parameters: Mapping[Domain, int]) -> dict[str, Operator]:
    """Return the kernels of the update of a rank of so many parameters by domain, in order, by name.

    There are none where the host updates them.
    """
    if job.training.offload_optimizer:
        return {}
    dtype = job.spec.precision.gradients
    orthogonal = {domain: _orthogonal(job, stage, domain) for domain in parameters}
    plain = sum(
        job.shardings[domain].held("optimizer", count - orthogonal[domain])
        for domain, count in parameters.items()
    )
    precision = job.spec.precision
    if not any(orthogonal.values()):
        kind = update_kind(job.training.optimizer, precision.optimizer, precision.master_weights)
        return {"optimizer": Vector(kind, 1, plain, dtype)}
    own = sum(job.shardings[domain].held("optimizer", count) for domain, count in orthogonal.items())
    return {
        "optimizer.momentum": Vector("muon_momentum", 1, own, dtype),
        **_newton_schulz(job, matrices(job, stage)),
        "optimizer.update": Vector("muon", 1, own, dtype),
        "optimizer": Vector("adamw", 1, max(plain, 1), dtype),
    }


def _newton_schulz(job: Job, found: Mapping[Matrix, int]) -> dict[str, Operator]:
    """Return the iterations of X := a X + (b A + c A A) X, A = X Xᵀ, of all matrices, by shape."""
    kernels: dict[str, Operator] = {}
    for place, (matrix, count) in enumerate(found.items()):
        sharding = job.shardings[matrix.domain]
        runs = ITERATIONS * sharding.held("optimizer", count)
        rows, columns = matrix.rows, matrix.columns
        name = f"optimizer.newton_schulz.{place}"
        kernels |= {
            f"{name}.gram": Gemm(rows, rows, columns, batch=runs),
            f"{name}.square": Gemm(rows, rows, rows, batch=runs, accumulate=True),
            f"{name}.apply": Gemm(rows, columns, rows, batch=runs, accumulate=True),
        }
    return kernels
