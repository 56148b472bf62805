"""The device file: what a GPU (or TPU) is, in datasheet numbers and constants, and how it is being used.

Constants stand in sections, one an operator model; a section holds scopes (`default`, a dtype, a library or
`library/dtype`), a scope holds constants, each with a range. In section `vector` a name may have a kernel's
name before it: `rope_row_us` holds for `rope` alone. What is stated for the whole chip scales with its SMs
and its peak clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from fractions import Fraction
from typing import Annotated, Literal, TypeAlias, TypeVar

from msgspec import Meta, Struct, structs

from rapid_des.config import Document, Spec, decode, to_tree
from rapid_des.device.operators import DTYPE_BITS, Dtype, Operator, Vector
from rapid_des.errors import ConfigError
from rapid_des.extensions import OPERATORS, is_known, names
from rapid_des.units import PS_PER_S, Bandwidth, Duration, FlopRate, Frequency, Power, Size
from rapid_des.values import replace

Constants = dict[str, dict[str, dict[str, float]]]
"""Fitted constants: section (`gemm`, …), scope (`default`, a dtype, a library or `library/dtype`), name."""

_MOST = 2**20
"""The upper limit of the counts of a device: SMs, bytes of an L2 port a clock, rows of a GEMM's tile."""
_LONGEST_LAUNCH = Duration(PS_PER_S)

Count: TypeAlias = Annotated[int, Meta(ge=1, le=_MOST)]
Picojoules: TypeAlias = Annotated[float, Meta(ge=0, le=1e6)]


class Clock(Spec, frozen=True):
    """The clock that the peaks are stated at, the highest of a short burst, and the power-limited one."""

    peak: Frequency
    """The clock at which the peaks are stated."""
    boost: Frequency
    """The highest clock, reached in a short burst."""
    sustained: Frequency
    """The power-limited clock during hours of matrix work."""
    sustained_by_dtype: dict[Dtype, Frequency] = {}
    """The sustained clock while matrix work is in a dtype that holds another clock. If `sustained` is set by
    hand, it holds for all dtypes.
    """
    sustained_from: Literal["measured", "scaled", "assumed"] = "assumed"
    """The source of `sustained`: fitted to long GEMM loops on this device or one of equal chip and power;
    scaled from such a device by power and SMs; or assumed from boards' tables.
    """
    sustained_within: Annotated[float, Meta(ge=0, le=1)] | None = None
    """The largest relative error of the sustained clock, as a share of it; unset: not known."""


class Store(Spec, frozen=True):
    """One level of the memory hierarchy: capacity in bytes, bandwidth in bytes/s at the peaks' clock."""

    capacity: Size
    """The capacity in bytes; above 0. For registers and shared memory it is that of one SM."""
    bandwidth: Bandwidth
    """The bandwidth in bytes a second at the peaks' clock; above 0. For registers and shared memory it is the
    sum over all SMs.
    """

    def __post_init__(self) -> None:
        if self.capacity < 1 or self.bandwidth < 1:
            raise ValueError("capacity and bandwidth must be above 0")


class Launch(Spec, frozen=True):
    """The time of a kernel beyond its work: issued one by one by the host, or inside a CUDA graph."""

    eager: Duration
    """The time that the host needs to launch one kernel; at most 1 s."""
    graph: Duration
    """The gap between two kernels of a CUDA graph; at most 1 s."""

    def __post_init__(self) -> None:
        if max(self.eager, self.graph) > _LONGEST_LAUNCH:
            raise ValueError(f"a launch takes at most {_LONGEST_LAUNCH}")


class Energy(Spec, frozen=True):
    """Picojoules a FLOP by dtype, and picojoules a byte moved at each level."""

    flop_pj: dict[Dtype, Picojoules]
    """The energy of a floating-point operation in picojoules, by dtype."""
    shared_pj_per_byte: Picojoules
    """The energy of a byte from shared memory, in picojoules."""
    l2_pj_per_byte: Picojoules
    """The energy of a byte from L2, in picojoules."""
    hbm_pj_per_byte: Picojoules
    """The energy of a byte from HBM, in picojoules."""


class DecodePolicy(Spec, frozen=True):
    """How a version of a library runs decode attention.

    The first three say which attention reads a key head once for all its query heads. In any other a block of
    each query head reads it for itself, from L2 where another did so before.
    """

    groups: tuple[Count, ...] | None = None
    """The allowed numbers of query heads of a key head; unset: any."""
    head_dims: tuple[Count, ...] | None = None
    """The allowed sizes of a head; unset: any."""
    blocks_per_sm: Annotated[float, Meta(ge=0, le=1024)] = 0.0
    """The least number of key heads, of all requests, for an SM of the GPU."""
    split: bool = True
    """Whether the keys of a request are split over several blocks where blocks are few."""


class Conditions(Spec, frozen=True):
    """How the device is used: part of what a measurement states, never fitted."""

    clock: Literal["boost", "sustained"]
    """The clock at which kernels run: `clock.boost` or `clock.sustained`. Training and the prefill of
    requests use sustained.
    """
    launch: Literal["eager", "graph"]
    """Whether kernels are launched one by one or as a CUDA graph. Where a job's host issues them (`job.host`)
    the gaps are those of a graph, and the host's time to launch is simulated.
    """
    l2: Literal["cold", "activations", "warm"]
    """The operands of a GEMM that L2 still holds, as far as they fit: none, the activations (the kernel
    before wrote them), or the weights too (a benchmark that repeats one GEMM).
    """
    library: str
    """The kernel library: `cublas`, `vllm`, `trtllm` …; it selects constants where a family has them."""
    attention: str | None = None
    """The library of the attention kernels (`flash-2`, …); unset: `library`."""
    experts: str | None = None
    """The library of the experts' GEMM kernels on a rank (`trtllm_min_latency`, …); unset: `library`."""
    decode: DecodePolicy = DecodePolicy()
    """The rules by which the library's version runs decode attention."""


class HostSide(Spec, frozen=True):
    """The connection between a GPU and its host's memory, for offloading."""

    to_host: Bandwidth
    """The bandwidth of copies to pinned memory of the host, in bytes a second."""
    from_host: Bandwidth
    """The bandwidth of copies from pinned memory of the host, in bytes a second."""
    memory: Bandwidth
    """This GPU's share of the bandwidth of the host's memory, which bounds an optimizer on the host."""

    def __post_init__(self) -> None:
        if not min(self.to_host, self.from_host, self.memory):
            raise ValueError("host: bandwidths must be above 0")


class DeviceSpec(Spec, frozen=True):
    """One device file; peaks are dense and at `clock.peak`, per-SM levels hold one SM's capacity."""

    name: str
    """The device's name as measurements spell it: `validation/data` and samples find the device by it."""
    family: str | FamilySpec
    """The architecture: the name of a file below `families/`, or its content."""
    kind: Literal["gpu", "tpu"]
    """The kind of device."""
    sms: Count
    """The number of streaming multiprocessors (TPU: cores) in use; at least 1. Set over a file by `--set`, it
    scales the rates of all SMs: peaks, and the bandwidths of registers and shared memory, but not of L2.
    """
    clock: Clock
    """The clocks of the device."""
    tensor_peak: dict[Dtype, FlopRate]
    """Dense peak of the matrix unit by dtype, all SMs together, at `clock.peak`."""
    vector_peak: dict[Dtype, FlopRate]
    """Peak of the vector unit by dtype, at `clock.peak`; fp32 must be stated."""
    registers: Store
    """The register file."""
    shared: Store
    """Shared memory (L1)."""
    l2: Store
    """The L2 cache."""
    l2_port_bytes_per_clock: Count
    """The bytes that one SM reads from L2 in a clock."""
    hbm: Store
    """The main memory of the device."""
    launch: Launch
    """The time of a kernel beyond its work."""
    conditions: Conditions
    """The conditions under which the device is used."""
    host: HostSide | None = None
    """The connection to the host; unset: nothing is offloaded."""
    power: Power | None = None
    """The board's power limit."""
    idle_power: Power | None = None
    """The power that the board draws while a process holds it and no kernel runs."""
    energy: Energy | None = None
    """The energy of arithmetic and traffic; unset: no energy is reported."""
    operators: str = "native"
    """The model of operators: `native`, `roofline`, or `learned:FILE` (relative to the device file)."""
    constants: Constants = {}
    """The constants of this device; a constant that is absent comes from its family's file."""

    def __post_init__(self) -> None:
        if not 0 < self.clock.sustained <= self.clock.boost or not 0 < self.clock.peak <= self.clock.boost:
            raise ValueError("clock.sustained and clock.peak must be above 0 and at most clock.boost")
        if any(not 0 < clock <= self.clock.boost for clock in self.clock.sustained_by_dtype.values()):
            raise ValueError("clock.sustained_by_dtype must be above 0 and at most clock.boost")
        if "fp32" not in self.vector_peak:
            raise ValueError("vector_peak must state fp32, which stands in for narrower types")
        if not all((*self.tensor_peak.values(), *self.vector_peak.values())):
            raise ValueError("tensor_peak and vector_peak must be above 0")
        check_constants(self.constants)
        source, file = operator_file(self.operators)
        if self.operators not in {"native", "roofline"} and not (file and is_known(OPERATORS, source)):
            allowed = ", ".join(("native", "roofline", *(f"{name}:FILE" for name in names(OPERATORS))))
            raise ValueError(f"operators: {self.operators!r} is not one of {allowed}")


def operator_file(operators: str) -> tuple[str, str]:
    """Return name and file of a device's `operators`, both empty for the models of this package.

    >>> operator_file("learned:a100.npz"), operator_file("native")
    (('learned', 'a100.npz'), ('', ''))
    """
    name, _, file = operators.partition(":")
    return (name, file) if file else ("", "")


class TileRule(Spec, frozen=True):
    """CTA tiles that a library may choose for GEMMs of up to `up_to_m` rows (None: any number)."""

    tiles: Annotated[list[tuple[Count, Count]], Meta(min_length=1)]
    """CTA tiles as [rows, columns]."""
    up_to_m: Count | None = None
    """The rule holds for GEMMs of up to this many rows; unset: for all."""
    pad_m: Count = 1
    """Tiles along M that one cluster takes together; the grid is padded to a multiple."""


class KernelMenu(Spec, frozen=True):
    """The GEMM kernels of a library: facts of the library, not fitted constants."""

    rules: Annotated[list[TileRule], Meta(min_length=1)]
    """The tile rules in order of `up_to_m`; a GEMM takes the first rule that holds for its rows."""
    splits: Annotated[list[Count], Meta(min_length=1)]
    """The numbers of CTAs over which K may be split; [1]: never split."""
    warp: tuple[Count, Count]
    """Largest part of a tile that one warp (or warp group) multiplies from shared memory."""
    k_bytes: Count
    """Bytes of K that one pipeline stage holds for each row."""
    gemv: bool = False
    """Whether GEMMs of up to 16 rows or columns may run on a matrix-vector kernel."""
    quantise: bool = False
    """Whether the time includes a kernel that quantises the activations first."""
    along_k: bool = False
    """Whether both operands must stand along K, as 8-bit ones before Blackwell (cuBLASLt's TN format)."""


class FamilySpec(Spec, frozen=True):
    """The data that devices of one architecture share: kernel menus, and constants fitted on some of them."""

    name: str
    """The architecture."""
    kernels: dict[str, KernelMenu]
    """The kernel menus by scope: `default`, a dtype, a library or `library/dtype`; the most specific wins.
    `DTYPE/batched` is for GEMMs with a batch, `grouped` for those over experts.
    """
    constants: Constants
    """Fitted constants: section (gemm, attention, …), scope (default, a dtype, a library, library/dtype),
    name."""

    def __post_init__(self) -> None:
        check_constants(self.constants)
        if "default" not in self.kernels:
            raise ValueError(f"kernels.default is missing; it has {', '.join(self.kernels) or 'none'}")


class Range(Struct, frozen=True):
    """The least and the greatest value of a constant, and whether it counts something."""

    low: float
    high: float
    whole: bool = False

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high and (not self.whole or value == int(value))

    def __str__(self) -> str:
        return f"{'whole numbers ' if self.whole else ''}{self.low:.10g} to {self.high:.10g}"


_TIME = Range(0, 1e6)
"""The range of times, in microseconds (per row or element: in nanoseconds)."""
_SHARE = Range(0, 1)
_DIVISOR = Range(1e-4, 1)
"""The range of a utilisation, by which a time is divided."""
_FACTOR = Range(0, 1e4)
_NORM = Range(1, 1000)
"""The range of an exponent that joins times: 1 adds them, a large one takes the longest."""
_FLAG = Range(0, 1, whole=True)
_COUNT = Range(1, 2**16, whole=True)

_GEMM = {
    **dict.fromkeys(
        ("start_us", "gemv_start_us", "prologue_us", "epilogue_us", "step_us", "split_us", "throttle_us",
         "quantise_us", "quantise_row_us", "quantise_element_ns"),
        _TIME,
    ),
    **dict.fromkeys(("tensor", "vector", "shared", "l2", "hbm", "throttled"), _DIVISOR),
    **dict.fromkeys(("store", "multicast", "stream_k", "power_load"), _SHARE),
    "overlap": _NORM,
}  # fmt: skip
_KERNEL = {
    "tile_q": _COUNT, "tile_kv": _COUNT, "resident": _COUNT, "products_in_kv_dtype": _FLAG,
    "tensor_utilisation": _DIVISOR, "cta_us": _TIME, "kernel_us": _TIME, "norm": _NORM,
}  # fmt: skip
_FLASH = _KERNEL | {
    "longest_first": _FLAG, "pack_heads": _FLAG, "softmax_ops": _FACTOR, "overlap": _SHARE,
    "input_passes": _FACTOR,
}  # fmt: skip
_DECODE = _KERNEL | {
    "group_heads": _FLAG, "split": Range(0, 2, whole=True), "max_splits": _COUNT, "gain": Range(0.01, 100),
    "stream_gbps": Range(0.1, 1e5), "combine_us": _TIME, "combine_split_us": _TIME, "regroup_us": _TIME,
    "row_passes": _FACTOR,
}  # fmt: skip
_VECTOR = {
    "sm_threads": _COUNT, "block_threads": _COUNT, "access_bytes": _COUNT, "step_us": _TIME,
    "row_us": _TIME, "kernel_us": _TIME, "vector_utilisation": _DIVISOR, "norm": _NORM,
}  # fmt: skip

RANGES: Mapping[str, Mapping[str, Range]] = {
    "gemm": _GEMM,
    "grouped_gemm": _GEMM,
    "moe": {"route_us": _TIME, "row_ns": _TIME, "move": _DIVISOR},
    "memory": {"l2_share": _DIVISOR, "l2_utilisation": _DIVISOR, "hbm_utilisation": _DIVISOR},
    "attention": _FLASH,
    "attention_backward": _FLASH,
    "mla_prefill": _FLASH,
    "decode": _DECODE,
    "decode_mha": _DECODE,
    "mla_decode": _DECODE,
    "vector": _VECTOR,
}
"""The range of every constant, by section."""
ATTENTION = frozenset(name for name, ranges in RANGES.items() if ranges is _FLASH or ranges is _DECODE)
"""The sections of attention kernels."""

EXPERTS = frozenset(("grouped_gemm", "moe"))
"""The sections of kernels over experts."""

LIBRARIES = frozenset(
    ("cublas", "cudnn", "rocblas", "xla", "vllm", "sglang", "trtllm", "trtllm-0.9", "trtllm_min_latency",
     "marlin",
     "deepgemm", "vidur", "torch-eager", "torch-events", "torch-wall", "flash-1", "flash-2", "flash-3")
)  # fmt: skip
"""The kernel libraries that a device may use without constants of their own; other libraries need some."""


def check_constants(constants: Constants) -> None:
    """Raise `ValueError`, which names section, scope, constant and what is allowed, for what is wrong."""
    for section, scopes in constants.items():
        if section not in RANGES:
            raise ValueError(f"constants.{section} is not one of {', '.join(RANGES)}")
        for scope, values in scopes.items():
            for name, value in values.items():
                check_constant(section, name, value, where=f"constants.{section}.{scope}.{name}")


def check_constant(section: str, name: str, value: float, *, where: str) -> None:
    """Raise `ValueError` naming `where` for an unknown name or a value outside its range."""
    ranges = RANGES[section]
    span = ranges.get(name) or (ranges.get(split_kernel(name)[1]) if section == "vector" else None)
    if span is None:
        kernels = ", or KERNEL_NAME for one kernel" if section == "vector" else ""
        raise ValueError(f"{where}: unknown {name!r}; allowed: {', '.join(ranges)}{kernels}")
    if not math.isfinite(value) or value not in span:
        raise ValueError(f"{where}: {value!r} is out of range; allowed: {span}")


def split_kernel(name: str) -> tuple[str, str]:
    """Return the kernel and the constant that a name of section `vector` speaks of; no kernel: all.

    >>> split_kernel("rope_row_us"), split_kernel("row_us")
    (('rope', 'row_us'), ('', 'row_us'))
    """
    ends = (known for known in _VECTOR if name.endswith(f"_{known}") and name not in _VECTOR)
    constant = next(ends, name)
    return name.removesuffix(constant).removesuffix("_"), constant


def libraries_of(scopes: set[str]) -> set[str]:
    """Return the libraries that names of scopes speak of.

    >>> sorted(libraries_of({"default", "fp8", "mine", "vllm/fp8"}))
    ['mine', 'vllm']
    """
    return {scope.split("/")[0] for scope in scopes} - {"default", "grouped", *DTYPE_BITS}


class OperatorEnergy(Struct, frozen=True):
    """Picojoules of one run of an operator."""

    arithmetic: float
    memory: float
    """The energy of the bytes at every level that the operator's model counts."""

    @property
    def total(self) -> float:
        """The sum of both energies."""
        return self.arithmetic + self.memory


def arithmetic_dtype(operator: Operator) -> Dtype:
    """Return in what an operator calculates: the vector unit at least in fp32, whatever it reads.

    >>> arithmetic_dtype(Vector("rms_norm", 1, 1, "bf16"))
    'fp32'
    """
    return "fp32" if isinstance(operator, Vector) and operator.dtype != "fp64" else operator.dtype


def operator_energy(
    constants: Energy | None, dtype: Dtype, flops: int, moved: Mapping[str, int]
) -> OperatorEnergy | None:
    """Return the energy of FLOPs in `dtype` and of the bytes `moved` at hbm, l2 and shared.

    None where the device file has no constants, or none for that dtype.
    """
    if constants is None or (flops and dtype not in constants.flop_pj):
        return None
    levels = {
        "shared": constants.shared_pj_per_byte,
        "l2": constants.l2_pj_per_byte,
        "hbm": constants.hbm_pj_per_byte,
    }
    memory = sum(count * levels[level] for level, count in moved.items())
    return OperatorEnergy(flops * constants.flop_pj.get(dtype, 0.0), memory)


_Quantity = TypeVar("_Quantity", bound=int)
_OF_THE_CHIP = ("tensor_peak", "vector_peak", "registers", "shared", "l2")
"""The keys whose values are stated for the whole chip at its peak clock."""


def with_derived(document: Document, changed: Document, stated: AbstractSet[str], *, file: str) -> Document:
    """Return a changed device file with the quantities that follow from what changed.

    What is stated for the whole chip at its peak clock follows what it is made of, as far as the change, a
    what-if file's or settings', does not state it too:

        sms         tensor_peak, vector_peak, bandwidth of registers and shared memory
        clock.peak  bandwidth of registers, shared memory and L2

    Arithmetic a clock may differ from chip to chip, so another `clock.peak` needs `tensor_peak` and
    `vector_peak` beside it: a `ConfigError` names `file` otherwise. Capacities of registers and shared memory
    are of one SM, those of L2 and everything of HBM are of the chip, and stay.
    """
    if stated.isdisjoint(("sms", "clock", "clock.peak")):
        return changed
    before, spec = decode(document, DeviceSpec), decode(changed, DeviceSpec)
    clock = Fraction(spec.clock.peak, before.clock.peak)
    if clock != 1 and not any(key.startswith(("tensor_peak", "vector_peak")) for key in stated):
        problem = "the peaks and bandwidths are stated at this clock: set tensor_peak and vector_peak too, "
        raise ConfigError(
            problem + "or clock.boost and clock.sustained to run faster", file=file, key="clock.peak"
        )
    derived = to_tree(_derived(spec, (Fraction(spec.sms, before.sms), clock), stated), "device")
    return replace(changed, tree={**changed.tree, **{name: derived[name] for name in _OF_THE_CHIP}})


def _derived(spec: DeviceSpec, factors: tuple[Fraction, Fraction], stated: AbstractSet[str]) -> DeviceSpec:
    """Return a device whose count of SMs and peak clock grew by factors, with what follows from these."""
    sms, clock = factors

    def peaks(name: str) -> dict[Dtype, FlopRate]:
        fixed = stated if name not in stated else {f"{name}.{dtype}" for dtype in getattr(spec, name)}
        return {
            dtype: peak if f"{name}.{dtype}" in fixed else scaled(peak, sms)
            for dtype, peak in getattr(spec, name).items()
        }

    def store(name: str, factor: Fraction) -> Store:
        present: Store = getattr(spec, name)
        free = stated.isdisjoint((name, f"{name}.bandwidth"))
        return narrowed(present, factor) if free else present

    return structs.replace(
        spec,
        tensor_peak=peaks("tensor_peak"),
        vector_peak=peaks("vector_peak"),
        registers=store("registers", sms * clock),
        shared=store("shared", sms * clock),
        l2=store("l2", clock),
    )


def scaled(quantity: _Quantity, share: Fraction) -> _Quantity:
    """Return a share of a quantity, rounded down, at least 1."""
    return type(quantity)(max(1, quantity * share // 1))


def narrowed(store: Store, share: Fraction) -> Store:
    """Return a store at a share of its bandwidth."""
    return structs.replace(store, bandwidth=scaled(store.bandwidth, share))
