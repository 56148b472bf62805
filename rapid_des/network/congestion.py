"""What holds senders back when links are full: pauses, windows, and rates by marks."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from rapid_des.config import Spec
from rapid_des.network.dcqcn import Dcqcn
from rapid_des.units import Size


class Pause(Spec, frozen=True, kw_only=True):
    """Priority flow control: a node stops the link over which too much came that waits there (802.1Qbb).

    Parts count as a whole: thresholds of less than a part let one at a time wait. Routes that depend on each
    other in a circle (`topology check` names them) may stop each other for ever, here as in the world.
    """

    stop_above: Size
    """The payload waiting behind a link above which the link is stopped (XOFF)."""
    go_at: Size
    """The payload to which it must fall before the link goes on (XON)."""


class Congestion(Spec, frozen=True, kw_only=True, tag_field="control"):
    """A limit on senders: each message has a queue pair, and those of a GPU take turns on its links."""

    pause: Pause | None = None
    """Whether links stop while too much waits behind them; unset: buffers are unlimited."""
    dcqcn: Dcqcn | None = None
    """The rate control by marks at queues; unset: every message is sent at the full rate."""


class Unheld(Congestion, frozen=True, kw_only=True, tag="none"):
    """A message goes on as fast as its first link takes it in its turns."""


class Window(Congestion, frozen=True, kw_only=True, tag="window"):
    """A limit on the unacknowledged bytes of a message.

    It acts between parts: one part of a message is always in transit.
    """

    bandwidth_delay_products: Annotated[float, Meta(gt=0, le=1024)]
    """The window as a multiple of the slowest link's rate times the idle round trip, packet times included.
    """
