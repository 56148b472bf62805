"""Keys of ASTRA-sim's files that change nothing here, each with the reason."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any

from rapid_des.frontend.importing.keys import Ignored, shortened

LOG_GP = frozenset(("L", "o", "g", "G", "local-reduction-delay"))
LOGS = frozenset(("trace-enabled", "track-local-mem", "local-mem-trace-filename"))
_ROUTES = "messages take dimension-ordered routes, not agent nodes"
_OF_MEMORY = ("remote-mem-latency", "remote-mem-bw", "num-nodes", "num-npus-per-node")


def idle_keys(path: Path, tree: Mapping[str, Any], known: Set[str]) -> Iterator[Ignored]:
    """Yield what changes nothing in a file of which `known` keys are read."""
    for key in sorted(tree.keys()):
        reason = _reason(key, tree, known)
        if reason:
            yield Ignored(f"{path.name}: {key}", shortened(str(tree[key])), reason)


def _reason(key: str, tree: Mapping[str, Any], known: Set[str]) -> str:
    if key not in known:
        return _unread(key, known - tree.keys())
    if key.startswith("non_recursive_"):
        return _ROUTES
    if key in ("peak-perf", "roofline-enabled") and tree.get("replay-only"):
        return "replay-only is 1, so that durations are those of the trace"
    if key == "peak-perf" and not tree.get("roofline-enabled"):
        return "roofline-enabled is 0"
    if key in _OF_MEMORY and tree.get("memory-type") == "NO_MEMORY_EXPANSION":
        return "there is no remote memory"
    if key == "num-nodes":
        return "the ranks of the network say it"
    if key == "num-npus-per-node" and tree.get("memory-type") != "PER_NODE_MEMORY_EXPANSION":
        return "memory-type is not PER_NODE_MEMORY_EXPANSION"
    return ""


def _unread(key: str, unstated: Set[str]) -> str:
    """Return why a key that nothing here reads changes nothing."""
    if key in LOG_GP:
        return "only the LogGP bus of model-shared-bus reads it"
    if key in LOGS:
        return "it is of logs"
    near = difflib.get_close_matches(key, unstated, n=1)
    return f"ASTRA-sim reads no such key{f' (did you mean {near[0]!r}?)' if near else ''}"
