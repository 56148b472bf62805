"""Steps of many micro-batches: what is left out of a run, because it repeats, would have been the same."""

import random

import pytest

from rapid_des.frontend import load_job, memory
from rapid_des.machine import load_machine
from rapid_des.modes.blocks import BLOCK_MODES, run_blocks
from rapid_des.modes.blocks.steady import shortened
from rapid_des.modes.execution import EngineChoice
from rapid_des.modes.pricing import price_blocks
from rapid_des.report.result import result_of

MODEL = """\
hidden: {hidden}
layers: {layers}
attention: {{heads: 8, kv_heads: 4}}
feed_forward: {{activation: swiglu, hidden: {wide}}}
norm: rms_norm
position: rope
vocabulary: {vocabulary}
max_positions: 2048
tied_embeddings: false
"""
JOB = """\
model: any.model.yaml
phase: training
parallelism: {{tp: {tp}, pp: {pp}, dp: {dp}, chunks: {chunks}}}
training:
  {{global_batch: {batch}, micro_batch: 1, sequence_length: {length}, schedule: {schedule},
    zero_stage: {zero}}}
software: {software}
{host}
"""
HOSTS = (
    "",
    "host: null",
    "host: {kernel: 3 us, collective: 5 us}",
    "host: {kernel: 60 us, collective: 80 us}",
)


def job_of(folder, draw, schedule, *, chunks=1, micro_batches=64):
    """A small job whose operators last as long as drawn sizes say."""
    split = {"tp": draw.choice([1, 2]), "pp": draw.choice([2, 4]), "dp": draw.choice([1, 3])}
    (folder / "any.model.yaml").write_text(
        MODEL.format(
            hidden=draw.choice([512, 768, 1024]),
            layers=split["pp"] * chunks * draw.choice([1, 2]),
            wide=draw.randrange(512, 4096, 8),
            vocabulary=draw.randrange(1024, 65536, 8),
        )
    )
    text = JOB.format(
        **split,
        chunks=chunks,
        batch=micro_batches * split["dp"],
        length=draw.choice([256, 1024]),
        schedule=schedule,
        zero=draw.choice([0, 1, 2, 3]),
        software=draw.choice(["megatron-2025", "megatron-2021"]),
        host=draw.choice(HOSTS),
    )
    (folder / "any.yaml").write_text(text)
    return load_job(folder / "any.yaml")


def result(job, machine, mode, **how):
    """The result of a step in blocks."""
    done = run_blocks(price_blocks(job, machine), machine, BLOCK_MODES[mode], **how)
    return result_of(done.run, trace=done.trace, memory=memory(job), blocks=done)


def facts(result):
    """What a result says, but for what it cost and what was left out."""
    cost = {"hops", "folded", "simulation_wall_s", "engine", "notes"}
    said = {key: value for key, value in result.as_json().items() if key not in cost}
    return said | {"notes": [note for note in result.notes if "repeat exactly" not in note]}


@pytest.mark.parametrize(
    ("schedule", "chunks"),
    [("1f1b", 1), ("zb_h1", 1), ("dualpipe", 1), ("interleaved_1f1b", 2), ("interleaved_1f1b", 3)],
)
def test_a_step_without_what_repeats_is_the_whole_step(tmp_path, schedule, chunks):
    proven = 0
    for seed in range(4):
        if proven and seed > 1:
            break
        draw = random.Random(f"{schedule} {chunks} {seed}")
        job = job_of(tmp_path, draw, schedule, chunks=chunks)
        machine = load_machine(draw.choice(["dgx_a100_x4", "torus2d_ring_a100_64"]))
        mode = draw.choice(["hierarchical", "hierarchical", "hybrid", "analytical"])
        short = result(job, machine, mode, choice=EngineChoice(), worth=0)
        whole = result(job, machine, mode, choice=EngineChoice(fold=False))
        assert facts(short) == facts(whole)
        assert short.finish == whole.finish
        proven += short.blocks.repeated is not None
    assert proven


def test_the_engines_agree_on_what_repeats(tmp_path):
    job = job_of(tmp_path, random.Random(3), "interleaved_1f1b", chunks=2)
    machine = load_machine("dgx_a100_x4")
    one, other = (
        result(job, machine, "hierarchical", choice=EngineChoice(name), worth=0)
        for name in ("simpy", "compiled")
    )
    assert one.blocks.repeated is not None
    assert (
        one.blocks.repeated.end - one.blocks.repeated.begin
        == other.blocks.repeated.end - other.blocks.repeated.begin
    )
    assert one.finish == other.finish


def test_a_schedule_that_runs_all_forwards_first_has_nothing_that_repeats(tmp_path):
    assert not list(shortened(job_of(tmp_path, random.Random(1), "gpipe"), worth=0))


def test_small_steps_are_simulated_whole(tmp_path):
    assert not list(shortened(job_of(tmp_path, random.Random(1), "1f1b")))


def test_a_shorter_step_differs_by_whole_stretches(tmp_path):
    job = job_of(tmp_path, random.Random(1), "interleaved_1f1b", chunks=2)
    for short in shortened(job, worth=0):
        assert short.job.micro_batches + short.times * short.micro_batches == job.micro_batches
        orders, fewer = job.stage_orders.orders, short.job.stage_orders.orders
        for long, remaining, items in zip(orders, fewer, short.items, strict=True):
            assert len(remaining) + short.times * items == len(long)
