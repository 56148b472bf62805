"""The distinct operator lists of a job, the sections of each part of the model, and the costs of lists.

Everything downstream reads these lists: the trace (priced, as pieces of nodes), the memory walk (bytes kept).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from rapid_des.chakra.trace import BOUNDS, Exchange, NodeKind
from rapid_des.device.operators import Operator, OperatorModel
from rapid_des.errors import InputError
from rapid_des.frontend.adapters import adapted, row_parallel
from rapid_des.frontend.groups import GROUP_SLOTS, PEERS, TRAFFIC
from rapid_des.frontend.job import Job
from rapid_des.frontend.layers.cross import starts
from rapid_des.frontend.layers.layer import LayerKind
from rapid_des.frontend.model import (
    embedding_backward,
    embedding_forward,
    loss_backward,
    loss_forward,
)
from rapid_des.frontend.operations import Operation, OperatorList, Shard
from rapid_des.frontend.passes import backward_halves, joined
from rapid_des.frontend.prediction import prediction_backward, prediction_forward
from rapid_des.frontend.schedules.schedule import PassKind, direction_of
from rapid_des.frontend.software import HostSpec
from rapid_des.frontend.spec import AdaptersSpec
from rapid_des.frontend.speculation import drafting
from rapid_des.frontend.template import (
    PORTS,
    Domain,
    GradientMark,
    PieceNode,
    PricedPiece,
    SectionName,
    make_piece,
    renamed,
)
from rapid_des.frontend.towers import encoder_lists
from rapid_des.frontend.unit_copies import widens_parameters, with_unit_copies
from rapid_des.values import replace


class ModelSection(NamedTuple):
    """One distinct section of a model, or of a stage's step."""

    name: SectionName
    kind: int = 0
    """The index in `Job.kinds` of a block's layer kind."""


EMBEDDING, HEAD = ModelSection("embedding"), ModelSection("head")
PREDICTION = ModelSection("prediction")
"""The section of a module that predicts a further token; only training runs it."""
DRAFT = ModelSection("draft")
"""The section that drafts the next tokens in speculative decoding."""
NORMS, OPTIMIZER = ModelSection("norms"), ModelSection("optimizer")
"""Sections that a stage runs once a step: norm gradients summed over tp; operations around all passes."""


class PieceKey(Struct, frozen=True):
    """Identifies an operator list: a section in one direction; `stage` where stages differ."""

    section: ModelSection
    phase: PassKind
    stage: int = -1
    step: int = 0
    """Serving: 0 is the prefill, else the first decode step that runs the list."""
    half: int = 0
    """Serving: which of two half-batches that take turns."""


Lists: TypeAlias = Mapping[PieceKey, tuple[Operation, ...]]
Pieces: TypeAlias = Mapping[PieceKey, PricedPiece]


def training_lists(job: Job, place: int = 0) -> Lists:
    """Return the operator lists of training: each section's for one micro-batch, and each stage's norms.

    They are those of ranks at one place among the ep ranks, where experts' loads differ.
    "norms", once a step, sums the gradients of what sequence parallelism leaves whole on every tp rank.
    """
    passes = pass_lists(job, place)
    if job.training.adapters is not None or not job.spec.parallelism.sequence_parallel:
        return passes
    norms = {PieceKey(NORMS, "backward", stage): _norm_gradients(job, stage) for stage in range(job.stages)}
    return norms | passes


def pass_lists(job: Job, place: int = 0) -> dict[PieceKey, tuple[Operation, ...]]:
    """Return the operator lists of each section's passes for one micro-batch."""
    shard = replace(job.training_shard, expert_place=place)
    passes = {
        PieceKey(EMBEDDING, "forward"): embedding_lists(job, shard)[0],
        **_layer_lists(job, shard, "forward"),
        **_predictions(job, shard),
        PieceKey(HEAD, "forward"): loss_forward(shard),
        PieceKey(HEAD, "backward"): loss_backward(shard, shares_table=_shares_table(job)),
        **_layer_lists(job, shard, "backward"),
        PieceKey(EMBEDDING, "backward"): embedding_lists(job, shard)[1],
    }
    if job.training.adapters is not None:
        passes = _with_adapters(job.training.adapters, shard, passes)
    if job.sharding.policy.by_unit and (job.training.unit_copies != "none" or widens_parameters(job)):
        passes = _with_unit_copies(job, passes)
    return passes | (_halves(passes) if "input_gradient" in job.stage_orders.phases else {})


def embedding_lists(job: Job, shard: Shard) -> tuple[tuple[Operation, ...], tuple[Operation, ...]]:
    """Return forward and backward of what stands before the layers: an encoder, if the model has one, too."""
    forward, backward = embedding_forward(shard), embedding_backward(shard)
    spec, encoder = job.model.spec.encoder, job.model.encoder
    if spec is None or encoder is None:
        return forward, backward
    layers = job.as_run(encoder.pattern, (encoder.spec.layers,))
    before, behind = encoder_lists(spec, shard, layers, frozen=job.spec.freezes)
    return (joined(before, forward) if starts(shard) else forward), joined(backward, behind)


def _predictions(job: Job, shard: Shard) -> dict[PieceKey, tuple[Operation, ...]]:
    """Return the lists of a module that predicts a further token, where the model has some."""
    if not job.predictions:
        return {}
    layer = job.prediction_layer
    has_table = job.model.spec.tied_embeddings or len(job.table_stages) == 1
    return {
        PieceKey(PREDICTION, "forward"): prediction_forward(shard, layer),
        PieceKey(PREDICTION, "backward"): prediction_backward(shard, layer, has_table=has_table),
    }


def _with_adapters(
    spec: AdaptersSpec, shard: Shard, lists: Mapping[PieceKey, tuple[Operation, ...]]
) -> dict[PieceKey, tuple[Operation, ...]]:
    """Return the lists of a model whose adapters alone are trained: the embedding has no backward."""
    adapted_lists: dict[PieceKey, tuple[Operation, ...]] = {PieceKey(EMBEDDING, "backward"): ()}
    for key, operations in lists.items():
        if key not in adapted_lists:
            rows = row_parallel(lists[PieceKey(key.section, "forward")])
            adapted_lists[key] = adapted(operations, spec, shard, rows)
    return adapted_lists


def _with_unit_copies(job: Job, lists: Lists) -> dict[PieceKey, tuple[Operation, ...]]:
    """Return the lists with what is copied of whole units where they are gathered."""
    return {
        key: with_unit_copies(
            job,
            operations,
            lists[replace(key, phase="backward")],
            gathers=backward_gathers(job, key.section) if key.phase == "backward" else 1,
            gradients=key.phase == "backward",
        )
        for key, operations in lists.items()
    }


def unit_gathers(job: Job, part: int) -> list[int]:
    """Return how often the units of a part are gathered for their backward, in its order."""
    return [backward_gathers(job, section) for section, _ in sections(job, part)[::-1]]


def backward_gathers(job: Job, section: ModelSection) -> int:
    """Return how often a section's parameters are gathered for its backward.

    Gathered one by one, matrices are given back after each use: what is run again has two.
    """
    again = section.name == "block" and bool(job.kinds[section.kind].before)
    return 2 if again and job.training.gather_singly else 1


def _halves(lists: Lists) -> dict[PieceKey, tuple[Operation, ...]]:
    """Return the two halves of each backward; one of them may be empty."""
    lists_of: dict[PieceKey, tuple[Operation, ...]] = {}
    for key, operations in lists.items():
        if key.phase == "backward":
            both = backward_halves(operations)
            lists_of[PieceKey(key.section, "input_gradient")] = both.inputs
            lists_of[PieceKey(key.section, "weight_gradient")] = both.weights
    return lists_of


def _layer_lists(job: Job, shard: Shard, phase: PassKind) -> dict[PieceKey, tuple[Operation, ...]]:
    """Return the list of every kind of layer in one direction."""
    return {
        PieceKey(ModelSection("block", kind), phase): (
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
    normed = job.model.spec.patches is not None and job.model.spec.patches.norm
    elements += job.model.spec.norm_parameters * (layers[HEAD] + layers[EMBEDDING] * normed)
    operations = OperatorList()
    size = job.training_shard.message("tp.norm_gradients", elements, job.spec.precision.gradients)
    operations.message("gradients.norms", "tp.norm_gradients", size)
    return operations.finish()


def price_lists(
    lists: Lists,
    operators: OperatorModel,
    host: HostSpec | None,
    exchanges: Sequence[Exchange],
) -> dict[PieceKey, PricedPiece]:
    """Return each list as a priced piece, which `host` issues node by node; `exchanges` as `price` has it."""
    return {key: price(operations, operators, host, exchanges) for key, operations in lists.items()}


def sections(job: Job, part: int) -> tuple[tuple[ModelSection, str], ...]:
    """Return what one part of the model consists of, in forward order, each with its label.

    Layers are numbered through the whole model.
    """
    first = sum(job.layers[:part])
    layers = range(first, first + job.layers[part])
    blocks = [(ModelSection("block", job.kind_of_layer[layer]), f"L{layer}") for layer in layers]
    before = [(EMBEDDING, "")] if part == 0 else []
    modules = [(PREDICTION, f"P{number}") for number in range(job.predictions)]
    after = [*modules, (HEAD, "")] if part == job.parts - 1 else []
    drafts = [(DRAFT, "")] if job.spec.speculative is not None else []
    return (*before, *blocks, *after, *drafts)


def section_counts(job: Job, part: int) -> Counter[ModelSection]:
    """Return how often each section occurs in one part of the model."""
    return Counter(section for section, _ in sections(job, part))


def stage_sections(job: Job, stage: int) -> Counter[ModelSection]:
    """Return how often each section occurs in the chunks of a stage."""
    return Counter(section for part in job.placement[stage] for section, _ in sections(job, part))


def part_pieces(job: Job, part: int, phase: PassKind, pieces: Pieces) -> tuple[PricedPiece, ...]:
    """Return the pieces of one part in the order in which `phase` runs them, named by layer."""
    order = sections(job, part)
    direction = direction_of(phase)
    named = []
    for section, label in order if direction == "forward" else order[::-1]:
        prefix = f"{direction}.{label}." if label else f"{direction}."
        piece = renamed(pieces[PieceKey(section, phase)], prefix)
        if section == EMBEDDING and phase == "backward" and not len(piece) and job.sharding.policy.by_unit:
            frozen = section_parameters(job)[EMBEDDING]["frozen"]
            # It is gathered, though never run.
            piece = replace(piece, marks=(GradientMark(0, frozen, "frozen"),))
        named.append(piece)
    return tuple(named)


def section_parameters(job: Job) -> dict[ModelSection, Counter[Domain]]:
    """Return the parameters of one rank in each section by domain, as its backward makes their gradients."""
    shard = job.shard(1, 1, 1)
    lists = {
        EMBEDDING: embedding_lists(job, shard)[1],
        HEAD: loss_backward(shard, shares_table=_shares_table(job)),
        **{key.section: operations for key, operations in _layer_lists(job, shard, "backward").items()},
    }
    if job.predictions:
        lists[PREDICTION] = _predictions(job, shard)[PieceKey(PREDICTION, "backward")]
    draft = None if job.spec.speculative is None else drafting(job)
    if job.spec.speculative is not None and draft is None:
        lists[DRAFT] = prediction_backward(shard, LayerKind(job.model.pattern[-1]), has_table=True)
    sizes: dict[ModelSection, Counter[Domain]] = {section: Counter() for section in lists}
    if draft is not None:
        sizes[DRAFT] = stage_parameters(draft, 0)
    spec = None if job.spec.training is None else job.training.adapters
    if spec is not None:
        forward = {key.section: operations for key, operations in _layer_lists(job, shard, "forward").items()}
        lists |= {
            section: adapted(operations, spec, shard, row_parallel(forward.get(section, ())))
            for section, operations in lists.items()
            if section != EMBEDDING
        }
        lists[EMBEDDING] = tuple(replace(embedding, frozen=True) for embedding in lists[EMBEDDING])
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
    lists = {key.section: made for key, made in _layer_lists(job, job.shard(1, 1, 1), "forward").items()}
    counts = stage_sections(job, stage).items()
    return sum(count * sum(each.weights for each in lists.get(section, ())) for section, count in counts)


_INT64_MAX = 2**63 - 1


def kernel_node(
    name: str,
    operator: Operator,
    operators: OperatorModel,
    after: tuple[int, ...],
    host: HostSpec | None,
) -> PieceNode:
    """Return one kernel with its estimated duration, FLOPs and HBM bytes, and what `host` needs for it."""
    estimate = operators.estimate(operator)
    if max(estimate.duration, estimate.flops) > _INT64_MAX:
        raise InputError(f"{name}: {operator} is too large to time in 64-bit picoseconds and FLOPs")
    issue, lead = (0, 0) if host is None else host.of_kernel(operator, estimate.duration)
    return PieceNode(
        name,
        NodeKind.COMPUTE,
        "compute",
        after,
        duration=estimate.duration,
        flops=estimate.flops,
        bytes=estimate.bytes.get("hbm", 0),
        issue=issue,
        lead=lead,
        bound=BOUNDS.index(estimate.bound),
    )


def message_node(  # noqa: PLR0913 - a node, who issues it, and where
    name: str,
    role: str,
    size: int,
    after: tuple[int, ...],
    host: HostSpec | None,
    *,
    group: str | None = None,
) -> PieceNode:
    """Return one collective of the traffic table, in another group than usual if one is named."""
    kind = TRAFFIC[role]
    assert kind.collective is not None
    return PieceNode(
        name,
        NodeKind.COLLECTIVE,
        kind.axis,
        after,
        size=size,
        collective=kind.collective,
        group=GROUP_SLOTS.index(group or kind.group),
        issue=0 if host is None else host.of_collective(kind.axis),
    )


def peer_node(name: str, operation: Operation, after: tuple[int, ...], host: HostSpec | None) -> PieceNode:
    """Return one message of an operator list to, or from, one other rank."""
    kind = TRAFFIC[operation.role]
    return PieceNode(
        name,
        NodeKind.SEND if operation.sends else NodeKind.RECV,
        f"{kind.axis}-{'send' if operation.sends else 'recv'}",
        after,
        size=operation.size,
        peer=PEERS.index((kind.group, operation.step)),
        issue=0 if host is None else host.of_collective(kind.axis),
    )


def price(
    operations: Sequence[Operation],
    operators: OperatorModel,
    host: HostSpec | None = None,
    exchanges: Sequence[Exchange] = (),
) -> PricedPiece:
    """Return an operator list as a piece; its first node waits for every port.

    `host` issues its nodes one by one; None: nobody does, or all at once. `exchanges` are the
    patterns of the job's all-to-alls.
    """
    nodes = []
    for position, operation in enumerate(operations):
        after = operation.after if position else PORTS
        if operation.step:
            nodes.append(peer_node(operation.name, operation, after, host))
        elif operation.operator is None:
            node = message_node(operation.name, operation.role, operation.size, after, host)
            tag = 0 if operation.exchange is None else 1 + exchanges.index(operation.exchange)
            nodes.append(replace(node, tag=tag))
        else:
            node = kernel_node(operation.name, operation.operator, operators, after, host)
            nodes.append(replace(node, stream="compute-beside") if operation.aside else node)
    marks = [
        GradientMark(row, entry.parameters, entry.domain, entry.deferrable)
        for row, entry in enumerate(operations)
        if entry.parameters
    ]
    cache_rows = [row for row, entry in enumerate(operations) if entry.sees_cache]
    return make_piece(nodes, marks=marks, cache_rows=cache_rows)
