"""ASTRA-sim's own input files, read as they are: network, system, process groups and remote memory.

Numbers carry no units there: bandwidths of the network are GiB/s (2**30), of memory 10**9 bytes/s, latencies
and delays nanoseconds. Keys that change nothing are listed with the reason: that simulator ignores them too.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_args

import msgspec
from msgspec import Meta, Struct

from rapid_des.chakra.groups import is_rank
from rapid_des.chakra.trace import MOST_RANKS
from rapid_des.config import Spec, decode
from rapid_des.config.documents import Document, load_document, read_text
from rapid_des.errors import ConfigError
from rapid_des.importers.astra_sim.other_backends import refuse_other_backends
from rapid_des.importers.keys import Ignored, by_reason, shortened
from rapid_des.units import whole_number

Positive: TypeAlias = Annotated[float, Meta(ge=1e-6, le=1e9)]
NonNegative: TypeAlias = Annotated[float, Meta(ge=0, le=1e12)]
Rate: TypeAlias = Literal[0] | Positive
Count: TypeAlias = Annotated[int, Meta(ge=1, le=2**24)]
Switch: TypeAlias = bool | Literal[0, 1]
Dialect: TypeAlias = Literal["stock", "extended"]
Shape: TypeAlias = Literal[
    "Ring", "FullyConnected", "Switch", "Mesh", "Torus2D", "Mesh2D", "KingMesh2D", "HyperCube"
]

Health: TypeAlias = Literal[0] | Annotated[float, Meta(ge=1e-6, le=1)]

S = TypeVar("S", bound=Spec)

LOG_GP = frozenset(("L", "o", "g", "G", "local-reduction-delay"))
LOGS = frozenset(("trace-enabled", "track-local-mem", "local-mem-trace-filename"))
_ROUTES = "messages take dimension-ordered routes, not agent nodes"
_OF_MEMORY = ("remote-mem-latency", "remote-mem-bw", "num-nodes", "num-npus-per-node")
_EXPONENT = re.compile(r"[+-]?(?:[0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})[eE][+-]?[0-9]{1,2}\Z")


class NetworkFile(Spec, frozen=True, kw_only=True):
    """The network's YAML: one entry per dimension, innermost first."""

    topology: Annotated[tuple[Shape, ...], Meta(min_length=1)]
    npus_count: tuple[Count, ...]
    bandwidth: tuple[Positive, ...]
    """Bandwidth of each directed link, in GiB/s (2**30)."""
    latency: tuple[NonNegative, ...]
    """Latency of each directed link, in nanoseconds."""
    faulty_links: tuple[tuple[int, int, Health], ...] = ()
    """[one end, other end, remaining share of bandwidth of both directions]; 0 is a dead link."""
    non_recursive_from: int | None = None
    non_recursive_topology: tuple[int, ...] | None = None


class SystemFile(Spec, frozen=True, kw_only=True, rename="kebab"):
    """The system's JSON; a key that a trace needs and the file lacks is an error where it is needed."""

    scheduling_policy: Literal["LIFO", "FIFO", "EXPLICIT"] | None = None
    all_reduce_implementation: tuple[str, ...] | None = None
    all_gather_implementation: tuple[str, ...] | None = None
    reduce_scatter_implementation: tuple[str, ...] | None = None
    all_to_all_implementation: tuple[str, ...] | None = None
    collective_optimization: Literal["baseline", "localBWAware"] | None = None
    endpoint_delay: Annotated[int, Meta(ge=0, le=10**12)] = 10
    """Delay before each message in nanoseconds; the default is ASTRA-sim's."""
    active_chunks_per_dimension: Annotated[int, Meta(ge=1, le=2**31 - 1)] = 1
    preferred_dataset_splits: Annotated[int, Meta(ge=1, le=4096)] | None = None
    """Number of chunks of a collective; at most what rapid_des's own collectives may have."""
    local_mem_bw: NonNegative = 0
    """Memory bandwidth in 10**9 bytes/s; 0 or absent means that reductions take no time."""
    peak_perf: NonNegative | None = None
    """Peak arithmetic rate in TFLOP/s."""
    roofline_enabled: Switch = False
    replay_only: Switch = False
    model_shared_bus: Switch = False


class MemoryFile(Spec, frozen=True, kw_only=True, rename="kebab"):
    """The remote memory's JSON."""

    memory_type: Literal[
        "NO_MEMORY_EXPANSION", "PER_NPU_MEMORY_EXPANSION", "PER_NODE_MEMORY_EXPANSION", "MEMORY_POOL"
    ]
    remote_mem_latency: NonNegative = 0
    """Latency in nanoseconds."""
    remote_mem_bw: Positive | None = None
    """Bandwidth in bytes per nanosecond."""
    num_nodes: Count | None = None
    num_npus_per_node: Count | None = None


class Files(Struct, frozen=True):
    """The paths of the files, and the options of ASTRA-sim's command line."""

    network: Path
    system: Path
    groups: Path | None = None
    memory: Path | None = None
    queues: int = 1
    """Queues per dimension, which collectives' chunks share."""
    dialect: Dialect = "stock"
    """The dialect whose message sizes collectives have; see `phases.message_size`."""


class Setup(Struct, frozen=True):
    """The content of the files and options, and which keys are not followed."""

    files: Files
    network: NetworkFile
    system: SystemFile
    groups: Mapping[int, tuple[int, ...]]
    memory: MemoryFile | None
    ignored: tuple[Ignored, ...]
    """The keys that change nothing, each with the reason."""

    @property
    def notes(self) -> tuple[str, ...]:
        """One line for each reason for which keys are ignored."""
        return tuple(by_reason(self.ignored))

    @property
    def queues(self) -> int:
        """Number of queues of each dimension."""
        return self.files.queues

    @property
    def dialect(self) -> Dialect:
        """The dialect whose message sizes collectives have."""
        return self.files.dialect


def read_setup(files: Files) -> Setup:
    """Read all files; a `ConfigError` names file, key, value and what is allowed."""
    if files.queues < 1:
        raise ConfigError(f"{files.queues} is not a number above 0", file="--astra-queues-per-dim")
    if files.dialect not in get_args(Dialect):
        allowed = ", ".join(get_args(Dialect))
        raise ConfigError(f"{files.dialect!r} is not one of {allowed}", file="--astra-dialect")
    ignored: list[Ignored] = []
    refuse_other_backends(files.network)
    network = _read(_with_exponents(_mapping(files.network)), NetworkFile, ignored)
    _check_network(network, files.network)
    system = _read(_mapping(files.system), SystemFile, ignored)
    _check_system(system, files.system)
    memory = None if files.memory is None else _read(_mapping(files.memory), MemoryFile, ignored)
    if memory is not None and files.memory is not None:
        _check_memory(memory, files.memory)
    groups = {} if files.groups is None else _groups(_mapping(files.groups))
    return Setup(files, network, system, groups, memory, tuple(ignored))


def _mapping(path: Path) -> Document:
    """Read a mapping; a .json file by the letter of JSON, where tabs may stand, all else as YAML."""
    if path.suffix != ".json":
        return load_document(path)
    try:
        tree = msgspec.json.decode(read_text(path))
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(f"not valid JSON: {error}", file=str(path)) from None
    if not isinstance(tree, dict):
        raise ConfigError(f"the top level must be a mapping, it is a {type(tree).__name__}", file=str(path))
    return Document(path, tree)


def _with_exponents(document: Document) -> Document:
    """Read numbers such as 1e3, which YAML takes for text and that simulator's reader for numbers."""

    def number(entry: object) -> object:
        return float(entry) if isinstance(entry, str) and _EXPONENT.match(entry) else entry

    tree = {
        key: [number(entry) for entry in value] if isinstance(value, list) else value
        for key, value in document.tree.items()
    }
    return Document(document.path, tree)


def _read(document: Document, spec: type[S], ignored: list[Ignored]) -> S:
    """Decode the keys that `spec` knows; others are ignored, as are those that change nothing."""
    known = {field.encode_name for field in msgspec.structs.fields(spec)}
    custom = [
        key for key in document.tree if str(key).endswith(("-implementation-custom", "custom-implementation"))
    ]
    if custom:
        allowed = "; a machine file's `collectives` (--on) takes algorithms as JSON, CSV or MSCCL's XML"
        raise ConfigError(
            f"custom collectives are not supported{allowed}", file=str(document.path), key=custom[0]
        )
    ignored += idle_keys(document.path, document.tree, known)
    used: dict[str, Any] = {key: value for key, value in document.tree.items() if key in known}
    return decode(Document(document.path, used), spec)


def _check_network(network: NetworkFile, path: Path) -> None:
    dimensions = len(network.topology)
    for key in ("npus_count", "bandwidth", "latency"):
        entries = len(getattr(network, key))
        if entries != dimensions:
            raise ConfigError(
                f"{entries} entries, but topology names {dimensions} dimensions", file=str(path), key=key
            )


def _check_system(system: SystemFile, path: Path) -> None:
    if system.model_shared_bus:
        raise ConfigError("1 (the LogGP bus) is not supported", file=str(path), key="model-shared-bus")
    if system.roofline_enabled and not (system.peak_perf and system.local_mem_bw):
        raise ConfigError("needs peak-perf and local-mem-bw above 0", file=str(path), key="roofline-enabled")


def _check_memory(memory: MemoryFile, path: Path) -> None:
    needs = ["remote-mem-bw"] if memory.memory_type != "NO_MEMORY_EXPANSION" else []
    if memory.memory_type == "PER_NODE_MEMORY_EXPANSION":
        needs.append("num-npus-per-node")
    for key in needs:
        if getattr(memory, key.replace("-", "_")) is None:
            raise ConfigError(f"missing key {key!r}, which {memory.memory_type} needs", file=str(path))


def _groups(document: Document) -> dict[int, tuple[int, ...]]:
    groups: dict[int, tuple[int, ...]] = {}
    for key, ranks in document.tree.items():
        try:
            name = whole_number(key.strip(), most=MOST_RANKS)
        except ValueError as error:
            raise ConfigError(
                f"a group's name must be a number: {error}", file=str(document.path), key=key[:60]
            ) from None
        valid = isinstance(ranks, list) and all(map(is_rank, ranks))
        if not valid or not ranks or len(set(ranks)) != len(ranks):
            raise ConfigError(
                "a group must be a list of distinct ranks such as [0, 1]", file=str(document.path), key=key
            )
        groups[name] = tuple(ranks)
    return groups


def idle_keys(path: Path, tree: Mapping[str, Any], known: Set[str]) -> Iterator[Ignored]:
    """Yield what changes nothing in a file of which `known` keys are read."""
    for key in sorted(tree.keys()):
        reason = _reason(key, tree, known)
        if reason:
            yield Ignored(f"{path.name}: {key}", shortened(str(tree[key])), reason)


def _reason(key: str, tree: Mapping[str, Any], known: Set[str]) -> str:
    if key not in known:
        return _unread(key, known - tree.keys())
    if key.startswith("non_recursive_"):
        return _ROUTES
    if key in ("peak-perf", "roofline-enabled") and tree.get("replay-only"):
        return "replay-only is 1, so that durations are those of the trace"
    if key == "peak-perf" and not tree.get("roofline-enabled"):
        return "roofline-enabled is 0"
    if key in _OF_MEMORY and tree.get("memory-type") == "NO_MEMORY_EXPANSION":
        return "there is no remote memory"
    if key == "num-nodes":
        return "the ranks of the network say it"
    if key == "num-npus-per-node" and tree.get("memory-type") != "PER_NODE_MEMORY_EXPANSION":
        return "memory-type is not PER_NODE_MEMORY_EXPANSION"
    return ""


def _unread(key: str, unstated: Set[str]) -> str:
    """Return why a key that nothing here reads changes nothing."""
    if key in LOG_GP:
        return "only the LogGP bus of model-shared-bus reads it"
    if key in LOGS:
        return "it is of logs"
    near = difflib.get_close_matches(key, unstated, n=1)
    return f"ASTRA-sim reads no such key{f' (did you mean {near[0]!r}?)' if near else ''}"
