"""Faults with distributions for numbers and random places: what one draw of many makes of them.

    random=links count=poisson(2) within=nodes bandwidth=normal(0.5,0.1)

A draw is a function of the study's seed, the draw's id and the healthy fabric alone, never of a job: jobs see
the same faults (common random numbers), and an id names the same ones anywhere. Every number has its own
uniform variate, made of (seed, id, which fault, which number), which an inverse distribution function turns
into the number. What is drawn is named: `link=gpu3-gpu4 bandwidth=0.48731`, so that it can be run again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias, cast, get_args
from zlib import crc32

import numpy as np
from msgspec import Struct, field

from rapid_des.config import Document, decode
from rapid_des.errors import ConfigError, TopologyError
from rapid_des.network.build import node_range
from rapid_des.network.fabric import Fabric
from rapid_des.network.faults.distributions import Distribution, distribution, is_distribution
from rapid_des.network.faults.effects import hit_by, links_where, mixed, nodes_where, rails
from rapid_des.network.faults.specs import Fault, Kind, check_fault, read_value, stated_words

Sampling: TypeAlias = Literal["independent", "latin"]
Draw: TypeAlias = tuple[Fault, ...]
"""The faults of one draw, each naming what it hits; none where a drawn count is 0."""
_Part: TypeAlias = tuple[str, str | int]
"""The key and the value of a target, such as ("link", "gpu0-gpu1")."""

DOMAINS = ("nodes", "switches", "rails", "dimensions")
"""The values that `within` allows."""
ROUND = 30
"""The number of draws in a round of Latin hypercube sampling: each variate falls once into each thirtieth."""
_TARGETS: Mapping[str, str] = {
    "gpus": "gpu",
    "nics": "nic",
    "switches": "switch",
    "nodes": "node",
    "rails": "rail",
    "dimensions": "dimension",
}


class Variates(Struct, frozen=True):
    """The uniform variates of one draw.

    >>> round(Variates(seed=1, number=7).uniform(0, "bandwidth"), 3)
    0.273
    """

    seed: int
    number: int
    """The number of the draw, from 0."""
    sampling: Sampling = "independent"

    def uniform(self, fault: int, name: str, part: int = 0) -> float:
        """Return the variate, from 0 to below 1, of a fault's number and of one of the parts that it hits."""
        slot = (self.seed, fault, crc32(name.encode()), part)
        within = mixed(*slot, self.number) / 2**64
        if self.sampling == "independent":
            return within
        round_, place = divmod(self.number, ROUND)
        order = sorted(range(ROUND), key=lambda index: mixed(*slot, 1, round_, index))
        return min((order[place] + within) / ROUND, 1 - 2**-53)


class FaultModel(Struct, frozen=True):
    """A fault of which numbers, the place or both are drawn.

    >>> model = parse_model("random=links count=1 bandwidth=normal(0.5,0.1)")
    >>> model.kind, [key for key, _ in model.numbers]
    ('links', ['bandwidth'])
    """

    text: str
    stated: tuple[tuple[str, object], ...]
    """The keys with fixed values, as a document holds them."""
    numbers: tuple[tuple[str, Distribution], ...]
    within: str | None = None

    @property
    def kind(self) -> Kind | None:
        """The kind of part that is drawn, if the place is random."""
        return cast(Kind | None, dict(self.stated).get("random"))

    @property
    def count(self) -> int | Distribution:
        """The number that is drawn."""
        stated_count = dict(self.numbers).get("count", dict(self.stated).get("count", 1))
        return stated_count if isinstance(stated_count, Distribution) else int(cast(int, stated_count))

    def fault(self, part: _Part | None, numbers: Mapping[str, object], seed: int) -> Fault:
        """Return the fault that hits one part, with its drawn numbers; `ConfigError` if these contradict."""
        tree = {key: value for key, value in self.stated if key not in _OF_PLACES or part is None} | {
            key: value for key, value in numbers.items() if key != "count"
        }
        if part is not None:
            tree[part[0]] = part[1]
        if {"jitter", "burst"} & tree.keys():
            tree["seed"] = seed
        file = f"--fault {self.text!r}"
        fault = decode(Document(Path(file), tree), Fault)
        check_fault(fault, file=file, key="")
        return fault


_OF_PLACES = ("random", "count", "where", "seed")


def parse_model(text: str) -> FaultModel:
    """Return the fault model that words state: those of `parse_fault`, with distributions and `within`.

    `ConfigError` names the contradiction.
    """
    file = f"--fault {text!r}"
    words = stated_words(text, file)
    within = words.pop("within", None)
    drawn, stated = list[tuple[str, Distribution]](), dict[str, object]()
    for key, value in words.items():
        if is_distribution(value, key):
            try:
                drawn.append((key, distribution(value, key)))
            except ConfigError as error:
                raise ConfigError(error.message, file=file, key=error.key) from None
        else:
            stated[key] = read_value(value)
    _check_places(stated, words, within, file)
    model = FaultModel(text, tuple(stated.items()), tuple(drawn), within)
    middle = {key: number.at(0.5) for key, number in model.numbers}
    _check(model, middle, file)
    return model


def _check(model: FaultModel, middle: Mapping[str, object], file: str) -> None:
    """Refuse what is contradictory whatever is drawn."""
    tree = dict(model.stated) | {key: value for key, value in middle.items() if key != "count"}
    if model.kind is not None:
        tree |= {"count": 1, "seed": 0}
    elif {"jitter", "burst"} & tree.keys():
        tree["seed"] = 0
    check_fault(decode(Document(Path(file), tree), Fault), file=file, key="")


def _check_places(
    stated: Mapping[str, object], words: Mapping[str, str], within: str | None, file: str
) -> None:
    if "seed" in words:
        raise ConfigError("the study's seed (--seed) draws; leave it out here", file=file, key="seed")
    if "random" in words and stated.get("random") not in get_args(Kind):
        problem = f"{words['random']!r} is not one of {', '.join(get_args(Kind))}"
        raise ConfigError(problem, file=file, key="random")
    if "random" in words and "count" not in words:
        raise ConfigError(
            "needs count: a number, or poisson(…), binomial(…), choice(…)", file=file, key="random"
        )
    if "count" in words and "random" not in words:
        raise ConfigError("only with random", file=file, key="count")
    count = stated.get("count", 1)
    if not isinstance(count, int) or count < 1:
        raise ConfigError(f"{count!r}; allowed: a whole number from 1, or one drawn", file=file, key="count")
    if within is not None and ("random" not in words or within not in DOMAINS):
        problem = f"{within!r}; allowed, with random: one of {', '.join(DOMAINS)}"
        raise ConfigError(problem, file=file, key="within")


class FaultDraws(Struct, frozen=True, eq=False, dict=True):
    """Several fault models on one fabric, ready to be drawn from.

    `TopologyError` where nothing meets a model.

    >>> from rapid_des.machine import load_machine
    >>> torus = load_machine("torus_2d_a100").healthy
    >>> draws = FaultDraws((parse_model("random=links count=1 bandwidth=normal(0.5,0.1)"),), torus)
    >>> [fault.words for fault in draws.draw(Variates(seed=1, number=0))]
    ['link=gpu51-gpu59 bandwidth=0.370585']
    """

    models: tuple[FaultModel, ...]
    fabric: Fabric
    gpus_per_node: int | None = None
    _places: list[tuple[tuple[_Part, ...], ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for number, model in enumerate(self.models):
            try:
                self._places.append(tuple(self._domains(model)))
            except TopologyError as error:
                raise TopologyError(f"--fault {model.text!r}: {error}") from None
            if not self._places[number]:
                raise TopologyError(
                    f"--fault {model.text!r}: nothing of that kind is within one of {model.within}"
                )

    def draw(self, variates: Variates) -> Draw:
        """Return the faults of one draw."""
        return tuple(fault for number in range(len(self.models)) for fault in self._of(number, variates))

    def _of(self, number: int, variates: Variates) -> Iterator[Fault]:
        model, domains = self.models[number], self._places[number]
        parts: Sequence[_Part | None] = [None]
        if model.kind is not None:
            parts = self._drawn_parts(model, domains, number, variates)
        for place, part in enumerate(parts):
            numbers = {
                key: drawn.at(variates.uniform(number, key, place))
                for key, drawn in model.numbers
                if key != "count"
            }
            yield model.fault(part, numbers, mixed(variates.seed, variates.number, number, place) >> 33)

    def _drawn_parts(
        self, model: FaultModel, domains: Sequence[Sequence[_Part]], number: int, variates: Variates
    ) -> list[_Part]:
        """Return different parts of one domain, at most all, in the order of their ids (Floyd's sampling)."""
        parts = domains[int(variates.uniform(number, "within") * len(domains))]
        count = model.count
        if isinstance(count, Distribution):
            count = int(count.at(variates.uniform(number, "count")))
        chosen = set[int]()
        for place, last in enumerate(range(len(parts) - min(count, len(parts)), len(parts))):
            index = int(variates.uniform(number, "place", place) * (last + 1))
            chosen.add(last if index in chosen else index)
        return [parts[index] for index in sorted(chosen)]

    def parts(self, number: int) -> tuple[_Part, ...]:
        """Return all that a model with a random place may hit, by ascending id."""
        return tuple(part for domain in self._places[number] for part in domain)

    def _domains(self, model: FaultModel) -> Iterator[tuple[_Part, ...]]:
        """Yield the parts among which a model draws, of each domain those that are all within it."""
        if model.kind is None:
            hit_by(
                self.fabric,
                model.fault(None, {k: drawn.at(0.5) for k, drawn in model.numbers}, 0),
                self.gpus_per_node,
            )
            yield ()
            return
        parts = self._candidates(model.kind, cast(str | None, dict(model.stated).get("where")))
        least = model.count if isinstance(model.count, int) else 0
        if not parts:
            raise TopologyError("nothing of that kind is there, or meets where")
        if model.within is None:
            self._check_count(least, len(parts), model.kind)
            yield parts
            return
        links = [(part, self._links(part)) for part in parts]
        for domain in self._candidates(cast(Kind, model.within), None):
            inside = self._links(domain)
            inside_parts = tuple(part for part, part_links in links if part_links and part_links <= inside)
            if inside_parts and len(inside_parts) >= least:
                yield inside_parts

    @staticmethod
    def _check_count(count: int, most: int, kind: str) -> None:
        if count > most:
            raise TopologyError(f"count: {count} of {kind}; allowed: up to {most}")

    def _links(self, part: _Part) -> frozenset[int]:
        fault = Fault(bandwidth=0.5, **{part[0]: part[1]})  # type: ignore[arg-type]
        return frozenset(hit_by(self.fabric, fault, self.gpus_per_node).links.tolist())

    def _candidates(self, kind: Kind, where: str | None) -> tuple[_Part, ...]:
        """Return the parts of a kind that meet conditions, each by its name, by ascending id."""
        fabric = self.fabric
        if kind == "dimensions":
            return tuple((_TARGETS[kind], name) for name in fabric.dimensions)
        if kind == "rails":
            return tuple((_TARGETS[kind], int(place)) for place in rails(fabric, self.gpus_per_node))
        if kind == "nodes":
            hit_by(fabric, Fault(node=0, bandwidth=0.5), self.gpus_per_node)  # says if there are none
            size = self.gpus_per_node or 1
            firsts = nodes_where(fabric, where, np.arange(fabric.gpus // size) * size)
            return tuple((_TARGETS[kind], int(first) // size) for first in firsts)
        if kind in _TARGETS:
            first, count = node_range(fabric, _TARGETS[kind])
            nodes = nodes_where(fabric, where, first + np.arange(count))
            return tuple((_TARGETS[kind], int(node) - first) for node in nodes)
        return self._cables(links_where(fabric, where).tolist(), directed=kind == "directions")

    def _cables(self, links: Sequence[int], *, directed: bool) -> tuple[_Part, ...]:
        """Return links by name. With two directions, a link and its reverse count as one if both exist."""
        fabric, wanted = self.fabric, set(links)
        cables = list[_Part]()
        for link in links:
            ends = int(fabric.source[link]), int(fabric.destination[link])
            back = None if directed else self._known.get((ends[1], ends[0]))
            if back is None or back not in wanted:
                cables.append(("link", fabric.link_name(link)))
            elif ends[0] < ends[1]:
                cables.append(("link", "-".join(fabric.node_name(end) for end in ends)))
        return tuple(cables)

    @cached_property
    def _known(self) -> dict[tuple[int, int], int]:
        ends = zip(self.fabric.source.tolist(), self.fabric.destination.tolist(), strict=True)
        return {pair: link for link, pair in enumerate(ends)}
