"""ASTRA-sim as a front door: its input files and its rules, lowered to our program."""

from rapid_des.astra.files import Dialect, Files, Setup, read_setup
from rapid_des.astra.front_door import read_traces, replay_astra, replay_traces
from rapid_des.astra.lower import Lowered, lower
from rapid_des.astra.result import AstraResult

__all__ = [
    "AstraResult",
    "Dialect",
    "Files",
    "Lowered",
    "Setup",
    "lower",
    "read_setup",
    "read_traces",
    "replay_astra",
    "replay_traces",
]
