"""Serve: a job, a machine and a workload made into a fleet, its run and its result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from msgspec import structs

from rapid_des.bounded_cache import BoundedCache
from rapid_des.errors import ConfigError, InfeasibleJobError
from rapid_des.frontend import Job
from rapid_des.frontend.build import check_size
from rapid_des.frontend.memory.serving import kv_capacity
from rapid_des.frontend.servers import ServingSpec, StartupSpec
from rapid_des.frontend.spec import KvPool
from rapid_des.machine import Machine
from rapid_des.serving.adapters import Lora
from rapid_des.serving.costs import PassCosts
from rapid_des.serving.drafts import Drafts
from rapid_des.serving.engine import Engine
from rapid_des.serving.fleet import ROUTERS, Fleet, Watch
from rapid_des.serving.policies import Habits, policy_of
from rapid_des.serving.pools import Pool, of_replica, pools_of, sharing
from rapid_des.serving.prefix_cache import LowerTier
from rapid_des.serving.result import ServeResult
from rapid_des.serving.transfers import TransferLinks, for_iterations
from rapid_des.serving.workload import WORKLOADS, Marks, Workload, draw, parse_arrivals, parse_lengths
from rapid_des.simulation import require_kind
from rapid_des.units import serialization_time
from rapid_des.values import replace


def serve(  # noqa: PLR0913 - what a server is asked, by name
    job: Job,
    machine: Machine,
    *,
    arrivals: str | None = None,
    requests: int = 1000,
    prompt: str | None = None,
    output: str | None = None,
    seed: int = 0,
    first: int = 0,
    watch: Watch = lambda *_: None,
    cache: BoundedCache | None = None,
) -> ServeResult:
    """Serve requests that come as `arrivals` says, and return what became of them.

    Texts that are not given stand in the job's `serving` section; lengths that stand nowhere are those of its
    `inference` section. An interrupt (^C) ends it with what is answered by then. `first`: the server's first
    GPU, for faults of the machine.

    >>> from rapid_des.frontend import load_job
    >>> from rapid_des.machine import load_machine
    >>> job, machine = load_job("llama2_7b_inference"), load_machine("dgx_a100")
    >>> result = serve(job, machine, arrivals="clients count=4", requests=8, output="uniform low=2 high=9")
    >>> len(result), result.kv_occupancy["max"] < 0.01
    (8, True)
    """
    require_kind(job, Job, "load_job")
    require_kind(machine, Machine, "load_machine")
    _ = job.inference  # or it is no job that serves
    workload = workload_of(
        job, {"arrivals": arrivals, "prompt": prompt, "output": output}, requests=requests, seed=seed
    )
    return serve_workload(job, machine, workload, first=first, watch=watch, cache=cache)


def serve_workload(  # noqa: PLR0913 - as above
    job: Job,
    machine: Machine,
    workload: Workload,
    *,
    first: int = 0,
    watch: Watch = lambda *_: None,
    cache: BoundedCache | None,
) -> ServeResult:
    """Serve requests that are known one by one; `first`: the server's first GPU, for faults."""
    spec, host, pools = job.spec.serving or ServingSpec(), job.host, pools_of(job)
    _check(job, pools, machine.fabric.gpus)
    _check_content(job, spec, workload)
    _check_scaling(job, spec, machine)
    steady = for_iterations(machine, sends=len(pools) > 1)
    healthy = steady.unfaulted
    _check_positions(job, workload)
    engine = replace(_engine(job, healthy, workload, cache), drafts=_drafts(job, workload.seed))
    of_prompts = engine if pools[0].job is job else _engine(pools[0].job, healthy, workload, cache)
    for each in (engine, of_prompts):
        _check_room(job, workload, each)
    fleet = Fleet(
        engine,
        workload,
        ROUTERS[spec.router],
        replicas=sum(pool.replicas for pool in pools),
        prompting=pools[0].replicas if len(pools) > 1 else 0,
        prompting_engine=of_prompts,
        transfer=TransferLinks(machine, engine.page_size, partial(_messages, pools)).send,
        client=int((host.request if host else None) or 0),
        tokenizing=int((host.prompt_token if host else None) or 0),
        front_ends=spec.front_ends or 0,
        latency=int((host.client if host else None) or 0),
        watch=watch,
        lose=spec.on_outage == "lose",
        autoscaler=spec.autoscaler,
    )
    if spec.autoscaler is not None and spec.startup is not None:
        fleet.startup = _startup(pools, machine, spec.startup, cache)
    if spec.outages or steady.faults:
        _fail(fleet, pools, (steady, first), cache)
    complete = fleet.run()
    device = machine.device.spec.name
    return ServeResult.of(fleet, name=job.name, gpus=pools[-1].end, device=device, interrupted=not complete)


def _check_content(job: Job, spec: ServingSpec, workload: Workload) -> None:
    """Raise a `ConfigError` for memory below the GPU that nothing would use."""
    if spec.host_cache and spec.prefix_cache is not None:
        problem = (
            "is of idle sessions; with a cache of prefixes the host is one of serving.prefix_cache.tiers"
        )
        raise ConfigError(problem, file=job.file, key="serving.host_cache")
    if spec.host_cache and "session" not in workload.marks:
        problem = "is of idle sessions, and requests are of none: state serving.sessions"
        raise ConfigError(problem, file=job.file, key="serving.host_cache")


def _check_scaling(job: Job, spec: ServingSpec, machine: Machine) -> None:
    """Raise a `ConfigError` for fleets that cannot grow and shrink."""
    if spec.autoscaler is None:
        return
    problem = ""
    if sharing(job) > 1:
        problem = f"replicas share experts: {sharing(job)} of them start and stop together"
    elif spec.outages or machine.faults:
        problem = "replicas start and stop by load alone: state no outages or faults beside it"
    elif spec.autoscaler.minimum > job.spec.parallelism.dp:
        problem = f"minimum {spec.autoscaler.minimum} is above the job's dp {job.spec.parallelism.dp}"
    if problem:
        raise ConfigError(problem, file=job.file, key="serving.autoscaler")


def _messages(pools: Sequence[Pool], source: int, target: int, tokens: int) -> Iterable[tuple[int, int, int]]:
    """Return who sends how many bytes to whom as a request goes from a replica to one that answers."""
    return pools[0].messages(pools[-1], source, target - pools[0].replicas, tokens)


def _startup(pools: Sequence[Pool], machine: Machine, spec: StartupSpec, cache: BoundedCache | None) -> int:
    """Return the picoseconds that a replica of any pool takes until it serves."""
    from rapid_des.serving.outages import startup_time

    return max(startup_time(pool.job, machine, spec, pool.alone, cache) for pool in pools)


def _fail(
    fleet: Fleet, pools: Sequence[Pool], where: tuple[Machine, int], cache: BoundedCache | None
) -> None:
    """Start the outages of a fleet's replicas, and the faults of the machine that slow them.

    `where`: the machine, and the server's first GPU.
    """
    from rapid_des.serving.outages import Slowness, events, failing, located, parse_outage

    machine, first = where
    healthy = machine.unfaulted
    slowness = Slowness(pools, machine, lambda job: iteration_costs(job, healthy, cache), first)
    spec = pools[-1].job.spec.serving or ServingSpec()
    outages = [located(parse_outage(text), pools, first) for text in spec.outages]
    if spec.startup is not None and outages:
        fleet.startup = _startup(pools, machine, spec.startup, cache)
    named = [outage for outage in outages if outage.reliability is None]
    fleet.outages = tuple(events(named, fleet.replicas, fleet.startup, slowness.meets))
    for outage in outages:
        if outage.reliability is not None:
            drawn = failing(pools, machine, outage.reliability, first)
            fleet.outages += tuple(drawn.outages(outage.seed, slowness.meets))
    for outage in outages:
        if outage.fault is not None and outage.replica is not None:
            slowness.check(outage.replica, outage.fault)
    fleet.priced = slowness.costs


def workload_of(job: Job, texts: dict[str, str | None], *, requests: int, seed: int) -> Workload:
    """Return the requests that the texts `arrivals`, `prompt` and `output` state, or else the job."""
    spec = job.spec.serving or ServingSpec()
    named = None if spec.workload is None else WORKLOADS[spec.workload]
    stated = {
        name: next(
            (value for value in (text, getattr(spec, name), getattr(named, name, None)) if value), None
        )
        for name, text in texts.items()
    }
    if stated["arrivals"] is None:
        raise ConfigError(
            "nothing says when requests come; --arrivals 'poisson rate=4/s'",
            file=job.file,
            key="serving.arrivals",
        )
    usual = {"prompt": job.inference.prompt_length, "output": job.inference.output_length}
    lengths = [
        parse_lengths(str(stated[name] or usual[name] or ""), f"--{name}") for name in ("prompt", "output")
    ]
    prefix = None if spec.prefix is None else parse_lengths(str(spec.prefix), "serving.prefix")
    adapters = None if spec.lora is None else (spec.lora.adapters, spec.lora.popularity)
    most = job.model.spec.max_positions
    marks = Marks(prefix, spec.sessions, int(spec.session_think or 0), most, spec.users, adapters)
    return draw(parse_arrivals(stated["arrivals"]), (lengths[0], lengths[1]), requests, seed, marks)


def iteration_costs(job: Job, machine: Machine, cache: BoundedCache | None) -> PassCosts:
    """Return the costs of a replica's iterations, those of earlier servers with `cache` among them."""
    priced = _as_priced(job)
    if cache is None:
        return PassCosts(priced, machine)
    return cache.get_or_make(("iterations", priced, machine), lambda: PassCosts(priced, machine, cache))


def _as_priced(job: Job) -> Job:
    """Return the job without its `serving` section and the size of its KV cache.

    These decide which iterations there are, and not how long they take.
    """
    memory = structs.replace(job.spec.memory, kv_pool=None)
    return replace(job, spec=structs.replace(job.spec, serving=None, memory=memory))


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
        policy=policy_of(spec.policy),
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
        prefix_tiers=_tiers(alone, machine, pool.page, spec),
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


def _check(job: Job, pools: Sequence[Pool], gpus: int) -> None:
    """Raise a `ConfigError` for jobs that cannot serve, and if the machine has too few GPUs."""
    if not job.model.is_causal:
        problem = (
            f"{job.model.name} is an encoder, which `run` predicts in batches; servers make tokens one by one"
        )
        raise ConfigError(problem, file=job.file, key="model")
    if job.spec.parallelism.cp > 1:
        problem = f"cp {job.spec.parallelism.cp} splits the prompts of static batches (`run`), not a server's"
        raise ConfigError(problem, file=job.file, key="parallelism.cp")
    if pools[0].job is job:
        check_size(job, gpus)
    elif pools[-1].end > gpus:
        counts = " and ".join(f"{pool.replicas} replicas of {pool.each}" for pool in pools)
        problem = f"{counts} take {pools[-1].end} GPUs, the machine has {gpus}"
        raise ConfigError(problem, file=job.file, key="serving.prefill_parallelism")


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
    assert capacity is not None, "the pool is stated"
    if capacity.size < 0 or not capacity.pages:
        raise InfeasibleJobError(f"{job.name}: {capacity.shortage}")
    return capacity.pages


def _check_positions(job: Job, workload: Workload) -> None:
    """Raise `ConfigError` for a request that is longer than the model's positions."""
    most = job.model.spec.max_positions
    _check_longest(job, workload, most, f"the model has max_positions {most}")


def _check_room(job: Job, workload: Workload, engine: Engine) -> None:
    """Raise `ConfigError` for a request that no replica could ever answer."""
    drafted = 0 if engine.drafts is None else engine.drafts.checked - 1
    room = engine.pages * engine.page_size - drafted
    besides = f" and {drafted} drafted" if drafted else ""
    _check_longest(job, workload, room, f"a replica's KV cache holds {room}{besides}")


def _check_longest(job: Job, workload: Workload, most: int, why: str) -> None:
    total = workload.prompt + workload.output
    longest = int(total.argmax())
    if total[longest] > most:
        lengths = f"{workload.prompt[longest]} tokens in and {workload.output[longest]} out"
        raise ConfigError(f"request {longest} has {lengths}; {why}", file=job.file, key="serving")
