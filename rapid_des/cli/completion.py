"""What a shell completes: presets of a kind, traces, modes, engines, and the keys of --set."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

import click
from click.shell_completion import CompletionItem

from rapid_des.config import Spec
from rapid_des.config.presets import Kind, preset_names, trace_names

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def names_or_files(kind: Kind | Literal["trace"]) -> Complete:
    """Return what completes a preset's name; where none begins so, the shell completes files."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
        names = trace_names() if kind == "trace" else preset_names(kind)
        return _beginning(names, incomplete) or [CompletionItem(incomplete, type="file")]

    return complete


def words(choices: Iterable[str]) -> Complete:
    """Return what completes one of some words."""
    known = tuple(choices)

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
        return _beginning(known, incomplete)

    return complete


def setting_keys(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
    """Complete a key of --set, one step at a time: `device.clock.su` to `device.clock.sustained=`."""
    from rapid_des.config.descriptions import keys_below
    from rapid_des.device.spec import DeviceSpec
    from rapid_des.frontend import JobSpec
    from rapid_des.machine import MachineSpec

    specs: dict[str, type[Spec]] = {"job": JobSpec, "machine": MachineSpec, "device": DeviceSpec}
    path, _, _ = incomplete.rpartition(".")
    root, _, above = path.partition(".")
    if not path:
        return _beginning((f"{name}." for name in specs), incomplete)
    if root not in specs or "=" in incomplete:
        return []
    keys = keys_below(specs[root], above)
    return _beginning((f"{path}.{key}{'.' if more else '='}" for key, more in keys.items()), incomplete)


def _beginning(known: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in known if name.startswith(incomplete)]
