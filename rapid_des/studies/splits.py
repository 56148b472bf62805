"""The layouts of a job over GPUs: the values of each choice, and the legal combinations of them.

    (tp, cp, pp) ──► ep, etp ──► micro-batch ──► schedule, chunks ──► a family: recomputation, ZeRO, order

The frontend (`with_spec`) decides step by step whether a candidate is legal: if it refuses a split, it
refuses all candidates of this split. The remaining choices in a family are a product, whose jobs are made
when they are needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import permutations
from typing import Any, Literal

from msgspec import Struct, field, structs

from rapid_des.errors import ConfigError
from rapid_des.frontend import Job
from rapid_des.frontend.groups import ZERO_STAGES
from rapid_des.frontend.layer_spec import ExpertsSpec
from rapid_des.frontend.loading import with_ep, with_spec
from rapid_des.frontend.schedules import SCHEDULES, from_file
from rapid_des.frontend.spec import JobSpec, TrainingSpec
from rapid_des.machine import Machine
from rapid_des.studies.choices import CHOICES, ORDER
from rapid_des.studies.orders import order_key
from rapid_des.values import replace

_LEAST_TOKENS = 2048
"""The least number of tokens of a sequence on a context-parallel rank, unless --vary states cp."""
_USUAL_SCHEDULES = ("1f1b", "interleaved_1f1b")
"""The schedules that are tried by default; --vary schedule adds others."""


class Candidate(Struct, frozen=True):
    """One legal layout of a job."""

    job: Job

    @property
    def settings(self) -> dict[str, Any]:
        """The chosen values, by the names in rows of a plan."""
        spec, split = self.job.spec, self.job.spec.parallelism
        chosen: dict[str, Any] = {"tp": split.tp, "cp": split.cp, "pp": split.pp, "dp": split.dp}
        if self.job.model.has_experts:
            chosen |= {"ep": split.ep, "etp": split.expert_degree}
        chosen["sequence_parallel"] = split.sequence_parallel
        if spec.training is not None:
            training = spec.training
            chosen |= {
                "micro_batch": training.micro_batch,
                "schedule": training.schedule if isinstance(training.schedule, str) else "file",
                "chunks": self.job.shape.chunks,
                "recompute": training.recompute,
                "zero_stage": training.zero_stage,
            }
        else:
            chosen["batch"] = self.job.inference.batch
        return chosen | {"order": " ".join(split.order), "layers": split.layers}


class Family(Struct, frozen=True, dict=True):
    """Candidates that share split, micro-batch and schedule: all combinations of the other choices."""

    base: Job
    """The job with the cheapest value of each remaining choice."""
    stated: TrainingSpec | None
    """The training section of the job that is split; None for inference."""
    orders: tuple[Any, ...]
    recomputes: tuple[Any, ...] = (None,)
    zero_stages: tuple[int | None, ...] = (None,)
    """The ZeRO stages; inference has neither these nor recomputation."""

    def __len__(self) -> int:
        return len(self.orders) * len(self.recomputes) * len(self.zero_stages)

    def __iter__(self) -> Iterator[Candidate]:
        for recomputed in self.along("recomputes"):
            for sharded in recomputed.along("zero_stages"):
                yield from (Candidate(ordered.job) for ordered in sharded.along("orders"))

    def along(self, choice: Literal["orders", "recomputes", "zero_stages"]) -> Iterator[Family]:
        """Yield the sub-families with one value of a choice each."""
        base, stated, again, stages = self.base, self.stated, self.recomputes, self.zero_stages
        if choice == "orders":
            yield from (Family(base, stated, (value,), again, stages) for value in self.orders)
        elif choice == "recomputes":
            yield from (Family(base, stated, self.orders, (value,), stages) for value in again)
        else:
            yield from (Family(base, stated, self.orders, again, (value,)) for value in stages)

    @cached_property
    def job(self) -> Job:
        """The first candidate as a job; the frontend may still refuse it."""
        spec, training = self.base.spec, self.base.spec.training
        split = structs.replace(spec.parallelism, order=self.orders[0])
        chosen = None if training is None else self._chosen(training)
        return replace(self.base, spec=structs.replace(spec, parallelism=split, training=chosen))

    def _chosen(self, training: TrainingSpec) -> TrainingSpec:
        """Return the training section with the first choices, and the job's own values of related keys."""
        recompute, stage, stated = self.recomputes[0], self.zero_stages[0], self.stated
        assert stated is not None and stage is not None, "it trains"
        policy = ZERO_STAGES[stage]
        gathers = policy.gather is not None and not policy.by_unit
        changed: dict[str, Any] = {
            "recompute": recompute,
            "zero_stage": stage,
            "overlap_parameters": stated.overlap_parameters and gathers,
        }
        if recompute == stated.recompute:
            names = ("recompute_method", "recompute_layers", "recompute_kinds")
            changed |= {name: getattr(stated, name) for name in names}
        if stated.schedule == training.schedule:
            changed |= {name: getattr(stated, name) for name in ("micro_batch_group", "overlap_batches")}
        return structs.replace(training, **changed)


class Space(Struct):
    """The legal layouts of a job on a number of GPUs; iteration counts what the frontend refuses."""

    job: Job
    machine: Machine
    gpus: int
    vary: Mapping[str, Sequence[Any] | None] = field(default_factory=dict)
    """The values of a choice instead of the usual ones, by its name; None: all values."""
    refused: Counter[str] = field(default_factory=Counter)
    """The number of splits or candidates that each refusal excluded, by its key and message."""
    of_ep: dict[int, Job] = field(default_factory=dict)
    """The job by its degree of expert parallelism: placing experts takes long if their loads differ."""

    def __iter__(self) -> Iterator[Candidate]:
        for family in self.families():
            yield from family

    def families(self) -> Iterator[Family]:
        """Yield all families, those of one split in the order of micro-batches, the smallest first."""
        for base in self._splits():
            for placed in self._passes(base):
                yield from self._of_schedule(placed)

    def _values(self, name: str, usual: Iterable[Any], every: Iterable[Any]) -> list[Any]:
        """Return the values of a choice: the stated ones, all, or the usual ones and the job's own."""
        if name not in self.vary:
            own = self._own(name)
            return list(dict.fromkeys([*usual, *(value for value in every if value == own)]))
        stated = self.vary[name]
        return list(dict.fromkeys(every if stated is None else stated))

    def _own(self, name: str) -> Any:
        """Return the job's own value of a choice; None may be a value too."""
        spec = self.job.spec
        section = spec.parallelism if CHOICES[name].startswith("parallelism") else spec.training
        return getattr(section, name, None)

    def _legal(self, job: Job, spec: JobSpec) -> Job | None:
        try:
            return with_spec(replace(job), spec)
        except ConfigError as error:
            self.refused[f"{error.key}: {error.message}" if error.key else error.message] += 1
            return None

    def _splits(self) -> Iterator[Job]:
        """Yield a job for every (tp, cp, pp, ep, etp) with the cheapest other choices."""
        divisors = [n for n in range(1, self.gpus + 1) if self.gpus % n == 0]
        node = self.machine.spec.gpus_per_node or self.gpus
        serves = self.job.spec.training is None
        length = 0 if serves else self.job.training.sequence_length
        usual_cp = [n for n in divisors if n == 1 or length // n >= _LEAST_TOKENS]
        layers = self.job.model.spec.layers
        for tp in self._values("tp", [n for n in divisors if n <= node], divisors):
            for cp in self._values("cp", [1] if serves else usual_cp, divisors):
                stages = [n for n in divisors if n <= layers]
                for pp in self._values("pp", stages, stages):
                    if self.gpus % (tp * cp * pp) == 0:
                        yield from self._experts(tp, cp, pp)

    def _experts(self, tp: int, cp: int, pp: int) -> Iterator[Job]:
        """Yield the jobs of one (tp, cp, pp) for every layout of its experts."""
        dp = self.gpus // (tp * cp * pp)
        stated = self.job.spec.parallelism
        counts = [spec.experts for spec in _feed_forwards(self.job) if isinstance(spec, ExpertsSpec)]
        ranks = tp * cp * dp
        most, every = min(counts, default=1), counts[0] if counts else 1
        combinations = [n for n in range(1, most + 1) if ranks % n == every % n == 0]
        etps = self._values("etp", [1] if counts else [None], [1, None]) if counts else [None]
        for ep in self._values("ep", combinations, combinations):
            if ep not in self.of_ep:
                self.of_ep[ep] = with_ep(self.job, ep)
            for etp in etps if tp > 1 else [None]:
                split = structs.replace(
                    stated, tp=tp, cp=cp, pp=pp, dp=dp, ep=ep, etp=etp, chunks=1, order=ORDER,
                    dp_replicate=1, sequence_parallel=tp > 1 and self.job.spec.training is not None,
                )  # fmt: skip
                placed = self._placed(self.of_ep[ep], split, self._plain())
                if placed is not None:
                    yield placed

    def _plain(self) -> JobSpec:
        """Return the job's spec with the cheapest choices, which every split allows."""
        spec = self.job.spec
        if spec.training is None:
            return spec
        training = structs.replace(spec.training, schedule="1f1b", micro_batch=1, zero_stage=0,
            recompute="none", recompute_layers=None, recompute_method="uniform", recompute_kinds=(),
            overlap_parameters=False, micro_batch_group=None, overlap_batches=False)  # fmt: skip
        return structs.replace(spec, training=training)

    def _placed(self, job: Job, split: Any, spec: JobSpec, parts: int | None = None) -> Job | None:
        """Return a job with its layers on the parts of a split, or None if the frontend refuses it."""
        layers = layers_of(self.job, parts or split.pp)
        spec = structs.replace(spec, parallelism=structs.replace(split, layers=layers))
        if spec.inference is not None:
            batch, dp = spec.inference.batch, self.job.spec.parallelism.dp
            if (batch or 1) * dp % split.dp or (batch is None and dp != split.dp):
                self.refused[f"inference: its requests do not divide over dp {split.dp}"] += 1
                return None
            share = None if batch is None else batch * dp // split.dp
            spec = structs.replace(
                spec, inference=structs.replace(spec.inference, batch=share, micro_batch=None)
            )
        return self._legal(job, spec)

    def _passes(self, base: Job) -> Iterator[Job]:
        """Yield the jobs of one split by micro-batch, schedule and chunks."""
        if base.spec.training is None:
            yield base
            return
        batch, dp = base.training.global_batch, base.spec.parallelism.dp
        own = self.job.training.micro_batch
        sizes = [1 << n for n in range(20) if dp << n <= batch and batch % (dp << n) == 0]
        sizes += [own] if own not in sizes and batch % (dp * own) == 0 else []
        for micro_batch in sorted(self._values("micro_batch", sizes, sizes)):
            for schedule, chunks in self._schedules(base):
                training = structs.replace(base.training, micro_batch=micro_batch, schedule=schedule)
                split = structs.replace(base.spec.parallelism, chunks=chunks)
                kind = SCHEDULES.get(schedule) or from_file(schedule)
                parts = 1 + max(map(max, kind.placement(split.pp, kind.chunks or chunks)))
                placed = self._placed(base, split, structs.replace(base.spec, training=training), parts)
                if placed is not None and self._in_usual_groups(placed):
                    yield placed

    def _in_usual_groups(self, job: Job) -> bool:
        """Return whether micro-batches pass in groups of pp, which is the default of frameworks."""
        if job.training.schedule != "interleaved_1f1b" or job.micro_batches % job.stages == 0:
            return True
        self.refused["training.micro_batch_group: pp does not divide the micro-batches"] += 1
        return False

    def _schedules(self, base: Job) -> Iterator[tuple[Any, int]]:
        stated, pp, layers = self.job.training.schedule, base.stages, base.model.spec.layers
        usual = [*_USUAL_SCHEDULES, stated] if pp > 1 else ["1f1b"]
        for schedule in self._values("schedule", usual, SCHEDULES):
            known = SCHEDULES.get(schedule) or from_file(schedule)
            if known.chunks is not None:
                yield from [(schedule, 1)] if max(known.placement(pp, known.chunks)[0]) < layers else []
                continue
            even = [
                n for n in range(2, layers // pp + 1) if not layers % (pp * n) or not (layers + 2) % (pp * n)
            ]
            own = self.job.spec.parallelism.chunks
            even += [own] if own > 1 and own not in even else []
            for chunks in self._values("chunks", even, even):
                if pp * chunks <= layers:
                    yield schedule, chunks

    def _of_schedule(self, base: Job) -> Iterator[Family]:
        """Yield the families of one split and schedule: with sequence parallelism and without."""
        orders, split, stated = tuple(self._orders(base)), base.spec.parallelism, self.job.spec.training
        if stated is None:
            yield Family(base, None, orders)
            return
        again = [stated.recompute] if not isinstance(stated.recompute, str) else []
        recomputes = ["none", "selective", "full", *again]
        stages = list(ZERO_STAGES) if split.dp * split.cp > 1 else [0]
        parallel = [True, False] if split.tp > 1 else [False]
        if self.job.model.has_experts and split.tp > 1:
            parallel = [True]  # what the frontend needs where tokens stand on one tp rank each
        for chosen in self._values("sequence_parallel", parallel, parallel):
            placed = structs.replace(split, sequence_parallel=chosen)
            yield Family(
                replace(base, spec=structs.replace(base.spec, parallelism=placed)),
                stated,
                orders,
                tuple(self._values("recompute", recomputes, recomputes)),
                tuple(self._values("zero_stage", stages, stages)),
            )

    def _orders(self, base: Job) -> list[Any]:
        """Return the orders of axes that are not equivalent: usually dp inside pp, or outside."""
        split = base.spec.parallelism
        sizes = {"tp": split.tp, "cp": split.cp, "dp": split.dp, "pp": split.pp}
        usual = [ORDER, ("tp", "cp", "ep", "pp", "dp"), self.job.spec.parallelism.order]
        every = [("ep", *order) for order in permutations(("tp", "cp", "dp", "pp"))]
        distinct, plain = dict[Hashable, Any](), not self.job.model.has_experts  # who lie across the axes
        for order in self._values("order", usual, every):
            axes = [(axis, sizes[axis]) for axis in order if sizes.get(axis, 1) > 1]
            distinct.setdefault(order_key(axes, self.machine) if plain else tuple(axes), order)
        return list(distinct.values())


def _feed_forwards(job: Job) -> list[Any]:
    spec = job.model.spec
    return [
        spec.feed_forward,
        *(exception.feed_forward for exception in spec.exceptions if exception.feed_forward is not None),
    ]


def layers_of(job: Job, parts: int) -> Any:
    """Return the assignment of layers to parts: the job's own, even, or as even as possible.

    Embedding and head count as one layer each if the layers alone do not divide.
    """
    rule, count = job.spec.parallelism.layers, job.model.spec.layers
    if isinstance(rule, tuple) and len(rule) == parts:
        return rule
    if rule == "endpoints" and (count + 2) % parts == 0:
        return rule
    if count % parts == 0:
        return "even"
    if (count + 2) % parts == 0:
        return "endpoints"
    share, over = divmod(count + 2, parts)
    each = [share + (0 < place <= over) for place in range(parts)]
    return (each[0] - 1, *each[1:-1], each[-1] - 1)


def checked(candidate: Candidate, refused: Callable[[str], object]) -> Job | None:
    """Return the job of a candidate if it is legal; else call `refused` with the reason and return None."""
    try:
        return with_spec(candidate.job, candidate.job.spec)
    except ConfigError as error:
        refused(f"{error.key}: {error.message}" if error.key else error.message)
        return None
