"""All templates of one program, each distinct collective or message built once."""

from __future__ import annotations

from collections.abc import Callable

from rapid_des.astra import algorithms
from rapid_des.astra.files import Setup
from rapid_des.astra.messages import Messages
from rapid_des.astra.phases import Phase
from rapid_des.errors import ConfigError
from rapid_des.program.program import Template
from rapid_des.program.services import Sizes

_TAGS = 500_000_000
"""That simulator takes tags modulo this."""


class Library:
    """Numbers templates, message sizes and the channels that tags and sizes tell apart."""

    def __init__(self, setup: Setup) -> None:
        self.sizes = Sizes()
        self.templates: list[Template] = []
        self._setup = setup
        self._messages = Messages(self.sizes)
        self._numbers: dict[object, int] = {}
        self._sent: dict[int, int] = {}
        self._channels: dict[tuple[int, int], int] = {}

    def phase(self, phase: Phase) -> int:
        """Return the template number of a collective's phase."""
        return self._number(phase, lambda: self._build(phase))

    def message(self, size: int) -> int:
        """Return the template number of a message."""
        number = self._sent.get(size)
        if number is None:
            self.templates.append(self._messages.message(size))
            number = self._sent[size] = len(self.templates) - 1
        return number

    def visit(self, size: int) -> int:
        """Return the template number of a use of remote memory."""
        return self._number(("visit", size), lambda: self._messages.visit(size))

    def channel(self, tag: int, size: int) -> int:
        """Return what tells messages between the same two ranks apart: their tag and size."""
        return self._channels.setdefault((tag % _TAGS, size), len(self._channels))

    def _build(self, phase: Phase) -> Template:
        try:
            return algorithms.build(phase, self.sizes)
        except ConfigError as error:
            raise ConfigError(str(error), file=str(self._setup.files.system)) from None

    def _number(self, key: object, make: Callable[[], Template]) -> int:
        number = self._numbers.get(key)
        if number is None:
            self.templates.append(make())
            number = self._numbers[key] = len(self.templates) - 1
        return number
