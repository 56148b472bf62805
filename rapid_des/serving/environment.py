"""The clock of a server."""

from __future__ import annotations

from math import inf

import simpy

from rapid_des.errors import InputError
from rapid_des.serving.workload import LATEST_PS, LATEST_S


class ServerEnvironment(simpy.Environment):
    """A server's clock; it ends before its times exceed 64-bit integers."""

    def step(self) -> None:
        """Process the next event."""
        if self.peek() > LATEST_PS and self.peek() < inf:
            problem = f"the server runs for more than {LATEST_S / 86400:.0f} days"
            raise InputError(
                f"{problem}, which is where a clock of picoseconds ends: wait or serve less long"
            )
        super().step()
