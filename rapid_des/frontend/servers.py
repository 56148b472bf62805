"""The `serving` section of a job file: how a server takes requests as they come, and what befalls it."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from rapid_des.config import Spec
from rapid_des.extensions import POLICIES, is_known, names
from rapid_des.units import Bandwidth, Duration, Size

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=10**9)]
ENGINES = ("vllm_v1", "vllm_v0", "sglang", "trtllm_guaranteed_no_evict", "trtllm_max_utilization", "static")
"""The policies of this distribution; `rapid_des.serving.policies` has the function of each."""
Router: TypeAlias = Literal[
    "round_robin",
    "random",
    "least_requests",
    "least_tokens",
    "least_time",
    "most_free_pages",
    "session",
    "prefix_aware",
]


WorkloadName: TypeAlias = Literal[
    "azure_code_2023",
    "azure_conv_2023",
    "azure_code_2024",
    "azure_conv_2024",
    "burstgpt_conv",
    "burstgpt_api",
]


class StartupSpec(Spec, frozen=True):
    """The work of a replica before it serves: loading its weights, and its engine's initialisation."""

    initialise: Duration
    """Time for process, communicators, memory and captured graphs: all but the weights."""
    weights: Literal["storage", "peer"] = "storage"
    """Source of the weights: storage, or the GPUs of another replica."""
    storage: Bandwidth | None = None
    """Rate at which a node reads its storage; with weights storage."""

    def __post_init__(self) -> None:
        if (self.storage is None) == (self.weights == "storage"):
            stands = "needs `storage`" if self.storage is None else "reads no `storage`"
            raise ValueError(f"weights {self.weights} {stands}")
        if self.storage is not None and not self.storage:
            raise ValueError("`storage` must be above 0 B/s")


class LoraSpec(Spec, frozen=True):
    """Low-rank adapters of one model, of which each request names one (vLLM: --enable-lora)."""

    adapters: Count
    """Number of adapters, all in the host's memory."""
    rank: Annotated[int, msgspec.Meta(ge=1, le=2**12)]
    """Rank of the two factors of an adapter."""
    popularity: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.0
    """Requests name the i-th with a probability that goes as i to minus this (Zipf); 0: all alike."""
    max_loras: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 1
    """Most adapters on a GPU, and in one iteration (vLLM's name and default)."""
    matrices: tuple[str, ...] = ("attention.qkv", "attention.output", "ffn.in", "ffn.out")
    """Matrices of every layer that have an adapter, by the names of their operators."""


class CacheTierSpec(Spec, frozen=True):
    """Memory below the GPUs for the pages of a cache of prefixes, of each replica."""

    name: str
    """Its name in reports, such as host, ssd or pool."""
    capacity: Size
    """Bytes for each GPU of a replica."""
    bandwidth: Bandwidth | None = None
    """Rate at which a GPU loads from it. Unset: the device's `host` bandwidth."""

    def __post_init__(self) -> None:
        if not self.name or self.name == "gpu":
            raise ValueError(f"name: {self.name!r} is not a name of memory below the GPU")
        if self.bandwidth is not None and not self.bandwidth:
            raise ValueError("`bandwidth` must be above 0 B/s")


class SharedPoolSpec(Spec, frozen=True):
    """Memory or storage behind the network, for pages of all replicas (`rapid_des.serving.shared_pool`)."""

    capacity: Size
    """Bytes of the whole pool."""
    bandwidth: Bandwidth
    """Rate at which the pool serves the loads of all replicas, one after the other; writes have as much."""
    gpu_bandwidth: Bandwidth | None = None
    """Rate at which a GPU loads at most, such as that of its network card. Unset: that of the pool alone."""
    write: Literal["through", "back"] = "through"
    """When pages are written: as they are computed, or as they leave the memory of a replica."""
    name: str = "pool"
    """Its name in reports."""

    def __post_init__(self) -> None:
        if not self.bandwidth or (self.gpu_bandwidth is not None and not self.gpu_bandwidth):
            raise ValueError("`bandwidth` and `gpu_bandwidth` must be above 0 B/s")


class PrefixCacheSpec(Spec, frozen=True):
    """A cache of prefixes: pages that earlier requests have computed are found by their content."""

    tiers: tuple[CacheTierSpec, ...] = ()
    """Memory that pages go down to when the GPU has no room for them, the nearest first. Empty: they are
    dropped."""

    pool: SharedPoolSpec | None = None
    """Memory that all replicas share, below these tiers, as in `{capacity: 20 TB, bandwidth: 100 GB/s}`.
    Unset: none."""

    def __post_init__(self) -> None:
        names = ["gpu", *(tier.name for tier in self.tiers), *([self.pool.name] if self.pool else [])]
        if len(set(names)) < len(names):
            raise ValueError(f"tiers: {max(names, key=names.count)!r} stands twice")


class AutoscalerSpec(Spec, frozen=True):
    """When replicas start and stop: the job's `dp` is the most of them (`rapid_des.serving.autoscaler`)."""

    target: Annotated[float, msgspec.Meta(gt=0, le=1e6)]
    """Load of a replica that is aimed at, in the unit of `measure`."""
    measure: Literal["requests", "waiting", "kv_occupancy", "rate", "slo"] = "requests"
    """Load of a replica: its requests that are not answered, those of them that wait for the KV cache, the
    share of its pages that running requests hold, or the requests a second that come to it. With slo: the
    part of a limit of `slo` that nine tenths of the requests of the last interval do not exceed."""
    slo: str | None = None
    """Limits of the measure slo, as in "ttft=1s tpot=50ms"."""
    ahead: Duration | None = None
    """Time by which the load is foreseen, by the straight line through the loads of the last eight decisions:
    the larger of that load and today's counts. Unset: today's alone."""
    minimum: Count = 1
    """Least number of replicas, which serve from the start; of each pool where prompts have one."""
    interval: Duration | None = None
    """Time between two decisions. Unset: 15 s."""
    tolerance: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.1
    """Share of the target by which the load may differ before replicas change."""
    stabilization: Duration | None = None
    """Time before a smaller number is taken: the largest that was wanted in it counts. Unset: 300 s."""

    def __post_init__(self) -> None:
        if self.interval is not None and not self.interval:
            raise ValueError("`interval` must be above 0 s")
        if self.measure == "kv_occupancy" and self.target > 1:
            raise ValueError(f"target {self.target:g}: a share of the pages is at most 1")
        if (self.measure == "slo") != (self.slo is not None):
            needs = "needs `slo`" if self.slo is None else "reads no `slo`"
            raise ValueError(f"measure {self.measure} {needs}")


class RequestClassSpec(Spec, frozen=True):
    """Requests of one kind: who sends them, which limits they have, which model answers them."""

    name: str
    """Its name in reports."""
    share: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 1.0
    """How many requests are of this class, in proportion to the other classes."""
    slo: str | None = None
    """Limits of its requests, as in "ttft=1s tpot=50ms". Unset: none."""
    priority: Annotated[int, msgspec.Meta(ge=-(10**6), le=10**6)] = 0
    """Priority of its requests, read by `order: priority`; the highest goes first."""
    max_queued: Count | None = None
    """Number of waiting requests at each replica from which one of this class is turned away. Unset: that of
    the service."""
    model: str | None = None
    """Name of the model that answers: that of the job, or of one `beside` it. Unset: the job's."""
    prompt: str | Count | None = None
    """Tokens of its prompts, as `prompt` of the service. Unset: those."""
    output: str | Count | None = None
    """Tokens that it asks for. Unset: those of the service."""


class AgentsSpec(Spec, frozen=True):
    """Tasks of agents: turns of a conversation, and branches between them (`rapid_des.serving.agents`)."""

    turns: str | Count = 4
    """Number of turns of a task, as `prompt` states lengths: "uniform low=2 high=8"."""
    branches: str | Count | None = None
    """Number of sub-agents that each turn but the last starts; the next turn waits for all. Unset: none."""
    branch_prompt: str | Count | None = None
    """Tokens of their prompts, in which nothing said before stands. Unset: as `prompt` of the service."""
    branch_output: str | Count | None = None
    """Tokens of their answers, which the next turn's prompt has. Unset: as `output` of the service."""

    def __post_init__(self) -> None:
        if self.branches is None and (self.branch_prompt or self.branch_output):
            raise ValueError("branch_prompt and branch_output are of `branches`: state their number")


class ImagesSpec(Spec, frozen=True):
    """Images in prompts, and their encoder (`rapid_des.serving.images`)."""

    job: str
    """Job file or preset of the encoder: a vision transformer, its layout and software."""
    tokens: Count
    """Tokens that an image adds to a prompt."""
    count: str | Count = 1
    """Number of images of a request, as `prompt` states lengths."""
    share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    """Share of the requests that have images."""
    encoders: Count | None = None
    """Number of encoders on GPUs of their own. Unset: they run on the GPUs of the replicas."""


class BesideSpec(Spec, frozen=True):
    """Further replicas of a service, of another model, another layout or another machine."""

    job: str
    """Job file or preset of the replicas: model, layout, software, and what `serving` says of engines,
    `autoscaler` and `startup`. The rest of its `serving` is the service's."""
    machine: str
    """Machine file or preset on which they run, from its first GPU on."""
    settings: dict[str, Any] = {}
    """Keys of that job that are set, as in {parallelism.dp: 4}."""


class PromptLayoutSpec(Spec, frozen=True):
    """Parallelism of the replicas that only compute prompts, in the words of `parallelism`."""

    tp: Count = 1
    """Ranks that split every layer's matrices."""
    dp: Count = 1
    """Number of replicas."""
    ep: Count = 1
    """Ranks over which experts are spread, of as many replicas as tp has to be multiplied with."""
    etp: Count | None = None
    """Ranks that split every expert's matrices. Unset: all tp of them."""
    sequence_parallel: bool = False
    """Whether norms and sums between a layer's matrices are split over the tp ranks by tokens."""


class ServingSpec(Spec, frozen=True):
    """A server that takes requests as they come (`rapid-des serve`); the job's `dp` are its replicas."""

    task: Literal["generate", "embed"] = "generate"
    """What requests want: tokens, or what their prompt alone gives (embeddings, scores of pairs)."""
    documents: str | Count | None = None
    """Number of documents that a request of `task: embed` has scored against its query, as `prompt` states
    lengths: each pair is a prompt, and all of them come at once. Unset: a request is one prompt."""
    policy: str = "vllm_v1"
    """How an engine picks what an iteration computes: `vllm_v1`, `vllm_v0`, `sglang`,
    `trtllm_guaranteed_no_evict`, `trtllm_max_utilization`, `static`, or a policy of another package."""
    max_batched_tokens: Count | None = None
    """Tokens of one iteration at most, over all its requests (vLLM: max_num_batched_tokens). Unset: as
    `memory.kv_pool`, which says how large the KV cache is too, has them."""
    max_sequences: Count | None = None
    """Requests of one iteration at most (vLLM: max_num_seqs). Unset: as there."""
    wait_iterations: Annotated[int, msgspec.Meta(ge=0, le=10**6)] = 0
    """Iterations that prompts wait, while requests decode, for others to come until all together have the
    tokens of `wait_share` (TensorRT-LLM: batch_wait_timeout_iters)."""
    wait_share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    """Share of `max_batched_tokens`, decoding requests' tokens included (batch_wait_max_tokens_ratio)."""
    schedule_ahead: bool = False
    """Whether an engine plans its next iteration while one runs (vLLM: async scheduling, SGLang and
    TensorRT-LLM: overlap scheduler), so that who comes meanwhile is in the one after it."""
    receive_interval: Count = 1
    """Decode steps between two looks for new requests, who wait meanwhile (SGLang: scheduler-recv-interval).
    After an iteration with prompts, or with nothing to decode, an engine looks at once."""
    order: Literal["fcfs", "priority", "fair"] = "fcfs"
    """In which order requests wait: as they came, by the column `priority` of a trace, the highest first, or
    whose user got the least (`rapid_des.serving.policies`). By priority the lowest is preempted, too."""
    preemption: Literal["recompute", "swap"] = "recompute"
    """What becomes of a preempted request's keys and values: computed again, or brought to the host's memory
    and back over the device's `host`."""
    router: Router = "round_robin"
    """Which replica gets a request. prefix_aware: the one with the fewest tokens to compute and to make, with
    those of the request that it would not find there."""
    beside: tuple[BesideSpec, ...] = ()
    """Further replicas behind the same router, as in `[{job: my_job.yaml, machine: l40s_pcie_x8}]`. Requests
    go to those of their model, whatever the machine."""
    classes: tuple[RequestClassSpec, ...] = ()
    """Classes of requests, drawn by their shares, or by the column `class` of a trace (0 is the first).
    Empty: all are alike."""
    max_queued: Count | None = None
    """A request is turned away if this many wait at each replica that could take it (SGLang:
    max-queued-requests). Unset: none is."""
    front_ends: Count | None = None
    """Number of front ends, which receive and tokenize requests (vLLM: --api-server-count). A request waits
    for the one that is free first. Unset: one for each replica that takes requests."""
    prefill_replicas: Count | None = None
    """Number of the replicas that compute prompts alone; keys and values then go to one of the others, GPU to
    GPU over the machine's links, where messages wait for one another. Unset: all do both."""
    prefill_parallelism: PromptLayoutSpec | None = None
    """Layout of the replicas that compute prompts alone, if another than the job's, whose `parallelism` is
    that of those that answer; its `dp` is how many, and they have GPUs of their own. Unset: all are alike."""
    prefix: str | Count | None = None
    """Tokens of a common prefix that prompts begin with, as `prompt` states lengths: the KV cache holds it
    when they come, and it takes its pages once. With `prefix_cache` the first request computes it. Unset:
    none."""
    prefix_cache: PrefixCacheSpec | None = None
    """Pages are found by what they hold: a common prefix, what was said before in a session, and the
    `hash_ids` of a trace. `{}` is a cache on the GPU alone. Unset: `prefix` and sessions are found."""
    sessions: Count | None = None
    """Requests are turns of this many sessions, drawn evenly. A turn waits for the answer before it; its
    prompt is all that was said before and as many tokens as `prompt` states. What was said stays at the
    replica until pages are wanted, least recently used first. A session whose next turn does not fit into the
    model's positions starts over. Unset: of none, or a trace's, whose prompts are whole."""
    images: ImagesSpec | None = None
    """Requests have images, as in `{job: encoder.yaml, tokens: 576}`. Unset: text alone."""
    agents: AgentsSpec | None = None
    """Each arrival is a task of an agent, as in `{turns: 6, branches: 3}`: its turns and branches are
    requests, of which as many are served as the command says. Unset: it is one request."""
    session_think: Duration | None = None
    """Least time between an answer and its session's next turn: to think, or of tools. Unset: none."""
    lora: LoraSpec | None = None
    """Requests name adapters (`rapid_des.serving.adapters`). Unset: they are of the model itself."""
    host_cache: Size | None = None
    """Host memory a GPU for keys and values of idle sessions that leave the GPU (LMCache's
    max_local_cpu_size); what comes back takes the device's `host` bandwidth before its iteration."""
    users: Count = 1
    """Requests are of this many users, drawn evenly, or a trace's."""
    workload: WorkloadName | None = None
    """A public trace whose shape stands for `arrivals`, `prompt` and `output` that are not stated
    (`rapid_des.serving.workload`). Unset: none."""
    arrivals: str | None = None
    """When requests come, as --arrivals: "poisson rate=4/s". Unset: the command must say."""
    prompt: str | Count | None = None
    """Tokens of prompts, as --prompt: "lognormal mean=1024 cv=0.8". Unset: all `inference.prompt_length`."""
    output: str | Count | None = None
    """Tokens that requests generate, as --output. Unset: all `inference.output_length`."""
    autoscaler: AutoscalerSpec | None = None
    """When replicas start and stop, as in `{target: 32}`; starting takes `startup`. Unset: all serve."""
    startup: StartupSpec | None = None
    """What a replica needs before it serves again after an outage, or as it is started, as in
    `{initialise: 30 s, storage: 5 GB/s}`. Unset: nothing."""
    outages: tuple[str, ...] = ()
    """When replicas are out, or slow, as --outage: "replica=1 at=30s down=60s"."""
    on_outage: Literal["retry", "lose"] = "retry"
    """Whether requests of a replica that stops are served elsewhere, from the start, or never."""

    def __post_init__(self) -> None:
        if self.policy not in ENGINES and not is_known(POLICIES, self.policy):
            allowed = ", ".join((*ENGINES, *names(POLICIES)))
            raise ValueError(f"policy: {self.policy!r} is not one of {allowed}")
        twice = [name for name, count in Counter(each.name for each in self.classes).items() if count > 1]
        if twice:
            raise ValueError(f"classes: {twice[0]!r} stands twice")
        self._check_task()
        if self.agents is not None and self.sessions is not None:
            raise ValueError("sessions: the turns of `agents` are sessions by themselves; state one of both")
        if self.images is not None and (self.sessions is not None or self.agents is not None):
            raise ValueError("images: prompts of sessions and agents are text; state one of both")
        if self.agents is not None and self.classes:
            raise ValueError("classes: the requests of `agents` are of one class; state one of both")
        if self.order != "priority" and any(each.priority for each in self.classes):
            raise ValueError("classes: a priority is read with `order: priority` alone")

    def _check_task(self) -> None:
        """Raise `ValueError` for keys of another task."""
        if self.task == "generate":
            if self.documents is not None:
                raise ValueError("documents: pairs are scored with `task: embed`; this one generates")
            return
        for key in ("output", "sessions", "agents", "prefill_replicas", "prefill_parallelism", "images"):
            if getattr(self, key) is not None:
                raise ValueError(f"{key}: requests of `task: embed` are answered by their prompts alone")
        if any(each.output is not None for each in self.classes):
            raise ValueError("classes: requests of `task: embed` have no output; leave their lengths out")
