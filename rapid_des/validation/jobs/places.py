"""The machine file behind a data file's GPU and number of GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rapid_des.units import ceil_divide
from rapid_des.validation.jobs.cases import Place
from rapid_des.validation.measurements import UnsupportedRow


@dataclass(frozen=True)
class Servers:
    """Machine files of one kind of server."""

    one: str
    several: str = ""
    """Dimension 1 of its fabric counts the nodes; empty: there is no file of several."""
    gpus: int = 8
    """GPUs of a node, or of what NVLink joins."""
    device: str = ""
    """The device in place of the file's; empty: that of the file."""
    joined: int = 8
    """Up to how many GPUs the file's links are those of the name."""


_RACK = 64
"""GPUs of an NVL72 rack that jobs get: 16 trays, so that powers of two fill racks."""
_GB200 = Servers("gb200_nvl72", "gb200_nvl72_x8", gpus=_RACK, joined=_RACK)
SERVERS: Mapping[str, Servers] = {
    "A100-SXM4-80GB": Servers("dgx_a100", "dgx_a100_x8"),
    "A100-SXM4-40GB": Servers("dgx_a100", "dgx_a100_x8", device="a100_sxm_40gb"),
    "A100-PCIE-80GB": Servers("a100_pcie_x4", gpus=4, joined=4),
    "H100-SXM-80GB": Servers("dgx_h100", "dgx_h100_x8"),
    "H100-SXM-80GB (EFA)": Servers("dgx_h100", "aws_p5_x32"),
    "H100-96GB": Servers("dgx_h100", "dgx_h100_x8", device="h100_sxm_500w"),
    "H100-NVL-94GB": Servers("h100_nvl_x8", joined=2),
    "H200-SXM-141GB": Servers("dgx_h200"),
    "GH200-120GB(96GB HBM3)": Servers("gh200_alps_x16", gpus=4, joined=4),
    "L40S": Servers("l40s_switched_x8"),
    "L40": Servers("l40s_switched_x8", device="l40"),
    "RTX4090": Servers("rtx_pro_6000_x8", device="rtx_4090", joined=1),
    "RTX-PRO-6000": Servers("rtx_pro_6000_x8"),
    "B200-SXM": Servers("hgx_b200", "hgx_b200_x2"),
    "B300-SXM": Servers("hgx_b300"),
    "GB200-NVL72": _GB200,
    "GB300-NVL72": Servers("gb200_nvl72", "gb300_nvl72_x8", gpus=_RACK, device="gb300", joined=_RACK),
}
"""By GPU; H100-96GB are torchtitan's. Assumed: GH200 are joined as on Alps. Of NCCL between pairs of H100 NVL
nothing was measured."""


def place(gpu: str, gpus: int) -> Place:
    """Return where a job of `gpus` GPUs runs; `UnsupportedRow` if there is no machine file.

    >>> place("H100-SXM-80GB", 64).settings
    (('fabric.1.size', '8'),)
    """
    servers = SERVERS.get(gpu)
    if servers is None:
        raise UnsupportedRow(f"no machine file of {gpu}")
    nodes = ceil_divide(gpus, servers.gpus)
    if gpus > 1 and ((nodes > 1 and not servers.several) or min(gpus, servers.gpus) > servers.joined):
        raise UnsupportedRow(f"no machine file of {gpus} {gpu}")
    settings = [("fabric.1.size", str(nodes))] if nodes > 1 else []
    if servers.gpus == _RACK:
        settings.append(("fabric.0.size", str(_RACK)))
    if servers.device:
        settings.append(("device", servers.device))
    return Place(servers.several if nodes > 1 else servers.one, tuple(settings), servers.gpus)
