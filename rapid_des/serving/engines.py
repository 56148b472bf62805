"""The engine of a job's replicas: what the job, its machine and its requests make of their settings."""

from __future__ import annotations

from msgspec import structs

from rapid_des.bounded_cache import BoundedCache
from rapid_des.errors import ConfigError, InfeasibleJobError
from rapid_des.frontend import Job
from rapid_des.frontend.memory.serving import kv_capacity
from rapid_des.frontend.servers import ServingSpec
from rapid_des.frontend.spec import KvPool
from rapid_des.machine import Machine
from rapid_des.serving.adapters import Lora
from rapid_des.serving.costs import PassCosts
from rapid_des.serving.drafts import Drafts
from rapid_des.serving.engine import Engine
from rapid_des.serving.half_batches import costs_of
from rapid_des.serving.policies import WHOLE_PROMPTS, Habits, policy_of
from rapid_des.serving.pools import Pool, embeds, of_replica, sharing
from rapid_des.serving.prefix_cache import LowerTier
from rapid_des.serving.shared_pool import SharedPool
from rapid_des.serving.workload import Workload
from rapid_des.units import ceil_divide, serialization_time
from rapid_des.values import replace


def iteration_costs(job: Job, machine: Machine, cache: BoundedCache | None) -> PassCosts:
    """Return the costs of a replica's iterations, those of earlier servers with `cache` among them."""
    priced = as_priced(job)
    if cache is None:
        return costs_of(priced, machine)
    return cache.get_or_make(("iterations", priced, machine), lambda: costs_of(priced, machine, cache))


def as_priced(job: Job) -> Job:
    """Return the job without the size of its KV cache, and of its `serving` section with the task alone.

    The rest decides which iterations there are, and not how long they take.
    """
    memory = structs.replace(job.spec.memory, kv_pool=None)
    serving = ServingSpec(task="embed") if embeds(job) else None
    return replace(job, spec=structs.replace(job.spec, serving=serving, memory=memory))


def engine_of(job: Job, machine: Machine, workload: Workload, cache: BoundedCache | None) -> Engine:
    """Return the engine of a job's replicas on a healthy machine, for these requests.

    `ConfigError` for requests that no replica could ever answer.
    """
    _check_positions(job, workload)
    engine = replace(_engine(job, machine, workload, cache), drafts=_drafts(job, workload.seed))
    _check_room(job, workload, engine)
    return engine


def _engine(job: Job, machine: Machine, workload: Workload, cache: BoundedCache | None) -> Engine:
    spec, alone = job.spec.serving or ServingSpec(), of_replica(job)
    pool = job.spec.memory.kv_pool
    if pool is None:
        problem = f"the profile {job.software.name} does not say how large the KV cache is; state it here"
        raise ConfigError(problem, file=job.file, key="memory.kv_pool")
    tokens, checked = spec.max_batched_tokens or pool.tokens, 1
    if job.inference.speculative is not None:
        checked += job.inference.speculative.tokens
    if tokens < checked:
        problem = f"{tokens} tokens of an iteration are fewer than the {checked} of a request with its drafts"
        raise ConfigError(problem, file=job.file, key="serving.max_batched_tokens")
    sequences = min(spec.max_sequences or pool.sequences, tokens // checked)
    limits = structs.replace(pool, tokens=tokens, sequences=sequences)
    lora = None if spec.lora is None else Lora(alone, machine, spec.lora)
    adapters = 0 if lora is None else lora.slots * lora.bytes
    costs = iteration_costs(alone, machine, cache)
    return Engine(
        policy=policy_of(spec.policy) if job.model.is_causal else WHOLE_PROMPTS,
        costs=costs,
        shares=costs.shares,
        pages=_pages(alone, machine, limits, workload, adapters),
        page_size=pool.page,
        max_batched_tokens=limits.tokens,
        max_sequences=limits.sequences,
        order=spec.order,
        habits=Habits(
            ahead=spec.schedule_ahead,
            receive_interval=spec.receive_interval,
            wait_iterations=spec.wait_iterations,
            wait_tokens=spec.wait_share * limits.tokens,
        ),
        swap=_swap(alone, machine, "serving.preemption") if spec.preemption == "swap" else 0,
        lora=lora,
        together=sharing(job),
        gpus=Pool(job, 1).each,
        samples=not embeds(job),
        prefix_tiers=_tiers(alone, machine, pool.page, spec),
        prefix_pool=_shared_pool(job, pool.page, spec),
        host_pages=_host_pages(alone, pool.page, spec),
        fetch=_swap(alone, machine, "serving.host_cache") if spec.host_cache else 0,
    )


def _tiers(job: Job, machine: Machine, page: int, spec: ServingSpec) -> tuple[LowerTier, ...] | None:
    """Return the memory below the GPU of a cache of prefixes; None: there is no such cache."""
    if spec.prefix_cache is None:
        return None
    many, pool = 1 << 12, Pool(job, 1)
    tiers = []
    for place, tier in enumerate(spec.prefix_cache.tiers):
        if tier.bandwidth is None:
            load = _swap(job, machine, f"serving.prefix_cache.tiers[{place}].bandwidth")
        else:
            load = max(1, serialization_time(pool.held(many), tier.bandwidth) // many)
        tiers.append(LowerTier(tier.name, int(tier.capacity) // max(1, pool.held(page)), load))
    return tuple(tiers)


def _shared_pool(job: Job, page: int, spec: ServingSpec) -> SharedPool | None:
    """Return the empty pool that the replicas' caches of prefixes share."""
    stated = None if spec.prefix_cache is None else spec.prefix_cache.pool
    if stated is None:
        return None
    of_gpu = max(1, Pool(job, 1).held(page))
    whole = of_gpu * Pool(job, 1).each
    return SharedPool(
        stated.name,
        pages=int(stated.capacity) // whole,
        page_size=page,
        read=max(1, serialization_time(whole, stated.bandwidth)),
        alone=0 if stated.gpu_bandwidth is None else serialization_time(of_gpu, stated.gpu_bandwidth),
        through=stated.write == "through",
    )


def _host_pages(job: Job, page: int, spec: ServingSpec) -> int:
    """Return how many pages of idle sessions the host's memory holds."""
    return int(spec.host_cache or 0) // max(1, Pool(job, 1).held(page))


def _swap(job: Job, machine: Machine, key: str) -> int:
    """Return the picoseconds to move the keys and values of a token between a GPU and its host."""
    host = machine.device.spec.host
    if host is None:
        problem = f"device {machine.device.spec.name} states no bandwidths of its `host`, to swap to"
        raise ConfigError(problem, file=job.file, key=key)
    many = 1 << 12
    return max(1, serialization_time(Pool(job, 1).held(many), min(host.to_host, host.from_host)) // many)


def _drafts(job: Job, seed: int) -> Drafts | None:
    spec = job.inference.speculative
    return None if spec is None else Drafts(spec.acceptance, seed)


def _pages(job: Job, machine: Machine, pool: KvPool, workload: Workload, adapters: int) -> int:
    """Return how many pages the KV cache of a replica has; `InfeasibleJobError` if there is room for none.

    `adapters`: bytes of a GPU that they take.
    """
    longest = structs.replace(
        job.inference,
        batch=1,
        prompt_length=int(workload.prompt.max()),
        output_length=int(workload.output.max()),
        requests=(),
        micro_batch=None,
    )
    memory = structs.replace(job.spec.memory, kv_pool=pool)
    asked = replace(job, spec=structs.replace(job.spec, inference=longest, memory=memory))
    capacity = kv_capacity(asked, int(machine.device.spec.hbm.capacity) - adapters)
    if capacity is None:  # requests keep nothing: as many run as may
        return pool.sequences * ceil_divide(int(workload.prompt.max()) + 1, pool.page)
    if capacity.size < 0 or not capacity.pages:
        raise InfeasibleJobError(f"{job.name}: {capacity.shortage}")
    return capacity.pages


def _check_positions(job: Job, workload: Workload) -> None:
    """Raise `ConfigError` for a request that is longer than the model's positions."""
    most = job.model.spec.max_positions
    if embeds(job):
        workload = replace(workload, output=0 * workload.output)
    _check_longest(job, workload, most, f"the model has max_positions {most}")


def _check_room(job: Job, workload: Workload, engine: Engine) -> None:
    """Raise `ConfigError` for a request that no replica could ever answer."""
    drafted = 0 if engine.drafts is None else engine.drafts.checked - 1
    room = engine.pages * engine.page_size - drafted
    if not job.model.is_causal:
        most = engine.max_batched_tokens
        whole = replace(workload, output=0 * workload.output)
        _check_longest(job, whole, most, f"an encoder takes prompts whole, and an iteration {most} tokens")
    besides = f" and {drafted} drafted" if drafted else ""
    _check_longest(job, workload, room, f"a replica's KV cache holds {room}{besides}")


def _check_longest(job: Job, workload: Workload, most: int, why: str) -> None:
    total = workload.prompt + workload.output
    longest = int(total.argmax())
    if total[longest] > most:
        lengths = f"{workload.prompt[longest]} tokens in and {workload.output[longest]} out"
        raise ConfigError(f"request {longest} has {lengths}; {why}", file=job.file, key="serving")
