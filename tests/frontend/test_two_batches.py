"""Two half-batches that take turns: what a pass is made of, how long it takes, and who may ask for it."""

import pytest

from rapid_des.errors import ConfigError, UnsupportedByEngine
from rapid_des.frontend import load_job
from rapid_des.frontend.inference import batches, one_pass, passes
from rapid_des.frontend.operations import RequestGroup
from rapid_des.machine import load_machine
from rapid_des.simulation import simulate

MACHINE = load_machine("dgx_h100")
JOB = load_job(
    {
        "model": "qwen3_30b_a3b",
        "phase": "inference",
        "software": "sglang",
        "parallelism": {"dp": 4, "ep": 4},
        "routing": {"dispatcher": "deepep"},
        "inference": {"batch": 5, "prompt_length": 2048, "output_length": 1},
    },
    settings={"model.layers": 3},
)
BOTH = {"inference.two_batches": {"prefill": 2, "decode": 2}}
MIXES = {
    "prompts": (RequestGroup(5, 2048),),
    "decoding": (RequestGroup(128, 1, 900), RequestGroup(33, 1, 64)),
    "mixed": (RequestGroup(64, 1, 900), RequestGroup(1, 1024, 512)),
}


def time_of(job, groups):
    return int(simulate(one_pass(job, groups), MACHINE).step_time)


@pytest.mark.parametrize("groups", MIXES.values(), ids=MIXES)
def test_a_pass_takes_less_than_its_halves_in_a_row_and_no_less_than_what_one_stream_does(groups):
    job = load_job(JOB, settings=BOTH)
    (current,) = passes(one_pass(job, groups))
    parts = batches(one_pass(job, groups), current)
    assert sum(part.tokens for part in parts) == current.tokens
    both = simulate(one_pass(job, groups), MACHINE)
    halves = [simulate(one_pass(JOB, part.groups), MACHINE) for part in parts]
    assert both.step_time < sum(int(half.step_time) for half in halves)
    # kernels of both halves run one after the other: messages alone hide, embedding and head run once
    runs = [{name: int(part) for name, part in run.breakdown.items()} for run in (both, *halves)]
    compute = [run["compute"] for run in runs]
    exposed = [sum(run.values()) - run["compute"] for run in runs]
    assert compute[0] > 0.8 * sum(compute[1:])
    assert exposed[0] < sum(exposed[1:])


def test_steps_of_a_batch_that_grows_are_passes_of_their_own():
    kinds = [{"count": 33, "prompt_length": 701, "cached": 700, "output_length": 3}]
    settings = BOTH | {"inference.batch": None, "inference.prompt_length": None,
                       "inference.output_length": None, "inference.requests": kinds}  # fmt: skip
    job = load_job(JOB, settings=settings)
    alone = [time_of(job, (RequestGroup(33, 1, length),)) for length in (700, 701, 702)]
    assert int(simulate(job, MACHINE).step_time) == sum(alone)


def test_few_tokens_stay_one_batch():
    job = load_job(JOB, settings={"inference.two_batches": {"prefill": 512, "decode": 32}})
    assert time_of(job, (RequestGroup(31, 1, 700),)) == time_of(JOB, (RequestGroup(31, 1, 700),))
    assert time_of(job, (RequestGroup(1, 511),)) == time_of(JOB, (RequestGroup(1, 511),))
    assert time_of(job, (RequestGroup(1, 512),)) != time_of(JOB, (RequestGroup(1, 512),))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"parallelism.ep": 1}, "no tokens travel"),
        ({"inference.two_batches": {}}, "state prefill, decode or both"),
        ({"inference.two_batches": {"decode": 0}}, "two_batches"),
    ],
)
def test_who_cannot_have_it_is_told(settings, says):
    with pytest.raises(ConfigError, match=says):
        load_job(JOB, settings=BOTH | settings)


def test_blocks_refuse_it():
    with pytest.raises(UnsupportedByEngine, match="flattened"):
        simulate(load_job(JOB, settings=BOTH), MACHINE, mode="hierarchical")
