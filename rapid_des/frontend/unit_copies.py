"""Copies that PyTorch's FSDP makes of a whole unit (a layer) around its gathers and its reductions.

Its first version gathers into one flat parameter, of which layers use views. The backward of these puts all
gradients into a flat one, which is widened to the format of the reduction and divided before it travels
(torch/distributed/fsdp: _flat_param.py, _runtime_utils.py, `_div_if_needed`). Its second version copies each
parameter out of what was gathered, and gradients into what is reduced, in the reduction's format, and leaves
the division to NCCL (_fully_shard/_fsdp_collectives.py: `foreach_all_gather_copy_out`,
`foreach_reduce_scatter_copy_in`). Kernels on a rank's own part alone are left out. All run on the stream of
compute; the first version has widening and division on another, where they take memory bandwidth from the
same kernels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from rapid_des.device.operators import Vector
from rapid_des.frontend.job import Job
from rapid_des.frontend.operations import Operation, following
from rapid_des.frontend.template import FROZEN, INPUT, Domain


def with_unit_copies(
    job: Job, operations: tuple[Operation, ...], backward: Sequence[Operation], *, gradients: bool
) -> tuple[Operation, ...]:
    """Return a section's list with the copies that `training.unit_copies` names.

    `backward` is the list whose operations have its parameters; `gradients`: this list is that.
    """
    parameters = _by_domain(job, backward)
    made = _with_gradients(job, operations, parameters) if gradients else operations
    return _behind_copy_out(job, made, sum(parameters.values()))


def _behind_copy_out(job: Job, operations: tuple[Operation, ...], parameters: int) -> tuple[Operation, ...]:
    """Return a pass behind the copy of so many parameters out of what was gathered, if they are copied."""
    if job.training.unit_copies != "per_parameter" or not operations or not parameters:
        return operations
    gathered = Vector("copy", 1, parameters, job.spec.precision.gathers)
    return following((Operation("unit.copy_out", (INPUT,), gathered),), operations)


def _by_domain(job: Job, backward: Sequence[Operation]) -> Counter[Domain]:
    """Return a section's parameters by domain, of those that replicas split."""
    counted: Counter[Domain] = Counter()
    for operation in backward:
        if operation.parameters and job.shardings[operation.domain].unit_gathers:
            counted[operation.domain] += operation.parameters
    return counted


def _with_gradients(
    job: Job, backward: tuple[Operation, ...], parameters: Mapping[Domain, int]
) -> tuple[Operation, ...]:
    """Return a backward with the copies of its gradients, the last of which says that they are final."""
    trained: dict[Domain, int] = {domain: parameters[domain] for domain in parameters if domain not in FROZEN}
    operations = [
        replace(operation, parameters=0) if operation.domain in trained else operation
        for operation in backward
    ]
    for domain, elements in trained.items():
        for name, kernel in _copies(job, elements):
            operations.append(Operation(name, (len(operations) - 1,), kernel, deferrable=True))
        operations[-1] = replace(operations[-1], parameters=elements, expert=domain == "expert")
    return tuple(operations)


def _copies(job: Job, elements: int) -> Iterator[tuple[str, Vector]]:
    """Yield the kernels between so many gradients as products leave them and as they travel."""
    made, travels = job.spec.precision.activations, job.spec.precision.gradient_reduce
    if job.training.unit_copies == "flat":
        yield "unit.flatten", Vector("copy", 1, elements, made)
        if travels != made:
            yield "unit.widen", Vector("cast", 1, elements, travels, "backward")
        yield "unit.divide", Vector("scale", 1, elements, travels)
    elif travels != made:
        yield "unit.copy_in", Vector("cast", 1, elements, travels, "backward")
    else:
        yield "unit.copy_in", Vector("copy", 1, elements, made)
