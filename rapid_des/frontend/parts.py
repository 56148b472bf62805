"""The distinct operator lists of a job, and what each part of the model is made of.

Everything downstream reads these lists: the trace (priced), the memory walk (bytes kept).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from rapid_des.chakra.trace import Exchange
from rapid_des.device.operators import OperatorModel, Vector
from rapid_des.frontend.adapters import adapted, row_parallel
from rapid_des.frontend.halves import halves
from rapid_des.frontend.job import Job
from rapid_des.frontend.matrices import (
    Linear,
    column_backward,
    column_forward,
    gather_gradient,
    reduce_output,
)
from rapid_des.frontend.operations import Operation, OperationList, norm_backward, norm_forward
from rapid_des.frontend.prices import price
from rapid_des.frontend.schedules.plan import Phase, direction_of
from rapid_des.frontend.shard import Shard
from rapid_des.frontend.software import HostSpec
from rapid_des.frontend.spec import AdaptersSpec
from rapid_des.frontend.template import Domain, Piece, SectionName, renamed

LOSS_REDUCTIONS = ("maximum", "target", "sum")
"""What vocabulary-parallel cross-entropy sums over tp, one fp32 a token each."""


def _has_positions(shard: Shard) -> bool:
    return shard.model.position == "learned"


def embedding_forward(shard: Shard) -> tuple[Operation, ...]:
    """Return the lookup in this rank's rows of the table, summed over tp, and the position embedding."""
    operations = OperationList()
    elements = shard.tokens * shard.hidden
    lookup = shard.vector("embedding", shard.tokens, shard.hidden)
    operations.kernel("embedding", lookup, output=shard.activation_bytes(elements))
    reduce_output(operations, shard, "embedding", elements)
    rows, columns = shard.norm_tokens, shard.hidden
    size = shard.activation_bytes(rows * columns)
    if _has_positions(shard):
        operations.kernel("embedding.position", shard.vector("residual_add", rows, columns), output=size)
    if shard.dropout:
        kernel = shard.vector("dropout", rows, columns)
        operations.kernel("embedding.dropout", kernel, saved=rows * columns, output=size)
    return operations.finish()


def embedding_backward(shard: Shard) -> tuple[Operation, ...]:
    """Return the scatter of gradients into this rank's rows of the table."""
    operations = OperationList()
    if shard.dropout:
        kernel = shard.vector("dropout", shard.norm_tokens, shard.hidden, backward=True)
        operations.kernel("embedding.dropout", kernel)
    gather_gradient(operations, shard, "embedding", shard.tokens * shard.hidden)
    parameters = shard.vocabulary_part * shard.hidden + shard.model.position_parameters
    scatter = shard.vector("embedding_gradient", shard.tokens, shard.hidden)
    operations.kernel("embedding.weight_gradient", scatter, parameters=parameters, deferrable=True)
    return operations.finish()


def _head(shard: Shard, rows: int, *, tied: bool = False) -> Linear:
    """Return the output head, column-parallel over the vocabulary."""
    bias = shard.model.head_bias
    return Linear("head", shard.vocabulary_part, shard.hidden, bias, rows, narrow=False, tied=tied)


def loss_forward(shard: Shard) -> tuple[Operation, ...]:
    """Return final norm, logits and vocabulary-parallel cross-entropy in fp32.

    The fp32 logits (or their softmax, in their place) are kept from the loss to the backward.
    """
    operations = OperationList()
    rows, columns = shard.tokens, shard.vocabulary_part
    norm_forward(operations, shard, "head.norm", shard.norm_tokens)
    column_forward(
        operations, shard, _head(shard, rows), saved=shard.activation_bytes(shard.norm_tokens * shard.hidden)
    )
    operations.kernel("head.cast", Vector("cast", rows, columns, "fp32"), output=4 * rows * columns)
    if shard.model.logit_softcap:
        operations.kernel("head.cap", Vector("tanh", rows, columns, "fp32"), logits=4 * rows * columns)
    operations.kernel("loss", Vector("cross_entropy", rows, columns, "fp32"), logits=4 * rows * columns)
    if shard.tp > 1:
        for name in LOSS_REDUCTIONS:
            operations.message(f"loss.{name}", "tp.loss", shard.message("tp.loss", rows, "fp32"))
    return operations.finish()


def loss_backward(shard: Shard, *, shares_table: bool) -> tuple[Operation, ...]:
    """Return the backward of cross-entropy, head and final norm.

    Where the head is the embedding of the same rank (`shares_table`), the embedding's backward completes
    the table's gradient.
    """
    operations = OperationList()
    rows, columns = shard.tokens, shard.vocabulary_part
    operations.kernel(
        "loss", Vector("cross_entropy", rows, columns, "fp32", "backward"), output=2 * rows * columns
    )
    if shard.model.logit_softcap:
        operations.kernel("head.cap", Vector("tanh", rows, columns, "fp32", "backward"))
    ready = column_backward(operations, shard, _head(shard, rows, tied=shares_table))
    norm_backward(operations, shard, "head.norm", ready)
    return operations.finish()


def sampling(shard: Shard) -> tuple[Operation, ...]:
    """Return final norm, the logits of each sequence's last position, and the choice of a token."""
    operations = OperationList()
    rows = shard.sequences
    norm_forward(operations, shard, "head.norm", rows)
    column_forward(operations, shard, _head(shard, rows), saved=0)
    if shard.model.logit_softcap:
        operations.kernel("head.cap", shard.vector("tanh", rows, shard.vocabulary_part))
    if shard.tp > 1:
        elements = rows * shard.vocabulary
        output = shard.activation_bytes(elements)
        operations.message("head.gather", "tp.logits", shard.message("tp.logits", elements), output=output)
    operations.kernel("sample", shard.vector("sample", rows, shard.vocabulary))
    return operations.finish()


class Section(NamedTuple):
    """One distinct section of a model, or of a stage's step."""

    name: SectionName
    kind: int = 0
    """Of a block: which of the job's kinds of layers (`Job.kinds`)."""


EMBEDDING, HEAD = Section("embedding"), Section("head")
NORMS, OPTIMIZER = Section("norms"), Section("optimizer")
"""Of a stage once a step: norm gradients summed over tp; what stands before and after all passes."""


@dataclass(frozen=True)
class PieceKey:
    """Which operator list: a section of the model in one direction; `stage` where stages differ in it."""

    section: Section
    phase: Phase
    stage: int = -1
    step: int = 0
    """Serving: 0 is the prefill, else the first decode step that runs it."""


Lists: TypeAlias = Mapping[PieceKey, tuple[Operation, ...]]
Pieces: TypeAlias = Mapping[PieceKey, Piece]


def training_lists(job: Job, place: int = 0) -> Lists:
    """Return the operator lists of training: each section's for one micro-batch, and each stage's norms.

    They are those of ranks at one place among the ep ranks, where experts' loads differ.
    "norms", once a step, sums the gradients of what sequence parallelism leaves whole on every tp rank.
    """
    shard = replace(job.training_shard, expert_place=place)
    norms = {PieceKey(NORMS, "backward", stage): _norm_gradients(job, stage) for stage in range(job.stages)}
    passes = {
        PieceKey(EMBEDDING, "forward"): embedding_forward(shard),
        **_layer_lists(job, shard, "forward"),
        PieceKey(HEAD, "forward"): loss_forward(shard),
        PieceKey(HEAD, "backward"): loss_backward(shard, shares_table=_shares_table(job)),
        **_layer_lists(job, shard, "backward"),
        PieceKey(EMBEDDING, "backward"): embedding_backward(shard),
    }
    if job.training.adapters is not None:
        norms, passes = {}, _with_adapters(job.training.adapters, shard, passes)
    split = _halves(passes) if "input_gradient" in job.plan.phases else {}
    return (norms if job.spec.parallelism.sequence_parallel else {}) | passes | split


def _with_adapters(
    spec: AdaptersSpec, shard: Shard, lists: Mapping[PieceKey, tuple[Operation, ...]]
) -> dict[PieceKey, tuple[Operation, ...]]:
    """Return the lists of a model whose adapters alone are trained: the embedding has no backward."""
    found: dict[PieceKey, tuple[Operation, ...]] = {PieceKey(EMBEDDING, "backward"): ()}
    for key, operations in lists.items():
        if key not in found:
            rows = row_parallel(lists[PieceKey(key.section, "forward")])
            found[key] = adapted(operations, spec, shard, rows)
    return found


def _halves(lists: Lists) -> dict[PieceKey, tuple[Operation, ...]]:
    """Return each backward in its two halves, of which one may be empty."""
    found: dict[PieceKey, tuple[Operation, ...]] = {}
    for key, operations in lists.items():
        if key.phase == "backward":
            both = halves(operations)
            found[PieceKey(key.section, "input_gradient")] = both.inputs
            found[PieceKey(key.section, "weight_gradient")] = both.weights
    return found


def _layer_lists(job: Job, shard: Shard, phase: Phase) -> dict[PieceKey, tuple[Operation, ...]]:
    """Return the list of every kind of layer in one direction."""
    return {
        PieceKey(Section("block", kind), phase): (
            layer.forward(shard) if phase == "forward" else layer.backward(shard)
        )
        for kind, layer in enumerate(job.kinds)
    }


def _shares_table(job: Job) -> bool:
    """Return whether one rank uses one table as embedding and as head."""
    return job.model.spec.tied_embeddings and len(job.table_stages) == 1


def _norm_gradients(job: Job, stage: int) -> tuple[Operation, ...]:
    """Return the sum over tp of gradients that each rank has for its sequence shard only."""
    layers = stage_sections(job, stage)
    elements = sum(
        count * job.model.unsplit_parameters(job.kinds[section.kind].layer)
        for section, count in layers.items()
        if section.name == "block"
    )
    elements += job.model.spec.position_parameters * layers[EMBEDDING]
    elements += job.model.spec.norm_parameters * layers[HEAD]
    operations = OperationList()
    size = job.training_shard.message("tp.norm_gradients", elements, job.spec.precision.gradients)
    operations.message("gradients.norms", "tp.norm_gradients", size)
    return operations.finish()


def price_lists(
    lists: Lists,
    operators: OperatorModel,
    host: HostSpec | None = None,
    exchanges: Sequence[Exchange] = (),
) -> dict[PieceKey, Piece]:
    """Return each list as a priced piece, which `host` issues node by node; `exchanges` as `price` has it."""
    return {key: price(operations, operators, host, exchanges) for key, operations in lists.items()}


def sections(job: Job, part: int) -> tuple[tuple[Section, str], ...]:
    """Return what one part of the model consists of, in forward order, each with its label.

    Layers are numbered through the whole model.
    """
    first = sum(job.layers[:part])
    layers = range(first, first + job.layers[part])
    blocks = [(Section("block", job.kind_of_layer[layer]), f"L{layer}") for layer in layers]
    before = [(EMBEDDING, "")] if part == 0 else []
    after = [(HEAD, "")] if part == job.parts - 1 else []
    return (*before, *blocks, *after)


def stage_sections(job: Job, stage: int) -> Counter[Section]:
    """Return how often each section occurs in the chunks of a stage."""
    return Counter(section for part in job.placement[stage] for section, _ in sections(job, part))


def part_pieces(job: Job, part: int, phase: Phase, pieces: Pieces) -> tuple[Piece, ...]:
    """Return the pieces of one part in the order in which `phase` runs them, named by layer."""
    order = sections(job, part)
    way = direction_of(phase)
    named = []
    for section, label in order if way == "forward" else order[::-1]:
        prefix = f"{way}.{label}." if label else f"{way}."
        named.append(renamed(pieces[PieceKey(section, phase)], prefix))
    return tuple(named)


def section_parameters(job: Job) -> dict[Section, Counter[Domain]]:
    """Return the parameters of one rank in each section by domain, as its backward makes their gradients."""
    shard = job.shard(1, 1, 1)
    lists = {
        EMBEDDING: embedding_backward(shard),
        HEAD: loss_backward(shard, shares_table=_shares_table(job)),
        **{key.section: operations for key, operations in _layer_lists(job, shard, "backward").items()},
    }
    sizes: dict[Section, Counter[Domain]] = {section: Counter() for section in lists}
    spec = None if job.spec.training is None else job.training.adapters
    if spec is not None:
        forward = {key.section: operations for key, operations in _layer_lists(job, shard, "forward").items()}
        lists |= {
            section: adapted(operations, spec, shard, row_parallel(forward.get(section, ())))
            for section, operations in lists.items()
            if section != EMBEDDING
        }
        lists[EMBEDDING] = tuple(replace(one, frozen=True) for one in lists[EMBEDDING])
    for section, operations in lists.items():
        for operation in operations:
            sizes[section][operation.domain] += operation.parameters
    return sizes


def stage_parameters(job: Job, stage: int) -> Counter[Domain]:
    """Return the parameters of one rank of a stage by domain."""
    sizes, total = section_parameters(job), Counter[Domain]()
    for section, count in stage_sections(job, stage).items():
        for domain, elements in sizes[section].items():
            total[domain] += count * elements
    return total


def narrow_weights(job: Job, stage: int) -> int:
    """Return the elements of one rank's matrices that multiply in the job's narrow format: layers' alone."""
    lists = _layer_lists(job, job.shard(1, 1, 1), "forward")
    sizes = {key.section: sum(one.weights for one in operations) for key, operations in lists.items()}
    return sum(count * sizes.get(section, 0) for section, count in stage_sections(job, stage).items())
