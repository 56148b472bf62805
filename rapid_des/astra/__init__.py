"""ASTRA-sim as a front door: its input files and its rules, lowered to our program."""

from rapid_des.astra.files import Dialect, Files, Setup, read_setup
from rapid_des.astra.front_door import AstraResult, read_traces, replay_astra, replay_traces
from rapid_des.astra.lowering import lower

__all__ = [
    "AstraResult",
    "Dialect",
    "Files",
    "Setup",
    "lower",
    "read_setup",
    "read_traces",
    "replay_astra",
    "replay_traces",
]
