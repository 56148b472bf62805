"""Energy of one operator: its FLOPs and the bytes it moves, at the device file's picojoules each.

The constants are the same at every clock and voltage; what a board draws when idle is not in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rapid_des.device.operators import Dtype, Operator, Vector
from rapid_des.device.spec import Energy


@dataclass(frozen=True)
class OperatorEnergy:
    """Picojoules of one run of an operator."""

    arithmetic: float
    memory: float
    """Of the bytes at every level that its model counts."""

    @property
    def total(self) -> float:
        """All of it."""
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
