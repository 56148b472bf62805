"""The replicas of a server by role: those that only compute prompts, and those that answer.

Each replica is represented by a job, and its iterations by single passes of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from msgspec import Struct, structs

from rapid_des.errors import ConfigError
from rapid_des.frontend import Job
from rapid_des.frontend.inference import ServingPass, batches, pass_lists
from rapid_des.frontend.loading import with_spec
from rapid_des.frontend.operations import Operation, RequestGroup
from rapid_des.frontend.parts import stage_sections
from rapid_des.units import Duration, ceil_divide
from rapid_des.values import replace


def with_at_most_drafted(job: Job, tokens: int) -> Job:
    """Return the job with at most `tokens` drafted tokens a step, or without drafting."""
    spec = job.inference.speculative
    if spec is None:
        return job
    few = structs.replace(spec, tokens=tokens, acceptance=spec.acceptance[:tokens]) if tokens else None
    inference = structs.replace(job.inference, speculative=few)
    return replace(job, spec=structs.replace(job.spec, inference=inference))


def sharing(job: Job) -> int:
    """Return how many replicas of a job share experts, and step together."""
    split = job.spec.parallelism
    return max(1, split.ep * split.expert_degree // (split.tp * split.cp))


def of_replica(job: Job) -> Job:
    """Return the job of one replica, or of those that share its experts, each with the same batch."""
    split, together = job.spec.parallelism, sharing(job)
    if split.dp == together:
        return job
    return replace(job, spec=structs.replace(job.spec, parallelism=structs.replace(split, dp=together)))


def in_a_row(job: Job, copies: int) -> Job:
    """Return the job of several replicas, each with the same batch."""
    split = job.spec.parallelism
    repeated = structs.replace(split, dp=split.dp * copies)
    return replace(job, spec=structs.replace(job.spec, parallelism=repeated)) if copies > 1 else job


def prompts_of(job: Job, tokens: int) -> tuple[RequestGroup, ...]:
    """Return this many tokens as prompts of the largest length, and one shorter one."""
    longest, samples = min(tokens, job.model.spec.max_positions - 1), int(not embeds(job))
    whole, rest = divmod(tokens, longest)
    groups = RequestGroup(whole, longest, samples=samples), RequestGroup(1, rest, samples=samples)
    return groups if rest else groups[:1]


def embeds(job: Job) -> bool:
    """Return whether the requests of a job's server are answered by their prompts alone."""
    return job.spec.serving is not None and job.spec.serving.task == "embed"


def without_host(job: Job) -> Job:
    """Return the job without the cost of issuing by a host."""
    host = job.host
    if host is None:
        return job
    none = Duration(0)
    idle = structs.replace(host, kernel=none, collective=none, graph=None, step=None, request=None)
    return replace(job, spec=structs.replace(job.spec, host=idle))


def all_lists(job: Job, current: ServingPass) -> list[tuple[int, tuple[Operation, ...]]]:
    """Return the operator lists of a pass on one rank of each stage, each with how often it runs."""
    whole, *parts = (pass_lists(job, each) for each in (current, *batches(job, current)))
    counts = [item for stage in range(job.stages) for item in stage_sections(job, stage).items()]
    return [
        (count, lists[section])
        for section, count in counts
        for lists in (parts if section.name == "block" else (whole,))
    ]


class Pool(Struct, frozen=True, dict=True):
    """Replicas of one layout, on consecutive GPUs of a machine."""

    job: Job
    replicas: int
    first: int = 0
    """The number of its first GPU in the machine."""

    @cached_property
    def alone(self) -> Job:
        """The job of one replica, or of those that share experts."""
        return of_replica(self.job)

    @property
    def each(self) -> int:
        """Number of GPUs of a replica."""
        split = self.job.spec.parallelism
        return split.tp * split.cp * split.pp

    @property
    def end(self) -> int:
        """The first GPU after the pool."""
        return self.first + self.replicas * self.each

    def held(self, tokens: int) -> int:
        """Return the bytes of keys and values of this many tokens on a GPU of the fullest stage."""
        shard = self.alone.shard(1, 1, 1)
        return max(
            sum(
                count * self.job.kinds[section.kind].layer.cache_bytes(shard, tokens)
                for section, count in stage_sections(self.alone, stage).items()
                if section.name == "block"
            )
            for stage in range(self.job.stages)
        )

    def messages(self, target: Pool, source: int, into: int, tokens: int) -> Iterator[tuple[int, int, int]]:
        """Yield who sends to whom how many bytes as keys and values go to a replica of another pool.

        `source` and `into`: which of the replicas of each. A GPU gets its part from the GPU at its place
        along tp, or from as many as its part is spread over there.
        """
        wanted = target.held(tokens)
        spread = min(self.each, max(1, ceil_divide(wanted, max(1, self.held(tokens)))))
        for place in range(target.each):
            begin = min(place * self.each // target.each, self.each - spread)
            for part in range(spread):
                sender = self.first + source * self.each + begin + part
                yield sender, target.first + into * target.each + place, ceil_divide(wanted, spread)


def pools_of(job: Job) -> tuple[Pool, ...]:
    """Return a server's pools: one of all replicas, or one for prompts and one for answers.

    Those of another layout begin at a GPU where one of their replicas, or those that share experts, could if
    they were alone on the machine.
    """
    spec, split = job.spec.serving, job.spec.parallelism
    if spec is not None and spec.prefill_parallelism is not None:
        prompting = _of_prompts(job)
        together = of_replica(job).gpus
        first = ceil_divide(prompting.end, together) * together
        return prompting, Pool(job, split.dp, first)
    number = 0 if spec is None else spec.prefill_replicas or 0
    if not number:
        return (Pool(job, split.dp),)
    if number >= split.dp:
        problem = f"{number} of dp {split.dp} replicas leave none to decode"
        raise ConfigError(problem, file=job.file, key="serving.prefill_replicas")
    if number % sharing(job):
        problem = f"{number} replicas do not divide by the {sharing(job)} that share experts"
        raise ConfigError(problem, file=job.file, key="serving.prefill_replicas")
    prompting = Pool(job, number)
    return prompting, Pool(job, split.dp - number, prompting.end)


def server_gpus(job: Job) -> int:
    """Return how many GPUs a server takes, from the machine's first on."""
    return pools_of(job)[-1].end


def _of_prompts(job: Job) -> Pool:
    """Return the job of prompt replicas with their own layout, checked like any job."""
    assert job.spec.serving is not None
    stated, key = job.spec.serving.prefill_parallelism, "serving.prefill_parallelism"
    assert stated is not None
    split = structs.replace(job.spec.parallelism, **structs.asdict(stated))
    if split.pp * split.cp > 1:
        problem = (
            f"keys and values go between layouts that tp splits: pp {split.pp} and cp {split.cp} must be 1"
        )
        raise ConfigError(problem, file=job.file, key=key)
    if job.spec.serving.prefill_replicas:
        problem = f"its dp {split.dp} says how many replicas compute prompts; state no prefill_replicas"
        raise ConfigError(problem, file=job.file, key=key)
    serving = structs.replace(job.spec.serving, prefill_parallelism=None)
    try:
        prompting = with_spec(job, structs.replace(job.spec, parallelism=split, serving=serving))
    except ConfigError as error:
        inner = (error.key or "").removeprefix("parallelism.")
        raise ConfigError(error.message, file=error.file, key=f"{key}.{inner}") from None
    return Pool(prompting, split.dp)
