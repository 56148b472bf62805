"""Communication libraries as data and one function: the library's choice for a collective, and its cost.

    (kind of group, collective, place, size) ──► LibraryCost ──► Schedule (the transfers that cost stands for)

The cost is the closed form that measurements score. `program.collectives.pacing` gives the transfers the lags
by which they take as long on idle links.

The algorithms that a machine file states for its collectives are checked here; errors name the key.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache, partial

import numpy as np
from msgspec import Struct

from rapid_des.arrays import rows_of
from rapid_des.chakra.trace import CollectiveType, Exchange
from rapid_des.errors import ConfigError, InputError
from rapid_des.network.collectives.in_switch import IN_SWITCH, nvls_each
from rapid_des.network.collectives.libraries.nccl import (
    GroupPlacement,
    LibraryCost,
    chain_chunks,
    cost_in_node,
    send_in_node,
)
from rapid_des.network.collectives.libraries.nccl_fabric import (
    NcclFabric,
    load_fabric,
    on_links,
    with_registered_buffers,
)
from rapid_des.network.collectives.libraries.nccl_network import (
    cost_over_nodes,
    load_samples,
    sampled_cost,
    sampled_send,
    send_over_nodes,
)
from rapid_des.network.collectives.libraries.over_nodes import (
    mesh_chains,
    node_trees,
    rail_chains,
    rail_rings,
)
from rapid_des.network.collectives.libraries.serving_kernels import (
    ONCE,
    all_reduce_cost,
    exchange_cost,
    hybrid_cost,
    load_kernels,
)
from rapid_des.network.collectives.on_fabric import ShapedCollective, build_schedule, collectives_of
from rapid_des.network.collectives.ring import ring_reduction
from rapid_des.network.collectives.schedule import Schedule, demand
from rapid_des.network.collectives.token_exchange import exchange_schedule, imbalance
from rapid_des.network.fabric import Fabric
from rapid_des.network.specs import (
    AUTO,
    AnyLibrary,
    Collectives,
    CustomAllReduce,
    DeepEp,
    HybridEp,
    Native,
    Nccl,
    Sampled,
)
from rapid_des.units import ceil_divide
from rapid_des.values import replace

C = CollectiveType
_TREE_CHUNK = 2**20
_MOST_CHUNKS = 16
"""The most chunks of 1 MiB in which a tree, or a reduction in a switch, sends its data."""
_NODE_CHUNK = 2**26
_MOST_NODE_CHUNKS = 128
"""The most chunks of a tree over nodes and their switches from 1 GiB on: with 16 chunks the fill of eight
nodes takes 12 % of the time.
"""


class LinkRates(Struct, frozen=True):
    """The link rates that scale a library's rates, in bytes a second: a GPU's in-node links, and its NIC."""

    node: int
    network: int | None = None


class CollectiveRequest(Struct, frozen=True, dict=True):
    """A collective of a group as a trace issues it: `size` is the input buffer of each rank in bytes."""

    collective: CollectiveType
    size: int
    counts: tuple[int, ...]
    """The number of the group's ranks on each node."""
    switched: bool = False
    """Whether one switch in each node connects all of the group's ranks there."""
    nic_blocks: int = 0
    """The blocks of an all-to-all that the busiest NIC sends, see `GroupPlacement.nic_blocks`."""
    meshed: bool = False
    """Whether every two GPUs of a node have a direct link; NCCL's rings then use all of these links."""
    exchange: Exchange | None = None
    """How an all-to-all distributes its data; None: evenly, with every copy sent separately."""

    @property
    def busiest(self) -> int:
        """Bytes that the member with most to send or to get has; it decides how long all take."""
        return self.size if self.exchange is None else math.ceil(self.size * imbalance(self.exchange))

    @cached_property
    def place(self) -> GroupPlacement:
        """The places of the ranks."""
        return GroupPlacement(sum(self.counts), len(self.counts), min(self.counts), self.nic_blocks)

    @property
    def even(self) -> bool:
        """Whether all nodes have as many of its ranks."""
        return self.counts.count(self.counts[0]) == len(self.counts)


def cost_of(library: AnyLibrary, request: CollectiveRequest, rates: LinkRates) -> LibraryCost | None:
    """Return a library's cost of a collective; None where it has no kernel for it.

    `InputError` where its constants know no network and the group spans nodes.
    """
    place = request.place
    if isinstance(library, Native):
        return None
    if isinstance(library, Nccl):
        fabric = _fabric(_file(library.constants), rates)
        fabric = with_registered_buffers(fabric) if library.registered else fabric
        nccl = cost_in_node if place.nodes == 1 else cost_over_nodes
        cost = nccl(fabric, request.collective, place, request.busiest, switched=request.switched)
        return _on(library, cost)
    if isinstance(library, Sampled):
        return sampled_cost(load_samples(library.file), request.collective, place, request.size)
    kernels = load_kernels(_file(library.kernels))
    if isinstance(library, CustomAllReduce):
        if request.collective is not C.ALL_REDUCE or place.nodes > 1:
            return None
        return all_reduce_cost(kernels, library.engine, place.ranks, request.size, switched=request.switched)
    if request.collective is not C.ALL_TO_ALL:
        return None
    if isinstance(library, HybridEp):
        how = request.exchange
        return None if how is None else hybrid_cost(kernels, library, place, request.busiest, how)
    return exchange_cost(kernels, library, place, request.busiest, request.exchange)


def message_cost(
    library: AnyLibrary, place: GroupPlacement, size: int, rates: LinkRates, *, inter_node: bool
) -> LibraryCost | None:
    """Return the cost of a message within a communicator; None for libraries without messages."""
    if isinstance(library, Sampled):
        return sampled_send(load_samples(library.file), size, inter_node=inter_node)
    if not isinstance(library, Nccl):
        return None
    send = send_over_nodes if inter_node else send_in_node
    return _on(library, send(_fabric(_file(library.constants), rates), place, size))


def _file(name: str | None) -> str:
    """Return the name of a file of constants, which a library that is asked must have."""
    if name is None:
        raise ConfigError("names no file of constants, and collectives.measured has none for it")
    return name


def _on(library: Nccl, cost: LibraryCost) -> LibraryCost:
    """Return a cost that takes as many SMs as the machine file states, if it does."""
    multiprocessors = library.multiprocessors
    return cost if multiprocessors is None else replace(cost, channels=multiprocessors)


def library_name(library: AnyLibrary) -> str:
    """Return the name of a library in machine files."""
    return str(library.__struct_config__.tag)


def uses_switches(library: AnyLibrary, counts: Sequence[int]) -> bool:
    """Return whether a library reduces in the switches of nodes with this many ranks of a group."""
    if isinstance(library, CustomAllReduce):
        kernel = load_kernels(_file(library.kernels)).all_reduce.get(library.engine)
        return len(counts) == 1 and kernel is not None and kernel.symmetric is not None
    if not isinstance(library, Nccl):
        return False
    fabric, least = load_fabric(_file(library.constants)), min(counts)
    if len(counts) > 1:
        return fabric.reduces_over_nodes(least)
    return fabric.node.nvls is not None and least >= fabric.node.nvls.least_ranks


def check_libraries(collectives: Collectives) -> None:
    """Raise `ConfigError` for a key whose file of constants is not there or lacks what a library needs."""
    measured = collectives.measured
    checks: dict[str, Callable[[], object]] = {
        f"libraries.{kind}": partial(_check, measured.of(library) or library)
        for kind, library in collectives.libraries.stated().items()
    }
    if measured.nccl is not None:
        checks["measured.nccl"] = partial(load_fabric, measured.nccl)
    if measured.kernels is not None:
        checks["measured.kernels"] = partial(load_kernels, measured.kernels)
    for key, check in checks.items():
        try:
            check()
        except InputError as error:
            raise ConfigError(str(error), key=f"collectives.{key}") from None


def _check(library: AnyLibrary) -> None:
    if isinstance(library, Nccl):
        load_fabric(_file(library.constants))
    elif isinstance(library, CustomAllReduce):
        all_reduce_cost(load_kernels(_file(library.kernels)), library.engine, 2, 1)
    elif isinstance(library, (DeepEp, HybridEp)):
        load_kernels(_file(library.kernels))
    elif isinstance(library, Sampled):
        load_samples(library.file)


def schedule_of(cost: LibraryCost, request: CollectiveRequest) -> Schedule:
    """Return the transfers of a collective among ranks 0..n-1, which are sorted by node."""
    place, collective, size = request.place, request.collective, request.size
    if collective is C.BARRIER:
        return build_schedule("dissemination", ShapedCollective(collective, (place.ranks,), size))
    if collective is C.ALL_REDUCE and (size < place.ranks or cost.algorithm == "one_shot"):
        return build_schedule("one_shot", ShapedCollective(collective, (place.ranks,), size))
    if cost.algorithm == "nvls_tree":
        chunks = max(chunks_of(size), min(_MOST_NODE_CHUNKS, size // _NODE_CHUNK))
        return node_trees(size, request.counts, switched=True, chunks=chunks)
    if cost.algorithm == "tree":
        return _tree(request, 1 if cost.protocol == "ll" else chunks_of(size))
    if cost.algorithm == "ring" and collective not in (C.BROADCAST, C.REDUCE):
        return _ring(request)
    if cost.algorithm == "nvls":
        return nvls_each(demand(collective, place.ranks, size).chunks(chunks_of(size)))
    if cost.algorithm == "ring":
        return _chain(request)
    return _direct(request, cost)


def _direct(request: CollectiveRequest, cost: LibraryCost) -> Schedule:
    if request.exchange is not None:
        exchange = replace(request.exchange, once=cost.protocol == ONCE)
        return exchange_schedule(exchange, request.size, request.counts)
    shaped = ShapedCollective(request.collective, (request.place.ranks,), request.size)
    direct = build_schedule("direct", shaped)
    whole = cost.intra_node_share == cost.inter_node_share == 1.0
    return direct if whole else _once(direct, request, cost)


def _once(schedule: Schedule, request: CollectiveRequest, cost: LibraryCost) -> Schedule:
    """Return a schedule with what is sent once for several experts in one place."""
    node = rows_of(request.counts)
    inter_node = node[schedule.source] != node[schedule.destination]
    share = np.where(inter_node, cost.inter_node_share, cost.intra_node_share)
    return replace(schedule, size=np.maximum(1, (schedule.size * share).astype(np.int64)))


def _chain(request: CollectiveRequest) -> Schedule:
    collective, size, place = request.collective, request.size, request.place
    chunks = chain_chunks(size)
    if request.meshed and place.nodes == 1 and size >= place.ranks * chunks:
        of = demand(collective, place.ranks, size)
        return mesh_chains(of, ceil_divide(chunks, place.ranks - 1))
    if place.railed and size >= place.per_node * chunks:
        of = demand(collective, place.ranks, size)
        return rail_chains(of, request.counts, ceil_divide(chunks, place.per_node))
    return build_schedule("ring", ShapedCollective(collective, (place.ranks,), size, chunks=chunks))


def chunks_of(size: int) -> int:
    """Return into how many chunks a tree or a switch takes its data."""
    return max(1, min(_MOST_CHUNKS, size // _TREE_CHUNK))


def _ring(request: CollectiveRequest) -> Schedule:
    collective, size, place = request.collective, request.size, request.place
    if request.meshed and place.nodes == 1:  # what rings over all links carry together, each link as busy
        return build_schedule("direct", ShapedCollective(collective, (place.ranks,), size))
    of = demand(collective, place.ranks, size)
    if place.railed and int(of.size.min()) >= place.per_node:
        return rail_rings(of, request.counts, payloads=False)
    return ring_reduction(of)


def _tree(request: CollectiveRequest, chunks: int) -> Schedule:
    if request.place.railed:
        return node_trees(request.size, request.counts, chunks=chunks)
    whole = ShapedCollective(request.collective, (request.place.ranks,), request.size, chunks=chunks)
    return build_schedule("double_binary_tree", whole)


@lru_cache(maxsize=256)
def _fabric(constants: str, rates: LinkRates) -> NcclFabric:
    fabric = load_fabric(constants)
    network = 1.0
    if fabric.network is not None and rates.network is not None:
        network = rates.network / int(fabric.network.wire)
    return on_links(fabric, node=rates.node / int(fabric.node.wire), network=network)


def check_stated(collectives: Collectives, file: str) -> None:
    """Raise `ConfigError` for an algorithm or a library that nobody knows, or chunks of `auto`'s own."""
    _check_auto(collectives, file)
    _check_collectives(collectives, file)


def check_on_fabric(collectives: Collectives, fabric: Fabric, file: str) -> None:
    """Raise `ConfigError` for algorithms that a fabric has no place for."""
    _check_counts(collectives, fabric, file)
    _check_switches(collectives, fabric, file)


def named_algorithms(collectives: Collectives) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield (key of the file, one algorithm or those of the dimensions) of what serves each collective."""
    for operation in collectives.operations:
        choice = collectives.choice(operation)
        stated = () if choice is None or choice.algorithm == AUTO else choice.algorithm
        key = f"collectives.{operation if getattr(collectives, operation) else 'default'}"
        yield key, (stated,) if isinstance(stated, str) else stated


def _check_auto(collectives: Collectives, file: str) -> None:
    for operation in collectives.operations:
        choice = collectives.choice(operation)
        if choice is not None and choice.algorithm == AUTO and choice.chunks > 1:
            problem = f"{choice.chunks}; allowed: 1, as {AUTO} chooses chunks itself"
            raise ConfigError(problem, file=file, key=f"collectives.{operation}.chunks")


def _check_collectives(collectives: Collectives, file: str) -> None:
    for key, names in named_algorithms(collectives):
        try:
            for name in names:
                collectives_of(name)
        except InputError as error:
            raise ConfigError(str(error), file=file, key=key) from None
    try:
        check_libraries(collectives)
    except ConfigError as error:
        raise ConfigError(error.message, file=file, key=error.key) from None


def _check_counts(collectives: Collectives, fabric: Fabric, file: str) -> None:
    """Refuse a list of algorithms that has not one for each dimension, or for each axis of all dimensions."""
    dimensions, axes = len(fabric.extents), len(fabric.axes)
    for operation in collectives.operations:
        choice = collectives.choice(operation)
        names = () if choice is None or isinstance(choice.algorithm, str) else choice.algorithm
        if names and len(names) not in (dimensions, axes):
            key = f"collectives.{operation if getattr(collectives, operation) else 'default'}"
            allowed = f"{dimensions}, one for each dimension"
            allowed += f", or {axes}, one for each axis" if axes > dimensions else ""
            problem = f"{len(names)} algorithms; allowed: {allowed}; or one name for all"
            raise ConfigError(problem, file=file, key=key)


def _check_switches(collectives: Collectives, fabric: Fabric, file: str) -> None:
    """Refuse an algorithm inside switches for a fabric, or a dimension of it, that has none."""
    inside = [entry for entry in named_algorithms(collectives) if not IN_SWITCH.keys().isdisjoint(entry[1])]
    axes = [place for place, extent in enumerate(fabric.extents) for _ in extent]
    for key, names in inside:
        switched = set(fabric.dimension[fabric.destination >= fabric.gpus + fabric.nics].tolist())
        each = range(len(fabric.extents)), axes
        places = next((sizes for sizes in each if len(sizes) == len(names) > 1), ())
        needed = [place for place, name in zip(places, names, strict=False) if name in IN_SWITCH]
        without = [place for place in needed if place not in switched]
        if without or not switched:
            name = next(name for name in names if name in IN_SWITCH)
            where = f"dimension {fabric.dimensions[without[0]]}" if without else "the fabric"
            problem = f"{name!r} works inside switches, of which {where} has none"
            raise ConfigError(problem, file=file, key=key)
