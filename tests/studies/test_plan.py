"""Plans: bounds are never above what is simulated, and the best is what trying everything finds."""

import json
import random
import sys
import time
from collections import defaultdict
from itertools import islice, permutations
from typing import Any

import pytest
from click.testing import CliRunner

from rapid_des.bounded_cache import BoundedCache
from rapid_des.cli.main import cli
from rapid_des.errors import ConfigError, InfeasibleJobError, InputError
from rapid_des.executors import InProcess, attempt
from rapid_des.frontend import load_job, memory
from rapid_des.frontend.memory import shown
from rapid_des.frontend.parts import pass_lists, stage_parameters
from rapid_des.machine import load_machine
from rapid_des.network.faults import parse_fault
from rapid_des.report.plan_text import plan_report
from rapid_des.report.tables import text
from rapid_des.simulation import simulate
from rapid_des.studies.alone import members_of_first
from rapid_des.studies.choices import choices_of
from rapid_des.studies.closed_form_bounds import held
from rapid_des.studies.deadline import Deadline, TimeIsUp
from rapid_des.studies.lower_bounds import LowerBounds
from rapid_des.studies.memory_bounds import MemoryBounds
from rapid_des.studies.orders import order_key
from rapid_des.studies.parameters import parameters_of
from rapid_des.studies.plan import Plan, Wanted, plan
from rapid_des.studies.shared_work import SharedWork
from rapid_des.studies.splits import Space, checked
from rapid_des.studies.stand_ins import in_place, of_groups, of_layers, of_state, without_recomputation

SMALL = {"model.layers": 8, "training.global_batch": 16, "training.sequence_length": 2048}
FEW: dict[str, list[Any]] = {
    "recompute": ["none", "full"],
    "zero_stage": [0, 1, 3],
    "order": [("tp", "cp", "ep", "dp", "pp")],
}


def job_of(name="llama2_7b_train", **settings):
    changed = {key: str(value) for key, value in {**SMALL, **settings}.items()}
    return load_job(name, settings=changed)


def machine_of(name="dgx_a100"):
    return load_machine(name, device_settings=[("operators", "roofline")])


def unslowed_machine(name):
    settings = [("collectives.contention", "false")]
    return load_machine(name, settings=settings, device_settings=[("operators", "roofline")])


def bounds_of(machine, cache):
    """The bounds of time and of memory, which share their work as in a plan."""
    work = SharedWork(machine, cache)
    return LowerBounds(work), MemoryBounds(work)


@pytest.mark.parametrize(
    ("job", "machine", "gpus"),
    [
        (job_of(), "dgx_a100", 8),
        (job_of(**{"training.overlap_gradients": "false"}), "dgx_a100_x2", 16),  # dp over nodes
        (
            job_of(
                "deepseek_v3_train_2048",
                **{
                    "model.exceptions": "[]",
                    "parallelism": "{pp: 1, dp: 16, ep: 8}",
                    "training.schedule": "1f1b",
                },
            ),
            "dgx_h100_x8",
            16,
        ),
    ],
)
def test_no_way_is_faster_or_smaller_than_its_bounds(job, machine, gpus):
    machine, cache = machine_of(machine), BoundedCache()
    ways = list(Space(job, machine, gpus))
    lower_bounds, memory_bounds = bounds_of(machine, cache)
    refusals: list[str] = []
    for way in random.Random(1).sample(ways, 3):
        legal = checked(way, refusals.append)
        if legal is None:
            continue
        assert memory_bounds.memory(legal) <= memory(legal).fullest.peak, way.settings
        kernels = [lower_bounds.passes(legal, again=again) for again in (False, True)]
        assert kernels[0] <= kernels[1] <= lower_bounds.step(legal), way.settings
        for mode in ("analytical", "flattened"):
            step = simulate(legal, machine, mode=mode, allow_oom=True, cache=cache).step_time
            assert lower_bounds.step(legal) <= step, (mode, way.settings)
    assert len(refusals) < 3


@pytest.mark.parametrize("experts", [False, True])
def test_a_stand_in_has_what_is_worked_out_for_it_in_common_with_its_jobs(experts):
    changed = {"model": "qwen3_30b_a3b", "parallelism": "{dp: 8, ep: 4}"} if experts else {}
    vary = {"order": None, "schedule": ["1f1b", "interleaved_1f1b", "zb_v", "dualpipe"]}
    families = list(Space(job_of(**changed), machine_of("dgx_a100_x2"), 16, vary).families())
    for way in random.Random(2).sample([way for family in families for way in family], 24):
        job, groups = way.job, of_groups(way.job)
        layers, placed, state = of_layers(job), in_place(job), of_state(job)
        assert pass_lists(layers) == pass_lists(job)
        assert of_layers(placed) == layers
        assert members_of_first(placed, "tp") == members_of_first(job, "tp")
        assert members_of_first(placed, "cp") == members_of_first(job, "cp")
        replicas = ["gradient", "expert_gradient", "ep"] if experts else ["gradient"]
        for group in replicas:
            assert members_of_first(groups, group) == members_of_first(job, group)
        plain = without_recomputation(job)
        each = range(job.stages)
        assert [stage_parameters(state, at) for at in each] == [stage_parameters(plain, at) for at in each]


@pytest.mark.parametrize("split", ["tp: 2, pp: 1, dp: 8, sequence_parallel: true", "tp: 1, pp: 1, dp: 16"])
def test_messages_that_slow_kernels_beside_them_are_in_the_bound(split):
    job = job_of(**{"parallelism": f"{{{split}}}", "training.zero_stage": 2, "training.micro_batch": 1,
                     "training.global_batch": 64})  # fmt: skip
    machine, cache = machine_of("dgx_h100_x8"), BoundedCache()
    step = simulate(job, machine, mode="analytical", allow_oom=True, cache=cache).step_time
    unslowed = LowerBounds(SharedWork(unslowed_machine("dgx_h100_x8"), cache)).step(job)
    assert unslowed < 0.9 * step < LowerBounds(SharedWork(machine, cache)).step(job) <= step


def drawn(seed):
    """A way of ZeRO-2 or 3 on 16 GPUs: uneven stages, context parallelism, experts, all drawn."""
    draw = random.Random(seed)
    tp, cp, pp = draw.choice([(1, 1, 1), (2, 1, 1), (1, 1, 2), (2, 1, 2), (1, 2, 2), (2, 1, 4), (1, 2, 4)])
    chunks = draw.choice([1, 2]) if pp > 1 else 1
    layers = [8 // (pp * chunks)] * (pp * chunks)
    if layers[0] > 1 and pp > 1:
        layers[0], layers[-1] = layers[0] + 1, layers[-1] - 1
    experts, dp = draw.random() < 0.3, 16 // (tp * cp * pp)
    changed = {
        "training.zero_stage": draw.choice([2, 3]),
        "training.schedule": "interleaved_1f1b" if chunks > 1 else draw.choice(["1f1b", "gpipe"]),
        "training.micro_batch": 1,
        "training.global_batch": dp * pp * draw.choice([1, 2, 4]),
        "training.recompute": draw.choice(["none", "full"]),
        "training.overlap_gradients": draw.choice(["true", "false"]),
        "training.prefetch": draw.choice([0, 1, 2]),
    }
    split = f"tp: {tp}, cp: {cp}, pp: {pp}, dp: {dp}, chunks: {chunks}, layers: {layers}"
    sharded = f"{split}, sequence_parallel: {str(tp > 1).lower()}"
    if not experts:
        return job_of(**changed, parallelism=f"{{{sharded}}}")
    changed |= {"model.exceptions": "[]", "model.feed_forward.experts": 16}
    return job_of("deepseek_v3_train_2048", **changed, parallelism=f"{{{sharded}, ep: 2, etp: 1}}")


@pytest.mark.parametrize("seed", range(8))
def test_no_way_whose_messages_travel_for_each_micro_batch_is_faster_than_its_bounds(seed):
    job, machine, cache = drawn(seed), machine_of("dgx_h100_x8"), BoundedCache()
    lower_bounds = LowerBounds(SharedWork(machine, cache))
    least = lower_bounds.step(job)
    for mode in ("analytical", ("hierarchical", "flattened")[seed % 2]):
        step = simulate(job, machine, mode=mode, allow_oom=True, cache=cache).step_time
        assert 0.5 * step < least <= step, mode


@pytest.mark.parametrize(
    ("split", "overlap_tp"),
    [
        ("tp: 2, cp: 2, pp: 2, dp: 2, cp_kind: ring", "none"),
        ("tp: 2, cp: 4, dp: 2, cp_kind: ulysses_ring, cp_heads: 2", "none"),
        ("tp: 4, pp: 2, dp: 2", "ring"),
        ("tp: 2, cp: 2, dp: 4, cp_kind: ring", "ring"),
    ],
)
def test_no_way_whose_blocks_go_round_is_faster_than_its_bounds(split, overlap_tp):
    settings = {"parallelism": f"{{{split}, sequence_parallel: true}}", "training.overlap_tp": overlap_tp}
    job, machine, cache = job_of(**settings), machine_of("dgx_a100_x2"), BoundedCache()
    lower_bounds = LowerBounds(SharedWork(machine, cache))
    least = lower_bounds.step(job)
    for mode in ("analytical", "flattened"):
        step = simulate(job, machine, mode=mode, allow_oom=True, cache=cache).step_time
        assert 0.85 * step < least <= step, mode


@pytest.mark.parametrize(
    ("name", "zero_stage", "machine", "settings"),
    [
        (
            "llama2_7b_train",
            2,
            "dgx_a100_x2",
            {"training.adapters": "{rank: 16}"},
        ),  # an embedding without backward
        ("deepseek_v3_train_2048", 1, "torus2d_ring_a100_64", {"parallelism": "{pp: 1, dp: 16, ep: 4}"}),
        (
            "deepseek_v3_train_2048",
            2,
            "dgx_a100_x2",
            {"parallelism": "{tp: 4, pp: 1, dp: 1, ep: 1, etp: 1, sequence_parallel: true}"},
        ),
        (
            "llama2_7b_train",
            1,
            "dgx_a100_x2",
            {
                "parallelism": "{tp: 8, pp: 2, dp: 1, chunks: 4}",
                "training.schedule": "interleaved_1f1b",
                "fusion": "torch_compile",
                "model.layers": 8,
                "training.global_batch": 32,
            },
        ),
    ],
    ids=["adapters", "uneven exchanges by routes", "experts alone are replicated", "layers end in sums"],
)
def test_no_way_of_these_jobs_is_faster_than_its_bounds(name, zero_stage, machine, settings):
    changed = {"training.zero_stage": zero_stage, "training.micro_batch": 1} | settings
    if name != "llama2_7b_train":
        changed |= {"model.exceptions": "[]", "model.feed_forward.experts": 16, "training.schedule": "1f1b",
                    "precision.gemm": "null", "precision.recipe": "null", "model.layers": 2,
                    "routing": "{load: {kind: zipf, exponent: 0.5, seed: 1}}"}  # fmt: skip
    job, machine, cache = job_of(name, **changed), machine_of(machine), BoundedCache()
    lower_bounds = LowerBounds(SharedWork(machine, cache))
    step = simulate(job, machine, mode="analytical", allow_oom=True, cache=cache).step_time
    assert 0.7 * step < lower_bounds.step(job) <= step


@pytest.mark.parametrize("split", ["{tp: 1, dp: 2}", "{tp: 2, dp: 1}", "{tp: 1, pp: 2, dp: 1}"])
def test_no_way_is_faster_than_its_bounds_where_clocks_are_drawn(split):
    drawn = "{seed: 5, gpu_speed: {lognormal: 0.05}}"  # GPUs 0 and 1 are faster than the device file's
    machine, cache = load_machine("dgx_a100", settings=[("jitter", drawn)]), BoundedCache()
    lower_bounds, job = (
        LowerBounds(SharedWork(machine, cache)),
        job_of(parallelism=split, **{"training.micro_batch": 1}),
    )
    bounds = lower_bounds.passes(job, again=True), lower_bounds.exchanged(job), lower_bounds.step(job)
    step = simulate(job, machine, mode="analytical", allow_oom=True, cache=cache).step_time
    assert 0.8 * step < max(bounds) <= step


@pytest.mark.parametrize(
    ("model", "split"), [("llama2_7b", "{tp: 2, dp: 4, order: [dp, tp, cp, ep, pp]}"),
                         ("qwen3_30b_a3b", "{dp: 8, ep: 8}")],
)  # fmt: skip
def test_copies_of_whole_units_are_in_the_bounds_of_zero_3_alone(model, split):
    """What ways have in common is found once: not what FSDP copies under one ZeRO stage only."""
    machine, cache = machine_of("dgx_h100"), BoundedCache()
    lower_bounds, memory_bounds = bounds_of(machine, cache)
    for zero_stage in (3, 0):
        changed = {"model.layers": 4, "training.zero_stage": zero_stage, "training.micro_batch": 1}
        job = job_of(model=model, software="torchtitan", parallelism=split, **changed)
        step = simulate(job, machine, mode="analytical", allow_oom=True, cache=cache).step_time
        memory_bounds.memory(job)
        bounds = [lower_bounds.passes(job, again=True), lower_bounds.exchanged(job), lower_bounds.step(job)]
        assert bounds[-1] == LowerBounds(SharedWork(machine, cache)).step(job)
        assert 0.79 * step < max(bounds) <= step


def test_experts_of_unlike_loads_stand_where_each_way_puts_them():
    routing = {"routing": "{load: {kind: zipf, exponent: 0.6, seed: 1}}", "model.layers": 4}
    job = job_of(model="qwen3_30b_a3b", parallelism="{dp: 8, ep: 4}", **routing)
    vary: dict[str, list[Any]] = {
        "pp": [1],
        "tp": [1],
        "ep": [1, 2, 8],
        "micro_batch": [1],
        "recompute": ["none"],
        "zero_stage": [1],
    }
    for way in Space(job, machine_of("dgx_h100"), 8, vary):
        stated = {"training.zero_stage": 1, "training.micro_batch": 1, "training.recompute": "none"}
        split = f"{{dp: 8, ep: {way.settings['ep']}, etp: {way.settings['etp']}}}"
        same = job_of(model="qwen3_30b_a3b", parallelism=split, **routing, **stated)
        assert way.job.model == same.model
        assert memory(way.job).fullest.peak == memory(same).fullest.peak


@pytest.mark.parametrize("schedule", ["dualpipe", "zb_v"])
def test_who_holds_both_ends_of_the_model_holds_a_tied_table_once(schedule):
    machine, cache = machine_of("dgx_h100"), BoundedCache()
    (lower_bounds, memory_bounds), split = bounds_of(machine, cache), "{pp: 4, dp: 2}"
    for chosen in ("1f1b", schedule, "1f1b"):
        stated = {"training.schedule": chosen, "training.micro_batch": 1}
        job = job_of(model="gemma3_4b", parallelism=split, **stated)
        alone = MemoryBounds(SharedWork(machine, cache)).memory(job)
        assert memory_bounds.memory(job) == alone <= memory(job).fullest.peak
        assert lower_bounds.step(job) == LowerBounds(SharedWork(machine, cache)).step(job)


@pytest.mark.parametrize(("chunks", "schedule"), [(4, "interleaved_1f1b"), (4, "breadth_first")])
def test_gradients_of_a_chunk_that_is_done_early_travel_early(chunks, schedule):
    job = job_of(**{
        "parallelism": f"{{tp: 4, pp: 2, dp: 2, chunks: {chunks}, order: [tp, cp, ep, pp, dp]}}",
        "training.zero_stage": 0, "training.schedule": schedule, "training.micro_batch": 1,
    })  # fmt: skip
    machine, cache = machine_of("dgx_a100_x2"), BoundedCache()
    step = simulate(job, machine, mode="analytical", allow_oom=True, cache=cache).step_time
    assert 0.6 * step < LowerBounds(SharedWork(machine, cache)).step(job) <= step


def test_the_best_is_what_trying_everything_finds():
    job, machine = job_of(), machine_of()
    vary = {**FEW, "tp": [1, 2, 4], "cp": [1], "micro_batch": [1], "schedule": ["1f1b"], "pp": [1, 2]}
    vary["zero_stage"] = [0, 1]
    found = plan(job, machine, Wanted(gpus=4, top=3, vary=vary))
    every, cache = [], BoundedCache()
    for way in Space(job, machine, 4, vary):
        legal = checked(way, str)
        if legal is not None and memory(legal).fullest.peak <= 0.9 * machine.device.spec.hbm.capacity:
            every.append(simulate(legal, machine, cache=cache).step_time)
    assert [row.step_time for row in found.rows] == sorted(every)[:3]
    assert found.ways > 2 * found.counts["flattened"]
    assert found.within == 0
    assert all(row.certain and row.job.gpus == 4 for row in found.rows)
    assert [row["tp"] for row in found.as_json()["rows"]] == [row.settings["tp"] for row in found.rows]


def test_layouts_take_memory_up_to_the_stated_share():
    vary = {**FEW, "tp": [1], "pp": [1], "micro_batch": [1], "schedule": ["1f1b"]}
    found = plan(job_of(), machine_of(), Wanted(gpus=4, top=1, vary=vary))
    taken = found.rows[0].memory_bytes / machine_of().device.spec.hbm.capacity
    assert taken <= 0.9 and found.as_json()["rows"][0]["fits"] > 0.5
    with pytest.raises(InfeasibleJobError, match=r"into \d+% of memory \(--headroom\)"):
        plan(job_of(), machine_of(), Wanted(gpus=4, top=1, vary=vary, headroom=taken / 100))
    with pytest.raises(InputError, match="headroom 1.1"):
        Wanted(headroom=1.1)


def test_after_many_simulations_the_first_row_is_enough_and_others_say_whether_they_are_certain(monkeypatch):
    vary = {**FEW, "tp": [1, 2, 4], "cp": [1], "micro_batch": [1], "schedule": ["1f1b"], "pp": [1, 2]}
    whole = plan(job_of(), machine_of(), Wanted(gpus=4, top=4, vary=vary))
    monkeypatch.setattr("rapid_des.studies.refinement._RANKS", 0)
    monkeypatch.setattr("rapid_des.studies.refinement._TWICE", 1)
    found = plan(job_of(), machine_of(), Wanted(gpus=4, top=4, vary=vary))
    assert found.rows[0].step_time == whole.rows[0].step_time
    assert (len(found.rows), found.floor) == (4, None)
    assert found.counts["analytical"] <= whole.counts["analytical"]
    assert not found.rows[-1].certain
    known = [row.step_time for row in whole.rows]
    assert all(row.step_time in known for row in found.rows if row.certain)
    assert "? a layout that was not simulated" in "\n".join(
        text(plan_report(found.as_json(), "job", "machine"))
    )


def test_a_plan_that_is_stopped_says_what_all_others_take_at_least(monkeypatch):
    monkeypatch.setattr("rapid_des.studies.deadline.time", _LongWaits())
    job, machine = job_of(), machine_of()
    vary = {**FEW, "tp": [1, 2, 4], "cp": [1], "micro_batch": [1], "schedule": ["1f1b"], "pp": [1, 2]}
    whole = plan(job, machine, Wanted(gpus=4, top=3, vary=vary))
    stopped = plan(job, machine, Wanted(gpus=4, top=3, vary=vary, within_s=1800, pruned=True), _Slow())
    assert whole.floor is None
    assert stopped.rows
    assert not any(row.certain for row in stopped.rows)
    assert len(stopped.pruned) + len(stopped.rows) == stopped.ways
    listed = [row.settings for row in stopped.rows]
    assert all(stopped.floor <= row.step_time for row in whole.rows if row.settings not in listed)
    lines = list(text(plan_report(stopped.as_json(), "job", "machine")))
    assert "no layout that is not listed takes less than" in lines[2]


class _LongWaits:
    """A clock on which each wait for workers takes an hour."""

    def __init__(self):
        self.waited = 0

    def monotonic(self):
        return time.monotonic() + self.waited

    def sleep(self, _):
        self.waited += 3600


class _Slow(InProcess):
    """Workers of which none is ever done."""

    def map(self, function, items, meanwhile=None):
        next(iter(items), None)
        while meanwhile():
            pass
        yield from ()


def test_a_plan_without_time_estimates_one_layout_and_says_that_it_did_not_look_at_all():
    stopped = plan(job_of(), machine_of(), Wanted(gpus=8, within_s=0))
    assert [row.result.mode for row in stopped.rows] == ["analytical"]
    assert (stopped.floor, stopped.within) == (0, None)
    assert (
        "the bounds of some layouts are not known"
        in list(text(plan_report(stopped.as_json(), "job", "machine")))[2]
    )


def test_a_wait_for_workers_ends_when_the_time_is_up():
    deadline = Deadline(0.05)
    assert deadline.wait(iter(()))
    with pytest.raises(TimeIsUp):
        while deadline.wait(iter(())):
            pass
    assert [Deadline().wait(work := iter([True])), Deadline().wait(work)] == [True, False]


@pytest.mark.parametrize("name", ["king_mesh_a100"])
def test_rows_are_what_run_prints_in_its_order_on_fabrics_whose_links_are_shared(name):
    machine = load_machine(name)
    vary = {**FEW, "tp": [2], "cp": [1], "pp": [1], "micro_batch": [1, 2], "recompute": ["none"]}
    vary["zero_stage"] = [1]
    small = job_of(**{"model.layers": 4, "training.global_batch": 8})
    found = plan(small, machine, Wanted(gpus=8, top=2, vary=vary))
    steps = [simulate(row.job, machine).step_time for row in found.rows]
    assert [row.step_time for row in found.rows] == steps == sorted(steps)
    assert {row["mode"] for row in found.as_json()["rows"]} == {"flattened"}
    assert "no other layout is faster" in "\n".join(text(plan_report(found.as_json(), "job", "machine")))


def test_on_a_machine_that_stores_and_forwards_the_best_comes_first():
    machine = load_machine("dgx_a100", settings=[
        ("switching", "{mode: store_and_forward, segment: 64 KiB}"),
        ("fabric.0.bandwidth", "10 GB/s"), ("collectives", "{default: ring}"),
    ])  # fmt: skip
    job = job_of(**{"model.layers": 2, "training.sequence_length": 512, "parallelism": "{dp: 4}",
                    "training.zero_stage": 1, "training.global_batch": 8})  # fmt: skip
    vary: dict[str, list[Any]] = {
        "tp": [1, 2],
        "pp": [1, 2],
        "cp": [1],
        "recompute": ["none"],
        "zero_stage": [1],
    }
    found = plan(job, machine, Wanted(gpus=4, top=3, vary=vary))
    every = [
        simulate(legal, machine).step_time
        for way in Space(job, machine, 4, vary)
        if (legal := checked(way, str)) is not None
    ]
    assert [row.step_time for row in found.rows] == sorted(every)[:3]


def test_rows_that_their_mode_does_not_tell_apart_are_marked():
    vary = {**FEW, "tp": [2], "cp": [1], "pp": [1], "micro_batch": [1], "recompute": ["none"]}
    machine = machine_of("dgx_a100_x2")
    found = plan(job_of(), machine, Wanted(gpus=16, top=2, vary=vary, mode="hierarchical"))
    first, second = found.rows
    low, high = first.flattened
    assert low <= simulate(first.job, machine).step_time <= high
    assert second.may_be_faster(first) == (second.flattened[0] < high)
    assert found.within >= 1 - min(second.flattened[0], found.others) / high - 1e-12
    lines = "\n".join(text(plan_report(found.as_json(), "job", "machine")))
    assert ("2=" in lines) == second.may_be_faster(first)
    assert ("within" in lines) == (found.within > 0)


def test_the_nearest_of_those_that_do_not_fit_is_one_that_was_asked_for():
    job, machine = load_job("llama3_1_70b_train_64"), machine_of()
    vary: dict[str, list[Any]] = {
        "zero_stage": [1],
        "tp": [1, 2],
        "micro_batch": [1, 2],
        "recompute": ["none", "full"],
    }
    with pytest.raises(InfeasibleJobError, match=r"nearest \(tp 2, .*recompute full, zero_stage 1") as told:
        plan(job, machine, Wanted(gpus=4, vary=vary))
    every = [checked(way, str) for way in Space(job, machine, 4, vary)]
    least = min(memory(legal).fullest.peak for legal in every if legal is not None)
    assert f"needs {shown(least)}" in str(told.value)


def test_what_a_job_states_itself_is_tried():
    stated = "{tp: 2, pp: 1, dp: 4, ep: 4, sequence_parallel: true}"
    job = job_of(model="qwen3_30b_a3b", parallelism=stated, **{"training.micro_batch": 3,
                 "training.global_batch": 24, "model.layers": 4})  # fmt: skip
    space = Space(job, machine_of("dgx_h100"), 8, {"tp": [2], "pp": [1], "cp": [1], "ep": [4]})
    tried = [way.job for way in space]
    assert {one.spec.parallelism.etp for one in tried} == {1, None}
    assert 3 in {one.training.micro_batch for one in tried}


def test_every_other_way_says_why_it_is_no_row():
    job = job_of(**{"training.sequence_length": 4096, "model.layers": 32})
    vary = {**FEW, "tp": [1, 2], "cp": [1], "pp": [1], "micro_batch": [1, 16]}
    found = plan(job, machine_of(), Wanted(gpus=4, top=1, vary=vary, pruned=True, price=2.0))
    assert len(found.pruned) + len(found.rows) == found.ways
    assert {one.why for one in found.pruned} == {"memory", "bound"}
    row = found.rows[0].as_json(2.0)
    assert row["cost"] == pytest.approx(2.0 * 4 * row["step_time_s"] / 3600)
    assert row["forecast_s"] is row["cost_forecast"] is row["mfu_forecast"] is None  # not a measured device


def test_a_pass_that_another_one_fills_is_bound_by_its_kernels_alone():
    """DualPipe computes one micro-batch while the other one's tokens travel: messages may take no time."""
    job = job_of(
        "deepseek_v3_train_2048",
        **{
            "model.exceptions": "[]",
            "parallelism": "{pp: 4, dp: 4, ep: 4, layers: even}",
            "training.schedule": "dualpipe",
            "training.global_batch": 64,
        },
    )
    machine, cache = machine_of("dgx_h100_x8"), BoundedCache()
    lower_bounds = LowerBounds(SharedWork(machine, cache))
    step = simulate(job, machine, mode="analytical", allow_oom=True, cache=cache).step_time
    assert (
        lower_bounds.passes(job, again=True) <= lower_bounds.exchanged(job) <= lower_bounds.step(job) <= step
    )
    one_by_one = job.replace(schedule="1f1b")
    assert lower_bounds.exchanged(one_by_one) > lower_bounds.passes(
        one_by_one, again=True
    )  # all-to-alls count there


@pytest.mark.parametrize(
    ("schedule", "close"),
    [("zb_h1", 0.94), ("zb_h2", 0.94), ("zb_v", 0.98), ("dualpipe", 0.9), ("dualpipe_v", 0.95)],
)
def test_a_bound_follows_the_order_of_halves_or_pairs(schedule, close):
    job = job_of(
        "deepseek_v3_train_2048",
        **{
            "model.exceptions": "[]",
            "model.feed_forward.experts": "16",
            "parallelism": "{pp: 4, dp: 4, ep: 4, layers: even}",
            "training.schedule": schedule,
            "training.global_batch": 48,
        },
    )
    machine, cache = machine_of("dgx_h100_x8"), BoundedCache()
    step = simulate(job, machine, mode="analytical", allow_oom=True, cache=cache).step_time
    assert close * step < LowerBounds(SharedWork(machine, cache)).step(job) <= step


@pytest.mark.parametrize("zero_stage", [2, 3])
def test_a_copy_of_a_part_reduces_the_gradients_of_its_own_micro_batches(zero_stage):
    job = job_of(**{"parallelism": "{tp: 1, pp: 4, dp: 4}", "training.schedule": "dualpipe",
                     "training.micro_batch": 1, "training.zero_stage": zero_stage,
                     "training.global_batch": 64})  # fmt: skip
    machine, cache = machine_of("dgx_h100_x8"), BoundedCache()
    step = simulate(job, machine, mode="analytical", allow_oom=True, cache=cache).step_time
    assert LowerBounds(SharedWork(machine, cache)).step(job) <= step


def test_a_schedule_of_two_chunks_has_no_more_parts_than_layers():
    space = Space(job_of(), machine_of(), 8, {"schedule": ["zb_v", "dualpipe_v"], "pp": [2, 4, 8]})
    assert {way.job.stages for way in space} == {2, 4}


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved_1f1b"])
@pytest.mark.parametrize(("pp", "chunks", "batch"), [(2, 2, 8), (4, 2, 16), (4, 2, 4), (2, 4, 64)])
def test_a_stage_begins_as_many_micro_batches_before_its_first_backward_as_its_order_says(
    schedule, pp, chunks, batch
):
    split = f"{{pp: {pp}, chunks: {chunks if schedule != '1f1b' else 1}}}"
    settings = {"parallelism": split, "training.schedule": schedule, "training.global_batch": batch}
    job = job_of(**settings, **{"training.micro_batch": 1})
    for stage, order in enumerate(job.stage_orders.orders):
        first = next(place for place, item in enumerate(order) if item.phase == "backward")
        begun = [item.chunk for item in order[:first]]
        assert held(job, stage) == tuple(map(begun.count, range(len(job.placement[stage]))))


def test_a_family_is_the_product_of_what_is_left_to_choose():
    space = Space(job_of(), machine_of(), 4, {"pp": [1], "cp": [1], "micro_batch": [1]})
    families = list(space.families())
    assert [len(list(family)) for family in families] == [len(family) for family in families]
    assert sum(map(len, families)) == len(list(space))
    recomputed = [one.job.training.recompute for one in families[0].along("recomputes")]
    assert recomputed == ["none", "selective", "full"]


def test_larger_micro_batches_need_no_less_memory():
    _, memory_bounds = bounds_of(machine_of(), BoundedCache())
    needed: dict[object, list[int]] = {}
    for family in Space(job_of(), machine_of(), 8, {"tp": [1, 2], "cp": [1]}).families():
        split = family.base.spec.parallelism
        needed.setdefault((split, family.base.training.schedule), []).append(memory_bounds.memory(family.job))
    assert max(map(len, needed.values())) > 2
    assert all(each == sorted(each) for each in needed.values())


def test_requests_are_planned_too():
    job = load_job("llama2_7b_inference", settings={"inference.batch": "8", "inference.decode_steps": "2"})
    found = plan(job, machine_of(), Wanted(gpus=4, top=2, mode="analytical", vary={"pp": [1]}))
    served = {row.settings["batch"] * row.settings["dp"] for row in found.rows}
    assert served == {8 * job.spec.parallelism.dp}


def test_where_nothing_fits_the_nearest_is_named():
    with pytest.raises(
        InfeasibleJobError, match=r"none of .* layouts .* nearest \(tp 1, .*missing"
    ) as refused:
        plan(load_job("llama3_1_70b_train_64"), machine_of(), Wanted(gpus=1))
    assert refused.value.exit_code == 4


def test_where_no_layout_can_be_simulated_it_says_why():
    faults = [parse_fault(f"link=1>{other} down=true") for other in (0, 2, 5)]  # all that GPU 1 sends through
    cut = machine_of("mesh_2d_a100").with_faults(faults)
    vary: dict[str, list[Any]] = {"recompute": ["none"], "micro_batch": [1]}
    with pytest.raises(InfeasibleJobError, match="layouts can be simulated; as in .*gpu1 cannot reach gpu0"):
        plan(job_of(), cut, Wanted(gpus=2, vary={**vary, "zero_stage": [1]}))


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("foo", "'foo' is not one of tp, cp"),
        ("tp=0", "whole numbers from 1 on"),
        ("schedule=2f2b", "allowed: gpipe"),
        ("order=tp", "lists of tp, cp"),
        ("tp=", "no values"),
    ],
)
def test_choices_that_are_none_are_refused(text, match):
    with pytest.raises(ConfigError, match=match):
        choices_of([text])


def test_a_mode_that_is_none_is_refused():
    with pytest.raises(InputError, match="mode 'nope' is not one of auto, flattened"):
        Wanted(mode="nope")


def test_a_choice_stands_once():
    with pytest.raises(ConfigError, match="'tp' is not one of tp, .*, each once"):
        choices_of(["tp=1", "tp=2"])


@pytest.mark.parametrize("words", [["--price", "nan"], ["--within", "inf"]])
def test_numbers_that_are_none_are_refused(words):
    told = CliRunner().invoke(cli, ["plan", "llama2_7b_train", "--on", "dgx_a100", *words])
    assert told.exit_code == 2
    assert f"{words[1]!r} is no finite number" in told.output


def test_splits_that_there_are_not_are_named():
    with pytest.raises(InfeasibleJobError, match=r"no legal layout over 4 GPUs .* with tp \[3\] \(--vary\)"):
        plan(job_of(), machine_of(), Wanted(gpus=4, vary={"tp": [3]}))


def test_a_table_without_pandas_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setattr("rapid_des.report.writing.find_spec", lambda _: None)
    with pytest.raises(InputError, match="a DataFrame needs pandas: pip install pandas"):
        Plan(8, (), 0, {}, {}).to_pandas()


def test_more_gpus_than_there_are_are_refused():
    with pytest.raises(InputError, match="gpus: 100 is more than the machine has; allowed: 1 to 8"):
        plan(job_of(), machine_of(), Wanted(gpus=100))


def test_the_command_writes_the_best_way_as_a_job(tmp_path):
    target = tmp_path / "best.yaml"
    few = [
        "--vary",
        "tp=2",
        "--vary",
        "cp=1",
        "--vary",
        "pp=1",
        "--vary",
        "micro_batch=1",
        "--vary",
        "zero_stage=1",
    ]
    on = ["--on", "dgx_a100", "--gpus", "4", "--top", "1", "--mode", "analytical", "--executor", "local"]
    sets = [part for key, value in SMALL.items() for part in ("--set", f"job.{key}={value}")]
    asked = ["plan", "llama2_7b_train", *on, *few, *sets, "--write-job", str(target), "--json"]
    done = CliRunner().invoke(cli, asked, catch_exceptions=False, standalone_mode=False)
    (best,) = json.loads(done.stdout)["rows"]
    again = simulate(load_job(target), load_machine("dgx_a100"), mode="analytical")
    assert again.as_json()["step_time_s"] == best["step_time_s"]
    assert (best["tp"], best["dp"], best["zero_stage"], best["mode"]) == (2, 2, 1, "analytical")


ONE_WAY = (
    "--vary",
    "tp=1",
    "--vary",
    "cp=1",
    "--vary",
    "pp=1",
    "--vary",
    "recompute=none",
    "--vary",
    "micro_batch=1",
)


def test_a_plan_tells_what_its_best_way_depends_on_and_which_ways_measurements_do_not_tell_from_it(
    monkeypatch,
):
    # one in ten of the parameters; what is found for all of them is told in test_sensitivity
    some = "rapid_des.studies.sensitivity.parameters_of"
    monkeypatch.setattr(some, lambda *given: parameters_of(*given)[::10])
    command = ["plan", "llama2_7b_train", "--on", "dgx_a100", "--top", "2", "--mode", "analytical", *ONE_WAY]
    command += ["--set", "job.model.layers=2", "--set", "job.training.global_batch=16", "--executor", "local"]
    answer = CliRunner().invoke(cli, [*command, "--sensitivity", "3", "--json"])
    plain = json.loads(answer.stdout)
    assert len(plain["sensitivity"]["rows"]) >= 3
    assert plain["sensitivity"]["step_time_s"] == plain["rows"][0]["step_time_s"]
    assert plain["rows"][0]["told_apart"] is False
    assert plain["rows"][1]["told_apart"] is False  # ZeRO stages are within a few percent
    text = CliRunner().invoke(cli, command).stdout
    assert "~" in next(line for line in text.splitlines() if line.strip().startswith("2"))


def test_orders_that_a_switch_does_not_tell_apart_take_one_time():
    machine, sizes = load_machine("dgx_a100_x4"), {"tp": 8, "cp": 1, "dp": 2, "pp": 2}
    alike = defaultdict(list)
    for order in permutations(sizes):
        alike[order_key([(axis, sizes[axis]) for axis in order if sizes[axis] > 1], machine)].append(order)

    def steps(order):
        split = {**sizes, "order": "[ep, " + ", ".join(order) + "]"}
        stated = "{" + ", ".join(f"{axis}: {value}" for axis, value in split.items()) + "}"
        small = {"model.layers": 2, "training.zero_stage": 2, "training.global_batch": 4}
        return simulate(job_of(parallelism=stated, **small), machine, allow_oom=True).step_time

    pairs = [(steps(orders[0]), steps(orders[-1])) for orders in alike.values() if len(orders) > 1]
    assert all(first == last for first, last in pairs)
    assert len({first for first, _ in pairs}) > 1


def test_a_ring_of_gradients_tells_apart_where_contexts_lie_in_it():
    machine = load_machine("dgx_h100_x8")
    assert order_key([("cp", 4), ("dp", 2)], machine) != order_key([("dp", 2), ("cp", 4)], machine)
    changed = {"model.layers": 2, "model.hidden": 6144, "model.attention": "{heads: 48}",
               "training.global_batch": 4, "training.micro_batch": 1, "training.zero_stage": 0}  # fmt: skip
    jobs = [
        job_of(**changed, parallelism=f"{{cp: 4, dp: 2, order: [ep, tp, {order}, pp]}}")
        for order in ("cp, dp", "dp, cp")
    ]
    steps = [simulate(job, machine, mode="flattened", allow_oom=True).step_time for job in jobs]
    assert steps[0] != steps[1]


def test_workers_who_simulate_ahead_and_are_done_out_of_order_change_nothing():
    class Ahead(InProcess):
        """Three workers, the last of whom is done first."""

        workers = 3
        simulated = 0

        def map(self, function, items, meanwhile=None):
            fresh = enumerate(items)
            while taken := list(islice(fresh, self.workers)):
                for position, item in reversed(taken):
                    meanwhile()
                    self.simulated += 1
                    yield position, attempt(function, item, self._cache)

    alone, ahead, few = InProcess(), Ahead(), {**FEW, "cp": [1], "recompute": ["none"]}
    found = [
        plan(job_of(), machine_of(), Wanted(top=2, vary=few, pruned=True), crew) for crew in (alone, ahead)
    ]
    assert ahead.simulated > found[0].counts["analytical"] + found[0].counts["flattened"]
    assert found[0].as_json() == found[1].as_json()
