"""Fit the constants of `topologies/fabrics` on the calibration split of measured collectives.

    python -m validation.fit_collectives DATA_FOLDER [FABRIC ...]

needs scipy. Cases whose name has an even sha256 are calibration; nothing else is read. Every fabric starts
from the values of its own file, and the file is rewritten.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import yaml
from scipy.optimize import least_squares

from rapid_des.chakra.trace import CollectiveType
from rapid_des.config import Spec
from rapid_des.device.calibration import DataFolder, Record, is_calibration
from rapid_des.network.collectives.libraries.nccl_fabric import NcclFabric
from rapid_des.network.collectives.libraries.nccl_network import nccl_time, send_time
from rapid_des.units import Bandwidth, Duration, Quantity, Size

KINDS = {
    "all_reduce": CollectiveType.ALL_REDUCE,
    "all_gather": CollectiveType.ALL_GATHER,
    "reduce_scatter": CollectiveType.REDUCE_SCATTER,
    "alltoall": CollectiveType.ALL_TO_ALL,
}
UNITS: dict[type[Quantity], tuple[str, float]] = {
    Duration: ("us", 1e6),
    Bandwidth: ("GB/s", 1e9),
    Size: ("MiB", 2**20),
}
Measured = tuple[str, int, int, int, float]
"""Operation, ranks, ranks a node, bytes (nccl-tests), microseconds."""


def rows(data: Path, name: str) -> Iterable[Record]:
    """Yield a file's calibration rows."""
    read = DataFolder(data, split=True).read(f"collectives/{name}")
    yield from (row for row in read if is_calibration(row["case_id"]))


def in_node(data: Path, *gpus: str) -> list[Measured]:
    """Return the one-node measurements of some GPUs."""
    return [
        (row["op"], int(row["ranks"]), int(row["ranks"]), int(row["bytes"]), float(row["time_us"]))
        for row in rows(data, "nccl_aiconfigurator.csv")
        if row["gpu"] in gpus and row["op"] in KINDS
    ]


def clusters(data: Path, name: str, keep: Callable[[dict[str, str]], bool]) -> list[Measured]:
    """Return measurements of several nodes."""
    chosen = []
    for row in rows(data, name):
        if not keep(row):
            continue
        share = int(row["ranks"]) // int(row["nodes"])
        time = float(row["time_us_out"])
        chosen.append((row["op"], int(row["ranks"]), share, int(row["bytes"]), time))
    return chosen


def vidur(data: Path, nodes: int) -> list[Measured]:
    """Return Vidur's measurements of one or two DGX A100."""
    return [
        (row["op"], int(row["ranks"]), int(row["devices_per_node"]), int(row["bytes"]), float(row["time_us"]))
        for row in rows(data, "network_vidur.csv")
        if row["topology"] == "a100_dgx" and int(row["ranks"]) == nodes * int(row["devices_per_node"])
    ]


def alps(data: Path) -> list[Measured]:
    """Return the best of all settings for every number of nodes, up to 4 MiB and from 1 GiB on."""
    best: dict[tuple[int, int], float] = {}
    for row in rows(data, "nccl_alps_gh200_slingshot.csv"):
        size = int(row["bytes"])
        if row["valid"] == "True" and (size >= 2**30 or (size <= 2**22 and row["nodes"] != "1")):
            key = int(row["ranks"]), size
            best[key] = min(best.get(key, math.inf), float(row["time_us_out"]))
    return [("all_reduce", ranks, 4, size, time) for (ranks, size), time in sorted(best.items())]


def digitised(data: Path, gpu: str) -> list[Measured]:
    """Return what ASTRA-sim's plots show of a GPU, as far as a pixel is less than 5 % of the time."""
    return [
        (row["op"], int(row["ranks"]), int(row["ranks"]), int(row["bytes"]), float(row["time_us"]))
        for row in rows(data, "astra_sim_docs_digitised.csv")
        if row["gpu"].startswith(gpu) and row["series"] == "measured" and float(row["rel_uncert"]) < 0.05
    ]


def predict(fabric: NcclFabric, measured: Measured) -> float:
    """Return microseconds."""
    op, ranks, share, size, _ = measured
    if op in ("sendrecv", "send_recv"):
        return send_time(fabric, ranks, size, per_node=share).duration / 1e6
    size = size // ranks if op == "all_gather" else size
    return nccl_time(fabric, KINDS[op], ranks, size, per_node=share).duration / 1e6


NVLINK5 = ("B200-SXM", "B300-SXM", "GB200-NVL72", "GB300-NVL72")
ALPS_FREE = (
    "network.nic", "network.base", "network.simple_hop", "network.ramp", "network.tree", "network.small",
    "node.simple.link", "node.simple.hop",
)  # fmt: skip
"""What all-reduces of small and of very large messages can show; the rest is taken from other fabrics."""
LINK_RATE = {
    "a100_nvswitch": 300e9,
    "h100_nvswitch": 450e9,
    "h100_ndr": 450e9,
    "h100_ring": 450e9,
    "a100_slow_network": 300e9,
    "nvlink5": 900e9,
    "gh200_slingshot": 450e9,
}
"""Links of one GPU in one direction, by the data sheets."""
PAYLOAD = {"ll": 1 / 2, "ll128": 120 / 128, "simple": 1.0, "nvls": 1.0, "point_to_point": 1.0}
"""What flags leave of them."""
HELD = {"rtx_pro_6000_pcie": ("combine_rate",), "l40s_pcie": ("combine_rate",)}
"""Values that one group size alone would fix: they stay those of a copy."""
HOLD = 0.03
"""What a change by a factor of e costs: as much as one row that is 3 % off. It holds what no row shows."""
LINE_RATE = {"h100_ndr": 50e9, "h100_efa": 50e9, "gh200_slingshot": 25e9, "a100_slow_network": 25e9}
"""No fit exceeds what a NIC can send."""
NODE = ("node.",)
EFA_FREE = (
    "network.ll128_hop", "network.simple_hop", "network.exposed", "network.ramp", "network.tree",
    "network.exchange_nic", "network.exchange_crowding", "network.exchange_base", "network.exchange_peer",
    "network.exchange_ramp",
)  # fmt: skip
"""All but the rates of NVLink in a ring and of copies, which are those of the same GPUs in h100_ndr."""
SLOW_FREE = ("network.nic", "network.base", "network.ramp", "network.small")
"""What all-reduces of one layout can show."""
JOBS: dict[str, tuple[tuple[str, ...], Callable[[Path], list[Measured]]]] = {
    "a100_nvswitch": (NODE, lambda data: in_node(data, "A100-SXM4-80GB")),
    "a100_nvswitch:sends": (
        ("node.point_to_point.channel",),
        lambda data: [row for row in vidur(data, nodes=1) if row[0] == "send_recv"],
    ),
    "h100_nvswitch": (
        NODE,
        lambda data: (
            in_node(data, "H100-SXM-80GB")
            + clusters(
                data,
                "nccl_h100_ndr_10node.csv",
                lambda row: row["nodes"] == "1" and row["op"] == "alltoall",
            )
        ),
    ),
    "nvlink5": (NODE, lambda data: in_node(data, *NVLINK5)),
    "l40s_pcie": (NODE, lambda data: in_node(data, "L40S")),
    "rtx_pro_6000_pcie": (NODE, lambda data: in_node(data, "RTX-PRO-6000")),
    "arc_b60_pcie": (NODE, lambda data: in_node(data, "Intel-Arc-B60")),
    "h100_ndr": (
        ("network.", "node.nvls.", "node.simple.", "node.point_to_point.", "node.ramp.", "node.copy_window"),
        lambda data: clusters(
            data,
            "nccl_h100_ndr_10node.csv",
            lambda row: row["op"] != "sendrecv" or int(row["nodes"]) > 1,
        ),
    ),
    "h100_efa": (
        ("network.nic", "network.base", *EFA_FREE),
        lambda data: clusters(data, "nccl_aws_p5_efa.csv", lambda row: True),  # noqa: ARG005
    ),
    "h100_ring": (
        ("node.simple.link", "node.simple.hop"),
        lambda data: digitised(data, "H100"),
    ),
    "v100_cube_mesh": (
        ("node.simple.link", "node.simple.hop"),
        lambda data: digitised(data, "V100"),
    ),
    "gh200_slingshot": (ALPS_FREE, alps),
    "a100_slow_network": (SLOW_FREE, lambda data: vidur(data, nodes=2)),
}

FIXED = (
    ".tuner",
    "least_ranks",
    "ll128_share",
    "tuner_",
    "tree.in_node",
    "to_point.channel",
    ".limits.",
    "small.limit",
    "ll.exposed",
    "ll128.exposed",
)


def leaves(tree: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Yield every number below a tree by its dotted path."""
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from leaves(value, f"{path}.")
        elif isinstance(value, list):
            yield from leaves({str(i): item for i, item in enumerate(value)}, f"{path}.")
        else:
            yield path, value


def place_leaf(tree: Any, path: str, value: object) -> None:
    """Set one leaf."""
    *steps, last = path.split(".")
    for step in steps:
        tree = tree[int(step)] if isinstance(tree, list) else tree[step]
    tree[last] = value


def build(tree: dict[str, Any], spec: type[Spec]) -> Any:
    """Return the spec of a tree of quantities in base units or as text."""
    return msgspec.convert(
        tree, spec, dec_hook=lambda kind, value: kind.parse(value) if isinstance(value, str) else kind(value)
    )


def number(text: object) -> float | None:
    """Return a leaf in base units; None where it is text or a count."""
    if isinstance(text, float):
        return text
    for kind in UNITS:
        try:
            return float(kind.parse(text))
        except ValueError:
            continue
    return None


def unit_of(text: str) -> type[Quantity]:
    """Return the quantity that a text is."""
    return next(kind for kind in UNITS if text.rsplit(maxsplit=1)[-1] in kind.units)


def shown(original: object, value: float) -> object:
    """Return a leaf as the file spells it, four digits long."""
    if isinstance(original, float):
        return float(f"{value:.4g}")
    unit, factor = UNITS[unit_of(str(original))]
    return f"{value / factor:.4g} {unit}"


def fit(path: Path, free: tuple[str, ...], spec: type[Spec], errors: Callable[[Any], Any]) -> str:
    """Fit one file's free leaves in logarithms to make `errors` of the built spec small; write the file."""
    text = yaml.safe_load(path.read_text())
    original = dict(leaves(text))
    values = {key: number(leaf) for key, leaf in original.items() if not isinstance(leaf, int)}
    names = [
        key
        for key, value in values.items()
        if value is not None
        and key.startswith(free)
        and (key in free or not any(word in key for word in (*FIXED, *HELD.get(path.stem, ()))))
    ]

    begin = start = np.array([math.log(max(values[key] or 0.0, 1e-3)) for key in names])

    def residuals(logs: Any) -> Any:
        tree = msgspec.json.decode(msgspec.json.encode(text))
        for key, log in zip(names, logs, strict=True):
            value = math.exp(log)
            place_leaf(tree, key, value if isinstance(original[key], float) else round(value))
        return np.concatenate([errors(build(tree, spec)), HOLD * (np.asarray(logs) - begin)])

    line = math.log(LINE_RATE.get(path.stem, 1e12))
    limits = {"nic": line, "exposed": 0.0} | link_limits(path.stem)
    tops = [limits.get(key, limits.get(key.rsplit(".", maxsplit=1)[-1], math.inf)) for key in names]
    most = np.minimum(start + 2.5, tops)
    start = np.minimum(start, most - 1e-3)
    bounds = (start - 2.5, most)
    found = least_squares(
        residuals, start, loss="soft_l1", f_scale=0.05, bounds=bounds, diff_step=1e-3, max_nfev=60
    )
    for key, log in zip(names, found.x, strict=True):
        place_leaf(text, key, shown(original[key], math.exp(log)))
    path.write_text(yaml.safe_dump(text, sort_keys=False, width=110))
    return f"{path.stem}: {100 * np.mean(np.abs(found.fun)):.2f} % mean absolute (weighted) log error"


def link_limits(name: str) -> dict[str, float]:
    """Return the logarithms of what each protocol's payload can be on a fabric's links."""
    rate = LINK_RATE.get(name, 1e15)
    return {f"node.{protocol}.link": math.log(share * rate) for protocol, share in PAYLOAD.items()}


def errors_of(measured: list[Measured]) -> Callable[[NcclFabric], Any]:
    """Return the weighted log errors of a fabric; rows below 1 MiB weigh a third."""
    weights = np.array([1.0 if size >= 2**20 else 0.35 for *_, size, _ in measured])
    return lambda fabric: weights * np.array([math.log(predict(fabric, row) / row[-1]) for row in measured])


def main(data: Path, chosen: list[str]) -> None:
    """Fit the chosen fabrics, or all."""
    folder = Path(__file__).parents[1] / "topologies" / "fabrics"
    for name, (free, select) in JOBS.items():
        if not chosen or name in chosen:
            path = folder / f"{name.split(':')[0]}.yaml"
            print(fit(path, free, NcclFabric, errors_of(select(data))))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
