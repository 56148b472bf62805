"""Which of many layouts of a job is the fastest: a queue of all of them, each at what is known of it.

    families: memory, kernels ──► one recomputation: memory ──► one order: messages ──► one: bound ──► steps

The least comes first: what is known of it is never above any step of it that a simulation finds. It is taken
apart or looked at more closely; who comes first with its last figure is the next best for certain.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from math import exp, floor

from msgspec import Struct, field

from rapid_des.bounded_cache import BoundedCache
from rapid_des.executors import Done, Executor, Outcome, attempt
from rapid_des.frontend import Job, memory
from rapid_des.frontend.build import in_passes
from rapid_des.frontend.memory import shortage, shown
from rapid_des.frontend.spec import JobSpec
from rapid_des.machine import Machine
from rapid_des.report.evidence import resolution
from rapid_des.report.result import Result
from rapid_des.studies.closed_form_bounds import fullest_stages
from rapid_des.studies.deadline import Deadline, TimeIsUp
from rapid_des.studies.entries import BOUNDED, ESTIMATED, EXCHANGED, FINAL, KERNELS, PLAIN, Entry, Out, Why
from rapid_des.studies.lookahead import Lookahead
from rapid_des.studies.lower_bounds import LowerBounds
from rapid_des.studies.memory_bounds import MemoryBounds
from rapid_des.studies.points import Point, evaluate
from rapid_des.studies.shared_work import SharedWork
from rapid_des.studies.splits import Candidate, Family, Space, checked
from rapid_des.units import Duration
from rapid_des.values import replace

OnProgress = Callable[[str, int, int], None]
MARGIN = 0.0075
"""The share by which a step by closed forms may be longer than the flattened one: a message that comes late
may meet fewer of the kernels that it slows. Measured: at most 0.51 %, see
`validation/README.md`."""
_RANKS, _TWICE = 1024, 2
"""All rows are made certain while simulations by closed forms have fewer ranks than `_RANKS` in all, or are
fewer than `_TWICE` for each row."""


class _TooLarge(Struct, frozen=True):
    """What a candidate needs that does not fit into memory."""

    text: str


def _fitting(share: float, point: Point, cache: BoundedCache) -> Result | _TooLarge:
    """Return the result of a point, or what its job needs where this share of memory does not hold it."""
    job, machine = point.resolved(cache)
    capacity = int(machine.device.spec.hbm.capacity)
    needed = cache.get_or_make(("memory", job, None), lambda: memory(in_passes(job, capacity)))
    if needed.fullest.peak > int(share * capacity):
        return _TooLarge(shortage(needed, int(share * capacity)))
    return evaluate(point, cache)


class Refinement(Struct, dict=True):
    """The search for the fastest candidates of a space."""

    space: Space
    machine: Machine
    mode: str
    """The mode of the rows."""
    dropped: Callable[[Family, Why, str], None]
    """Called with candidates that are none, and why."""
    headroom: float
    """The share of a GPU's memory that layouts for training may take."""
    deadline: Deadline = field(default_factory=Deadline)
    cache: BoundedCache = field(default_factory=lambda: BoundedCache(1 << 28))
    queue: list[Entry] = field(default_factory=list)
    rows: list[Entry] = field(default_factory=list)
    """The fastest, in order."""
    counts: Counter[str] = field(default_factory=Counter)
    all_seen: bool = True
    """Whether every family was looked at: the time may be up before."""
    limit: int = 1 << 62
    """Picoseconds: a layout that takes more is not shown to be faster than the first by measurements."""
    aside: list[Entry] = field(default_factory=list)
    """The candidates that are not looked at while rows are chosen among what was simulated."""

    def __post_init__(self) -> None:
        work = SharedWork(self.machine, self.cache)
        self.lower_bounds, self.memory_bounds = LowerBounds(work), MemoryBounds(work)
        self.trains = self.space.job.spec.training is not None
        self.share = self.headroom if self.trains else 1.0
        self.capacity = int(self.share * self.machine.device.spec.hbm.capacity)
        self.fitting = partial(_fitting, self.share)
        self.bounded = self.trains and not self.machine.faults
        self.exact = _RANKS // self.space.gpus

    def fill(self, on_progress: OnProgress) -> int:
        """Put all candidates in the queue that may fit into memory, by family; return how many there are.

        A larger micro-batch needs no less memory: fewer are held, of as many sequences together or more. If
        the time is up one that may fit is enough.
        """
        candidates, full = 0, dict[JobSpec, str]()
        for number, family in enumerate(self.space.families()):
            if self.queue and self.deadline.over:
                self.all_seen = False
                break
            candidates += len(family)
            on_progress("lower bounds of layouts", candidates, 0)
            alike = _one_sequence(family.base.spec)
            if alike not in full:
                needed = self._least_memory(family)
                if needed <= self.capacity:
                    least = self._passes(family, again=False)
                    heapq.heappush(self.queue, Entry(least, (number,), family))
                    continue
                full[alike] = self._at_least(needed, family.base)
            self._drop(family, "memory", full[alike])
        return candidates

    def search(self, executor: Executor, top: int) -> Iterator[None]:
        """Find `top` rows, the fastest first; yield after every simulation.

        All rows are certain if that takes few simulations. Else it ends where only the first is, as far as
        measurements distinguish layouts; the rows behind it are the best of what was simulated.
        """
        yield from self._refined(executor, top)
        while self._settled(top) and not self.deadline.over:
            self.aside = [entry for entry in self.queue if entry.result is None]
            self.queue = sorted(entry for entry in self.queue if entry.result is not None)
            try:
                yield from self._refined(executor, top)
            finally:
                self.queue, self.aside = sorted(self.queue + self.aside), []
            self.exact = self.counts["analytical"] + top
            yield from self._refined(executor, top)

    def _settled(self, top: int) -> bool:
        """Return whether the first is certain enough, and enough is simulated to choose rows behind it."""
        if len(self.rows) == top or self.aside or self.counts["analytical"] < max(self.exact, _TWICE * top):
            return False
        return bool(self.queue) and self.queue[0].least >= self.limit

    def _refined(self, executor: Executor, top: int) -> Iterator[None]:
        """Take the queue apart until `top` rows are certain, or the first is enough; yield as `search`.

        Workers simulate ahead of what is needed. What they find is taken in when it is needed, in order:
        the same candidates are looked at and counted, however many workers there are.
        """
        over = self.deadline
        lookahead = Lookahead(self._closer, top - len(self.rows), executor.workers, lambda: over.over)
        lookahead.add(self.queue)
        meanwhile = partial(over.wait, iter(lookahead.look, None))
        try:
            while self._take_in(lookahead, top) and not over.over:
                with closing(executor.map(self.fitting, map(self._point, lookahead), meanwhile)) as outcomes:
                    for place, outcome in outcomes:
                        entry = lookahead.asked[place]
                        lookahead.learn(entry, [self._found(entry, outcome)])
                        yield
                        if not self._take_in(lookahead, top):
                            break
        except TimeIsUp:
            pass
        finally:
            if len(self.rows) < top and not self._settled(top):
                self._keep(lookahead)

    def _take_in(self, lookahead: Lookahead, top: int) -> bool:
        """Take what is known into the queue while it comes first; return whether more has to be found out."""
        while self.queue and len(self.rows) < top and not self._settled(top):
            entry = self.queue[0]
            if entry.certain:
                self.rows.append(heapq.heappop(self.queue))
            elif entry.key in lookahead.known:
                heapq.heappop(self.queue)
                self._put(lookahead.known.pop(entry.key))
            else:
                return True
        return False

    def _keep(self, lookahead: Lookahead) -> None:
        """Take in all that is known, where the search was stopped: what was simulated is shown."""
        while ripe := [entry for entry in self.queue if entry.key in lookahead.known]:
            self.queue = [entry for entry in self.queue if entry.key not in lookahead.known]
            heapq.heapify(self.queue)
            for entry in ripe:
                self._put(lookahead.known.pop(entry.key))

    def _point(self, entry: Entry) -> Point:
        return Point(entry.family.job, self.machine, mode=self._mode(entry), allow_oom=True)

    def estimate_one(self) -> None:
        """Estimate the step of one candidate that fits, by closed forms, where no time is left for more."""
        while self.queue and all(entry.result is None for entry in self.queue):
            entry = heapq.heappop(self.queue)
            if entry.level < BOUNDED:  # no tighter bounds: one by one, as many as fit
                ones = [one for family in self._left(entry) for one in family.along("orders")]
                self._put([
                    entry.part(place, one, level=BOUNDED, least=0) for place, one in enumerate(ones)
                ])  # fmt: skip
                continue
            outcome = attempt(self.fitting, self._point(entry), self.cache)
            self._put([_refused(entry.family) or self._found(entry, outcome)])

    def nearest(self) -> Job | None:
        """Return the candidate that misses memory by least, of all that are asked for; None without any.

        Called where none fits. Those with the least bound are looked at first; in no time left, one is.
        """
        least, nearest = None, None
        for bound, _, job in sorted(self._bounds_of_memory()):
            if least is not None and (bound >= least or self.deadline.over):
                break
            needed = memory(in_passes(job, self.capacity)).fullest.peak
            if least is None or needed < least:
                least, nearest = needed, job
        return nearest

    def _bounds_of_memory(self) -> Iterator[tuple[int, int, Job]]:
        """Yield what each candidate that the frontend takes needs at least, its number, and its job.

        Orders of axes do not change it: of each the first.
        """
        families = replace(self.space, refused=Counter()).families()
        parts = (part for family in families for part in family.along("recomputes"))
        number = 0
        for recomputed in parts:
            stages = list(replace(recomputed, orders=recomputed.orders[:1]).along("zero_stages"))
            legal = [job for part in stages if (job := checked(Candidate(part.job), _unheard)) is not None]
            bounds = self.memory_bounds.memories(legal) if self.trains and legal else [0] * len(legal)
            for bound, job in zip(bounds, legal, strict=True):
                number += 1
                yield bound, number, job
            if number and self.deadline.over:
                return

    def is_certain(self, row: Entry) -> bool:
        """Return whether no layout that is left is faster than a row."""
        return not self.queue or row.least <= min(self.queue).least

    def say_why(self) -> None:
        """Say of all that is left in the queue why it is no row."""
        for entry in sorted(self.queue):
            known = "at least" if entry.result is None else "simulated"
            for family in self._left(entry):
                self._drop(family, "bound", f"{known} {Duration(entry.least)}")

    def _put(self, parts: Iterable[Entry | Out]) -> None:
        """Put the parts of an entry in its place, each with the next tighter bound."""
        for part in parts:
            if isinstance(part, Out):
                self._leave_out(part)
                continue
            if part.result is not None:
                self.counts[part.result.mode] += 1
                if part.certain:
                    self.limit = min(self.limit, _distinguished_below(part.result))
            heapq.heappush(self.queue, part)

    def _left(self, entry: Entry) -> list[Family]:
        """Return the parts of an entry that may fit into memory; others are dropped."""
        if entry.level >= BOUNDED:
            return [entry.family]
        families = []
        for whole in entry.family.along("recomputes"):
            for part in self._fitting_parts(whole):
                if isinstance(part, Family):
                    families.append(part)
                else:
                    self._leave_out(part)
        return families

    def _mode(self, entry: Entry) -> str:
        return "analytical" if entry.level < ESTIMATED else self.mode

    def _closer(self, entry: Entry) -> Iterator[Entry | Out]:
        """Yield the parts of an entry, each with the next tighter bound, or why it is none."""
        if entry.level == PLAIN:
            for place, family in enumerate(entry.family.along("recomputes")):
                yield entry.part(place, family, level=KERNELS, least=self._passes(family, again=True))
        elif entry.level == KERNELS:
            parts = list(self._fitting_parts(entry.family))
            yield from (part for part in parts if isinstance(part, Out))
            stages = tuple(part.zero_stages[0] for part in parts if isinstance(part, Family))
            orders = replace(entry.family, zero_stages=stages).along("orders") if stages else ()
            for place, family in enumerate(orders):
                least = self.lower_bounds.exchanged(family.job) if self.bounded else 0
                yield entry.part(place, family, level=EXCHANGED, least=least)
        else:
            for place, part in enumerate(entry.family.along("zero_stages")):
                yield _refused(part) or self._bounded(entry, place, part)

    def _bounded(self, entry: Entry, place: int, part: Family) -> Entry:
        least = self.lower_bounds.step(part.job) if self.bounded else 0
        return entry.part(place, part, level=BOUNDED, least=least)

    def _passes(self, family: Family, *, again: bool) -> int:
        return self.lower_bounds.passes(family.job, again=again) if self.bounded else 0

    def _least_memory(self, family: Family) -> int:
        """Return bytes that no candidate of a family can do without: what it keeps of its micro-batches."""
        if not self.trains:
            return 0
        sharded = [part.job for part in family.along("zero_stages")]
        again = [part.job for part in family.along("recomputes")]
        again = [job for job in again if _keeps_least(job)] or again
        return max(
            min(self.memory_bounds.standing(job, stage) for job in sharded)
            + min(self.memory_bounds.kept(job, stage) for job in again)
            for stage in fullest_stages(family.job)
        )

    def _fitting_parts(self, family: Family) -> Iterator[Family | Out]:
        """Yield the parts of one recomputation, or that they do not fit into memory."""
        parts = list(family.along("zero_stages"))
        each = self.memory_bounds.memories([part.job for part in parts]) if self.trains else [0] * len(parts)
        for part, needed in zip(parts, each, strict=True):
            if needed <= self.capacity:
                yield part
            else:
                yield Out(part, "memory", self._at_least(needed, part.job))

    def _at_least(self, needed: int, job: Job) -> str:
        """Return what is said of a job that does not fit."""
        each = f"a stage needs at least {shown(needed)} a GPU, there are {shown(self.capacity)}"
        return f"{each} (micro-batch {job.training.micro_batch})" if self.trains else each

    def _found(self, entry: Entry, outcome: Outcome[Result | _TooLarge]) -> Entry | Out:
        """Return a candidate with what a simulation says of it."""
        mode = self._mode(entry)
        if not isinstance(outcome, Done):
            return Out(entry.family, "refused", f"{mode}: {outcome.text}")
        if isinstance(outcome.value, _TooLarge):
            return Out(entry.family, "memory", outcome.value.text)
        step, last = int(outcome.value.step_time), mode == self.mode
        level = FINAL if last else ESTIMATED
        least = step if last else max(entry.least, step - round(step * MARGIN))
        return replace(entry, result=outcome.value, level=level, least=least)

    def _leave_out(self, out: Out) -> None:
        self._drop(out.family, out.why, out.text)

    def _drop(self, family: Family, why: Why, text: str) -> None:
        self.counts[why] += len(family)
        if why == "refused":
            self.space.refused[text] += len(family)
        self.dropped(family, why, text)


_MOST_APART = 0.05
"""The largest share by which an unsimulated layout may be faster when a search ends: measurements of experts
distinguish less, and a search that ended there would leave seconds of a step."""


def _distinguished_below(result: Result) -> int:
    """Return below how many picoseconds measurements show that a layout is faster than a result."""
    works, origin = (result.work, result.work), result.origin
    ratio = None if origin is None else resolution(works, origin)
    return floor(int(result.step_time) * exp(-min(ratio or 0.0, _MOST_APART)))


def _refused(family: Family) -> Out | None:
    """Return why the frontend refuses a candidate, if it does."""
    why: list[str] = []
    return None if checked(Candidate(family.job), why.append) is not None else Out(family, "refused", why[0])


def _unheard(_: str) -> None:
    """Do nothing with why a candidate is refused: it was counted before."""


def _keeps_least(job: Job) -> bool:
    """Return whether no other recomputation keeps less of a micro-batch: every layer's input alone."""
    return job.training.recompute == "full" and job.training.recompute_layers is None


def _one_sequence(spec: JobSpec) -> JobSpec:
    """Return what families have in common that differ in their micro-batch alone."""
    training = None if spec.training is None else replace(spec.training, micro_batch=1)
    return replace(spec, training=training)
