"""NCCL's own choice of algorithm and protocol: the least time by its built-in tuning table.

The latencies below are NCCL's constants (microseconds; public in its tuning source since 2.19), not
measurements: NCCL is often wrong about the time, and the choice must be wrong in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping

from rapid_des.network.collectives.nccl_fabric import Network, Node

BASE: Mapping[str, float] = {"ll": 6.6, "ll128": 14.0, "simple": 8.4}
IN_NODE_HOP: Mapping[str, float] = {"ll": 0.6, "ll128": 1.9, "simple": 3.4}
NETWORK_HOP: Mapping[str, float] = {"ll": 2.7, "ll128": 4.0, "simple": 14.0}
NVLS_LATENCY = 25.0
_LL128_IN_A_RING = 0.92
_LL128_CHANNEL = 36.7e3
_MICRO = 1e6


def in_node(node: Node, steps: int, wire: float, *, in_switch: float | None) -> str:
    """Return "ll", "ll128", "simple" or "nvls" for a ring of `steps` that moves `wire` bytes a rank.

    `in_switch` bytes would go through the NVLink switch each way; None where it can not reduce.
    """
    ring = node.tuner.ring / _MICRO
    rates = {
        "ll": min(node.tuner.ll / _MICRO, ring / 2),
        "ll128": min(node.tuner.ll128 / _MICRO, ring * _LL128_IN_A_RING),
        "simple": ring,
    }
    times = {name: BASE[name] + steps * IN_NODE_HOP[name] + wire / rate for name, rate in rates.items()}
    if in_switch is not None and node.tuner.nvls is not None:
        times["nvls"] = NVLS_LATENCY + in_switch / (node.tuner.nvls / _MICRO)
    return min(times, key=lambda name: times[name])


def across_nodes(network: Network, per_node: int, steps: tuple[int, int], wire: float) -> str:
    """Return "ll128" or "simple" for a ring with (in-node, network) steps that moves `wire` bytes a rank."""
    ring = per_node * network.tuner_ring / _MICRO
    ll128 = min(ring * network.ll128_share, _LL128_CHANNEL * network.tuner_ll128_channels)
    rates = {"ll128": ll128, "simple": ring}
    times = {
        name: BASE[name] + steps[0] * IN_NODE_HOP[name] + steps[1] * NETWORK_HOP[name] + wire / rate
        for name, rate in rates.items()
    }
    return min(times, key=lambda name: times[name])
