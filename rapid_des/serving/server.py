"""Serve: a job, a machine and a workload made into a fleet, its run and its result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np

from rapid_des.bounded_cache import BoundedCache
from rapid_des.errors import ConfigError
from rapid_des.frontend import Job
from rapid_des.frontend.build import check_size
from rapid_des.frontend.servers import AgentsSpec, ServingSpec, StartupSpec
from rapid_des.machine import Machine
from rapid_des.serving.agents import Agents
from rapid_des.serving.classes import classes_of, kinds_of, takers
from rapid_des.serving.engines import engine_of, iteration_costs
from rapid_des.serving.fleet import Fleet, Watch
from rapid_des.serving.groups import Beside, ReplicaGroup, besides_of
from rapid_des.serving.images import encoder_of, encoders_of, with_images
from rapid_des.serving.named_workloads import WORKLOADS
from rapid_des.serving.pools import Pool, embeds, pools_of, sharing
from rapid_des.serving.result import ServeResult
from rapid_des.serving.routers import ROUTERS
from rapid_des.serving.transfers import TransferLinks, for_iterations
from rapid_des.serving.workload import Marks, Workload, draw, parse_arrivals, parse_lengths
from rapid_des.simulation import require_kind
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
    until: int | None = None,
    watch: Watch = lambda *_: None,
    cache: BoundedCache | None,
) -> ServeResult:
    """Serve requests that are known one by one; `first`: the server's first GPU, for faults.

    `until`: the number of first requests with whose answers the run ends; others may be left unanswered.
    """
    spec, host, pools = job.spec.serving or ServingSpec(), job.host, pools_of(job)
    _check_all(job, machine, workload)
    steady = for_iterations(machine, sends=len(pools) > 1)
    healthy = steady.unfaulted
    classes, besides = classes_of(job), besides_of(job, cache)
    models = [each.model.name for each in (job, *(beside.job for beside in besides))]
    takes, *others = takers(classes, models, job.file)
    mine = workload.of_kinds(takes)
    engine = of_prompts = engine_of(job, healthy, mine, cache)
    if pools[0].job is not job:
        of_prompts = replace(engine_of(pools[0].job, healthy, mine, cache), drafts=None)
    encoder = None if spec.images is None else encoder_of(job, healthy, spec.images, engine.gpus, cache)
    encoders = encoders_of(job, machine, encoder, pools[-1].end)
    if encoder is not None and encoders is None:
        engine, of_prompts = (replace(made, encoding=encoder.time) for made in (engine, of_prompts))
    beside = [_group(*each, workload, cache) for each in zip(besides, others, strict=True)]
    if beside:
        _check_beside(job, spec, machine)
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
        until=until,
        lose=spec.on_outage == "lose",
        autoscaler=spec.autoscaler,
        startup=scaled_startup(spec, pools, machine, cache),
        takes=takes,
        beside=beside,
        classes=classes,
        encoders=encoders,
        name=job.name,
        device=machine.device.spec.name,
    )
    if spec.outages or steady.faults:
        _fail(fleet, pools, (steady, first), cache)
    complete = fleet.run()
    gpus = pools[-1].end + sum(group.replicas * group.engine.gpus for group in beside)
    gpus += 0 if encoders is None else encoders.gpus
    return ServeResult.of(fleet, name=job.name, gpus=gpus, interrupted=not complete)


def _group(
    beside: Beside, kinds: tuple[int, ...], workload: Workload, cache: BoundedCache | None
) -> ReplicaGroup:
    """Return the replicas of a job beside the service's own, which answer requests of these kinds."""
    job, machine, mine = beside.job, beside.machine, workload.of_kinds(kinds)
    spec = job.spec.serving or ServingSpec()
    _check_all(job, machine, mine)
    return ReplicaGroup(
        engine_of(job, machine, mine, cache),
        job.spec.parallelism.dp,
        kinds,
        autoscaler=spec.autoscaler,
        startup=scaled_startup(spec, pools_of(job), machine, cache),
        name=job.name,
        device=machine.device.spec.name,
    )


def _check_beside(job: Job, spec: ServingSpec, machine: Machine) -> None:
    """Raise a `ConfigError` for what a service of several kinds of replicas does not have."""
    problem = ""
    if len(pools_of(job)) > 1:
        problem = "replicas that compute prompts alone send to those of their own job"
    elif spec.outages or machine.faults:
        problem = "outages and faults are of the machine of one job"
    elif spec.images is not None:
        problem = "images are encoded for the replicas of one job"
    if problem:
        raise ConfigError(f"{problem}: state no further replicas", file=job.file, key="serving.beside")


def _check_all(job: Job, machine: Machine, workload: Workload) -> None:
    """Raise an error for replicas that cannot be on a machine or for such requests."""
    spec = job.spec.serving or ServingSpec()
    _check(job, pools_of(job), machine.fabric.gpus)
    _check_content(job, spec, workload)
    _check_scaling(job, spec, machine)


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
    elif spec.autoscaler.slo is not None and embeds(job) and "tpot" in spec.autoscaler.slo:
        problem = "slo: requests of `task: embed` make no tokens one by one; allowed: ttft=…, e2e=…"
    elif spec.autoscaler.minimum > job.spec.parallelism.dp:
        problem = f"minimum {spec.autoscaler.minimum} is above the job's dp {job.spec.parallelism.dp}"
    if problem:
        raise ConfigError(problem, file=job.file, key="serving.autoscaler")


def _messages(pools: Sequence[Pool], source: int, target: int, tokens: int) -> Iterable[tuple[int, int, int]]:
    """Return who sends how many bytes to whom as a request goes from a replica to one that answers."""
    return pools[0].messages(pools[-1], source, target - pools[0].replicas, tokens)


def scaled_startup(
    spec: ServingSpec, pools: Sequence[Pool], machine: Machine, cache: BoundedCache | None
) -> int:
    """Return the picoseconds that a replica takes until it serves where an autoscaler starts it; else 0."""
    if spec.autoscaler is None or spec.startup is None:
        return 0
    return _startup(pools, machine, spec.startup, cache)


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


def _agents(spec: AgentsSpec) -> Agents:
    """Return how the tasks of agents are drawn."""
    stated = {
        name: parse_lengths(str(text), f"serving.agents.{name}")
        for name in ("branches", "branch_prompt", "branch_output")
        if (text := getattr(spec, name)) is not None
    }
    return Agents(
        parse_lengths(str(spec.turns), "serving.agents.turns"),
        branches=stated.get("branches"),
        prompt=stated.get("branch_prompt"),
        output=stated.get("branch_output"),
    )


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
            "nothing says when requests come; --rate 4/s, or --arrivals 'clients count=32'",
            file=job.file,
            key="serving.arrivals",
        )
    usual = {"prompt": job.inference.prompt_length, "output": job.inference.output_length}
    if spec.task == "embed":
        if texts["output"]:
            problem = "requests are answered by their prompts alone (serving.task: embed); state no lengths"
            raise ConfigError(problem, file="--output")
        stated["output"] = "1"  # the vector or the score
    lengths = [
        parse_lengths(str(stated[name] or usual[name] or ""), f"--{name}") for name in ("prompt", "output")
    ]
    prefix = None if spec.prefix is None else parse_lengths(str(spec.prefix), "serving.prefix")
    adapters = None if spec.lora is None else (spec.lora.adapters, spec.lora.popularity)
    most = job.model.spec.max_positions
    think, kinds = int(spec.session_think or 0), kinds_of(spec.classes)
    agents = None if spec.agents is None else _agents(spec.agents)
    documents = None if spec.documents is None else parse_lengths(str(spec.documents), "serving.documents")
    marks = Marks(prefix, spec.sessions, think, most, spec.users, adapters, kinds, agents, documents)
    drawn = draw(parse_arrivals(stated["arrivals"]), (lengths[0], lengths[1]), requests, seed, marks)
    if spec.task == "embed":  # traces may have lengths of answers
        drawn = replace(drawn, output=np.ones_like(drawn.output))
    return drawn if spec.images is None else with_images(drawn, spec.images, seed)


def _check(job: Job, pools: Sequence[Pool], gpus: int) -> None:
    """Raise a `ConfigError` for jobs that cannot serve, and if the machine has too few GPUs."""
    if not job.model.generates and (job.spec.serving or ServingSpec()).task != "embed":
        problem = f"{job.model.name} is an encoder and makes no tokens one by one; state serving.task: embed"
        raise ConfigError(problem, file=job.file, key="model")
    if job.model.encoder is not None:
        problem = f"{job.model.name} has an encoder in front of it: `run` serves static batches of it alone"
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
