"""A checked job: its spec, what follows from it, and which rank does which part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import numpy as np
from msgspec import structs

from rapid_des.arrays import Int64s
from rapid_des.config import to_yaml
from rapid_des.errors import ConfigError
from rapid_des.frontend.groups import (
    EXPERT_AXES,
    GROUPS,
    PARTS,
    ZERO_STAGES,
    RankLayout,
    Sharding,
    ShardingPolicy,
)
from rapid_des.frontend.layers.layer import Layer, LayerKind, numbered
from rapid_des.frontend.model import Model
from rapid_des.frontend.operations import Shard
from rapid_des.frontend.recompute import layer_kinds
from rapid_des.frontend.schedules import SCHEDULES, StageOrders, from_file, with_pairs
from rapid_des.frontend.schedules.schedule import PipelineSchedule, PipelineShape, Placement
from rapid_des.frontend.software import HostSpec, Software
from rapid_des.frontend.spec import InferenceSpec, JobSpec, RequestsSpec, TrainingSpec
from rapid_des.frontend.template import DOMAINS, Domain
from rapid_des.inputs import html_text
from rapid_des.units import ceil_divide


@dataclass(frozen=True)
class Job:
    """A job whose numbers fit together (`load_job` checks them).

    >>> from rapid_des.frontend import load_job
    >>> job = load_job("llama2_7b_train")
    >>> job.gpus, job.micro_batches, job.tokens
    (8, 16, 131072)
    """

    name: str = field(compare=False)
    file: str = field(compare=False)
    """Name of the file that it was read from, for error messages."""
    spec: JobSpec
    """The job file with its model and software in place of their names."""
    model: Model = field(hash=False)  # the spec holds what it follows from, and knows its hash
    changed: Callable[[Job, Mapping[str, object]], Job] = field(compare=False, repr=False)
    """Function that reads the job again with other values (loading is in a layer above)."""

    def replace(self, **changes: object) -> Job:
        """Return the job with other values, checked as a file is: keys of parallelism, training or inference.

        Other keys, as after --set, in a mapping: `job.replace(**{"model.layers": 16})`.

        >>> from rapid_des.frontend import load_job
        >>> load_job("llama2_7b_train").replace(tp=4, dp=1, micro_batch=2).spec.parallelism.tp
        4
        """
        return self.changed(self, changes)

    def as_yaml(self) -> str:
        """Return the text of a job file, its model in it, that loads to an equal job."""
        return to_yaml(self.spec)

    def _repr_html_(self) -> str:
        """Return the job's file for a notebook, its model and software in it."""
        title = f"{self.name}: {self.model.name}, {self.spec.phase}, {self.gpus:,} GPUs"
        return html_text(title) + html_text(to_yaml(self.spec, brief=True), "pre")

    @cached_property
    def layout(self) -> RankLayout:
        """The layout of ranks along tp, cp, dp and pp; ep splits dp·cp and is no axis of the rank count."""
        split = self.spec.parallelism
        sizes = {"tp": split.tp, "cp": split.cp, "ep": 1, "dp": split.dp, "pp": split.pp}
        return RankLayout(split.order, tuple(sizes[axis] for axis in split.order))

    @cached_property
    def expert_layout(self) -> RankLayout:
        """The layout of the same ranks along etp, ep and edp, for routed experts."""
        stages, split, etp = self.stages, self.spec.parallelism, self.spec.parallelism.expert_degree
        sizes = (etp, split.ep, self.gpus // stages // etp // split.ep, stages)
        by_stage = np.argsort(self.layout.coordinates("pp"), kind="stable")
        numbering = None if np.array_equal(by_stage, np.arange(self.gpus)) else tuple(by_stage.tolist())
        return RankLayout(("etp", "ep", "edp", "pp"), sizes, numbering)

    def layout_of(self, group: str) -> RankLayout:
        """Return the layout along whose axes a process group of the traffic table lies."""
        return self.layout if EXPERT_AXES.isdisjoint(GROUPS[group]) else self.expert_layout

    @property
    def gpus(self) -> int:
        """GPUs that the job uses."""
        return self.layout.ranks

    @property
    def software(self) -> Software:
        """The framework or engine that runs it."""
        assert isinstance(self.spec.software, Software), "load_job sets it"
        return self.spec.software

    @property
    def training(self) -> TrainingSpec:
        """The training section."""
        if self.spec.training is None:
            raise ConfigError("this is not a training job", file=self.file, key="training")
        return self.spec.training

    @property
    def inference(self) -> InferenceSpec:
        """The inference section."""
        if self.spec.inference is None:
            raise ConfigError("this is not an inference job", file=self.file, key="inference")
        return self.spec.inference

    @cached_property
    def host(self) -> HostSpec | None:
        """The host's cost of issuing work, and which passes it captures as graphs; None: issuing is free."""
        host, serving = self.spec.host, self.spec.inference
        if host is None:
            return None
        captured = host.captured if serving is not None and serving.cuda_graphs else "nothing"
        return structs.replace(host.of_group(self.spec.parallelism.tp, file=self.file), captured=captured)

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        return self.spec.parallelism.pp

    @cached_property
    def placement(self) -> Placement:
        """The part of the model that each chunk holds, by stage and chunk."""
        if self.spec.training is None:
            return tuple((stage,) for stage in range(self.stages))
        return self.schedule.placement(self.stages, self.shape.chunks)

    @cached_property
    def parts(self) -> int:
        """Number of parts that the layers are divided into."""
        return 1 + max(max(parts) for parts in self.placement)

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """Number of layers of each part of the model, in model order."""
        rule, count, parts = self.spec.parallelism.layers, self.model.spec.layers, self.parts
        if isinstance(rule, tuple):
            return rule
        if rule == "even":
            return (count // parts,) * parts
        share = [(count + 2) // parts] * parts
        share[0] -= 1
        share[-1] -= 1
        return tuple(share)

    @cached_property
    def _pattern(self) -> tuple[LayerKind, ...]:
        """All layers in order as the job runs them."""
        return self.as_run(self.model.pattern, self.layers)

    def as_run(self, layers: Sequence[Layer], parts: Sequence[int]) -> tuple[LayerKind, ...]:
        """Return layers as the job runs them, this many in each part."""
        training = self.spec.training
        if training is None or training.recompute == "none":
            return tuple(map(LayerKind, layers))
        return layer_kinds(layers, parts, training)

    @cached_property
    def kinds(self) -> tuple[LayerKind, ...]:
        """The distinct layers, by the model's kind and what is recomputed, in order of first use."""
        return numbered(self._pattern)[0]

    @cached_property
    def kind_of_layer(self) -> tuple[int, ...]:
        """The index of each layer in `kinds`."""
        return numbered(self._pattern)[1]

    @property
    def predictions(self) -> int:
        """Modules that predict further tokens, which training alone runs."""
        return self.model.spec.predictions if self.spec.phase == "training" else 0

    @cached_property
    def prediction_layer(self) -> LayerKind:
        """The layer inside a module that predicts a further token."""
        return self.as_run(self.model.pattern[-1:], (1,))[0]

    @property
    def vocabulary(self) -> int:
        """Size of the padded vocabulary."""
        if self.spec.vocabulary_multiple is None:
            return self.model.spec.vocabulary
        multiple = self.spec.vocabulary_multiple * self.spec.parallelism.tp
        return ceil_divide(self.model.spec.vocabulary, multiple) * multiple

    @cached_property
    def micro_batches(self) -> int:
        """Micro-batches that pass the pipeline in one step."""
        if self.spec.phase == "training":
            return self.training.global_batch // (self.training.micro_batch * self.spec.parallelism.dp)
        return self.inference.total // (self.inference.micro_batch or self.inference.total)

    @property
    def schedule(self) -> PipelineSchedule:
        """The pipeline schedule of training."""
        chosen = self.training.schedule
        schedule = SCHEDULES[chosen] if isinstance(chosen, str) else from_file(chosen)
        return with_pairs(schedule) if self.training.overlap_batches else schedule

    @cached_property
    def shape(self) -> PipelineShape:
        """The arguments of the training schedule: stages, micro-batches, chunks and group size."""
        chunks = self.schedule.chunks or self.spec.parallelism.chunks
        return PipelineShape(self.stages, self.micro_batches, chunks, self.training.micro_batch_group)

    @cached_property
    def stage_orders(self) -> StageOrders:
        """The items of each stage in a training step, in order."""
        return self.schedule.stage_orders(self.shape)

    @cached_property
    def asks_by_need(self) -> bool:
        """Whether stages post receives in the order of need, else in the order in which messages are made."""
        return self.schedule.by_need(self.shape)

    @property
    def batches_messages(self) -> bool:
        """Whether messages between stages go through the communicator of all stages."""
        return self.training.batched_messages and not self.overlaps_pipeline

    @cached_property
    def overlaps_pipeline(self) -> bool:
        """Whether pipeline messages overlap compute."""
        chosen = self.training.overlap_pipeline
        return self.schedule.ahead if chosen is None else chosen

    @property
    def scatters_boundary(self) -> bool:
        """Whether each tp rank sends a part of the stage output that all of them hold."""
        split = self.spec.parallelism
        return self.training.scatter_gather and split.tp > 1 and not split.sequence_parallel

    @cached_property
    def message_bytes(self) -> int:
        """Bytes of one rank's message to the next stage."""
        return ceil_divide(self.training_shard.boundary_bytes, self.members("tp") ** self.scatters_boundary)

    def members(self, group: str) -> int:
        """Return how many ranks a process group of the traffic table has."""
        if group == "embedding":
            return len(self.table_stages) if self.ties_across_stages else 1
        if group in PARTS:
            base, inner = PARTS[group]
            run = self._run(group)
            return run if inner else self.members(base) // run
        copies = len(self.copies[0]) if group in self.replica_groups else 1
        return copies * prod(self.layout_of(group).size(axis) for axis in GROUPS[group])

    @cached_property
    def copies(self) -> tuple[tuple[int, ...], ...]:
        """The stages that hold the same parts, together; as many of each."""
        alike: dict[frozenset[int], tuple[int, ...]] = {}
        for stage, parts in enumerate(self.placement):
            alike[frozenset(parts)] = (*alike.get(frozenset(parts), ()), stage)
        return tuple(alike.values())

    @property
    def replica_groups(self) -> frozenset[str]:
        """The process groups that hold copies of the same parameters."""
        return frozenset(("gradient", "expert_gradient") if self.model.has_experts else ("gradient",))

    def rows(self, group: str) -> Int64s:
        """Return the process groups of one kind as rows of ranks, ascending.

        Replicas are all ranks that hold the same parameters, in stages that hold the same parts too.
        """
        if group in PARTS:
            return self._part_rows(group)
        layout = self.layout_of(group)
        rows = layout.rows(GROUPS[group])
        if group == "embedding":
            return rows[:, list(self.table_stages)]
        if group not in self.replica_groups or len(self.copies[0]) == 1:
            return rows
        stage, lines = layout.coordinates("pp"), layout.rows(("pp",))
        line_of = layout.group_numbers(("pp",))
        alike = np.full((self.stages, len(self.copies[0])), -1)
        alike[[together[0] for together in self.copies]] = self.copies
        here = alike[stage[rows[:, 0]]]
        chosen = rows[here[:, 0] >= 0]
        joined = lines[line_of[chosen][:, :, None], here[here[:, 0] >= 0][:, None, :]]
        return np.sort(joined.reshape(len(chosen), -1), axis=1)

    def _part_rows(self, group: str) -> Int64s:
        """Return the rows of a group that is part of another one."""
        base, inner = PARTS[group]
        whole = self.rows(base)
        runs = whole.reshape(len(whole), -1, self._run(group))
        parts = runs if inner else runs.transpose(0, 2, 1)
        return parts.reshape(-1, parts.shape[2])

    def _run(self, group: str) -> int:
        """Return how many consecutive members of the parent group one of `PARTS` spans."""
        if PARTS[group][0] == "cp":
            return self.spec.parallelism.head_degree
        if group.endswith("reshard"):
            reshard = True if self.spec.training is None else self.spec.training.reshard
            return 1 if isinstance(reshard, bool) else reshard
        return self.members(PARTS[group][0]) // self.spec.parallelism.dp_replicate

    @property
    def sharding(self) -> Sharding:
        """How replicas hold the model's state in training."""
        return self.shardings["dense"]

    @cached_property
    def shardings(self) -> Mapping[Domain, Sharding]:
        """The shardings of dense parameters, and of routed experts."""
        trained, found = ZERO_STAGES[self.training.zero_stage], dict[Domain, Sharding]()
        policies = (trained, trained.for_frozen()) if self.spec.freezes else (trained,)
        for policy, (model, experts) in zip(policies, DOMAINS, strict=False):
            found[model] = self._sharding(policy, "gradient", "")
            if self.model.has_experts:
                found[experts] = self._sharding(policy.for_experts(), "expert_gradient", "expert_")
        return found

    def _sharding(self, policy: ShardingPolicy, group: str, prefix: str) -> Sharding:
        """Return how a group of replicas applies a policy: as a whole, or per copy of the state."""
        training, instances = self.training, self.spec.parallelism.dp_replicate
        each, reshard = training.reduce_each_micro_batch, training.reshard
        replicas = self.members(group) // instances
        shared = isinstance(reshard, bool) or replicas == 1
        return Sharding(
            policy,
            group=f"{prefix}shard" if instances > 1 else group,
            replicas=replicas,
            ahead=training.overlap_parameters,
            each="gradients" in policy.split if each is None else each,
            instances=instances,
            across=f"{prefix[:1]}instances.reduce",
            reshard_ranks=0 if shared else reshard,
            reshard_group=f"{prefix}reshard",
        )

    @property
    def ties_across_stages(self) -> bool:
        """Whether the first part's stage and the last one's hold copies of one table."""
        shares = self.model.spec.tied_embeddings or self.predictions > 0
        return shares and len(self.table_stages) > 1

    @cached_property
    def table_stages(self) -> tuple[int, ...]:
        """The stages of the first part and of the last one, of which some rank holds only one; else one."""
        ends = [{stage for stage, parts in enumerate(self.placement) if part in parts}
                for part in (0, self.parts - 1)]  # fmt: skip
        return tuple(sorted(ends[0] | ends[1])) if ends[0] != ends[1] else (min(ends[0]),)

    def shard(self, sequences: int, query_length: int, key_length: int) -> Shard:
        """Return a rank's dimensions in a pass of this many sequences and positions."""
        training = self.spec.training if self.spec.phase == "training" else None
        return Shard(
            model=self.model.spec,
            precision=self.spec.precision,
            fusion=self.spec.fusion, norm_in_sum=int(self.spec.norm_in_sum or 0) * (training is None),
            tp=self.spec.parallelism.tp,
            sequence_parallel=self.spec.parallelism.sequence_parallel,
            sequences=sequences, query_length=query_length, key_length=key_length,
            vocabulary=self.vocabulary, source=self.spec.source,
            cp=self.spec.parallelism.cp, cp_kind=self.spec.parallelism.cp_kind,
            cp_heads=self.spec.parallelism.head_degree,
            overlap_tp="none" if training is None else training.overlap_tp,
            overlap_tp_gradients=training is None or training.overlap_tp_gradients,
            sequence_copies=training is not None and training.sequence_copies,
            gathers_again=training is not None and training.recompute == "alternate",
            cross_entropy=self.spec.cross_entropy,
            ep=self.spec.parallelism.ep, etp=self.spec.parallelism.expert_degree,
            flash=self.spec.attention == "flash", dropout=training is not None and training.dropout,
            fused_accumulation=training is None or training.accumulates_in_products,
            logged_losses=0 if training is None else training.logged_losses,
            documents=() if training is None else training.documents, serving=training is None,
        )  # fmt: skip

    @cached_property
    def training_shard(self) -> Shard:
        """A rank's dimensions in one micro-batch of training."""
        length = self.training.sequence_length
        return self.shard(self.training.micro_batch, length // self.spec.parallelism.cp, length)

    @property
    def tokens(self) -> int:
        """Tokens that a step trains on, or that the requests of all replicas generate."""
        if self.spec.phase == "training":
            return self.training.global_batch * self.training.sequence_length
        generated = sum(kind.count * kind.output_length for kind in self.inference.kinds)
        return self.spec.parallelism.dp * generated

    def _forward_flops(self, length: int) -> int:
        """Return the forward FLOPs of one document of every sequence of a training step."""
        batch, positions = self.training.global_batch, range(1, length + 1)
        forward = self.model.forward_flops(batch, positions, logits=batch * length)
        return forward + self.predictions * self.model.prediction_flops(batch, positions)

    @property
    def model_flops(self) -> int:
        """FLOPs of the model itself for MFU: forward, and in training twice that for backward.

        Where adapters alone are trained the backward is as much as the forward: gradients of inputs.
        Attention counts what a causal mask leaves: of n positions n·(n + 1)/2 pairs.
        """
        if self.spec.phase == "training":
            spec, source, frozen = self.training, self.spec.source, self.spec.freezes
            passes = 3 if spec.adapters is None else 2
            encoded = self.model.encoder_flops(source, spec.sequence_length, passes=passes, frozen=frozen)
            of_layers = sum(map(self._forward_flops, spec.documents or (spec.sequence_length,)))
            return passes * of_layers + spec.global_batch * encoded
        return sum(map(self._requests_flops, self.inference.kinds))

    def _requests_flops(self, kind: RequestsSpec) -> int:
        """Return the FLOPs of requests of one kind, up to their last token."""
        requests, end = kind.count * self.spec.parallelism.dp, kind.prompt_length + max(1, kind.output_length)
        every = range(kind.cached + 1, end)
        encoded = requests * self.model.encoder_flops(self.spec.source, len(every))
        return encoded + self.model.forward_flops(requests, every, logits=requests * kind.output_length)
