"""A cache of prefixes: against a list of pages by whole content, and as a server uses it."""

import gzip
import json
from collections import Counter, OrderedDict
from random import Random
from typing import Any

import numpy as np
import pytest

from rapid_des.errors import ConfigError
from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.serving.contents import HashedBlocks
from rapid_des.serving.prefix_cache import LowerTier, PrefixCache
from rapid_des.serving.requests import ContentSpan, Request
from rapid_des.serving.server import serve
from rapid_des.serving.workload import Workload, draw, parse_arrivals, parse_lengths
from tests.serving.test_queues import SERVICE, Affine, served

PAGE = 4


class Pages:
    """The same cache as a plain list: pages by all that stands before their ends, without a tree."""

    def __init__(self, below=()):
        self.users: Counter[tuple[int, ...]] = Counter()
        self.levels: list[OrderedDict[Any, Any]] = [OrderedDict() for _ in range(1 + len(below))]
        self.room = [None, *below]

    def names(self, request, pages):
        """The content of a request's first pages: a key for each token of the path so far."""
        spans = iter(request.path)
        span, tokens, names = next(spans), [], []
        for token in range(pages * PAGE):
            while token >= span.end:
                span = next(spans)
            tokens.append(span.key)
            if token % PAGE == PAGE - 1:
                names.append(tuple(tokens))
        return names

    def found(self, request):
        counts = [0] * len(self.levels)
        for name in self.names(request, (request.target - 1) // PAGE):
            place = (
                0 if self.users[name] else next((n for n, at in enumerate(self.levels) if name in at), None)
            )
            if place is None:
                break
            counts[place] += 1
        return counts

    def use(self, request, before, after):
        for name in self.names(request, after)[before:]:
            self.users[name] += 1
            for level in self.levels:
                level.pop(name, None)

    def leave(self, request, pages):
        for name in reversed(self.names(request, pages)):
            self.users[name] -= 1
            if not self.users[name]:
                self.levels[0][name] = None

    def shrink(self, room):
        self.room[0] = room
        for level, (held, most) in enumerate(zip(self.levels, self.room, strict=True)):
            while len(held) > most:
                name, _ = held.popitem(last=False)
                if level + 1 < len(self.levels):
                    self.levels[level + 1][name] = None


def drawn(random, number, said):
    """Return a request: of a session, behind one of three prefixes, or of nothing in common."""
    kind = random.choice(["session", "prefix", "alone"])
    known: tuple[ContentSpan, ...] = ()
    if kind == "session":
        known = said[random.randrange(3)] if said else ()
    elif kind == "prefix":
        known = (ContentSpan(random.randrange(3), random.choice([3, 8, 13, 20])),)
    before = known[-1].end if known else 0
    prompt, output = before + random.randint(1, 14), random.randint(1, 9)
    request = Request(number, 0, prompt, output, path=(*known, ContentSpan(-2 - number, prompt + output)))
    if kind == "session":
        said[random.randrange(3)] = request.path
    return request


@pytest.mark.parametrize("below", [(), (15,), (9, 20)])
@pytest.mark.parametrize("seed", range(4))
def test_pages_are_found_shared_and_evicted_as_a_plain_list_of_them_has_it(seed, below):
    random, said = Random(seed), {n: () for n in range(3)}
    cache, plain = (
        PrefixCache(PAGE, [LowerTier(str(n), pages, 1) for n, pages in enumerate(below)]),
        Pages(below),
    )
    requests = 0
    running: list[Request] = []
    for _ in range(400):
        if random.random() < 0.5 and len(running) < 6:
            request = drawn(random, requests, said)
            requests += 1
            cache.meet(request)
            assert cache._found(request) == plain.found(request)
            assert request.computed == PAGE * sum(plain.found(request))
            newly, _ = cache.admit(request)
            names = plain.names(request, request.shared)
            assert newly == sum(not plain.users[name] for name in names)
            plain.use(request, 0, request.shared)
            running.append(request)
        elif running:
            request = random.choice(running)
            total = request.prompt + request.output
            request.computed = min(total, request.computed + random.randint(1, 20))
            request.pages = -(-request.computed // PAGE) - request.shared
            before = request.shared
            names = plain.names(request, request.computed // PAGE)[before:]
            assert cache.grow(request) == sum(plain.users[name] > 0 for name in names)
            plain.use(request, before, request.shared)
            if request.computed == total or random.random() < 0.2:
                pages = request.shared
                freed = cache.leave(request)
                plain.leave(request, pages)
                assert freed >= 0 and request.shared == 0
                running.remove(request)
        room = random.choice([10**6, 30, 12, 5])
        cache.shrink(room)
        plain.shrink(room)
        assert cache.idle == len(plain.levels[0])
        assert cache.shared_pages == sum(count > 0 for count in plain.users.values())
        assert cache._below[1:] == [len(level) for level in plain.levels[1:]]


def blocks_of(rows, size=512):
    starts = np.cumsum([0, *map(len, rows)])
    return HashedBlocks(size, starts, np.array([key for row in rows for key in row], np.int64))


def conversation(turns=40, seed=3):
    """Return prompts of blocks that begin alike, and the share that a cache without end finds."""
    random = Random(seed)
    rows: list[list[int]] = []
    seen, found = set(), 0
    for turn in range(turns):
        row = rows[random.randrange(turn)][: random.randint(0, 6)] if turn else []
        rows.append(row + [1000 * turn + place for place in range(random.randint(1, 5))])
        hit = next((n for n, key in enumerate(rows[-1]) if key not in seen), len(rows[-1]))
        found += min(512 * hit, (512 * len(rows[-1]) - 1) // 16 * 16)
        seen |= set(rows[-1])
    prompt = np.array([512 * len(row) for row in rows], np.int64)
    arrival = SERVICE * 1000 * np.arange(turns)
    work = Workload(prompt, np.full(turns, 20), arrival, blocks=blocks_of(rows))
    return work, found / int(prompt.sum())


def test_a_cache_without_end_finds_what_came_before():
    work, share = conversation()
    fleet, result = served(work, 0, prefix_tiers=())
    assert result.prefix_cache.hit_rate == pytest.approx(share)
    assert result.as_json()["prefix_cache"]["evicted_pages"] == 0
    (member,) = fleet.members
    assert member._free == member.pages  # all pages are of nobody: what is kept makes room
    assert member.content.shared_pages == 0


@pytest.mark.parametrize(
    "policy", ["vllm_v1", "sglang", "trtllm_guaranteed_no_evict", "trtllm_max_utilization"]
)
@pytest.mark.parametrize("pages", [10**6, 400])
def test_steps_that_pass_at_once_are_those_that_are_waited_for(pages, policy):
    outcomes = []
    for stepwise in (False, True):
        work, _ = conversation(60)
        work = Workload(work.prompt, work.output * 7, work.arrival // 3000, blocks=work.blocks)
        costs = Affine(token=10**6, key=10**4)
        fleet, result = served(
            work, 0, costs=costs, policy=policy, pages=pages, prefix_tiers=(LowerTier("host", 100, 10**5),),
            stepwise=stepwise,
        )  # fmt: skip
        columns = {name: column.tolist() for name, column in result.requests.items()}
        outcomes.append((columns, result.prefix_cache, fleet.members[0].content.shared_pages))
        assert fleet.members[0]._free == pages and fleet.members[0].promised_pages == 0
    assert outcomes[0] == outcomes[1]
    assert (outcomes[0][1].evicted_pages > 0) == (pages == 400)
    assert outcomes[0][2] == 0


def test_requests_of_one_prefix_compute_it_once_and_hold_its_pages_once():
    work = draw(
        parse_arrivals("constant rate=1/s"), (parse_lengths("200", "p"), parse_lengths("5", "o")), 4, 1
    )
    work = Workload(work.prompt, work.output, work.arrival, marks={"prefix": np.full(4, 160)})
    _, result = served(work, 0, costs=Affine(token=10**7), prefix_tiers=())
    # the first computes 200 tokens, each other one 40: 160 of 16 a page are there
    assert result.prefill.tolist() == [SERVICE + 200 * 10**7, *[SERVICE + 40 * 10**7] * 3]
    assert result.prefix_cache.found_tokens == {"gpu": 3 * 160}


def test_what_a_tier_below_has_is_loaded_in_its_time():
    # room for one prompt on the GPU: the second request's pages push the first's down
    rows = [[1, 2], [3, 4], [1, 2]]
    work = Workload(np.full(3, 1024), np.full(3, 2), SERVICE * 1000 * np.arange(3), blocks=blocks_of(rows))
    times = []
    for tiers in ((), (LowerTier("host", 64, 3 * 10**5),)):
        _, result = served(work, 0, costs=Affine(token=10**7), pages=65, prefix_tiers=tiers)
        times.append(result.prefill[2])
    # of 1,024 tokens all but the last page are found: 1,008 loads, 16 computed
    assert times == [SERVICE + 1024 * 10**7, SERVICE + 16 * 10**7 + 1008 * 3 * 10**5]
    assert result.prefix_cache.found_tokens == {"gpu": 0, "host": 1008}


def test_numbers_are_lengths_in_a_job_file():
    settings = JOB | {"serving.prefix": 160, "serving.prompt": 200, "serving.output": 3}
    job = load_job("llama2_7b_inference", settings=settings)
    result = serve(job, load_machine("dgx_a100"), arrivals="constant rate=1/s", requests=3)
    assert result.requests["prompt"].tolist() == [200] * 3
    assert result.prefix_cache.found_tokens == {"gpu": 2 * 160}


def test_a_router_that_knows_caches_sends_a_session_where_its_pages_are():
    rows = [[key, key + 1] for key in (10, 20, 30) for _ in range(6)]
    order = [n for turn in range(6) for n in range(turn, 18, 6)]
    rows = [rows[n] for n in order]
    work = Workload(np.full(18, 1024), np.full(18, 2), SERVICE * 100 * np.arange(18), blocks=blocks_of(rows))
    rates = {}
    for router in ("round_robin", "prefix_aware"):
        _, result = served(work, 0, costs=Affine(token=10**6), replicas=2, router=router, prefix_tiers=())
        rates[router] = result.prefix_cache.hit_rate
    # each of three prompts is computed once, by who is free, against once on each of two replicas
    assert rates["prefix_aware"] == pytest.approx(15 * 1008 / (18 * 1024))
    assert rates["round_robin"] == pytest.approx(12 * 1008 / (18 * 1024))


JOB = {"model.layers": 2, "serving.prefix_cache": {}}
LINES = [
    {"timestamp": 0, "input_length": 1000, "output_length": 4, "hash_ids": [1, 2]},
    {"timestamp": 9000, "input_length": 1300, "output_length": 3, "hash_ids": [1, 2, 5]},
]


def written(path, lines):
    text = "".join(json.dumps(line) + "\n" for line in lines)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return f"trace file={path}"


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz"])
def test_traces_with_hash_ids_are_read_as_they_are(name, tmp_path):
    job, machine = load_job("llama2_7b_inference", settings=JOB), load_machine("dgx_a100")
    result = serve(job, machine, arrivals=written(tmp_path / name, LINES), requests=10)
    assert result.requests["prompt"].tolist() == [1000, 1300]
    assert result.requests["output"].tolist() == [4, 3]
    assert np.diff(result.requests["arrival"]).tolist() == [9 * 10**12]
    # the second block of the first prompt has 488 tokens: the second prompt goes on behind its first page
    assert result.prefix_cache.found_tokens == {"gpu": 62 * 16}
    assert "prefix cache" in str(result)
    plain = load_job("llama2_7b_inference", settings={"model.layers": 2})
    unread = serve(plain, machine, arrivals=written(tmp_path / name, LINES), requests=10)
    assert "hash_ids are not read" in str(unread) and unread.as_json()["prefix_cache"] is None


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ({"timestamp": 1}, r"line 2: not a request with .* missing required field `input_length`"),
        (
            {**LINES[0], "hash_ids": [1, 2, 3]},
            r"line 2: 3 hash_ids; allowed: up to 2, the blocks of 512 .* of 1000 .*block=",
        ),
        ({**LINES[0], "output_length": 0}, "line 2: .*>= 1"),
    ],
)
def test_a_wrong_line_is_named(line, problem, tmp_path):
    job, machine = load_job("llama2_7b_inference", settings=JOB), load_machine("dgx_a100")
    with pytest.raises(ConfigError, match=problem):
        serve(job, machine, arrivals=written(tmp_path / "trace.jsonl", [LINES[0], line]))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"serving.host_cache": "8 GB"}, "one of serving.prefix_cache.tiers"),
        ({"serving.prefix_cache.tiers": "[{name: gpu, capacity: 1 GB}]"}, "not a name of memory below"),
        ({"serving.prefix_cache.tiers": "[{name: a, capacity: 1 GB}, {name: a, capacity: 1 GB}]"}, "twice"),
        ({"serving.prefix_cache.tiers": "[{name: a, capacity: 1 GB, bandwidth: 0 GB/s}]"}, "above 0"),
    ],
)
def test_memory_that_can_not_be_is_refused(settings, problem):
    machine = load_machine("dgx_a100")
    with pytest.raises(ConfigError, match=problem):
        serve(load_job("llama2_7b_inference", settings=JOB | settings), machine, arrivals="clients count=2")
