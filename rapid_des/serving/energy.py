"""Energy of a served workload: what stands idle, and what the iterations' kernels and messages add to that.

Kernels are priced as those of static passes are (`report.figures`), at powers of two of the tokens and linear
between; a pass of decoding requests more by what each position that they attend to adds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rapid_des.arrays import Int64s
from rapid_des.bounded_cache import BoundedCache
from rapid_des.frontend import Job
from rapid_des.frontend.inference import one_pass
from rapid_des.frontend.operations import RequestGroup
from rapid_des.machine import Machine
from rapid_des.report.network_energy import NetworkEnergy, idle_network
from rapid_des.serving.batch import decoding_group
from rapid_des.serving.engines import as_priced
from rapid_des.serving.groups import Beside, besides_of
from rapid_des.serving.pools import pools_of, prompts_of, sharing
from rapid_des.serving.result import ServeResult
from rapid_des.simulation import simulate
from rapid_des.units import PS_PER_S
from rapid_des.values import replace

_LENGTHS = 1024, 3072
"""KV lengths of the two passes from which the energy of decoding is interpolated."""
_WIDE = 64
"""Number of requests in the passes that measure the energy per position."""


class ServedEnergy(Struct, frozen=True):
    """Energy of all GPUs, in joules."""

    kernels_j: float
    idle_j: float
    """Idle energy of the boards over that time, in joules."""
    output_tokens: int
    gpu_seconds: float
    network: NetworkEnergy = NetworkEnergy()
    """The energy of links, NICs and switches, and of hosts, as far as the machine file states any."""

    @property
    def by_part(self) -> dict[str, float]:
        """Joules by part; they add up to `joules`."""
        return {"kernels": self.kernels_j, "idle": self.idle_j} | self.network.by_part

    @property
    def joules(self) -> float:
        """Sum of all parts."""
        return sum(self.by_part.values())

    @property
    def joules_per_output_token(self) -> float:
        """Joules per generated token, including prompts and idle time."""
        return self.joules / max(self.output_tokens, 1)

    @property
    def average_power_w(self) -> float:
        """Average power of one GPU, in watts."""
        return (self.kernels_j + self.idle_j) / self.gpu_seconds

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "modelled": True,
            "joules": self.joules,
            "joules_by_part": self.by_part,
            "left_out": [*self.network.left_out, "cooling"],
            "joules_per_output_token": self.joules_per_output_token,
            "average_power_w": self.average_power_w,
        }


def served_energy(
    result: ServeResult, job: Job, machine: Machine, *, cache: BoundedCache | None = None
) -> ServedEnergy | None:
    """Return the energy of a served workload, on all its machines.

    None if the device file of one of them states no energy constants.
    """
    cache, loads = BoundedCache() if cache is None else cache, iter(result.loads)
    parts = [Beside(job, machine), *besides_of(job, cache)]
    known = list[tuple[str, ServedEnergy]]()
    for number, part in enumerate(parts):
        seconds = result.gpu_seconds if len(parts) == 1 else _gpu_seconds(result, number)
        spent = _of_part(part, loads, seconds, cache)
        if spent is None:
            return None
        known.append((part.machine.name, spent))
    return _together(known, int(result.tokens.sum()))


def _gpu_seconds(result: ServeResult, number: int) -> float:
    """Return the time of the GPUs of one group of replicas."""
    if result.sizes:
        return result.sizes[number].gpus * result.sizes[number].replica_time(result.elapsed) / PS_PER_S
    group = result.groups[number]
    return group.replicas * group.engine.gpus * result.elapsed / PS_PER_S


def _of_part(
    part: Beside, loads: Iterator[Mapping[str, Int64s]], gpu_seconds: float, cache: BoundedCache
) -> ServedEnergy | None:
    """Return the energy of the replicas of one job, whose loads are next, without tokens."""
    job, machine, total, links = part.job, part.machine, 0.0, 0.0
    idle = machine.device.spec.idle_power
    for pool in pools_of(job):
        passes = _Passes(as_priced(pool.alone), machine, cache)
        # encoders hold no keys
        if idle is None or passes.kernels((RequestGroup(1, 1, int(job.model.is_causal)),)) is None:
            return None
        # a pass of replicas that share experts is of them all
        mine = list(islice(loads, pool.replicas))
        total += sum(float(passes.of(load).sum()) for load in mine) / sharing(pool.job)
        beside = replace(passes, of_links=True)
        links += sum(float(beside.of(load).sum()) for load in mine) / sharing(pool.job)
    assert idle is not None
    network = idle_network(machine, gpu_seconds, links)
    return ServedEnergy(total, idle.watts * gpu_seconds, 0, max(gpu_seconds, 1e-12), network)


def _together(parts: Sequence[tuple[str, ServedEnergy]], tokens: int) -> ServedEnergy:
    """Return the energy of parts, each on a machine of this name; what only some leave out names theirs."""
    silent = [set(spent.network.left_out) for _, spent in parts]
    left_out = [name for name in parts[0][1].network.left_out if all(name in each for each in silent)]
    left_out += [
        f"{name} of {machine}"
        for machine, spent in parts
        for name in spent.network.left_out
        if name not in left_out
    ]
    network = NetworkEnergy(
        tuple(dimension for _, spent in parts for dimension in spent.network.dimensions),
        sum(spent.network.hosts_j for _, spent in parts),
        tuple(left_out),
    )
    kernels, idle, seconds = (
        sum(getattr(spent, name) for _, spent in parts) for name in ("kernels_j", "idle_j", "gpu_seconds")
    )
    return ServedEnergy(kernels, idle, tokens, seconds, network)


class _Passes(Struct, frozen=True):
    job: Job
    machine: Machine
    cache: BoundedCache
    of_links: bool = False
    """Whether joules are those of messages on links, not of kernels."""

    @property
    def _checked(self) -> int:
        """Number of tokens of a decoding request that pass in a step."""
        spec = self.job.inference.speculative
        return 1 if spec is None else 1 + spec.tokens

    def of(self, load: Mapping[str, Int64s]) -> NDArray[np.float64]:
        """Return the joules of each row of iterations of a replica."""
        steps, decodes, prompts = (load[name] for name in ("steps", "decodes", "prompt_tokens"))
        made = decodes * self.job.inference.tokens_a_step
        keys = load["keys"] * steps + made * (steps * (steps - 1) // 2)
        lone, mixed = prompts == 0, prompts > 0
        joules = np.zeros(len(steps))
        joules[lone] = steps[lone] * self._between(decodes[lone], decoding=True)
        joules[mixed] = self._between((decodes * self._checked + prompts)[mixed], decoding=False)
        if not decodes.any():
            return joules
        return joules + np.where(decodes > 0, keys - np.where(lone, decodes * steps * _LENGTHS[0], 0), 0) * (
            self._of_position()
        )

    def _between(self, tokens: Int64s, *, decoding: bool) -> NDArray[np.float64]:
        """Return the joules of passes of decoding requests at the first of `_LENGTHS`, or of prompts."""
        if not len(tokens):
            return np.zeros(0)
        most = int(tokens.max())
        corners = [1 << bit for bit in range(most.bit_length() + 1)]
        known = [self._corner(corner, decoding=decoding) for corner in corners]
        return np.interp(tokens, corners, known)

    def _corner(self, tokens: int, *, decoding: bool) -> float:
        if decoding:
            return self.kernels((decoding_group(tokens, _LENGTHS[0], self._checked),)) or 0.0
        return self.kernels(prompts_of(self.job, tokens)) or 0.0

    def _of_position(self) -> float:
        """Return the joules for each position that a decoding request attends to."""
        groups = (decoding_group(_WIDE, length, self._checked) for length in _LENGTHS)
        short, long = (self.kernels((group,)) or 0.0 for group in groups)
        return (long - short) / (_WIDE * (_LENGTHS[1] - _LENGTHS[0]))

    def kernels(self, groups: Sequence[RequestGroup]) -> float | None:
        """Return the joules of a pass above the boards' idle energy; None: no energy constants."""

        def make() -> tuple[float, float] | None:
            job = one_pass(self.job, groups)
            result = simulate(job, self.machine, mode="analytical", allow_oom=True, cache=self.cache)
            energy = result.figures.energy if result.figures else None
            if energy is None:
                return None
            links = 0.0 if energy.network is None else energy.network.by_part.get("links", 0.0)
            return energy.arithmetic_j + energy.memory_j, links

        known = self.cache.get_or_make(("energy", self.job, self.machine, tuple(groups)), make)
        return None if known is None else known[self.of_links]
