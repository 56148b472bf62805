"""Checks of the algorithms that a machine file states for its collectives; errors name the key."""

from __future__ import annotations

from collections.abc import Iterator

from rapid_des.errors import ConfigError, InputError
from rapid_des.network.collectives.in_switch import IN_SWITCH
from rapid_des.network.collectives.libraries.library import check_libraries
from rapid_des.network.collectives.on_fabric import collectives_of
from rapid_des.network.fabric import Fabric
from rapid_des.network.specs import AUTO, Collectives


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
