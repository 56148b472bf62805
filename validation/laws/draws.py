"""Small jobs, machines and faults, drawn from a seed: what the laws are checked on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from random import Random
from typing import Any, TypeAlias

from rapid_des.frontend.schedules import SCHEDULES

Tree: TypeAlias = dict[str, Any]

BANDWIDTHS = ("4 GB/s", "10 GB/s", "25 GB/s", "50 GB/s", "100 GB/s", "200 GB/s")
"""All take a whole number of picoseconds a byte, and so do half of each: times double exactly."""
LATENCIES = ("0 ns", "100 ns", "700 ns", "2 us", "10 us")
PROTOCOL: Tree = {
    "payload": "4 KiB",
    "header": "26 B",
    "acknowledgement": "30 B",
    "packets_per_acknowledgement": 4,
    "packet_time": "exact",
}
WINDOW: Tree = {"control": "window", "bandwidth_delay_products": 2}
SWITCHING: Mapping[str, Sequence[Tree]] = {
    "fluid": ({}, {"protocol": PROTOCOL}, {"protocol": PROTOCOL | {"acknowledgement": "0 B"}}),
    "store_and_forward": ({}, {"segment": "4 KiB"}, {"segment": "64 KiB"},
                          {"segment": "16 KiB", "protocol": PROTOCOL}),
    "cut_through": (
        {"segment": "4 KiB"},
        {"segment": "4 KiB", "parts": 3},
        {"protocol": PROTOCOL},
        {"protocol": PROTOCOL, "parts": 12},
        {"protocol": PROTOCOL, "parts": 4, "congestion": WINDOW},
        {"protocol": PROTOCOL, "parts": 4, "congestion": {"control": "none"}},
        {"segment": "4 KiB", "parts": 4, "spray": {"ways": 2, "per": "part"}},
    ),
}  # fmt: skip
"""What a machine says of each switching mode."""
ALGORITHMS = ("ring", "auto", {"algorithm": "ring", "chunks": 4})
DENSE: Tree = {"activation": "swiglu", "hidden": 512}
EXPERTS: Tree = {"kind": "experts", "experts": 4, "topk": 2, "hidden": 128, "shared_hidden": 0}
LASTS = "until=10000s"
"""Beyond the end of any drawn run."""


@dataclass(frozen=True)
class Case:
    """A drawn job, its machine without faults, and the faults that a law may add."""

    seed: int
    job: Tree
    machine: Tree
    fault: str
    """A fault without a time, in words."""

    @property
    def chance(self) -> Random:
        """Return a generator for what a law draws besides: the same for the same case."""
        return Random(self.seed)  # noqa: S311 - no secret

    @property
    def is_native(self) -> bool:
        """Tell whether no communication library prices transfers by constants of its own."""
        return "measured" not in self.machine["collectives"]

    def as_json(self) -> Tree:
        """Return plain data that states the case."""
        return {"seed": self.seed, "job": self.job, "machine": self.machine, "fault": self.fault}


def draw(seed: int) -> Case:
    """Return the case of a seed.

    >>> draw(3) == draw(3)
    True
    """
    chance = Random(seed)  # noqa: S311 - no secret
    gpus = chance.choice([2, 4, 4, 8, 8, 16])
    where = machine(chance, gpus)
    return Case(seed, job(chance, gpus), where, fault(chance, where["fabric"][0]["name"]))


def machine(chance: Random, gpus: int) -> Tree:
    """Return a machine of one or two dimensions, with any way to forward messages."""
    mode = chance.choice(list(SWITCHING))
    collectives: Tree = {"contention": chance.random() < 0.7}
    if chance.random() < 0.4:
        collectives["default"] = chance.choice(ALGORITHMS)
    split = chance.random() < 0.3 and gpus >= 4
    sizes = (2, gpus // 2) if split else (gpus,)
    fabric = [_dimension(chance, size, f"d{place}") for place, size in enumerate(sizes)]
    if len(fabric) == 1 and fabric[0]["shape"] == "switch" and gpus <= 8 and chance.random() < 0.7:
        collectives["measured"] = {"nccl": "a100_nvswitch"}
    return {
        "name": "drawn",
        "gpus_per_node": gpus if len(fabric) == 1 else 2,
        "device": chance.choice(["a100_sxm_80gb", "h100_sxm"]),
        "fabric": fabric,
        "routing": {
            "order": chance.choice(["innermost_first", "outermost_first"]),
            "tie": chance.choice(["positive", "lowest_id", "hash", "balanced"]),
            "ecmp": chance.choice(["hash", "lowest_id", "destination"]),
        },
        "switching": {"mode": mode, **chance.choice(SWITCHING[mode])},
        "collectives": collectives,
    }


def _dimension(chance: Random, size: int, name: str) -> Tree:
    shape, stated = chance.choice(_shapes(chance, size))
    return {"name": name, "shape": shape, "size": size, **_rate(chance), **stated}


def _shapes(chance: Random, size: int) -> list[tuple[str, Tree]]:
    """Return the shapes that a dimension of a size may have, each with what it states besides."""
    grids = [[2, size // 2], [size // 2, 2]] if size >= 4 else [[size]]
    grid: Tree = {"size": chance.choice(grids)}
    tree = {"levels": 2, "radix": 4, "oversubscription": 1, "uplink": _rate(chance)}
    dragonfly = {"hosts": 1, "routers": 2, "global_links": 1}
    clos = {"leaf_size": 2, "spines": chance.choice([1, 2]), "uplink": _rate(chance)}
    shapes: list[tuple[str, Tree]] = [
        ("ring", {}), ("mesh", {}), ("mesh", grid), ("torus", grid), ("king_mesh", grid), ("hypercube", {}),
        ("fully_connected", {}), ("switch", {}), ("switch", {}), ("clos", clos),
    ]  # fmt: skip
    if 2 <= size <= 8:
        shapes.append(("fat_tree", tree))
    if size in (2, 4):
        rates = {"local_link": _rate(chance), "global_link": _rate(chance)}
        shapes.append(("dragonfly", dragonfly | rates))
    return shapes


def _rate(chance: Random) -> Tree:
    return {"bandwidth": chance.choice(BANDWIDTHS), "latency": chance.choice(LATENCIES)}


def job(chance: Random, gpus: int) -> Tree:
    """Return a training job on all GPUs of a machine."""
    sizes = _split(chance, gpus)
    schedule = chance.choice(sorted(SCHEDULES) if sizes["pp"] > 1 else ["1f1b", "gpipe"])
    chunks = 2 if SCHEDULES[schedule].chunks is None else 1
    parts = sizes["pp"] * (SCHEDULES[schedule].chunks or chunks)
    feed_forward = EXPERTS if chance.random() < 0.3 else DENSE
    parallelism: Tree = {
        **sizes,
        "chunks": chunks,
        "sequence_parallel": sizes["tp"] > 1 and chance.random() < 0.6,
    }
    if sizes["cp"] > 1:
        parallelism["cp_kind"] = chance.choice(["all_gather", "ring"])
    ranks = sizes["tp"] * sizes["cp"] * sizes["dp"]
    if feed_forward is EXPERTS:
        pairs = [(ep, etp) for ep in (1, 2, 4) for etp in (1, 2) if ranks % (ep * etp) == 0]
        parallelism["ep"], parallelism["etp"] = chance.choice(pairs)
    drawn: Tree = {
        "model": {
            "hidden": 256, "layers": parts * chance.choice([1, 2]) if parts < 8 else parts,
            "attention": {"heads": 8}, "feed_forward": feed_forward, "norm": "rms_norm", "position": "rope",
            "vocabulary": 1024, "max_positions": 1024, "tied_embeddings": False,
        },
        "phase": "training",
        "parallelism": parallelism,
        "training": {
            "global_batch": sizes["dp"] * sizes["pp"] * chance.choice([1, 2]), "micro_batch": 1,
            "sequence_length": chance.choice([256, 512]), "schedule": schedule,
            "zero_stage": chance.choice([0, 1, 2, 3]),
        },
    }  # fmt: skip
    if chance.random() < 0.5:
        drawn["host"] = None
    if chance.random() < 0.4:
        drawn["software"] = chance.choice(["torchtitan", "fsdp", "deepspeed", "nanotron"])
    return drawn


def _split(chance: Random, gpus: int) -> dict[str, int]:
    """Return degrees whose product is the number of GPUs."""
    sizes = dict.fromkeys(("tp", "cp", "dp", "pp"), 1)
    while prod(sizes.values()) < gpus:
        sizes[chance.choice(["tp", "cp", "dp", "dp", "pp"])] *= 2
    return sizes


def fault(chance: Random, dimension: str) -> str:
    """Return a fault that is always there, in words."""
    share = chance.choice(["0.25", "0.5", "0.9", "0.03"])
    on_links = (
        f"bandwidth={share}", "latency=5us", f"bandwidth={share} latency=300ns", "load=0.3",
        "packet_loss=0.01 packet=4KiB retransmission=go_back_n",
        "bit_error_rate=1e-9 packet=4KiB retransmission=selective_repeat",
    )  # fmt: skip
    on_gpus = (f"compute={share}", f"hbm={share}", f"compute=0.7 hbm={share}")
    where = chance.choice([
        "all=links", f"dimension={dimension}", f"random=links count=1 seed={chance.randint(0, 99)}",
        f"random=directions count=2 seed={chance.randint(0, 99)}", "gpu=1", "all=gpus",
    ])  # fmt: skip
    effects = (*on_links, *on_gpus) if "gpu" in where else on_links
    return f"{where} {chance.choice(effects)}"
