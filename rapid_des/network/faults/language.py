"""Faults on the command line: the keys of a machine file as `key=value` words."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from rapid_des.config import Document, decode
from rapid_des.errors import ConfigError
from rapid_des.network.faults.checks import check_fault
from rapid_des.network.faults.specs import Fault


def parse_fault(text: str) -> Fault:
    """Return the fault that words such as `link=3-4 bandwidth=0.5 from=10ms until=20ms` state.

    >>> parse_fault("gpu=3 compute=0.8").compute
    0.8
    """
    file = f"--fault {text!r}"
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"not words of key=value: {error}", file=file) from None
    tree: dict[str, object] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key or key in tree:
            problem = f"{key!r} stands twice" if key in tree else f"{word!r} is not key=value"
            raise ConfigError(problem, file=file)
        tree[key] = _value(value)
    fault = decode(Document(Path(file), tree), Fault)
    check_fault(fault, file=file, key="")
    return fault


def _value(text: str) -> object:
    if text in {"true", "false"}:
        return text == "true"
    if re.fullmatch(r"[+-]?\d+", text):
        return int(text)
    return float(text) if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text) else text
