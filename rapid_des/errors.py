"""The exceptions that rapid_des raises on purpose.

    RapidDesError
    ├── InputError                exit code 2: a file, key, option or trace is wrong
    │   ├── ConfigError           a YAML or JSON file, or a --set option
    │   ├── TraceError            a Chakra trace file or set
    │   ├── TopologyError         a fabric, route or fault that makes no sense
    │   └── UnsupportedByEngine   this engine or mode does not represent what was asked
    ├── CannotFinishError         exit code 3: a replay that cannot end
    │   ├── DeadlockError         somebody waits for something that never comes
    │   └── FabricCutError        two nodes that must talk are cut apart
    └── InfeasibleJobError        exit code 4: the job does not fit the machine

Anything else that escapes is a defect of rapid_des (exit code 1).
"""

from __future__ import annotations


class RapidDesError(Exception):
    """Base of every error that rapid_des raises on purpose; `exit_code` is the shell's."""

    exit_code = 1


class InputError(RapidDesError):
    """Something that the user handed in is wrong."""

    exit_code = 2


class ConfigError(InputError):
    """A configuration file or option is wrong: names file, key path, value and what was allowed."""

    def __init__(self, message: str, *, file: str = "", key: str = "") -> None:
        self.message = message
        self.file = file
        self.key = key
        super().__init__(": ".join(part for part in (file, key, message) if part))


class TraceError(InputError):
    """A Chakra trace is wrong: names the file and, where there is one, the node or the byte offset."""


class TopologyError(InputError):
    """A fabric, a route or a fault makes no sense."""


class UnsupportedByEngine(InputError):  # noqa: N818 - the name is the public interface in DESIGN
    """The chosen engine or mode does not represent what was asked; it is never approximated."""


class CannotFinishError(RapidDesError):
    """The simulation cannot reach its end."""

    exit_code = 3


class DeadlockError(CannotFinishError):
    """Work is left that waits for something that never comes: names who waits for whom."""


class FabricCutError(CannotFinishError):
    """Two nodes that must exchange data are cut apart: names the cut."""


class InfeasibleJobError(RapidDesError):
    """The job does not fit the machine: says what is missing and what would help."""

    exit_code = 4
