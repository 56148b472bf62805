"""Copies that PyTorch's FSDP makes of a whole unit (a layer) around its gathers and its reductions.

Its first version gathers into one flat parameter, of which layers use views. The backward of these puts all
gradients into a flat one, which is widened to the format of the reduction and divided before it travels
(torch/distributed/fsdp: _flat_param.py, _runtime_utils.py, `_div_if_needed`). Its second version copies each
parameter out of what was gathered, and gradients into what is reduced, in the reduction's format, and leaves
the division to NCCL (_fully_shard/_fsdp_collectives.py: `foreach_all_gather_copy_out`,
`foreach_reduce_scatter_copy_in`). DeepSpeed before 0.6 gathers each parameter into a list of views of
zeros and reduces its divided gradient from one (zero/partition_parameters.py, stage3.py), which
ProcessGroupNCCL.cpp copies out of, or into, a tensor of its own. Parameters that travel narrower than they
are multiplied (ZeRO++, Wang et al. 2023) are widened before each pass. Kernels on a rank's own part alone are
left out. All run on the stream of compute; the first version has widening and division on another, where they
take memory bandwidth from the same kernels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from rapid_des.device.operators import DTYPE_BITS, Vector
from rapid_des.frontend.job import Job
from rapid_des.frontend.operations import Operation
from rapid_des.frontend.passes import following
from rapid_des.frontend.template import FROZEN, INPUT, Domain
from rapid_des.values import replace

_HALF_BYTE = 4


def widens_parameters(job: Job) -> bool:
    """Return whether parameters are gathered in fewer bits than products use."""
    return DTYPE_BITS[job.spec.precision.gathers] < DTYPE_BITS[job.training_shard.gemm_dtype]


def with_unit_copies(
    job: Job,
    operations: tuple[Operation, ...],
    backward: Sequence[Operation],
    *,
    gathers: int,
    gradients: bool,
) -> tuple[Operation, ...]:
    """Return a section's list with the copies that `training.unit_copies` names.

    `backward` is the list whose operations have its parameters; `gradients`: this list is that. They are
    gathered for it this many times.
    """
    parameters, made = _by_domain(job, backward), operations
    if gradients and job.training.unit_copies == "lists":
        made = _with_gradients_of_each(job, operations, parameters)
    elif gradients and job.training.unit_copies != "none":
        made = _with_gradients(job, operations, parameters)
    first = tuple(_before(job, parameters, gathers)) if operations else ()
    return following(first, made) if first else made


_COPIES_OUT: Mapping[str, tuple[tuple[str, str], ...]] = {
    "per_parameter": (("unit.copy_out", "copy"),),
    "lists": (("unit.clear", "fill"), ("unit.copy_out", "copy")),
}
"""Names and kinds of the kernels around a gather, by the value of `unit_copies`."""


def _before(job: Job, parameters: Mapping[Domain, int], times: int) -> Iterator[Operation]:
    """Yield the kernels that turn gathered parameters, by domain, into those that a pass uses."""
    travels, adapters = job.spec.precision.gathers, job.training.adapters
    if not widens_parameters(job):
        kernels, count = _COPIES_OUT.get(job.training.unit_copies, ()), sum(parameters.values())
        written = travels
    else:
        stored = FROZEN if adapters is not None and adapters.weights is not None else ()
        count = sum(number for domain, number in parameters.items() if domain not in stored)
        kind = "dequantize" if DTYPE_BITS[travels] == _HALF_BYTE else "widen"
        kernels, written = (("unit.widen_parameters", kind),), job.spec.precision.activations
    for place, (name, kind) in enumerate(kernels if count else ()):
        yield Operation(name, (place - 1 if place else INPUT,), Vector(kind, 1, times * count, written))


def _by_domain(job: Job, backward: Sequence[Operation]) -> Counter[Domain]:
    """Return a section's parameters by domain, without those that replicas do not split."""
    counted: Counter[Domain] = Counter()
    for operation in backward:
        if operation.parameters and job.shardings[operation.domain].unit_gathers:
            counted[operation.domain] += operation.parameters
    return counted


def _with_gradients(
    job: Job, backward: tuple[Operation, ...], parameters: Mapping[Domain, int]
) -> tuple[Operation, ...]:
    """Return a backward with the copies of its gradients, the last of which says that they are final.

    They run behind all of it on one stream, and ask for what nothing else waits for: gradients of weights,
    with which they go where a backward is cut in two.
    """
    trained: dict[Domain, int] = {domain: parameters[domain] for domain in parameters if domain not in FROZEN}
    operations = [
        replace(operation, parameters=0) if operation.domain in trained else operation
        for operation in backward
    ]
    deferrable = [place for place, operation in enumerate(operations) if operation.deferrable]
    newest = max(deferrable, default=len(operations) - 1)
    for domain, elements in trained.items():
        for name, kernel in _copies(job, elements):
            operations.append(Operation(name, (newest,), kernel, deferrable=True))
            newest = len(operations) - 1
        operations[-1] = replace(operations[-1], parameters=elements, expert=domain == "expert")
    return tuple(operations)


def _with_gradients_of_each(
    job: Job, backward: tuple[Operation, ...], parameters: Mapping[Domain, int]
) -> tuple[Operation, ...]:
    """Return a backward behind which each operation's gradients are copied by themselves."""
    operations = list(backward)
    for place, operation in enumerate(backward):
        if operation.parameters and operation.domain in parameters and operation.domain not in FROZEN:
            operations[place], after = replace(operation, parameters=0), place
            for name, kernel in _copies(job, operation.parameters):
                operations.append(Operation(name, (after,), kernel, deferrable=True))
                after = len(operations) - 1
            operations[-1] = replace(
                operations[-1], parameters=operation.parameters, expert=operation.domain == "expert"
            )
    return tuple(operations)


def _copies(job: Job, elements: int) -> Iterator[tuple[str, Vector]]:
    """Yield the kernels that convert this many gradients from products' output to the message's format."""
    made, travels = job.spec.precision.activations, job.spec.precision.gradient_reduce
    if job.training.unit_copies == "lists":
        yield "unit.divide", Vector("scale", 1, elements, made)
        yield "unit.copy_in", Vector("copy", 1, elements, made)
    elif job.training.unit_copies == "flat":
        yield "unit.flatten", Vector("copy", 1, elements, made)
        if travels != made:
            yield "unit.widen", Vector("cast", 1, elements, travels, "backward")
        yield "unit.divide", Vector("scale", 1, elements, travels)
    elif travels != made:
        yield "unit.copy_in", Vector("cast", 1, elements, travels, "backward")
    else:
        yield "unit.copy_in", Vector("copy", 1, elements, made)
