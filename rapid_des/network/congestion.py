"""What holds senders back when links are full: pauses, windows, and rates by marks.

`Dcqcn` states what marks messages, and how fast senders fall back and recover.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Annotated, Any, Literal

from msgspec import Meta, structs

from rapid_des.config import Spec
from rapid_des.errors import ConfigError
from rapid_des.units import Bandwidth, Duration, Size

PRESETS = MappingProxyType(
    {
        # Figure 14 and Section 5 of the paper, which states no hyper increase and no least rate: these are of
        # its authors' ns-3 (RATE_HAI in bobzhuyb/ns3-rdma, mix/config.txt) and of ns-3's RdmaHw.
        "zhu_2015": {
            "kmin": Size.parse("5 KB"),
            "kmax": Size.parse("200 KB"),
            "pmax": 0.01,
            "cnp_interval": Duration.parse("50 us"),
            "gain": 1 / 256,
            "alpha_timer": Duration.parse("55 us"),
            "rate_timer": Duration.parse("55 us"),
            "byte_counter": Size.parse("10 MB"),
            "fast_recovery": 5,
            "additive_increase": Bandwidth.parse("40 Mb/s"),
            "hyper_increase": Bandwidth.parse("200 Mb/s"),
            "minimum_rate": Bandwidth.parse("100 Mb/s"),
            "clamp": "every_cut",
        },
        # Defaults of ConnectX-4 and later, as mlxconfig lists them: dce_tcp_g 1019, dce_tcp_rtt 1,
        # rpg_time_reset 300, rpg_byte_reset 32767, rpg_threshold 1, rpg_ai_rate 5, rpg_hai_rate 50,
        # rpg_min_rate 1, clamp_tgt_rate 0 and clamp_tgt_rate_after_time_inc 1, min_time_between_cnps 4.
        # NVIDIA's "DCQCN CC Parameters" (DOCA documentation) confirms 1019 of 1024, alpha's period of 1 us,
        # the least rate of 1 Mb/s, and 4 us between cuts. No source found states the byte counter's unit:
        # that 32767 counts blocks of 64 B is inferred. Those 2.1 MB agree with the "ByteResetInMb" 2 of
        # Spirent's Rocev2DcqcnProfile; 32 KB would count a step of recovery every few packets.
        "connectx": {
            "cnp_interval": Duration.parse("4 us"),
            "gain": 5 / 1024,
            "alpha_timer": Duration.parse("1 us"),
            "rate_timer": Duration.parse("300 us"),
            "byte_counter": Size(32_767 * 64),
            "fast_recovery": 1,
            "additive_increase": Bandwidth.parse("5 Mb/s"),
            "hyper_increase": Bandwidth.parse("50 Mb/s"),
            "minimum_rate": Bandwidth.parse("1 Mb/s"),
            "clamp": "after_timer",
        },
    }
)
"""The values that each preset states; `connectx` is a NIC's preset and states no thresholds of switches."""


class Dcqcn(Spec, frozen=True, kw_only=True):
    """DCQCN: queues mark packets, receivers notify senders, and these cut their rate to that GPU.

    Messages of a GPU to another share a rate, which outlives them; it acts between the parts of a message
    (rule R14). Keys are as Zhu et al. (SIGCOMM 2015) call them; what a preset states may be overruled.
    """

    preset: Literal["zhu_2015", "connectx"] | None = None
    """The constants of the paper, or the defaults of NVIDIA's NICs without thresholds; unset: all keys are
    stated.
    """
    kmin: Size | None = None
    """The queue at a port, in wire bytes, from which packets are marked."""
    kmax: Size | None = None
    """The queue at a port, in wire bytes, from which every packet is marked."""
    pmax: Annotated[float, Meta(gt=0, le=1)] | None = None
    """The probability of a mark just below `kmax`; it rises in proportion from `kmin` on."""
    cnp_interval: Duration | None = None
    """The least time between two notifications (CNPs) from a receiver to the same sender."""
    gain: Annotated[float, Meta(gt=0, lt=1)] | None = None
    """The gain g with which alpha follows the marks; a cut reduces the rate by alpha / 2."""
    alpha_timer: Duration | None = None
    """The time after a notification at which alpha begins to fall, and the interval of its steps."""
    rate_timer: Duration | None = None
    """The time of one step of recovery."""
    byte_counter: Size | None = None
    """The bytes sent between two steps of recovery, in addition to `rate_timer`; 0 B: only time counts."""
    fast_recovery: Annotated[int, Meta(ge=0, le=1000)] | None = None
    """The number of steps that lead back towards the rate before the cut, before that rate itself rises."""
    additive_increase: Bandwidth | None = None
    """The increase of the target rate at each additive step."""
    hyper_increase: Bandwidth | None = None
    """The increase at each step once both time and bytes have counted more steps than `fast_recovery`."""
    minimum_rate: Bandwidth | None = None
    """The rate below which no cut goes."""
    clamp: Literal["every_cut", "after_timer"] | None = None
    """The target of recovery: the rate before the last cut, or the rate before the first of several cuts
    between which the timer did not expire.
    """
    dimensions: Annotated[tuple[str, ...], Meta(min_length=1)] | None = None
    """The dimensions whose links mark packets (NVLink does not); unset: all."""
    seed: Annotated[int, Meta(ge=0, le=2**62)] = 0
    """The seed of the draws that decide which packets are marked."""

    def whole(self) -> Dcqcn:
        """Return the block completed with the values of its preset."""
        preset: dict[str, Any] = dict(PRESETS[self.preset]) if self.preset is not None else {}
        return structs.replace(self, **{key: at for key, at in preset.items() if getattr(self, key) is None})

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (key, what is wrong with it and what is allowed)."""
        whole = self.whole()
        for key in (*PRESETS["zhu_2015"],):
            if getattr(whole, key) is None:
                missing = "missing: thresholds are the switches', which connectx does not state"
                if self.preset is None:
                    missing = f"missing; allowed: stated, or a preset: {', '.join(PRESETS)}"
                yield key, missing
                return
        assert whole.kmin is not None and whole.kmax is not None, "looked at above"
        if whole.kmax <= whole.kmin:
            yield "kmax", f"{whole.kmax}; allowed: above kmin, {whole.kmin}"
        for key in ("cnp_interval", "alpha_timer", "rate_timer", "minimum_rate"):
            if getattr(whole, key) <= 0:
                yield key, f"{getattr(whole, key)}; allowed: above 0"

    def check(self, dimensions: tuple[str, ...], *, file: str) -> None:
        """Refuse dimensions that a machine has not: `ConfigError` names the allowed ones."""
        for name in self.dimensions or ():
            if name not in dimensions:
                key = "switching.congestion.dcqcn.dimensions"
                raise ConfigError(f"{name}; allowed: {', '.join(dimensions)}", file=file, key=key)


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
