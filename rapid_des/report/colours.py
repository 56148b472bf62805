"""The categories of a step's time, and the colour of each, the same in every picture and on every page.

The hues are those of Okabe and Ito (2008), which people with colour blindness distinguish.
"""

from __future__ import annotations

from zlib import crc32

KIND_ORDER = ("tp", "cp", "ep", "dp", "pp", "offload")
"""The kinds of exposed communication by precedence, for instants at which several are in progress."""
BUBBLE, HOST, IDLE, COMPUTE = "bubble", "host", "idle", "compute"
_BLUE, _SKY, _GREEN, _YELLOW = "#0072B2", "#56B4E9", "#009E73", "#E69F00"
_RED, _PINK, _PURPLE, _BROWN = "#D55E00", "#CC79A7", "#8C6BB1", "#8C6D31"
_GREY, _LIGHT = "#8A8A8A", "#C4C4C4"

COLOURS = {
    COMPUTE: _BLUE,
    "tp": _RED,
    "cp": _PINK,
    "ep": _YELLOW,
    "dp": _GREEN,
    "pp": _SKY,
    "offload": _BROWN,
    BUBBLE: _GREY,
    HOST: _PURPLE,
    IDLE: _LIGHT,
    "queueing": "#F0C808",
    "latency": "#B0A990",
    # passes of a schedule
    "forward": "#2C5CAE",
    "backward": "#218040",
    "input_gradient": _SKY,
    "weight_gradient": "#CC941A",
    "optimizer": "#1A8085",
    "exchange": "#BF4038",
    # categories of memory
    "weights": "#2C5CAE",
    "gradients": "#6699D9",
    "unsharded": "#73BFBF",
    "activations": "#CC941A",
    "logits": "#EDC759",
    "temporary": "#BF4D33",
    "communication": "#8C59A6",
    "kv_cache": "#4DA64D",
    "workspace": "#BFA6CC",
    "fragmentation": "#E0B3AD",
    "framework": "#999999",
    "reserve": "#CCCCCC",
    # limits of kernels
    "tensor": _BLUE,
    "vector": _GREEN,
    "shared": _PINK,
    "l2": _PURPLE,
    "hbm": _YELLOW,
    "launch": _RED,
    # sides of a comparison
    "before": _BLUE,
    "after": _YELLOW,
}
"""The colours of categories, for light and for dark backgrounds."""


def _lighter(hue: str, white: float) -> str:
    """Return a colour with a share of white in it."""
    parts = (round(part + (255 - part) * white) for part in bytes.fromhex(hue[1:]))
    return "#" + "".join(f"{part:02X}" for part in parts)


PASSES = ("forward", "backward", "input_gradient", "weight_gradient")
"""The kinds of passes; those of a stage's later chunks are lighter, as `forward 1` and `forward 2`."""
COLOURS |= {
    f"{name} {chunk}": _lighter(COLOURS[name], white)
    for name in PASSES
    for chunk, white in enumerate((0.45, 0.72), start=1)
}
OTHERS = (_BLUE, _RED, _GREEN, _YELLOW, _PINK, _SKY, _PURPLE, _BROWN)
"""The colours of categories that a foreign trace or a file names."""
BUSY = ("#D9D9D9", "#9ECAE1", "#4F9BCB", "#2B7BBA", "#0B3C7D")
"""The colours of utilisation, from idle to the busiest."""


def colour(name: str) -> str:
    """Return the colour of a category; one that is not known gets the same one everywhere.

    >>> colour("compute"), colour("stream 7") == colour("stream 7")
    ('#0072B2', True)
    """
    return COLOURS.get(name) or OTHERS[crc32(name.encode()) % len(OTHERS)]
