"""Software profiles: what differs by framework or serving engine, and not by silicon; and the host's work.

A job chooses one by name (`software: megatron-2025`, of `workloads/software`), by path, or holds its keys.

A framework's process hands kernels, collectives and messages to the GPU one after the other and runs ahead of
it. Between two moments at which it waits (a *stretch*) nothing holds it up, so the moment at which it has
issued something is a running sum of times. A captured CUDA graph is handed over at once.

An operator of our lists may be several kernels of a framework; `kernels_of` says how many. The first is
issued before the others, and the node of all starts so that it is not done before the last one can be: at the
issue of the last, less what the others take of its time, but not before that of the first (its *lead*).

What is neglected: a launch queue is finite (CUDA's holds about 1,024 launches), so that a host far ahead of
its GPU is stopped, and has less lead where many small kernels follow; other threads of the process; and that
the ranks of a node share its cores.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import structs

from rapid_des.arrays import Int64s
from rapid_des.chakra.trace import NodeKind
from rapid_des.config import Document, Spec, decode, load_document, resolve
from rapid_des.config.documents import with_base
from rapid_des.device.operators import Attention, Operator, Starts, Vector
from rapid_des.device.spec import DecodePolicy
from rapid_des.device.vector import kind_of
from rapid_des.errors import ConfigError
from rapid_des.network.specs import LibraryChoice
from rapid_des.units import PS_PER_S, Duration

USUAL: Mapping[str, str] = {"training": "megatron-2025", "inference": "vllm-0.x"}
"""The default profile of each phase."""
Wait = Literal["gradient_norm", "pipeline", "gathers"]
TIMES = ("kernel", "collective", "tensor_rank", "list_rank", "graph", "step", "request", "prompt_token",
         "client")  # fmt: skip
"""The names of a host's times."""
_LONGEST = Duration(PS_PER_S)
_FLASH = {"forward": 1, "backward": 3}
"""Kernels of FlashAttention; backward: row sums of O·dO, gradients, dQ brought to its format."""
_UNFUSED = {"forward": 3, "backward": 5}
"""Products and softmax, or their gradients, apart (`device.pricing.unfused_kernels`)."""
_NORM_BACKWARD = 2
"""Kernels of a norm's backward: the input's gradient, and the weight's, summed over blocks of rows."""


class Software(Spec, frozen=True):
    """A software profile: whose kernels and communication libraries run, and what it does by default."""

    name: str
    """Framework or engine, and the version whose behaviour is meant."""
    kernels: str | None = None
    """The library whose kernels run: a scope of the device's constants (`vllm`, `trtllm`, …). Unset: the
    device file's `conditions.library`."""
    attention: str | None = None
    """The library whose attention kernels run, a scope too (`flash-2`). Unset: as `kernels`."""
    experts: Literal["one_kernel", "kernel_each"] = "one_kernel"
    """Whether one kernel multiplies for all experts of a rank, or a GEMM of the library for each of them,
    some beside each other."""
    expert_start: Duration | None = None
    """Time that each kernel of an expert's own takes besides its work, in training: issued and begun one
    after the other, products and casts alike. Unset: nothing."""
    expert_kernels: str | None = None
    """The library whose kernels multiply for experts in that one kernel, a scope too (`trtllm_min_latency`).
    Unset: as `kernels`."""
    decode: DecodePolicy = DecodePolicy()
    """How its decode attention runs: which query heads share keys that they read, whether keys are split."""
    communication: LibraryChoice = LibraryChoice()
    """Communication libraries by kind of group. Those of which nothing was measured on a machine's fabric
    are not used there; nothing stated: no library, transfers at the links' own rates."""
    defaults: dict[str, Any] = {}
    """Keys of a job and their values where it states none: fusion, overlap, formats, memory reserved."""

    def __hash__(self) -> int:
        parts = self.kernels, self.attention, self.expert_kernels, self.decode, self.experts
        return hash((self.name, *parts, self.expert_start, self.communication))

    def libraries_json(self) -> str:
        """Return the communication libraries as a trace carries them."""
        return msgspec.json.encode(self.communication).decode()


def software_of(document: Document) -> Software:
    """Return the profile that a job's document names or holds, else the usual one of its phase."""
    stated, phase = document.tree.get("software"), document.tree.get("phase")
    if isinstance(stated, dict):
        return decode(Document(document.path, {"software": stated}, document.settings), _Holder).software
    usual = USUAL["inference" if phase == "inference" else "training"]
    name = usual if stated is None else str(stated)
    path = _find(name, document, key="software")
    return decode(with_base(load_document(path), partial(_find, key="base")), Software)


def _find(name: str, document: Document, *, key: str) -> Path:
    return resolve(name, "software", folder=document.folder, named_in=str(document.path), key=key)


def with_defaults(document: Document, software: Software) -> Document:
    """Return a job's document with what its software does by default where it says nothing."""
    phase = document.tree.get("phase")
    of_phase = {"serving": "inference", **{each: each for each in USUAL}}
    defaults = {key: value for key, value in software.defaults.items() if of_phase.get(key, phase) == phase}
    return Document(document.path, _under(document.tree, defaults), document.settings)


def applied(software: Software) -> Software:
    """Return a profile without defaults, as the job's keys already hold them."""
    return structs.replace(software, defaults={})


class _Holder(Spec, frozen=True):
    """Decodes the software section of a job file."""

    software: Software


def _under(stated: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stated keys with defaults filled in; sections are merged key by key."""
    joined = dict(stated)
    for key, value in defaults.items():
        present = joined.get(key)
        if key not in joined:
            joined[key] = value
        elif isinstance(present, dict) and isinstance(value, dict):
            joined[key] = _under(present, value)
    return joined


_Tokens = Annotated[int, msgspec.Meta(ge=1, le=2**31)]


class TwoBatchesSpec(Spec, frozen=True):
    """From how many tokens of a rank on a pass runs as two half-batches; unset: none does."""

    prefill: _Tokens | None = None
    """The least number of a pass with prompts; vLLM's `dbo_prefill_token_threshold` is 512."""
    decode: _Tokens | None = None
    """The least number of a pass that decodes; vLLM's `dbo_decode_token_threshold` is 32."""

    def __post_init__(self) -> None:
        if self.prefill is None and self.decode is None:
            raise ValueError("state prefill, decode or both, as in {prefill: 512, decode: 32}")


class HostSpec(Spec, frozen=True):
    """The costs of issuing work on the host of a rank, as a framework's software has them."""

    kernel: Duration
    """Time to issue one kernel: the framework's code around it and the launch; at most 1 s."""
    collective: Duration
    """Time to issue one collective, or a send or receive between stages."""
    tensor_rank: Duration | None = None
    """Time that each rank of a tensor-parallel group adds to issuing one of its collectives."""
    list_rank: Duration | None = None
    """Time that each replica adds to issuing a gather of parameters, or a sum to their parts, whose parts are
    a list of tensors: torch.distributed copies each by itself. Unset: they lie in one buffer."""
    graph: Duration | None = None
    """Time to launch one captured graph, whatever it holds; unset: as one kernel."""
    step: Duration | None = None
    """Before the first issue of a training step, or of a pass of requests (scheduling, sampled tokens)."""
    request: Duration | None = None
    """Time before the first pass of requests: receiving and tokenizing them."""
    prompt_token: Duration | None = None
    """Time that each token of a prompt adds to that, of a server that takes requests as they come."""
    client: Duration | None = None
    """Time between such a server's clients and its replicas, for each request by itself: connections,
    processes of the front end, the return of the first token. Others do not wait for it."""
    captured: Literal["nothing", "decode", "passes"] = "nothing"
    """The passes that are launched as a CUDA graph: decode steps, or prefill too; with
    `inference.cuda_graphs: false` none is."""
    captured_multiple: Annotated[int, msgspec.Meta(ge=1, le=2**20)] | None = None
    """Captured decode steps compute 1, 2, 4, … tokens up to this, and multiples of it: fewer are padded.
    Unset: as many as there are."""
    captured_prompts: Annotated[int, msgspec.Meta(ge=1, le=2**20)] | None = None
    """Passes of up to this many tokens, prompts among them, are graphs between their attention kernels, which
    alone are issued one by one (piecewise CUDA graphs); unset: none of those that `captured` leaves out."""
    waits: tuple[Wait, ...] = ()
    """Where the host of a training job waits for its GPU: for the sum of the gradient norm (and the overflow
    check), for messages between stages that do not travel beside compute, before each gather of parameters
    (zero_stage 3)."""
    blocking: bool = False
    """Whether the host of a training job waits for each kernel and collective that it launches, as with
    CUDA_LAUNCH_BLOCKING=1: nothing runs beside anything else of the rank. Mode flattened alone."""

    def __post_init__(self) -> None:
        if max(getattr(self, name) or 0 for name in TIMES) > _LONGEST:
            raise ValueError(f"an issue takes at most {_LONGEST}")

    def padding(self, tokens: int) -> int:
        """Return how many tokens a captured decode step computes besides.

        >>> host = HostSpec(Duration(1), Duration(1), captured="decode", captured_multiple=8)
        >>> [host.padding(tokens) for tokens in (1, 3, 8, 9)]
        [0, 1, 0, 7]
        """
        multiple = self.captured_multiple
        if self.captured == "nothing" or multiple is None:
            return 0
        if tokens < multiple:
            return min(1 << (tokens - 1).bit_length(), multiple) - tokens
        return -tokens % multiple

    @property
    def launch(self) -> int:
        """Picoseconds to launch a captured graph."""
        return int(self.kernel if self.graph is None else self.graph)

    def in_pieces(self, tokens: int) -> bool:
        """Return whether a pass of this many tokens is graphs between its attention kernels."""
        return self.captured == "decode" and tokens <= (self.captured_prompts or 0)

    def at_speed(self, speed: float) -> HostSpec:
        """Return the costs of a host whose cores are this many times as fast."""
        stated = {name: getattr(self, name) for name in TIMES}
        times = {name: Duration(round(time / speed)) for name, time in stated.items() if time is not None}
        return structs.replace(self, **times)

    def of_group(self, ranks: int, *, file: str) -> HostSpec:
        """Return the costs of a host whose tensor-parallel groups have this many ranks."""
        each = int(self.tensor_rank or 0) * ranks
        if each > _LONGEST:
            problem = f"an issue takes at most {_LONGEST}; with tp {ranks} it is more"
            raise ConfigError(problem, file=file, key="host.tensor_rank")
        return structs.replace(self, tensor_rank=Duration(each)) if each else self

    def of_collective(self, axis: str) -> int:
        """Return the picoseconds that issuing a collective of an axis takes."""
        return int(self.collective) + int(self.tensor_rank or 0) * (axis == "tp")

    def of_list(self, ranks: int) -> int:
        """Return the extra picoseconds of copies from, or to, a list of this many replicas' parts."""
        return int(self.list_rank or 0) * ranks

    def before(self, *, captured: bool = False, first: bool = False) -> int:
        """Return the picoseconds before the first issue of a step, or of a (captured, first) pass."""
        return int(self.step or 0) + self.launch * captured + int(self.request or 0) * first

    def of_kernel(self, operator: Operator, duration: int) -> tuple[int, int]:
        """Return the picoseconds that issuing an operator of this duration takes, and its lead."""
        if isinstance(operator, Starts):
            return 0, 0
        count = kernels_of(operator)
        if not count:  # it is in the kernel of a sum
            return 0, 0
        return count * self.kernel, min((count - 1) * self.kernel, duration - duration // count)


def kernels_of(operator: Operator) -> int:
    """Return how many kernels a framework launches for an operator.

    >>> kernels_of(Vector("rms_norm", 4, 8)), kernels_of(Vector("gradient_norm", 4, 8))
    (1, 2)
    """
    if isinstance(operator, Vector):
        norm = operator.kind in {"layer_norm", "rms_norm"} and operator.phase == "backward"
        return _NORM_BACKWARD if norm else kind_of(operator.kind).kernels
    if isinstance(operator, Attention):
        return (_FLASH if operator.fused else _UNFUSED)[operator.phase]
    return 1


def issue_order(kind: Int64s, counts: Int64s, dependencies: Int64s) -> Int64s:
    """Return the rows of a program in the order in which the host issues them.

    That is program order, but a collective is issued as soon as the last thing it waits for has been, as the
    hooks of data parallelism do. `counts` and `dependencies` say for what each row waits.
    """
    issued_after = np.arange(len(kind))
    waits = np.flatnonzero(counts > 0)
    if len(waits):
        # The last dependency of each row that has any; rows stand in program order.
        latest = np.maximum.reduceat(dependencies, (np.cumsum(counts) - counts)[waits])
        issued_after[waits] = np.where(kind[waits] == NodeKind.COLLECTIVE, latest, waits)
    return np.argsort(issued_after, kind="stable")
