"""Muon: matrices of layers are updated by orthogonalised momentum.

Muon (Jordan et al. 2024; Liu et al. 2025, arXiv 2502.16982) keeps one momentum of each matrix of a layer and
orthogonalises it by five Newton-Schulz iterations of three products in bf16. A rank orthogonalises the part
that tp leaves it by itself (Megatron Core's `blockwise`), and where replicas split the optimizer, its share
of the matrices, each whole. Where they split parameters too, parts of momenta travel in bf16 to whom a matrix
falls to, and what it makes of them travels back, in all-to-alls that stand for as many matrices as there are
replicas, or a multiple of it (Dion's Muon for FSDP2, github.com/microsoft/dion; torchtitan's experiment with
it). The products of matrices of one shape are priced, and issued, as one. Of an offloaded optimizer the host
keeps momenta too, which come for the iterations and go back (DeepSpeed's pull request 7939).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from rapid_des.device.operators import Gemm, HostWork, Operator, OperatorModel, Vector
from rapid_des.frontend.groups import byte_count, message_size
from rapid_des.frontend.job import Job
from rapid_des.frontend.parts import PieceKey, stage_sections, training_lists
from rapid_des.frontend.template import Domain
from rapid_des.frontend.trace import ProgramWriter

ITERATIONS = 5
"""Number of Newton-Schulz iterations, as published with Muon."""
MOMENTUM, NEWTON_SCHULZ, UPDATE = "optimizer.momentum", "optimizer.newton_schulz", "optimizer.update"
"""Name prefixes of a step's kernels; the first and the last run on a rank's own part."""


class Matrix(NamedTuple):
    """A weight matrix of a rank, its shorter side first."""

    domain: Domain
    rows: int
    columns: int


class MuonExchange(NamedTuple):
    """A message that collects the parts of matrices of one shape, or returns them."""

    role: str
    size: int
    """Bytes of a rank's parts, and of the matrices assigned to it."""
    group: str


def matrices(job: Job, stage: int) -> Counter[Matrix]:
    """Return the matrices of a stage's layers that Muon updates, on one rank."""
    lists = training_lists(job)
    counted: Counter[Matrix] = Counter()
    for section, count in stage_sections(job, stage).items():
        for each in lists[PieceKey(section, "backward")] if section.name == "block" else ():
            if isinstance(each.operator, Gemm) and each.name.endswith(".weight_gradient"):
                sides = sorted((each.operator.m, each.operator.n))
                counted[Matrix(each.domain, *sides)] += count * each.operator.batch
    return counted


def orthogonal_parameters(job: Job, stage: int, domain: Domain) -> int:
    """Return how many parameters of a domain are in such matrices."""
    counted = matrices(job, stage)
    return sum(n * matrix.rows * matrix.columns for matrix, n in counted.items() if matrix.domain == domain)


def orthogonalising(job: Job, stage: int, parameters: int) -> dict[str, Operator]:
    """Return the kernels of this many parameters' momenta and of the iterations, in order, by name.

    An iteration is X := a X + (b A + c A A) X with A = X Xᵀ, for all matrices of one shape.
    """
    momenta = Vector("muon_momentum", 1, parameters, job.spec.precision.gradients)
    kernels: dict[str, Operator] = {MOMENTUM: momenta}
    for name, (matrix, count) in _shapes(job, stage):
        runs = ITERATIONS * job.shardings[matrix.domain].held("optimizer", count)
        rows, columns = matrix.rows, matrix.columns
        kernels |= {
            f"{name}.gram": Gemm(rows, rows, columns, batch=runs),
            f"{name}.square": Gemm(rows, rows, rows, batch=runs, accumulate=True),
            f"{name}.apply": Gemm(rows, columns, rows, batch=runs, accumulate=True),
        }
    return kernels


def _shapes(job: Job, stage: int) -> Iterator[tuple[str, tuple[Matrix, int]]]:
    """Yield the name of each shape's iterations, the shape, and how many matrices have it.

    Stages that hold the same parts, in whatever order, agree on which is first.
    """
    for place, counted in enumerate(sorted(matrices(job, stage).items())):
        yield f"{NEWTON_SCHULZ}.{place}", counted


def exchanges(job: Job, stage: int) -> dict[str, MuonExchange]:
    """Return what travels before and after iterations, by their name."""
    travels: dict[str, MuonExchange] = {}
    for name, (matrix, count) in _shapes(job, stage):
        sharding = job.shardings[matrix.domain]
        role = sharding.policy.exchange
        if role is not None and sharding.replicas > 1:
            elements = sharding.held("optimizer", count) * matrix.rows * matrix.columns
            size = message_size(role, elements, "bf16", sharding.replicas)
            travels[name] = MuonExchange(role, size, sharding.group)
    return travels


def orthogonalise(  # noqa: PLR0913 - what a step is made of, by name
    program: ProgramWriter,
    job: Job,
    operators: OperatorModel,
    *,
    stage: int,
    kernels: Mapping[str, Operator],
    after: tuple[int, ...],
) -> tuple[int, ...]:
    """Append momenta and iterations of a step's kernels; return what the update waits for.

    All parts leave once momenta are there, and what was made orthogonal beside the iterations of the next
    shape.
    """
    size = momenta_bytes(job, kernels) if job.training.offload_optimizer else 0
    if size:
        momenta = HostWork(size, "from_host")
        after = (program.with_host("fetch.momenta", momenta, operators, after=after),)
    done: tuple[int, ...] = (program.kernel(MOMENTUM, kernels[MOMENTUM], operators, after=after),)
    if size:
        program.with_host("offload.momenta", HostWork(size, "to_host"), operators, after=done)
    travels, back = exchanges(job, stage), list[int]()
    arrived = {name: (_exchange(program, name, each, done),) for name, each in travels.items()}
    for name, _ in _shapes(job, stage):
        done = (*done, *arrived.get(name, ()))
        for product in ("gram", "square", "apply"):
            product_name = f"{name}.{product}"
            done = (program.kernel(product_name, kernels[product_name], operators, after=done),)
        if name in travels:
            back.append(_exchange(program, name, travels[name], done))
    return (*done, *back)


def _exchange(program: ProgramWriter, name: str, travels: MuonExchange, after: tuple[int, ...]) -> int:
    return program.message(f"{name}.exchange", travels.role, travels.size, after=after, group=travels.group)


def momenta_bytes(job: Job, kernels: Mapping[str, Operator]) -> int:
    """Return the bytes of the momenta that a step's kernels update; 0 where none are."""
    momenta = kernels.get(MOMENTUM)
    return byte_count(momenta.columns, job.spec.precision.optimizer) if isinstance(momenta, Vector) else 0
