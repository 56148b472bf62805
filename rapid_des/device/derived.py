"""Quantities that a device file states for the whole chip, scaled with its SMs and its peak clock."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from fractions import Fraction
from typing import TypeVar

from msgspec import structs

from rapid_des.config import Document, decode, to_tree
from rapid_des.device.operators import Dtype
from rapid_des.device.spec import DeviceSpec, Store
from rapid_des.errors import ConfigError
from rapid_des.units import FlopRate
from rapid_des.values import replace

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
