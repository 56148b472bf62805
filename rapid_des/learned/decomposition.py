"""Samples of the operators into which arXiv 2509.22832 divides a training step, as samples of this package.

Its names are those of GPT-NeoX's modules, its sizes b (micro-batch), l (positions), dim (hidden), h (heads)
and mp (tensor-parallel degree). `linear1` to `linear4` are QKV, attention output, and both matrices of a
feed-forward of 4·dim; `linear_final` is the head. A backward is one of its samples and two kernels of ours:
it is split between them as the native models of a device split it. Scores, softmax and values of unfused
attention are three samples and one operator: a regressor of each is fitted, and their sums are the
operator's samples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec import Struct, field

from rapid_des.device.operators import Attention, Dtype, Gemm, Operator, OperatorModel, Vector
from rapid_des.errors import InputError
from rapid_des.learned import LeftOut, Shape, shape_of

VOCABULARY = 50257
"""The vocabulary of GPT-NeoX, which it pads to a multiple of 128·mp."""
_DTYPE: Dtype = "fp16"


class SampleSizes(Struct, frozen=True):
    """The sizes of one sample; what its operator has not is 0."""

    mp: int
    b: int
    length: int
    h: int
    dim: int
    params: int

    @property
    def rows(self) -> int:
        """Positions of the micro-batch."""
        return self.b * self.length

    @property
    def words(self) -> int:
        """This rank's part of the padded vocabulary."""
        return -(-VOCABULARY // (128 * self.mp)) * 128


Kernels = Callable[[SampleSizes], tuple[Operator, ...]]


def _linear(columns: Callable[[SampleSizes], int], inner: Callable[[SampleSizes], int]) -> dict[str, Kernels]:
    """Return the product of a matrix, and those of its backward."""

    def forward(size: SampleSizes) -> tuple[Operator, ...]:
        return (Gemm(size.rows, columns(size), inner(size), dtype=_DTYPE),)

    def backward(size: SampleSizes) -> tuple[Operator, ...]:
        return (
            Gemm(size.rows, inner(size), columns(size), dtype=_DTYPE),
            Gemm(columns(size), inner(size), size.rows, dtype=_DTYPE),
        )

    return {"fwd": forward, "bwd": backward}


def _vector(
    kind: str,
    rows: Callable[[SampleSizes], int],
    columns: Callable[[SampleSizes], int],
    *,
    dtype: Dtype = _DTYPE,
    gradient: str = "",
) -> dict[str, Kernels]:
    def forward(size: SampleSizes) -> tuple[Operator, ...]:
        return (Vector(kind, rows(size), columns(size), dtype),)

    def backward(size: SampleSizes) -> tuple[Operator, ...]:
        if gradient:
            return (Vector(gradient, rows(size), columns(size), dtype),)
        return (Vector(kind, rows(size), columns(size), dtype, "backward"),)

    return {"fwd": forward, "bwd": backward}


def _rows(size: SampleSizes) -> int:
    return size.rows


def _hidden(size: SampleSizes) -> int:
    return size.dim


def _share(times: int) -> Callable[[SampleSizes], int]:
    return lambda size: times * size.dim // size.mp


OPERATORS: Mapping[str, Mapping[str, Kernels]] = {
    "linear1": _linear(_share(3), _hidden),
    "linear2": _linear(_hidden, _share(1)),
    "linear3": _linear(_share(4), _hidden),
    "linear4": _linear(_hidden, _share(4)),
    "linear_final": _linear(lambda size: size.words, _hidden),
    "layernorm": _vector("layer_norm", _rows, _hidden),
    "RMSlayernorm": _vector("rms_norm", _rows, _hidden),
    "gelu": _vector("gelu", _rows, _share(4)),
    "RoPE": _vector("rope", _rows, _share(2)),
    "res_add": {"fwd": _vector("residual_add", _rows, _hidden)["fwd"]},
    "embedding": _vector("embedding", _rows, _hidden, gradient="embedding_gradient"),
    "parallel_cross_entropy_128": _vector("cross_entropy", _rows, lambda size: size.words, dtype="fp32"),
    "optimizer": {"step": lambda size: (Vector("adamw", 1, size.params, "fp32"),)},
}
"""The operators of this package that make up each sample, by operator and phase."""
WITHOUT_MEANING: Mapping[str, str] = {
    "fillmask": "no kernel here fills a mask beside the fused softmax",
    "firstStage_optimizer": "a stage's parameters are not among its sizes",
    "middleStage_optimizer": "a stage's parameters are not among its sizes",
    "lastStage_optimizer": "a stage's parameters are not among its sizes",
    "res_add": "its backward is a copy of its forward",
}
"""The samples that are refused, with the reason."""
PARTS = ("baddbmm", "ScaledUpperTriangMaskedSoftmax", "bmm")
"""The parts of unfused attention: scores, softmax and values."""


class TimedOperator(Struct, frozen=True):
    """One operator of ours with the time that a sample gives it."""

    shape: Shape
    time_us: float
    sample: str
    """The `op/phase` of the sample."""


class Converted(Struct):
    """A table of samples in terms of our operators."""

    timed: list[TimedOperator] = field(default_factory=list)
    rows: Counter[str] = field(default_factory=Counter)
    """The number of samples read, by `op/phase`."""
    left_out: dict[str, LeftOut] = field(default_factory=dict)
    """The samples that no operator here can use, by `op/phase`."""
    parts: dict[str, dict[str, list[AttentionSlice]]] = field(default_factory=dict)
    """The samples of each part of unfused attention, by phase and part name."""

    def leave_out(self, name: str, reason: str) -> None:
        """Note that all samples of a name (`op/phase`) are left out, and why."""
        self.left_out[name] = LeftOut(self.rows[name], reason)


class AttentionSlice(Struct, frozen=True):
    """One part of a rank's unfused attention."""

    batch: int
    length: int
    heads: int
    head_dim: int
    """The size of a head; 0 where the part's time does not depend on it (softmax)."""
    time_us: float

    @property
    def attention(self) -> tuple[int, int, int, int]:
        """All but its time."""
        return self.batch, self.length, self.heads, self.head_dim


def convert(samples: Iterable[Mapping[str, str]], native: OperatorModel) -> Converted:
    """Return samples of our operators, of the parts of attention, and why the others are left out."""
    converted, unknown = Converted(), set[str]()
    for sample in samples:
        name, phase, time = sample["op"], sample["phase"], float(sample["time_us"])
        converted.rows[f"{name}/{phase}"] += 1
        if name in PARTS:
            converted.parts.setdefault(phase, {}).setdefault(name, []).append(_part(sample, time))
        elif kernels := kernels_of(sample):
            converted.timed += _split(kernels, time, native, f"{name}/{phase}")
        else:
            unknown.add(f"{name}/{phase}")
    for each in sorted(unknown):
        why = WITHOUT_MEANING.get(each.rpartition("/")[0], "no operator here does that")
        converted.leave_out(each, why)
    return converted


def kernels_of(sample: Mapping[str, str]) -> tuple[Operator, ...]:
    """Return the operators of ours that a sample is the sum of; none where it is refused or but a part."""
    name, phase = sample["op"], sample["phase"]
    if name == "flash_atten":
        size = sizes_of(sample)
        heads = size.h // size.mp
        return (attention((size.b, size.length, heads, size.dim // size.h), phase, fused=True),)
    kernels = OPERATORS.get(name, {}).get(phase)
    return kernels(sizes_of(sample)) if kernels else ()


COLUMNS = ("mp", "b", "l", "h", "dim", "params")
"""The columns with the sizes of a sample. A blank means that the operator has no such size, or 1 for GPUs and
heads.
"""


def sizes_of(sample: Mapping[str, str]) -> SampleSizes:
    """Return the sizes that a sample fills in."""
    mp, b, length, h, dim, params = (int(float(sample.get(name) or 0)) for name in COLUMNS)
    return SampleSizes(max(1, mp), b, length, max(1, h), dim, params)


def _part(sample: Mapping[str, str], time: float) -> AttentionSlice:
    size = sizes_of(sample)
    return AttentionSlice(size.b, size.length, size.h // size.mp, size.dim // size.h, time)


def attention(sizes: tuple[int, int, int, int], phase: str, *, fused: bool) -> Attention:
    """Return one rank's attention of (batch, positions, heads, channels), each head with its own keys."""
    batch, length, heads, head_dim = sizes
    return Attention(
        batch, length, length, heads, heads, head_dim,
        phase="backward" if phase == "bwd" else "forward", dtype=_DTYPE, fused=fused,
    )  # fmt: skip


def _split(
    kernels: tuple[Operator, ...], time: float, native: OperatorModel, sample: str
) -> Iterator[TimedOperator]:
    """Yield each kernel with its share of a sample's time, as a native model shares it out."""
    shapes = [shape_of(kernel) for kernel in kernels]
    for shape in shapes:
        if shape is not None and min(shape.sizes) < 1:
            sizes = ", ".join(f"{name} {size:g}" for name, size in zip(shape.names, shape.sizes, strict=True))
            raise InputError(f"{sample}: its operator would have sizes {sizes}; allowed: 1 or more")
    durations = [native.estimate(kernel).duration for kernel in kernels]
    for shape, duration in zip(shapes, durations, strict=True):
        assert shape is not None, "samples are of plain operators"
        yield TimedOperator(shape, time * duration / sum(durations), sample)
