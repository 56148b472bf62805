"""Parts that the core finds by name: our own packages around it, and those of other distributions.

Each has a name in a group and a place, `module:object`. `BUILT_IN` lists ours, and pyproject.toml repeats
them as entry points. Another distribution adds one with the same table in its own pyproject.toml. Its code is
imported when a command or a file asks for that name, and never before.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar

from rapid_des.errors import InputError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")

IMPORTERS = "rapid_des.importers"
"""The group of `rapid-des import NAME`; each entry is a `rapid_des.importers.Importer`."""
OPERATORS = "rapid_des.operators"
"""The group of `operators: NAME:FILE` in device files; each is a `device.pricing.OperatorSource`."""
FABRICS = "rapid_des.fabrics"
"""The group of graph files; each entry is a `rapid_des.network.build.GraphReader`."""
COLLECTIVES = "rapid_des.collectives"
"""The group of collective algorithms; each entry is a `rapid_des.network.collectives.Algorithm`."""
LAYERS = "rapid_des.layers"
"""The group of layer kinds of model files; each entry is a `rapid_des.frontend.layers.LayerSource`."""
POLICIES = "rapid_des.policies"
"""The group of `serving.policy` of job files; each entry is a `rapid_des.serving.policies.Policy`."""

BUILT_IN: Mapping[str, Mapping[str, str]] = {
    IMPORTERS: {
        "hf": "rapid_des.importers.hugging_face:IMPORTER",
        "megatron": "rapid_des.importers.megatron:IMPORTER",
        "torchtitan": "rapid_des.importers.torchtitan:IMPORTER",
        "rapid-llm": "rapid_des.importers.rapid_llm:IMPORTER",
    },
    OPERATORS: {"learned": "rapid_des.learned:OPERATORS"},
    FABRICS: {"infragraph": "rapid_des.importers.infragraph:READER"},
    COLLECTIVES: {},
    LAYERS: {},
    POLICIES: {},
}
"""The place of each part of this distribution, by group and name; nobody else can take these names.

Algorithms, layer kinds and policies of this distribution are looked up first, in tables where they stand.
"""


def names(group: str) -> tuple[str, ...]:
    """Return the names of a group, ours first; nothing is imported.

    >>> names(OPERATORS)[0]
    'learned'
    """
    return tuple(dict.fromkeys((*BUILT_IN[group], *sorted(each.name for each in _foreign(group)))))


def is_known(group: str, name: str) -> bool:
    """Return whether a group has a name; nothing is imported."""
    return name in BUILT_IN[group] or name in names(group)


def find(group: str, name: str, kind: type[T]) -> T:
    """Import and return what a name stands for; an `InputError` says why it cannot be had."""
    place = BUILT_IN[group].get(name)
    if place is not None:
        module, attribute = place.split(":")
        found = getattr(import_module(module), attribute)
        assert isinstance(found, kind)
        return found
    entries = sorted((each for each in _foreign(group) if each.name == name), key=owner)
    if len(entries) != 1:
        packages = " and ".join(owner(each) for each in entries)
        problem = f"is in {packages}; uninstall one" if entries else f"allowed: {', '.join(names(group))}"
        raise InputError(f"{group}: {name!r} {'' if entries else 'is not there; '}{problem}")
    (entry,) = entries
    try:
        loaded = entry.load()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever another distribution's code raises
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"{_named(entry)} cannot be imported: {reason:.300}") from None
    if not isinstance(loaded, kind):
        raise InputError(f"{_named(entry)} is of type {type(loaded).__name__}; allowed: {kind.__name__}")
    return loaded


def failure_of_part(error: Exception) -> str:
    """Return, in one line, which part of another distribution raised an error; empty: none did."""
    trace, places = error.__traceback__, {}
    while trace is not None:
        frame = trace.tb_frame
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        places[package] = f"{frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    what = " ".join(f"{type(error).__name__}: {error}".split())
    for part in (entry for group in BUILT_IN for entry in _foreign(group)):
        if place := places.get(part.module.partition(".")[0]):
            return f"{_named(part)} failed: {what:.300} ({place})"
    return ""


def owner(entry: EntryPoint) -> str:
    """Return the name of the distribution that an entry point belongs to."""
    return entry.dist.name if entry.dist is not None else "an unknown package"


def _named(entry: EntryPoint) -> str:
    return f"{entry.group}: {entry.name!r} of {owner(entry)} ({entry.value})"


def _foreign(group: str) -> list[EntryPoint]:
    from importlib.metadata import entry_points

    return [each for each in entry_points(group=group) if each.name not in BUILT_IN[group]]
