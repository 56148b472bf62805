"""The ladder of modes: equal where they may be, refused by name where not, and every part accounted for."""

from __future__ import annotations

import numpy as np
import pytest

from rapid_des.bounded_cache import BoundedCache
from rapid_des.chakra import read_set, write_set
from rapid_des.errors import ConfigError, InputError, UnsupportedByEngine
from rapid_des.frontend import Job, load_job
from rapid_des.machine import load_machine
from rapid_des.modes.blocks.inner import block_times
from rapid_des.modes.execution import EngineChoice, execute
from rapid_des.modes.pricing import price, price_blocks
from rapid_des.network.faults import parse_fault
from rapid_des.program.lowering import lower, rank_times
from rapid_des.report.result_text import result_report
from rapid_des.report.tables import text
from rapid_des.simulation import MODES, compare, replay, simulate, timed
from tests.program.machines import dimension, machine, ring, switch

MODEL = """\
hidden: 1024
layers: 4
attention: {heads: 8, kv_heads: 4}
feed_forward: {activation: swiglu, hidden: 2816}
norm: rms_norm
position: rope
vocabulary: 8192
max_positions: 4096
tied_embeddings: false
"""
TRAINING = """\
model: small.model.yaml
phase: training
training: {global_batch: 8, micro_batch: 1, sequence_length: 2048}
"""
SERVICE = """\
model: small.model.yaml
phase: inference
inference: {batch: 2, prompt_length: 256, output_length: 60}
"""
UNHOSTED = [("host", "null")]
"""A job that issues all at once."""
FAST, SLOW = {"bandwidth": "200 GB/s", "latency": "1 us"}, {"bandwidth": "20 GB/s", "latency": "2 us"}
PACKETS = {"mode": "cut_through", "segment": "4 KiB"}


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Load a job with a parallelism such as tp=2, and other settings."""
    folder = tmp_path_factory.mktemp("jobs")
    (folder / "small.model.yaml").write_text(MODEL)
    (folder / "training.yaml").write_text(TRAINING)
    (folder / "service.yaml").write_text(SERVICE)

    def load(file="training", settings=(), **parallelism) -> Job:
        split = tuple((f"parallelism.{axis}", str(size)) for axis, size in parallelism.items())
        return load_job(folder / f"{file}.yaml", settings=(*split, *settings))

    return load


def apart(*dimensions):
    """A machine on which every axis of a job has a dimension of its own."""
    return machine(*dimensions, switching=PACKETS)


MACHINES = {
    "switch and rings": lambda tp, dp, pp: apart(
        switch(tp, **FAST), ring(dp, **SLOW), dimension("mesh", [pp], **SLOW)
    ),
    "all to all": lambda tp, dp, pp: apart(
        dimension("fully_connected", tp, **FAST),
        dimension("fully_connected", dp, **SLOW),
        dimension("fully_connected", pp, **SLOW),
    ),
    "rings": lambda tp, dp, pp: apart(ring(tp, **FAST), ring(dp, **SLOW), ring(pp, **SLOW)),
}
SPLITS = [(2, 1, 1), (1, 4, 1), (1, 1, 4), (2, 2, 1), (2, 1, 2), (1, 2, 2), (2, 2, 2), (4, 2, 2)]


@pytest.mark.parametrize(
    ("where", "tp", "dp", "pp"),
    [
        *(("rings", *split) for split in SPLITS),
        *(("all to all", *split) for split in SPLITS[::2]),
        *(("switch and rings", *split) for split in SPLITS[1::2]),
    ],
)
def test_hierarchical_equals_flattened_where_no_links_are_shared(job, where, tp, dp, pp):
    run = job(tp=tp, dp=dp, pp=pp)
    fabric = MACHINES[where](tp, dp, pp)
    flattened, hierarchical = (simulate(run, fabric, mode=mode) for mode in ("flattened", "hierarchical"))
    assert hierarchical.step_time == pytest.approx(flattened.step_time, rel=0.001)
    assert hierarchical.critical_rank in flattened.finish
    # it saves what it promises: blocks are simulated once
    if tp > 1:
        assert hierarchical.hops < flattened.hops


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("tp", "dp", "pp"), [(2, 2, 2), (1, 2, 4), (4, 2, 1)])
def test_the_breakdown_adds_up_to_the_step_in_every_mode(job, mode, tp, dp, pp):
    result = simulate(job(tp=tp, dp=dp, pp=pp), MACHINES["rings"](tp, dp, pp), mode=mode)
    assert sum(result.breakdown.values()) == result.step_time
    assert all(part >= 0 for part in result.breakdown.values())
    assert result.breakdown["compute"] > 0
    assert result.mode == mode
    assert result.bound in result.breakdown


@pytest.mark.parametrize("mode", MODES)
def test_the_critical_rank_finishes_last_the_lowest_of_equals(job, mode):
    result = simulate(job(tp=2, dp=2, pp=2), MACHINES["rings"](2, 2, 2), mode=mode)
    last = max(result.finish.values())
    assert last == result.step_time
    assert result.critical_rank == min(rank for rank, end in result.finish.items() if end == last)


@pytest.mark.usefixtures("in_blocks")
def test_shared_links_are_refused_by_name(job):
    # tp and dp both on one switch: gradients would meet the traffic inside blocks
    shared = apart(switch(4, **FAST))
    for mode in ("hierarchical", "hybrid", "analytical"):
        with pytest.raises(UnsupportedByEngine, match=r"link \S+ carries .*use --mode flattened"):
            simulate(job(tp=2, dp=2), shared, mode=mode, strict=True)
        assert simulate(job(tp=2, dp=2), shared, mode=mode).step_time > 0


def test_what_leaves_nothing_out_is_not_refused(job):
    shared = apart(switch(4, **FAST))
    flattened = simulate(job(tp=2, dp=2), shared)
    assert simulate(job(tp=2, dp=2), shared, mode="hierarchical", strict=True).finish == flattened.finish
    for mode in MODES:
        assert simulate(job(tp=4), shared, mode=mode, strict=True).step_time > 0


@pytest.fixture
def in_blocks(monkeypatch):
    """No step is small enough to be simulated at once instead."""
    monkeypatch.setattr("rapid_des.modes.blocks.bounds._MOST_RANKS", 0)


def test_small_steps_whose_blocks_share_links_are_simulated_at_once(job):
    shared = apart(switch(4, **FAST))
    flattened, at_once = (
        simulate(job(tp=2, dp=2), shared, mode=mode) for mode in ("flattened", "hierarchical")
    )
    assert (at_once.finish, at_once.breakdown) == (flattened.finish, flattened.breakdown)
    assert any("simulated at once" in note for note in at_once.notes)
    assert (at_once.mode_bound.low, at_once.mode_bound.high) == (flattened.step_time, flattened.step_time)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("links", [switch, ring])
def test_times_alone_are_those_of_the_whole_result(job, mode, links):
    # on the switch the hierarchical step is simulated at once, which only its bound can tell
    shared = apart(links(4, **FAST))
    whole, times = (run(job(tp=2, dp=2), shared, mode=mode) for run in (simulate, timed))
    assert (times.finish, times.breakdown, times.critical_rank) == (
        whole.finish, whole.breakdown, whole.critical_rank,
    )  # fmt: skip
    assert times.figures is None


@pytest.mark.usefixtures("in_blocks")
def test_what_shared_links_leave_out_is_bounded(job):
    shared = apart(switch(4, **FAST))
    flattened, taken_apart = (
        simulate(job(tp=2, dp=2), shared, mode=mode) for mode in ("flattened", "hierarchical")
    )
    (note,) = (note for note in taken_apart.notes if "simulated apart" in note)
    most = float(note.rpartition("(")[2].rstrip("%)")) / 100
    assert int(taken_apart.step_time) <= int(flattened.step_time)
    assert int(flattened.step_time) <= (1 + most) * int(taken_apart.step_time)


@pytest.mark.usefixtures("in_blocks")
def test_what_groups_of_blocks_wait_for_one_another_is_bounded(job):
    # ranks 0 and 2, and 1 and 3, share the links of a ring of four
    crossing = job(tp=2, pp=2, order="[pp, tp, cp, ep, dp]")
    shared = apart(ring(4, **SLOW))
    flattened, taken_apart = (simulate(crossing, shared, mode=mode) for mode in ("flattened", "hierarchical"))
    (note,) = (note for note in taken_apart.notes if "simulated apart" in note)
    most = float(note.rpartition("(")[2].rstrip("%)")) / 100
    assert int(flattened.step_time) > 1.05 * int(taken_apart.step_time)
    assert int(flattened.step_time) <= (1 + most) * int(taken_apart.step_time)


@pytest.fixture(scope="module")
def crowded():
    """A job, a machine whose links its blocks share, and the flattened step."""
    small = {"model.layers": "2", "training.global_batch": "8", "parallelism": "{tp: 2, pp: 2, dp: 4}"}
    shared, where = load_job("llama2_7b_train", settings=small), load_machine("torus2d_ring_a100_64")
    return shared, where, simulate(shared, where, allow_oom=True).step_time


@pytest.mark.usefixtures("in_blocks")
@pytest.mark.parametrize("mode", MODES[1:])
def test_a_wide_bound_stands_beside_the_step_and_in_its_interval(crowded, mode):
    shared, where, flattened = crowded
    result = simulate(shared, where, mode=mode, allow_oom=True)
    bound, interval = result.mode_bound, result.intervals["step"]
    assert bound.high > 1.05 * result.step_time
    assert bound.low <= flattened <= bound.high
    # the interval around the forecast is at least as wide as the bound around the step
    assert interval.low / interval.median <= bound.low / result.step_time
    assert bound.high / result.step_time <= interval.high / interval.median
    assert "  flattened step   " in "\n".join(text(result_report(result, "any")))
    assert any(bound.link in note for note in result.notes)


def test_compare_gives_every_mode_or_why_not(job):
    results = compare(job(tp=2, dp=2), apart(switch(4, **FAST)))
    assert tuple(results) == MODES
    flattened = results["flattened"].step_time
    for mode in ("hybrid", "analytical"):
        # what they leave out, messages that wait for one another, only makes a step shorter
        assert results[mode].step_time <= flattened
        assert results[mode].step_time == pytest.approx(flattened, rel=0.1)
        assert results[mode].notes[0].startswith(f"mode {mode}: ")


@pytest.mark.parametrize(("name", "close"), [("perlmutter_32", 0.99), ("hyperx_a100_128", 0.97)])
def test_chunks_that_follow_each_other_along_dimensions_do_so_in_closed_forms_too(name, close):
    """Gradients go round nodes while others are summed inside: they took all phases one after the other.

    A collective by itself may last longer than beside the next, which begins where the first has ended.
    """
    changed = {"model.layers": 2, "training.global_batch": 16, "training.sequence_length": 512,
               "training.overlap_gradients": "false", "parallelism": "{tp: 1, pp: 1, dp: 16}"}  # fmt: skip
    alike = load_job("llama2_7b_train", settings={key: str(value) for key, value in changed.items()})
    steps = [
        simulate(alike, load_machine(name), mode=mode, allow_oom=True).breakdown["dp"]
        for mode in ("analytical", "flattened")
    ]
    assert steps[0] == pytest.approx(steps[1], rel=1 - close)


def test_a_slower_fabric_slows_every_mode(job):
    run = job(tp=2, dp=2, pp=2)
    slow = apart(switch(2, **SLOW), ring(2, **SLOW), ring(2, **SLOW))
    fast = apart(switch(2, **FAST), ring(2, **FAST), ring(2, **FAST))
    for mode in MODES:
        assert simulate(run, slow, mode=mode).step_time > simulate(run, fast, mode=mode).step_time


@pytest.mark.parametrize("engine", ["simpy", "compiled"])
@pytest.mark.parametrize("mode", MODES)
def test_the_engine_changes_no_digit(job, mode, engine):
    run, fabric = job(tp=2, pp=2), MACHINES["rings"](2, 1, 2)
    one, other = simulate(run, fabric, mode=mode), simulate(run, fabric, mode=mode, engine=engine)
    assert other.engine == engine
    assert one.finish == other.finish
    assert one.breakdown == other.breakdown


def test_an_unknown_mode_or_engine_is_refused(job):
    fabric = MACHINES["rings"](1, 1, 1)
    with pytest.raises(InputError, match=r"mode 'quick' is not one of flattened, hierarchical"):
        simulate(job(), fabric, mode="quick")
    with pytest.raises(InputError, match=r"engine 'c' is not one of auto, simpy, compiled"):
        simulate(job(), fabric, engine="c")


def test_replicas_that_exchange_nothing_need_no_fabric_in_any_mode(job):
    cut = machine(ring(2, **SLOW), switching=PACKETS)
    cut = load_machine(cut.path, faults=[parse_fault("all=links down=true")])
    steps = [("inference.decode_steps", "2")]
    times = {mode: simulate(job("service", steps, dp=2), cut, mode=mode).step_time for mode in MODES}
    assert len(set(times.values())) == 1, times


def test_decode_steps_that_were_not_simulated_are_interpolated(job):
    fabric = apart(ring(2, **FAST))
    every = simulate(job("service", tp=2), fabric)
    some = simulate(job("service", [("inference.decode_steps", "5")], tp=2), fabric)
    for result in (every, some):
        requests = result.figures.requests
        assert sum(result.breakdown.values()) == result.step_time == requests.total
        assert all(part >= 0 for part in result.breakdown.values())
        # 59 tokens after the first, whose mean was rounded down
        after_first = requests.total - requests.first_token
        assert 0 <= after_first - 59 * requests.per_output_token < 59
    assert some.hops < every.hops / 8
    assert some.figures.requests.first_token == every.figures.requests.first_token
    assert some.step_time == pytest.approx(every.step_time, rel=0.005)


@pytest.mark.parametrize("sequence_parallel", ["false", "true"])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_the_loss_is_summed_while_the_next_micro_batch_computes(job, schedule, sequence_parallel):
    # in gpipe the last stage goes on with another forward, in 1f1b with the backward of the same micro-batch
    split = [("training.schedule", schedule), ("parallelism.sequence_parallel", sequence_parallel)]
    run, fabric = job(settings=[*split, *UNHOSTED], tp=4, pp=2), MACHINES["rings"](4, 1, 2)
    flattened, hierarchical = (simulate(run, fabric, mode=mode) for mode in ("flattened", "hierarchical"))
    assert hierarchical.step_time == pytest.approx(flattened.step_time, rel=1e-6)
    for part, spent in flattened.breakdown.items():
        assert hierarchical.breakdown.get(part, 0) == pytest.approx(spent, rel=1e-3, abs=1e6)


def test_messages_of_the_first_backward_wait_for_those_of_the_last_loss(job):
    # three sums of the loss last longer than the kernel before the backward's first message
    settings = [("training.schedule", "gpipe"), ("parallelism.sequence_parallel", "true"), *UNHOSTED]
    run, fabric = job(settings=settings, tp=4), apart(ring(4, bandwidth="200 GB/s", latency="20 us"))
    flattened, hierarchical = (simulate(run, fabric, mode=mode) for mode in ("flattened", "hierarchical"))
    assert hierarchical.breakdown["tp"] == pytest.approx(flattened.breakdown["tp"], rel=1e-6)


CONTEXT = [
    {"cp": 4},
    {"cp": 2, "dp": 2},
    {"tp": 2, "cp": 2},
    {"tp": 2, "cp": 2, "dp": 2},
    {"tp": 2, "cp": 2, "pp": 2},
    {"tp": 2, "cp": 2, "dp": 2, "pp": 2},
]


def line(split):
    """A machine with a ring for each axis that a split uses, innermost first."""
    return apart(*(ring(size, **(FAST if axis in {"tp", "cp"} else SLOW)) for axis, size in split.items()))


MORE = [(), ("zero_stage", "1"), ("recompute", "full"), ("schedule", "gpipe")]


@pytest.mark.parametrize(
    ("split", "more"),
    [(split, MORE[(place + turn) % 4]) for place, split in enumerate(CONTEXT) for turn in (0, 2)],
    ids=str,
)
def test_context_parallelism_is_outside_blocks_and_meets_the_gradients_there(job, split, more):
    # The gradients of a bucket travel over cp and dp while later blocks exchange keys and values on the same
    # links: the outer graph has both.
    settings = [(f"training.{more[0]}", more[1])] if more else []
    run, fabric = job("training", settings, **split), line(split)
    flattened, hierarchical = (simulate(run, fabric, mode=mode) for mode in ("flattened", "hierarchical"))
    assert hierarchical.step_time == pytest.approx(flattened.step_time, rel=0.002)
    assert hierarchical.breakdown["cp"] == pytest.approx(flattened.breakdown["cp"], rel=0.02)
    assert sum(hierarchical.breakdown.values()) == hierarchical.step_time
    if "tp" not in split:
        # all that differs is who goes first where messages meet within one instant
        assert hierarchical.step_time == pytest.approx(flattened.step_time, rel=1e-8)


@pytest.mark.parametrize("split", [{}, {"tp": 2}, {"pp": 4}, {"tp": 2, "pp": 2}, {"tp": 2, "dp": 2}], ids=str)
@pytest.mark.parametrize("steps", ["all", "5"])
def test_serving_is_taken_apart_pass_by_pass(job, split, steps):
    run = job("service", [("inference.decode_steps", steps), ("inference.micro_batch", "1")], **split)
    fabric = line(split or {"tp": 1})
    flattened, hierarchical = (simulate(run, fabric, mode=mode) for mode in ("flattened", "hierarchical"))
    assert hierarchical.step_time == pytest.approx(flattened.step_time, rel=1e-4)
    for of in ("first_token", "per_output_token", "total"):
        times = [getattr(result.figures.requests, of) for result in (hierarchical, flattened)]
        assert times[0] == pytest.approx(times[1], rel=1e-4)
    assert sum(hierarchical.breakdown.values()) == hierarchical.step_time
    assert hierarchical.breakdown["compute"] == pytest.approx(flattened.breakdown["compute"], rel=1e-3)
    assert any(note.startswith("decode: 5 of 59 steps") for note in hierarchical.notes) == (steps == "5")


@pytest.mark.parametrize("file", ["training", "service"])
def test_the_busiest_operators_are_found_inside_blocks(job, file):
    run, fabric = job(file, tp=2, pp=2), MACHINES["rings"](2, 1, 2)
    flattened, hierarchical = (simulate(run, fabric, mode=mode) for mode in ("flattened", "hierarchical"))
    assert hierarchical.busiest == flattened.busiest
    assert any("attention" in name for name in hierarchical.busiest)


def test_modes_without_a_timeline_say_so(job, tmp_path):
    result = simulate(job(tp=2), MACHINES["rings"](2, 1, 1), mode="analytical")
    with pytest.raises(UnsupportedByEngine, match="mode analytical has no timeline"):
        result.write_timeline(tmp_path / "t.json")


HOST = ("kernel", "collective", "graph", "step")


def hosted(job, each, file="training", settings=(), **parallelism):
    """A job whose host needs `each` for everything that it issues."""
    times = [(f"host.{name}", each) for name in HOST]
    return job(file, [*settings, *times], **parallelism)


@pytest.mark.parametrize(("tp", "dp", "pp"), [(1, 1, 1), (2, 2, 1), (2, 1, 2)])
def test_a_host_bound_step_takes_as_long_as_issuing_it_in_every_mode(job, tp, dp, pp):
    fabric, settings = MACHINES["rings"](tp, dp, pp), [("training.overlap_pipeline", "true")]
    run = hosted(job, "2 ms", settings=settings, tp=tp, dp=dp, pp=pp)
    results = {mode: simulate(run, fabric, mode=mode) for mode in MODES}
    plain = simulate(job(tp=tp, dp=dp, pp=pp, settings=UNHOSTED), fabric)
    for result in results.values():
        assert result.bound == "host"
        assert result.step_time > 5 * plain.step_time
        assert result.step_time == pytest.approx(results["flattened"].step_time, rel=0.01)
        assert sum(result.breakdown.values()) == result.step_time
        assert any(note.startswith("host-bound: ") for note in result.notes)


def test_a_host_that_runs_ahead_costs_a_step_its_first_issue(job):
    fabric = MACHINES["rings"](2, 1, 1)
    for mode in MODES:
        plain = simulate(job(tp=2, settings=UNHOSTED), fabric, mode=mode)
        ahead = simulate(hosted(job, "1 ns", tp=2), fabric, mode=mode)
        # a step's fixed time and the first kernel
        assert 0 <= ahead.step_time - plain.step_time <= 10_000
        assert not any(note.startswith("host-bound: ") for note in ahead.notes)


def test_graphs_make_decoding_independent_of_the_host_in_every_mode(job):
    fabric = MACHINES["rings"](2, 1, 1)
    steps = [("inference.decode_steps", "3"), ("host.captured", "decode")]
    for mode in MODES:
        captured = simulate(hosted(job, "50 us", "service", steps, tp=2), fabric, mode=mode)
        eager = [*steps, ("inference.cuda_graphs", "false")]
        issued = simulate(hosted(job, "50 us", "service", eager, tp=2), fabric, mode=mode)
        assert captured.figures.requests.first_token == issued.figures.requests.first_token
        assert issued.figures.requests.per_output_token > 3 * captured.figures.requests.per_output_token


@pytest.mark.parametrize(
    ("each", "file"),
    [("1 ns", "service"), ("3 us", "training"), ("20 us", "service"), ("300 us", "training")],
)
def test_blocks_pass_their_cuts_on_a_waiting_gpu_as_a_run_with_their_host_says(job, each, file):
    eager = [("inference.cuda_graphs", "false")] if file == "service" else []
    run, fabric = hosted(job, each, file, eager, tp=2), MACHINES["rings"](2, 1, 1)
    blocks, choice = price_blocks(run, fabric).blocks, EngineChoice("simpy")
    (kind,), times = block_times(blocks, fabric, choice, analytic=False, slow={}, cache=BoundedCache())
    issued = [key for key, block in blocks.blocks.items() if block.hosted is not None]  # not by a graph
    assert issued
    for key, block in ((key, blocks.blocks[key]) for key in issued):
        lowered = lower(block.on((0, 1), hosted=True), fabric)
        records = execute(lowered.program, choice).records
        finish = [rank_times(lowered, records, position).finish for position in range(2)]
        passed = block.passed(np.max(finish, axis=0).tolist(), hosted=True)
        assert times[kind, key].cuts.issued == passed


@pytest.mark.parametrize("each", ["20 us", "300 us"])
def test_engines_agree_on_what_a_host_issues(job, each):
    run, fabric = hosted(job, each, tp=2, pp=2), MACHINES["rings"](2, 1, 2)
    one, other = (simulate(run, fabric, engine=engine) for engine in ("simpy", "compiled"))
    assert one.finish == other.finish
    assert one.breakdown == other.breakdown


def test_a_hosted_job_written_as_traces_replays_alike(job, tmp_path):
    run, fabric = hosted(job, "100 us", tp=2, pp=2), MACHINES["rings"](2, 1, 2)
    write_set(price(run, fabric).traces, tmp_path, "job")
    assert replay(read_set(tmp_path), fabric).finish == simulate(run, fabric).finish


@pytest.mark.parametrize("mode", ["flattened", "hierarchical", "analytical"])
def test_a_stage_without_layers_hands_on_what_it_gets(mode):
    layers = {"parallelism.pp": 4, "parallelism.dp": 1, "parallelism.layers": [12, 0, 10, 10]}
    uneven = load_job("llama2_7b_train", settings=layers | {"training.schedule": "zb_h1"})
    result = simulate(uneven, load_machine("dgx_a100"), mode=mode)
    assert result.figures.memory.stages[1].parameters == 0
    assert sum(result.breakdown.values()) == result.step_time


def test_a_recipe_is_for_devices_whose_tensor_cores_have_it():
    settings = {"model.layers": 2, "training.global_batch": 4, "precision.gemm": "fp8"}
    job = load_job("llama2_7b_train", settings=settings | {"precision.recipe": "mxfp8"})
    simulate(job, load_machine("hgx_b200"), mode="analytical")
    with pytest.raises(ConfigError, match="H100-SXM-80GB multiplies no blocks of 32 values with a scale"):
        simulate(job, load_machine("dgx_h100"), mode="analytical")
