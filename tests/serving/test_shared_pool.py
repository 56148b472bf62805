"""A pool of pages that replicas share: what they find there, how long it takes, what makes room."""

import numpy as np
import pytest

from rapid_des.errors import ConfigError
from rapid_des.frontend import load_job
from rapid_des.machine import load_machine
from rapid_des.serving.contents import HashedBlocks
from rapid_des.serving.server import serve
from rapid_des.serving.shared_pool import SharedPool
from rapid_des.serving.workload import Workload
from tests.serving.test_queues import SERVICE, Affine, served

PAGE, BLOCK = 16, 64


def asked(*blocks, apart=100, output=1):
    """Return requests, `apart` milliseconds after each other, with prompts of these blocks and one token."""
    starts = np.cumsum([0, *map(len, blocks)])
    keys = np.array([key for each in blocks for key in each], np.int64)
    prompt = np.array([len(each) * BLOCK + 1 for each in blocks], np.int64)
    arrival = np.arange(len(blocks), dtype=np.int64) * apart * SERVICE
    return Workload(
        prompt, np.full(len(blocks), output, np.int64), arrival, blocks=HashedBlocks(BLOCK, starts, keys)
    )


def pool(pages=10**6, through=True, alone=0):
    """Return a pool that reads or writes a page in 1 ms."""
    return SharedPool("pool", pages=pages, page_size=PAGE, read=SERVICE, alone=alone, through=through)


def run(work, shared, **rest):
    return served(work, 0, replicas=2, prefix_tiers=(), prefix_pool=shared, page_size=PAGE,
                  costs=Affine(SERVICE, token=SERVICE), **rest)[1]  # fmt: skip


def test_a_replica_finds_what_another_has_computed():
    # eight pages of two blocks: the second replica loads them in 8 ms and computes the last token
    result = run(asked([1, 2], [1, 2], apart=1000), pool())
    assert (result.ttft / SERVICE).tolist() == [130, 8 + 2]
    assert result.prefix_cache.found_tokens == {"gpu": 0, "pool": 128}
    # the third and fourth find it where they are
    result = run(asked(*[[1, 2]] * 4, apart=1000), pool())
    assert result.prefix_cache.found_tokens == {"gpu": 256, "pool": 128}
    assert (result.ttft[2:] / SERVICE).tolist() == [2, 2]


def test_loads_wait_for_one_another_and_last_as_long_as_a_gpu_needs():
    blocks = [[1, 2], [5], [1, 2], [5], [5], [1, 2]]
    work = asked(*blocks)
    work.arrival[:] = np.array([0, 0, 1000, 2000, 3000, 3000]) * SERVICE
    # block 5 stands at replica 1; at 3 s replica 0 loads its four pages, and then replica 1 the eight of 1, 2
    result = run(work, pool())
    assert (result.ttft[4:] / SERVICE).tolist() == [4 + 2, 4 + 8 + 2]
    slow = run(work, pool(alone=3 * SERVICE))
    assert (slow.ttft[4:] / SERVICE).tolist() == [12 + 2, 24 + 2]


def test_a_full_pool_drops_what_was_used_longest_ago():
    # eight pages: blocks 1 and 2, then 3 takes the room of 2's end of the older path
    work = asked([1, 2], [3], [9], [1, 2], apart=1000)
    found = [run(work, pool(pages=pages)).prefix_cache.found_tokens["pool"] for pages in (100, 12, 0)]
    assert found == [2 * BLOCK, BLOCK, 0]


def test_pages_are_written_as_they_leave_where_writes_are_back():
    # two replicas: the second finds nothing, since the first still has its pages
    assert run(asked([1, 2], [1, 2], apart=1000), pool(through=False)).prefix_cache.found_tokens["pool"] == 0
    # of nine pages, those of 1 and 2 leave replica 0 as 3 and 4 come; then replica 1 finds them
    work = asked([1, 2], [7], [3, 4], [1, 2], apart=1000)
    result = run(work, pool(through=False), pages=9)
    assert result.prefix_cache.found_tokens["pool"] == 2 * BLOCK


def test_steps_that_pass_at_once_are_those_that_are_waited_for():
    random = np.random.default_rng(3)
    blocks = [[int(key) for key in np.cumsum(random.integers(0, 2, 4))] for _ in range(80)]
    both = []
    for stepwise in (False, True):
        for through in (False, True):
            result = run(asked(*blocks, apart=60, output=40), pool(pages=12, through=through), pages=50,
                         stepwise=stepwise, router="least_tokens")  # fmt: skip
            both.append({name: column.tolist() for name, column in result.requests.items()})
            both[-1]["found"] = dict(result.prefix_cache.found_tokens)
    assert both[:2] == both[2:] and both[1]["found"]["pool"] > 0


JOB = {"model.layers": 2, "parallelism": "{dp: 2}"}


def test_a_job_file_states_a_pool():
    stated = {"serving.prefix": 500, "serving.prefix_cache": "{pool: {capacity: 1 TB, bandwidth: 10 GB/s}}"}
    job = load_job("llama2_7b_inference", settings=JOB | stated)
    result = serve(
        job, load_machine("dgx_a100"), arrivals="constant rate=2/s", requests=4, prompt="600", output="2"
    )
    found = result.prefix_cache.found_tokens
    assert found["pool"] == 496 and found["gpu"] == 2 * 496
    assert "in pool" in str(result)


@pytest.mark.parametrize(
    ("pool", "problem"),
    [
        ("{capacity: 1 TB, bandwidth: 0 GB/s}", "above 0 B/s"),
        ("{capacity: 1 TB}", "bandwidth"),
        ("{capacity: 1 TB, bandwidth: 1 GB/s, write: later}", "'later'"),
        ("{capacity: 1 TB, bandwidth: 1 GB/s, name: gpu}", "'gpu' stands twice"),
    ],
)
def test_pools_that_can_not_be_are_refused(pool, problem):
    with pytest.raises(ConfigError, match=problem):
        load_job("llama2_7b_inference", settings=JOB | {"serving.prefix_cache": f"{{pool: {pool}}}"})
