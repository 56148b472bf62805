"""Chakra execution traces: every wire generation and dialect, in memory and in files.

A module is imported when one of its names is first asked for: jobs need traces in memory, not protobuf.
"""

from __future__ import annotations

from rapid_des.public_names import public_name


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    return public_name(__name__, __file__, name)
