"""Requests that name low-rank adapters (LoRA): who may run together, what adapters add to iterations.

As in vLLM at most `max_loras` adapters are on a GPU, those of running requests among them; a request whose
adapter has no place lets the next ones pass; an adapter that is not there is copied from the host before the
iteration, in place of the one that was idle longest. Each adapted matrix adds two grouped products, x·A and
·B, a group an adapter (Punica's SGMV: Chen et al., MLSys 2024, arXiv 2310.18547), priced as products over
experts are. tp splits the factor that it splits the matrix along.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial

from msgspec import Struct, field

from rapid_des.bounded_cache import BoundedCache
from rapid_des.device.operators import Gemm, GroupedGemm
from rapid_des.device.pricing import operator_model
from rapid_des.errors import ConfigError
from rapid_des.frontend import Job
from rapid_des.frontend.adapters import matrices
from rapid_des.frontend.groups import byte_count
from rapid_des.frontend.inference import ServingPass, pass_lists
from rapid_des.frontend.operations import RequestGroup
from rapid_des.frontend.parts import stage_sections
from rapid_des.frontend.servers import LoraSpec
from rapid_des.machine import Machine
from rapid_des.modes.pricing import as_used
from rapid_des.serving.interpolation import Refined
from rapid_des.serving.requests import Request
from rapid_des.units import ceil_divide, serialization_time


class AdapterSlots(Struct):
    """The adapters in a replica's GPU memory.

    >>> slots = AdapterSlots(2)
    >>> [slots.take(adapter) for adapter in (7, 8, 7)], slots.leave(7), slots.leave(7), slots.take(9)
    ([True, True, False], None, None, True)
    """

    most: int
    running: Counter[int] = field(default_factory=Counter)
    """The number of running requests of each adapter."""
    decoding: Counter[int] = field(default_factory=Counter)
    """The number of decoding requests of each adapter."""
    loads: int = 0
    _there: dict[int, None] = field(default_factory=dict)
    """The adapters in memory, the least recently used first."""

    def candidates(self, waiting: Iterable[Request]) -> Iterator[Request]:
        """Yield the waiting requests that may join the running ones, and those before them in the queue."""
        named = set(self.running)
        for request in waiting:
            if request.adapter in named or len(named) < self.most:
                named.add(request.adapter)
                yield request

    def take(self, adapter: int) -> bool:
        """Record that a request runs; return whether its adapter must be loaded."""
        missing = adapter not in self._there
        if missing:
            self.loads += 1
            if len(self._there) == self.most:
                del self._there[next(adapter for adapter in self._there if not self.running[adapter])]
        self._there.pop(adapter, None)
        self._there[adapter] = None
        self.running[adapter] += 1
        return missing

    def leave(self, adapter: int) -> None:
        """Record that a request runs no more."""
        _less(self.running, adapter)

    def stop_decoding(self, adapter: int) -> None:
        """Record that a request decodes no more."""
        _less(self.decoding, adapter)


def _less(counter: Counter[int], key: int) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]


class Lora:
    """The cost of a job's adapters on a machine."""

    def __init__(self, job: Job, machine: Machine, spec: LoraSpec) -> None:
        self.slots = spec.max_loras
        self._rank, self._dtype = spec.rank, job.spec.precision.activations
        self._stages = list(_products(job, spec))
        device = as_used(job, machine, machine.device, decoding=True)
        self._operators = operator_model(device, BoundedCache())
        self._times: dict[int, Refined] = {}
        host = machine.device.spec.host
        if host is None:
            problem = f"device {machine.device.spec.name} states no bandwidths of its `host`, to load from"
            raise ConfigError(problem, file=job.file, key="serving.lora")
        self.load = serialization_time(self.bytes, int(host.from_host))
        """Picoseconds to copy an adapter from the host."""

    @property
    def bytes(self) -> int:
        """Bytes of an adapter on a GPU, of the stage with most."""
        return max(
            byte_count(sum(count * self._rank * (n + k) for (n, k), count in stage.items()), self._dtype)
            for stage in self._stages
        )

    def time(self, tokens: int, adapters: int) -> int:
        """Return what this many tokens of this many adapters add to an iteration, shared among them."""
        if adapters not in self._times:
            self._times[adapters] = Refined(partial(self._exact, adapters))
        return self._times[adapters](max(tokens, adapters))

    def _exact(self, adapters: int, tokens: int) -> tuple[int, int]:
        rows, total = (ceil_divide(tokens, adapters),) * adapters, 0
        for (n, k), count in sum(self._stages, Counter[tuple[int, int]]()).items():
            for product in (
                GroupedGemm(rows, self._rank, k, self._dtype),
                GroupedGemm(rows, n, self._rank, self._dtype),
            ):
                total += count * self._operators.estimate(product).duration
        return total, 10 * total  # corners within 2 % of it, some thousandths of an iteration


def _products(job: Job, spec: LoraSpec) -> Iterator[Counter[tuple[int, int]]]:
    """Yield for each stage how many matrices with adapters have which columns and inner width."""
    lists = pass_lists(job, ServingPass(1, (RequestGroup(1, 1, 1),), 1))
    blocks = {section: lists[section] for section in lists if section.name == "block"}
    known = dict.fromkeys(name for operations in blocks.values() for name in matrices(operations))
    for name in spec.matrices:
        if name not in known:
            problem = f"{name!r} is no matrix of these layers; allowed: {', '.join(known)}"
            raise ConfigError(problem, file=job.file, key="serving.lora.matrices")
    for stage in range(job.stages):
        shapes: Counter[tuple[int, int]] = Counter()
        for section, count in stage_sections(job, stage).items():
            for operation in blocks.get(section, ()):
                if operation.name in spec.matrices and isinstance(operation.operator, Gemm):
                    shapes[operation.operator.n, operation.operator.k] += count
        yield shapes


class AdapterUse:
    """The adapters that requests of a replica use, and their cost; neutral where there are none."""

    def __init__(self, lora: Lora | None) -> None:
        self._lora = lora
        self.slots = AdapterSlots(0 if lora is None else lora.slots)

    def candidates(self, waiting: Iterable[Request]) -> Iterable[Request]:
        """Return the waiting requests that may join the running ones."""
        return waiting if self._lora is None else self.slots.candidates(waiting)

    def admit(self, request: Request) -> int:
        """Record that a request runs; return the picoseconds to load its adapter."""
        return self._lora.load if self._lora is not None and self.slots.take(request.adapter) else 0

    def leave(self, request: Request) -> None:
        """Record that it runs no more."""
        if self._lora is not None:
            self.slots.leave(request.adapter)

    def decode(self, request: Request) -> None:
        """Record that it decodes."""
        if self._lora is not None:
            self.slots.decoding[request.adapter] += 1

    def stop_decoding(self, request: Request) -> None:
        """Record that it decodes no more."""
        if self._lora is not None:
            self.slots.stop_decoding(request.adapter)

    def time(self, tokens: int, prompts: Iterable[int] = (), *, decodes: bool = True) -> int:
        """Return the picoseconds that adapters of prompts and of decoding requests add to an iteration."""
        if self._lora is None:
            return 0
        return self._lora.time(tokens, len({*prompts, *(self.slots.decoding if decodes else ())}))
