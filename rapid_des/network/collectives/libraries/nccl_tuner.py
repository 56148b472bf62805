"""How NCCL chooses: its own estimates by protocol and algorithm, which need not be right."""

from __future__ import annotations

from collections.abc import Mapping

from rapid_des.network.collectives.libraries.nccl_fabric import Network, Node

_MICRO = 1e6

# NCCL's own latencies by which it chooses (microseconds; public in its tuning source since 2.19), not
# measurements: NCCL is often wrong about the time, and the choice must be wrong in the same way.
_TUNER_BASE: Mapping[str, float] = {"ll": 6.6, "ll128": 14.0, "simple": 8.4}
_TUNER_NODE_HOP: Mapping[str, float] = {"ll": 0.6, "ll128": 1.9, "simple": 3.4}
_TUNER_NETWORK_HOP: Mapping[str, float] = {"ll": 2.7, "ll128": 4.0, "simple": 14.0}
_TUNER_NVLS = 25.0
_PLATEAU = 1.4
"""By how much NCCL lengthens the latency of Simple all-reduce rings over nodes ("plateau effect")."""
_LL128_ALONE = 0.7
"""Of a ring's rate, what NCCL counts on with LL128 where a node has one rank."""
_LL128_IN_A_RING = 0.92
_LL128_CHANNEL = 36.7e3


def choice_in_node(node: Node, steps: int, wire: float, *, in_switch: float | None) -> str:
    """Return "ll", "ll128", "simple" or "nvls" for a ring of `steps` that moves `wire` bytes a rank.

    `in_switch` bytes would go through the NVLink switch each way; None where it can not reduce.
    """
    ring = node.tuner.ring / _MICRO
    rates = {
        "ll": min(node.tuner.ll / _MICRO, ring / 2),
        "ll128": min(node.tuner.ll128 / _MICRO, ring * _LL128_IN_A_RING),
        "simple": ring,
    }
    times = {
        name: _TUNER_BASE[name] + steps * _TUNER_NODE_HOP[name] + wire / rate for name, rate in rates.items()
    }
    if in_switch is not None and node.tuner.nvls is not None:
        times["nvls"] = _TUNER_NVLS + in_switch / (node.tuner.nvls / _MICRO)
    return min(times, key=lambda name: times[name])


def choice_across_nodes(
    network: Network, per_node: int, steps: tuple[int, int], wire: float, *, all_reduce: bool = False
) -> str:
    """Return "ll128" or "simple" for a ring with (in-node, network) steps that moves `wire` bytes a rank."""
    ring = per_node * network.tuner_ring / _MICRO
    share = network.ll128_share if per_node > 1 else _LL128_ALONE
    ll128 = min(ring * share, _LL128_CHANNEL * network.tuner_ll128_channels)
    rates = {"ll128": ll128, "simple": ring}
    latency = {
        name: _TUNER_BASE[name] + steps[0] * _TUNER_NODE_HOP[name] + steps[1] * _TUNER_NETWORK_HOP[name]
        for name in rates
    }
    if all_reduce:
        latency["simple"] *= _PLATEAU
    times = {name: latency[name] + wire / rate for name, rate in rates.items()}
    return min(times, key=lambda name: times[name])
