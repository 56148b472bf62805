"""Attribution: what stands behind each part of a step adds up to it, and so do differences of two."""

import itertools
import random

import pytest

import rapid_des as rd
from rapid_des.studies.difference import difference

SHORT = {"model.layers": 4, "inference.output_length": 20}
CASES = [
    ("llama2_7b_train", "dgx_a100", "flattened", {"model.layers": 4}),
    ("llama2_7b_train", "dgx_a100", "hierarchical", {"model.layers": 4}),
    ("llama2_7b_inference", "dgx_a100", "flattened", SHORT),
    ("llama2_7b_inference", "dgx_a100", "hierarchical", SHORT),
    ("llama3_1_70b_train_64", "dgx_h100_x8", "hierarchical", {"training.global_batch": 256}),  # with repeats
]


@pytest.mark.parametrize(("job", "machine", "mode", "changes"), CASES)
def test_names_add_up_to_every_part_of_the_step(job, machine, mode, changes):
    result = rd.simulate(rd.load_job(job, settings=changes), rd.load_machine(machine), mode=mode)
    sums = {part: sum(names.values()) for part, names in result.attribution.items()}
    assert sums == {part: int(time) for part, time in result.breakdown.items()}
    assert sum(sums.values()) == result.step_time
    assert result.light.attribution == result.attribution


def test_operators_and_collectives_have_the_time_that_they_take():
    result = rd.simulate(rd.load_job("llama2_7b_train"), rd.load_machine("dgx_a100"))
    operators = {row.operator: row.time_s for row in result.operators()}
    told = {name: time / 1e12 for name, time in result.attribution["compute"].items()}
    assert told == pytest.approx(operators, rel=1e-9)  # nothing lies over compute
    gather = sum(
        row.finish_s - row.ready_s for row in result.messages() if row.name.startswith("parameters.gather")
    )
    assert 0 < result.attribution["dp"]["parameters.gather"] / 1e12 <= gather * (1 + 1e-9)


def test_a_slower_link_is_told_by_its_collectives_and_nothing_of_compute():
    job, machine = rd.load_job("llama2_7b_train"), rd.load_machine("dgx_a100")
    slow = rd.load_machine(machine, settings={"fabric.0.bandwidth": "0.5x"})
    quick, late = (rd.simulate(job, each, mode="analytical") for each in (machine, slow))
    found = difference(quick, late)
    assert sum(term.added for term in found.terms) == late.step_time - quick.step_time
    assert sum(found.parts().values()) == late.step_time - quick.step_time
    assert found.terms[0].part == "tp"
    assert difference(late.as_json(), quick.as_json()).parts() == {p: -t for p, t in found.parts().items()}


def test_results_without_names_are_compared_by_parts():
    job, machine = rd.load_job("llama2_7b_train"), rd.load_machine("dgx_a100")
    plain = rd.simulate(job, machine, mode="analytical").as_json()
    del plain["attribution_ps"]
    found = difference(plain, plain)
    assert sum(term.before for term in found.terms) == plain["step_time_ps"]


def drawn_results():
    """Return results of jobs unlike in splits, sharding, recomputation, batch and mode."""
    draw = random.Random(11)
    cache = rd.BoundedCache(1 << 26)
    while True:
        degrees = draw.choice([(1, 1, 8), (2, 2, 2), (4, 2, 1), (8, 1, 1), (1, 4, 2)])
        tp, pp, dp = degrees
        training = {"zero_stage": draw.choice([0, 1, 2]), "recompute": draw.choice(["none", "full"])}
        split = {"tp": tp, "pp": pp, "dp": dp, "sequence_parallel": tp > 1}
        job = rd.load_job("llama2_7b_train").replace(**split, **training)
        mode = draw.choice(["analytical", "analytical", "hierarchical"])
        yield rd.simulate(job, rd.load_machine("dgx_a100"), mode=mode, allow_oom=True, cache=cache)


def test_what_any_two_results_differ_by_adds_up():
    results = list(itertools.islice(drawn_results(), 7))
    for one, two in itertools.permutations(results, 2):
        found = difference(one, two.light.as_json())
        assert sum(term.added for term in found.terms) == two.step_time - one.step_time
        for part, added in found.parts().items():
            assert added == two.breakdown.get(part, 0) - one.breakdown.get(part, 0)
        assert sum(term.before for term in found.terms) == one.step_time


def test_kernels_that_messages_slow_have_a_name_in_blocks():
    job = rd.load_job("llama2_7b_train").replace(tp=1, pp=1, dp=8, sequence_parallel=False, zero_stage=2)
    result = rd.simulate(job, rd.load_machine("dgx_a100"), mode="analytical", allow_oom=True)
    compute = result.attribution["compute"]
    # each micro-batch is reduced beside its backward, whose kernels lose multiprocessors meanwhile
    assert compute["kernels slowed by messages"] > 0.02 * result.step_time
    assert abs(compute.get("other", 0)) < 0.01 * result.step_time
