"""The job's routing of tokens to experts, applied to its model's layers, and how ranks differ by it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from msgspec import Struct, structs

from rapid_des.arrays import Int64s
from rapid_des.chakra.trace import Exchange
from rapid_des.config import count_rows
from rapid_des.errors import ConfigError
from rapid_des.frontend.job import Job
from rapid_des.frontend.layers.dispatch import placed, weights_of
from rapid_des.frontend.layers.experts import Experts
from rapid_des.frontend.layers.layer import Layer
from rapid_des.frontend.model import Model
from rapid_des.frontend.software import Software
from rapid_des.frontend.spec import BalancedLoad, HistogramLoad, JobSpec, RoutingSpec
from rapid_des.network.specs import DeepEp, HybridEp
from rapid_des.values import replace


def with_products(model: Model, software: Software) -> Model:
    """Return a model whose experts multiply as the software profile states."""
    if software.experts == "one_kernel":
        return model
    start = int(software.expert_start or 0)
    pattern = tuple(
        replace(layer, feed_forward=replace(layer.feed_forward, kernel_each=True, start=start))
        if isinstance(layer.feed_forward, Experts)
        else layer
        for layer in model.pattern
    )
    return replace(model, pattern=pattern)


def with_routing(model: Model, spec: JobSpec, file: str) -> Model:
    """Return a job's model with the job's routing in its layers; a `ConfigError` names what does not fit."""
    routing = spec.routing
    if routing == RoutingSpec():
        return model
    if not model.has_experts:
        raise ConfigError(f"{model.name} is dense, it routes nothing", file=file, key="routing")
    _check(spec, file)
    numbers = iter(range(len(model.pattern)))
    weights: dict[int, tuple[tuple[int, ...], ...]] = {}
    pattern = []
    for layer in model.pattern:
        experts = layer.feed_forward
        if not isinstance(experts, Experts):
            pattern.append(layer)
            continue
        if experts.experts not in weights:
            weights[experts.experts] = _weights(model, routing, experts.experts, file)
        pattern.append(_routed(layer, experts, spec, (weights[experts.experts], next(numbers))))
    return replace(model, pattern=tuple(pattern))


def with_counts(spec: JobSpec, path: Path) -> JobSpec:
    """Return a job's spec with the counts of its histogram's file; a `ConfigError` names a bad line."""
    load = spec.routing.load
    if not isinstance(load, HistogramLoad):
        return spec
    key = "routing.load"
    if bool(load.file) == bool(load.counts):
        raise ConfigError("give either counts or a file of them", file=str(path), key=key)
    if load.file is None:
        return spec
    counts = count_rows(path.parent / load.file)
    routing = structs.replace(spec.routing, load=structs.replace(load, counts=counts, file=None))
    return structs.replace(spec, routing=routing)


def _weights(model: Model, routing: RoutingSpec, experts: int, file: str) -> tuple[tuple[int, ...], ...]:
    layers = sum(isinstance(layer.feed_forward, Experts) for layer in model.pattern)
    try:
        return weights_of(routing.load, experts, layers, "routing.load.counts")
    except ConfigError as error:
        raise ConfigError(error.message, file=file, key=error.key) from None


def _check(spec: JobSpec, file: str) -> None:
    routing = spec.routing
    if routing.redundant and spec.phase == "training":
        problem = "copies of an expert would need their gradients summed; redundant experts are for inference"
        raise ConfigError(problem, file=file, key="routing.redundant")
    if routing.nodes is not None and not routing.sends_once:
        problem = f"{routing.dispatcher} sends every copy by itself; nodes count with deepep and hybridep"
        raise ConfigError(problem, file=file, key="routing.nodes")


def _routed(
    layer: Layer, experts: Experts, spec: JobSpec, weights: tuple[tuple[tuple[int, ...], ...], int]
) -> Layer:
    """Return a layer with its routing; `weights` are all layers', and which of them is its own."""
    routing, ep = spec.routing, spec.parallelism.ep
    of_layers, number = weights
    where = None
    if of_layers and (experts.experts + routing.redundant) % ep == 0:
        where = placed(of_layers[number], ep, routing.placement, routing.redundant)
    plain = structs.replace(routing, load=BalancedLoad())
    dispatch = replace(experts.dispatch, routing=plain, placed=where)
    return replace(layer, feed_forward=replace(experts, dispatch=dispatch))


def _experts(job: Job) -> Iterator[Experts]:
    halves = (layer.feed_forward for layer in job.model.kinds)
    return (half for half in halves if isinstance(half, Experts))


def differs_by_rank(job: Job) -> bool:
    """Return whether ranks that hold other experts have other work."""
    return job.spec.parallelism.ep > 1 and any(
        experts.dispatch.uneven is not None for experts in _experts(job)
    )


def places(job: Job) -> int:
    """Return the number of kinds of ranks in a stage: ep where experts' loads differ, else 1."""
    return job.spec.parallelism.ep if differs_by_rank(job) else 1


def place_of_ranks(job: Job) -> Int64s:
    """Return the index of each rank's kind among `places`."""
    if places(job) == 1:
        return np.zeros(job.gpus, np.int64)
    return job.expert_layout.coordinates("ep")


class LayerLoad(Struct, frozen=True):
    """The expert load of ranks in the layers of a kind, relative to their mean."""

    layers: tuple[int, ...]
    busiest_expert: float
    busiest_rank: float
    idlest_rank: float


def layer_loads(job: Job) -> tuple[LayerLoad, ...]:
    """Return the loads of each kind of layer whose experts get unlike many copies."""
    loads = []
    for kind, layer in enumerate(job.model.kinds):
        half = layer.feed_forward
        if isinstance(half, Experts) and half.dispatch.uneven is not None:
            placed, capacity = half.dispatch.uneven, half.dispatch.capacity
            ranks, experts = (
                placed.of_ranks(capacity),
                replace(placed, ranks=len(placed.weights)).of_ranks(capacity),
            )
            layers = tuple(n for n, number in enumerate(job.model.kind_of_layer) if number == kind)
            mean = sum(ranks) / len(ranks)
            most = max(experts) * len(experts) / sum(experts)
            loads.append(LayerLoad(layers, most, max(ranks) / mean, min(ranks) / mean))
    return tuple(loads)


def heaviest_place(job: Job) -> int:
    """Return the kind of rank that computes most copies over all layers."""
    total = np.zeros(places(job), np.int64)
    if len(total) > 1:
        for number in job.model.kind_of_layer:
            experts = job.model.kinds[number].feed_forward
            if isinstance(experts, Experts) and experts.dispatch.uneven is not None:
                total += np.array(experts.dispatch.uneven.of_ranks(experts.dispatch.capacity))
    return int(np.argmax(total))


def exchanges(job: Job) -> tuple[Exchange, ...]:
    """Return the uneven distributions of a job's all-to-alls."""
    once = (True, False) if job.spec.phase == "inference" else (True,)
    spreads = (
        half.dispatch.exchange(returns=returns, packed=packed)
        for half in _experts(job)
        for packed in once
        for returns in (False, True)
    )
    return tuple(dict.fromkeys(spread for spread in spreads if spread is not None))


def libraries_json(job: Job) -> str:
    """Return the communication libraries of a job's software, with what its dispatcher brings."""
    if not job.spec.routing.sends_once:
        return job.software.libraries_json()
    first = next(_experts(job)).dispatch
    buffer: DeepEp | HybridEp = DeepEp(kernel="by_exchange", experts=first.physical, topk=first.topk)
    if job.spec.routing.dispatcher == "hybridep":
        buffer = HybridEp()
    communication = structs.replace(job.software.communication, ep=buffer)
    return structs.replace(job.software, communication=communication).libraries_json()
