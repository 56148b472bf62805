"""A step of reinforcement learning: answers are generated, the model trains on them, its weights move back.

    generation (a server, all prompts at once) ──► training step ──► weights into the server's layout

Generation and training are what `serve` and `run` predict of the two jobs; the weights travel on the links
of the machine, from each GPU that holds them to those that lack them (`resharding`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Struct

from rapid_des.bounded_cache import BoundedCache
from rapid_des.config import Settings, Spec, apply_overrides, as_pairs, decode, open_document
from rapid_des.errors import ConfigError, InputError
from rapid_des.frontend import Job, load_job
from rapid_des.frontend.layer_spec import Count
from rapid_des.machine import Machine
from rapid_des.report.result import Result
from rapid_des.report.tables import Part, share_table
from rapid_des.serving.pools import pools_of
from rapid_des.serving.resharding import ReshardingTraffic, as_traces, reshard
from rapid_des.serving.result import ServeResult
from rapid_des.serving.server import serve
from rapid_des.serving.workload import parse_lengths
from rapid_des.simulation import MODES, replay, simulate
from rapid_des.units import Duration, ceil_divide, seconds


class RolloutSpec(Spec, frozen=True):
    """A rollout file: two jobs of one model, and the answers generated between two updates of its weights."""

    training: str | dict[str, Any]
    """The training job: a file by name or path, or what it would hold. Its `global_batch` follows from the
    generated tokens, packed into sequences of its length."""
    serving: str | dict[str, Any]
    """The inference job that generates; its `serving` section says by which policy, its `dp` are replicas."""
    prompts: Count
    """Number of prompts of a step."""
    samples: Count = 1
    """Number of answers to each prompt."""
    prompt: str | int = "512"
    """Number of tokens of prompts, as for `rapid-des serve --prompt`."""
    output: str | int = "lognormal mean=1024 cv=1 most=8192"
    """Number of tokens of answers."""
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**32)] = 0
    """Seed of the lengths."""
    placement: Literal["shared", "apart"] = "shared"
    """Whether both jobs take turns on the same GPUs, or the server has those behind the trainer's."""
    overlap: Literal["none", "one_step"] = "none"
    """one_step: while the model trains, weights one step old generate the next answers (apart only)."""


@dataclass(frozen=True)
class Rollout:
    """The two jobs of a rollout file that fit together (`load_rollout` checks them)."""

    name: str = field(compare=False)
    file: str = field(compare=False)
    spec: RolloutSpec
    training: Job
    server: Job

    @property
    def answers(self) -> int:
        """Number of answers of a step."""
        return self.spec.prompts * self.spec.samples

    @property
    def first(self) -> int:
        """The server's first GPU."""
        return self.training.gpus if self.spec.placement == "apart" else 0

    @property
    def gpus(self) -> int:
        """Number of GPUs of both jobs."""
        return max(self.training.gpus, self.first + self.server.gpus)


def load_rollout(
    reference: str | Path | Mapping[str, Any], *, settings: Settings = (), folder: Path | None = None
) -> Rollout:
    """Return the rollout that a path, a preset's name or a mapping stands for, with settings over it.

    A `ConfigError` names file, key, value and what is allowed; settings of the jobs stand below `training.`
    and `serving.`.

    >>> rollout = load_rollout("llama3_1_8b_grpo")
    >>> rollout.answers, rollout.training.gpus, rollout.server.gpus
    (1024, 8, 8)
    """
    document = open_document(reference, "rollout", folder=folder or Path())
    pairs = as_pairs(settings)
    below = {root: [(key.removeprefix(f"{root}."), text) for key, text in pairs if key.startswith(f"{root}.")]
             for root in ("training", "serving")}  # fmt: skip
    specific = [pair for pair in pairs if pair[0].partition(".")[0] not in below or "." not in pair[0]]
    spec = decode(apply_overrides(document, specific, root="rollout"), RolloutSpec)
    path = document.path
    jobs = {
        root: load_job(getattr(spec, root), settings=changes, folder=path.parent)
        for root, changes in below.items()
    }
    rollout = Rollout(path.stem, str(path), spec, jobs["training"], jobs["serving"])
    _check(rollout)
    return rollout


def _check(rollout: Rollout) -> None:
    def refuse(key: str, problem: str) -> None:
        raise ConfigError(problem, file=rollout.file, key=key)

    training, server = rollout.training, rollout.server
    for key, job, phase in (("training", training, "training"), ("serving", server, "inference")):
        if job.spec.phase != phase:
            refuse(key, f"{job.name} has phase {job.spec.phase}, this needs {phase}")
    if training.model.spec != server.model.spec:
        refuse(
            "serving", f"serves {server.model.name}, which is not the {training.model.name} that is trained"
        )
    if training.training.adapters is not None:
        refuse("training", "adapters leave the weights where they are: there is nothing to move")
    if pools_of(server)[0].job is not server:
        refuse("serving", "weights go to replicas of one layout: state no serving.prefill_parallelism")
    _check_texts(rollout)


def _check_texts(rollout: Rollout) -> None:
    """Raise `ConfigError` for lengths that are none, and for an overlap that cannot be."""
    for key in ("prompt", "output"):
        parse_lengths(str(getattr(rollout.spec, key)), f"{rollout.file}: {key}")
    if rollout.spec.overlap == "one_step" and rollout.spec.placement == "shared":
        problem = "one_step needs GPUs of its own for the server: placement apart"
        raise ConfigError(problem, file=rollout.file, key="overlap")


class RolloutResult(Struct, frozen=True, dict=True):
    """The duration of a step: its parts and the results behind them; times are picoseconds."""

    rollout: Rollout
    generation: ServeResult
    training: Result
    resharding: Duration
    transfers: ReshardingTraffic
    sequences: int
    """Number of sequences that the model trains on."""

    @cached_property
    def breakdown(self) -> dict[str, Duration]:
        """The parts of the step in their order; with `overlap: one_step` what generation adds to training."""
        generated, trained = self.generation.elapsed, int(self.training.step_time)
        if self.rollout.spec.overlap == "one_step":
            parts = {"training": trained, "generation beyond it": max(0, generated - trained)}
        else:
            parts = {"generation": generated, "training": trained}
        return {name: Duration(spent) for name, spent in parts.items()} | {"resharding": self.resharding}

    @property
    def step_time(self) -> Duration:
        """Duration of the step, from one update of the weights to the next."""
        return Duration(sum(self.breakdown.values()))

    @property
    def tail(self) -> Duration:
        """Time that generation continues after nine in ten answers are complete."""
        finished = np.sort(self.generation.requests["finished"])
        return Duration(self.generation.elapsed - int(finished[ceil_divide(len(finished) * 9, 10) - 1]))

    @property
    def tokens(self) -> int:
        """Number of tokens of prompts and answers."""
        return int(self.generation.requests["prompt"].sum() + self.generation.requests["output"].sum())

    def as_json(self) -> dict[str, Any]:
        """Return plain data for JSON; times in seconds."""
        step = seconds(self.step_time)
        return {
            "step_time_s": step,
            "breakdown_s": {name: seconds(spent) for name, spent in self.breakdown.items()},
            "gpus": self.rollout.gpus,
            "answers": self.rollout.answers,
            "tokens": self.tokens,
            "tokens_per_s": self.tokens / step,
            "generation": {
                "time_s": seconds(Duration(self.generation.elapsed)),
                "tail_s": seconds(self.tail),
                **self.generation.throughput,
            },
            "training": {"sequences": self.sequences, **self.training.as_json()},
            "resharding": {
                "time_s": seconds(self.resharding),
                "bytes_between_gpus": self.transfers.total,
                "bytes_in_place": sum(self.transfers.within.values()),
                "messages": len(self.transfers.between),
            },
        }


def simulate_rollout(
    rollout: Rollout,
    machine: Machine,
    *,
    mode: str = MODES[0],
    watch: Callable[[int, int], None] = lambda *_: None,
    cache: BoundedCache | None = None,
) -> RolloutResult:
    """Predict a step: generation, training (in one of `MODES`) and the transfer of the weights.

    Raises `InputError` if the machine has too few GPUs, else what `serve` and `simulate` raise.

    >>> from rapid_des.machine import load_machine
    >>> few = {"prompts": 2, "training.model.layers": 2, "serving.model.layers": 2}
    >>> rollout = load_rollout("llama3_1_8b_grpo", settings=few)
    >>> result = simulate_rollout(rollout, load_machine("dgx_h100"), mode="analytical")
    >>> list(result.breakdown), len(result.generation)
    (['generation', 'training', 'resharding'], 16)
    """
    if mode not in MODES:
        raise InputError(f"mode {mode!r} is not one of {', '.join(MODES)}")
    if rollout.gpus > machine.fabric.gpus:
        raise InputError(
            f"{rollout.file}: needs {rollout.gpus} GPUs, {machine.name} has {machine.fabric.gpus}"
        )
    cache, spec = BoundedCache() if cache is None else cache, rollout.spec
    generation = serve(
        rollout.server,
        machine,
        arrivals=f"clients count={rollout.answers}",
        requests=rollout.answers,
        prompt=str(spec.prompt),
        output=str(spec.output),
        seed=spec.seed,
        first=rollout.first,
        watch=watch,
        cache=cache,
    )
    if generation.interrupted:
        raise KeyboardInterrupt
    job = _packed(rollout, generation)
    trained = simulate(job, machine, mode=mode, cache=cache)
    transfers = reshard(job, rollout.server, machine, first=rollout.first)
    moved = Duration(0)
    if transfers.between or transfers.within:
        bandwidth = int(machine.device.spec.hbm.bandwidth)
        moved = replay(as_traces(transfers, rollout.gpus, bandwidth), machine, cache=cache).step_time
    return RolloutResult(rollout, generation, trained, moved, transfers, job.training.global_batch)


def _packed(rollout: Rollout, generation: ServeResult) -> Job:
    """Return the training job with as many sequences as hold all prompts and answers, packed.

    Answers of one length stand for theirs: as many documents of equal length fill every sequence.
    """
    job, lengths = rollout.training, generation.requests["prompt"] + generation.requests["output"]
    length, longest = job.training.sequence_length, int(lengths.max())
    if longest > length:
        problem = f"a prompt with its answer has {longest} tokens, sequences of the training job {length}"
        raise ConfigError(problem, file=rollout.file, key="output")
    unit = job.spec.parallelism.dp * job.training.micro_batch
    sequences = ceil_divide(ceil_divide(int(lengths.sum()), length), unit) * unit
    documents = max(1, round(length / float(lengths.mean())))
    cut = [length * place // documents for place in range(documents + 1)]
    settings: dict[str, Any] = {"training.global_batch": sequences}
    if documents > 1:
        settings["training.documents"] = [stop - start for start, stop in zip(cut, cut[1:], strict=False)]
    return load_job(job, settings=settings)


def rollout_report(result: RolloutResult, title: str) -> Iterator[Part]:
    """Yield the report of a step of reinforcement learning."""
    rollout, step, transfers = result.rollout, result.step_time, result.transfers
    where = "taking turns" if rollout.spec.placement == "shared" else f"from GPU {rollout.first} on"
    yield title
    yield {
        "GPUs": f"{rollout.training.gpus} train, {rollout.server.gpus} serve, {where}",
        "step time": str(step),
        "tokens/s": f"{result.tokens / seconds(step):,.0f}",
    }
    yield share_table("where the time goes", result.breakdown, step, bars=True)
    rate = result.generation.throughput["output_tokens_per_s"]
    length = rollout.training.training.sequence_length
    messages, within = len(transfers.between), sum(transfers.within.values()) / 1e9
    between = f"{transfers.total / 1e9:,.2f} GB in {messages} messages"
    yield {
        "generation": f"{rollout.answers:,} answers, {rate:,.0f} tokens/s",
        "slowest tenth": f"{result.tail} of it after nine in ten answers are there",
        "training": f"{result.sequences} sequences of {length:,} tokens",
        "resharding": f"{between}, {within:,.2f} GB in place",
    }
