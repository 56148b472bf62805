"""Which file a key of --set belongs to, and which keys there are; imported where that is asked."""

from __future__ import annotations

from collections.abc import Iterator

from rapid_des.config import Spec
from rapid_des.config.descriptions import keys_below, paths_to
from rapid_des.device.spec import DeviceSpec
from rapid_des.frontend import JobSpec
from rapid_des.machine import MachineSpec

_SPECS: dict[str, type[Spec]] = {"job": JobSpec, "machine": MachineSpec, "device": DeviceSpec}


def keys_beginning(incomplete: str) -> Iterator[str]:
    """Yield what may stand at the last step of a key: `device.clock.sustained=` for `device.clock.su`."""
    path, _, _ = incomplete.rpartition(".")
    root, _, above = path.partition(".")
    if not path:
        yield from (f"{name}." for name in _SPECS)
    elif root in _SPECS and "=" not in incomplete:
        for key, more in keys_below(_SPECS[root], above).items():
            yield f"{path}.{key}{'.' if more else '='}"


def with_root(setting: str) -> str:
    """Return a setting with its file in front where only one kind of file has its first key.

    >>> with_root("parallelism.tp=4"), with_root("name=x")
    ('job.parallelism.tp=4', 'name=x')
    """
    first = setting.partition("=")[0].partition(".")[0].strip()
    if "=" not in setting or first in _SPECS:
        return setting
    having = [root for root, spec in _SPECS.items() if first in keys_below(spec, "")]
    return f"{having[0]}.{setting.lstrip()}" if len(having) == 1 else setting


def meant(key: str, allowed: tuple[str, ...]) -> str:
    """Return at which paths files have the first step of a key, as a question."""
    first, dot, rest = key.partition(".")
    specs = {root: spec for root, spec in _SPECS.items() if root in allowed}
    found = [f"{root}.{path}{dot}{rest}" for root, spec in specs.items() for path in paths_to(spec, first)]
    return f"; did you mean {' or '.join(found[:3])}?" if first and found else ""
