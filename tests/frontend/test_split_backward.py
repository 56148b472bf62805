"""A backward in two halves: together they are the whole, and the second waits for the first alone."""

from collections import Counter

import pytest

from rapid_des.config import preset_names
from rapid_des.frontend import load_job
from rapid_des.frontend.parts import training_lists
from rapid_des.frontend.passes import backward_halves
from rapid_des.frontend.template import INPUT


@pytest.mark.parametrize("name", preset_names("model"))
def test_the_halves_of_every_model_hold_each_operator_once(name):
    parallelism = {"tp": 1, "pp": 1, "dp": 8, "sequence_parallel": False}
    settings = {f"parallelism.{axis}": size for axis, size in parallelism.items()}
    settings |= {"training.global_batch": 8, "training.micro_batch": 1, "training.sequence_length": 256}
    job = load_job("llama2_7b_train", settings=settings | {"model": name})
    for key, operations in training_lists(job).items():
        if key.phase != "backward":
            continue
        inputs, weights = backward_halves(operations)
        assert Counter(one.name for one in (*inputs, *weights)) == Counter(one.name for one in operations)
        assert not any(one.deferrable for one in inputs)
        assert {one.name for one in operations if one.name.endswith(".weight_gradient")} <= {
            one.name for one in weights
        }
        for half in (inputs, weights):
            assert all(INPUT <= other < place for place, one in enumerate(half) for other in one.after)
        whole = sum(one.parameters for one in operations)
        assert sum(one.parameters for one in (*inputs, *weights)) == whole


def test_what_only_a_weight_gradient_needs_goes_with_it():
    # Sequence parallelism gathers a column-parallel matrix's input again for its weight gradient alone.
    settings = {"parallelism.tp": 2, "parallelism.dp": 4, "parallelism.sequence_parallel": True}
    lists = training_lists(load_job("llama2_7b_train", settings=settings))
    (block,) = [own for key, own in lists.items() if key.section.name == "block" and key.phase == "backward"]
    names = [{one.name for one in half} for half in backward_halves(block)]
    assert {"attention.qkv.regather", "ffn.in.regather"} <= names[1] - names[0]
    assert {"attention.output.gather_gradient", "ffn.out.gather_gradient"} <= names[0] - names[1]


@pytest.mark.parametrize("copies", ["flat", "per_parameter"])
def test_copies_of_whole_units_leave_each_half_its_own(copies):
    split = {"parallelism.tp": 1, "parallelism.dp": 4, "parallelism.sequence_parallel": False}
    settings = split | {
        "training.zero_stage": 3,
        "training.unit_copies": copies,
        "training.schedule": "zb_h1",
    }
    lists = training_lists(load_job("llama2_7b_train", settings=settings))
    halved = {key.phase: [one.name for one in operations] for key, operations in lists.items()
              if key.section.name == "block"}  # fmt: skip
    copied = [name for name in halved["backward"] if name.startswith("unit.") and name != "unit.copy_out"]
    assert halved["input_gradient"][-1] == "attention.residual"
    assert halved["weight_gradient"][-len(copied) :] == copied
