"""Products cut into pieces, each beside the message of another."""

import pytest

from rapid_des.device.operators import Gemm
from rapid_des.errors import ConfigError
from rapid_des.frontend import build, load_job
from rapid_des.frontend.parts import ModelSection, PieceKey, training_lists
from rapid_des.machine import load_machine
from rapid_des.simulation import simulate

SPLIT = [("parallelism.tp", "4"), ("parallelism.sequence_parallel", "true")]
HEADS = ("model.attention", "{heads: 4}")
WAYS = ["ring", "pipeline", "userbuffers"]


def listed(tiny, way, phase="forward", *settings):
    job = tiny(*SPLIT, HEADS, ("training.overlap_tp", way), *settings)
    return training_lists(job)[PieceKey(ModelSection("block", 0), phase)]


def named(operations, name):
    return [place for place, one in enumerate(operations) if one.name == name]


def flops(operations):
    gemms = [one.operator for one in operations if isinstance(one.operator, Gemm)]
    return sum(gemm.m * gemm.n * gemm.k for gemm in gemms)


@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize("way", WAYS)
def test_pieces_multiply_what_the_whole_does(tiny, way, phase):
    assert flops(listed(tiny, way, phase)) == flops(listed(tiny, "none", phase))


@pytest.mark.parametrize("way", WAYS)
def test_pieces_move_what_the_whole_does(tiny, way):
    """Every rank gets three shards of four and passes three on."""
    whole, pieces = listed(tiny, "none"), listed(tiny, way)
    for role, factor in (("sp.gather", 3), ("sp.scatter", 3 / 4)):
        moved = factor * sum(one.size for one in whole if one.role == role)
        rings = [one for one in pieces if one.role == "sp.ring" and one.sends]
        mine = [one for one in rings if one.name.rpartition(".")[0].endswith(role.partition(".")[2])]
        now = factor * sum(one.size for one in pieces if one.role == role)
        assert now + sum(one.size for one in mine) == moved


def test_the_rank_multiplies_its_own_shard_while_others_come(tiny):
    operations = listed(tiny, "ring")
    products = [*named(operations, "attention.qkv.piece"), *named(operations, "attention.qkv")]
    comes = named(operations, "attention.qkv.gather.receive")
    assert len(products) == 4
    assert not set(operations[products[0]].after) & set(comes)
    for product, shard in zip(products[1:], comes, strict=True):
        assert shard in operations[product].after
    # A shard goes on as soon as it is there, whatever is multiplied meanwhile.
    assert not {place for one in comes for place in operations[one].after} & set(products)


def test_sums_go_on_once_the_product_of_their_shard_is_added(tiny):
    operations = listed(tiny, "ring")
    products = [*named(operations, "ffn.out.piece"), *named(operations, "ffn.out")]
    sends = named(operations, "ffn.out.scatter.send")
    adds = [*named(operations, "ffn.out.scatter.add"), *named(operations, "ffn.out.scatter")]
    assert (len(products), len(sends), len(adds)) == (4, 3, 3)
    assert [operations[send].after for send in sends] == [(products[0],), (adds[0],), (adds[1],)]
    assert not {place for one in products for place in operations[one].after} & set(sends)


def test_a_pipelines_next_piece_does_not_wait_for_the_sum_of_this_one(tiny):
    operations = listed(tiny, "pipeline")
    products = [*named(operations, "ffn.out.piece"), *named(operations, "ffn.out")]
    sums = named(operations, "ffn.out.scatter")
    assert [operations[one].after for one in sums] == [(product,) for product in products]
    assert not {place for one in products for place in operations[one].after} & set(sums)


@pytest.mark.parametrize("way", WAYS)
def test_weights_gradients_wait_for_the_whole_gradient(tiny, way):
    operations = listed(tiny, way, "backward")
    (gradient,) = named(operations, "ffn.out.weight_gradient")
    (last,) = operations[gradient].after
    assert "gather_gradient" in operations[last].name
    assert not any("gather_gradient" in one.name for one in operations[last + 1 : gradient])


@pytest.mark.parametrize("way", WAYS)
def test_no_rank_waits_for_ever(tiny, prices, replay, way):
    job = tiny(*SPLIT, HEADS, ("training.overlap_tp", way), ("training.recompute", "full"))
    replay(build(job, prices).traces, rendezvous=True)


def test_only_sequence_shards_travel_in_pieces(tiny):
    with pytest.raises(ConfigError, match="overlap_tp: ring cuts gathers and sums of sequence shards"):
        tiny(("parallelism.tp", "2"), ("training.overlap_tp", "ring"))


def test_adapters_stand_beside_whole_products(tiny):
    adapters = ("training.adapters", "{rank: 4, matrices: [ffn.in]}")
    with pytest.raises(ConfigError, match="beside which adapters stand whole"):
        tiny(*SPLIT, HEADS, ("training.overlap_tp", "ring"), adapters)


def test_pieces_hide_what_travels_and_blocks_say_the_same():
    changes = {
        "model.layers": 2, "parallelism.tp": 8, "parallelism.pp": 1, "parallelism.dp": 1, "host": None,
        "training.global_batch": 2, "training.micro_batch": 1,
    }  # fmt: skip
    machine, results = load_machine("dgx_a100"), {}
    for way in ("none", "ring"):
        job = load_job("llama2_7b_train", settings=changes | {"training.overlap_tp": way})
        results[way] = simulate(job, machine, engine="compiled")
        assert simulate(job, machine, engine="simpy").step_time == results[way].step_time
        near = simulate(job, machine, mode="hierarchical").step_time
        assert near == pytest.approx(results[way].step_time, rel=0.001)
    assert results["ring"].breakdown["tp"] < results["none"].breakdown["tp"] / 2
    assert results["ring"].breakdown["compute"] > results["none"].breakdown["compute"]  # smaller products


@pytest.mark.parametrize(
    ("recipe", "split", "expected"),
    [
        ("delayed", (), {"attention.qkv": 64, "ffn.in": 64}),  # what norms wrote
        ("delayed", SPLIT, {"attention.qkv": 64, "attention.output": 64, "ffn.in": 64, "ffn.out": 64}),
        ("current", (), {}),
        ("current", SPLIT, {"attention.qkv": 64, "attention.output": 64, "ffn.in": 64, "ffn.out": 64}),
        ("blockwise", SPLIT, {}),
    ],
)
def test_what_norms_write_and_what_is_gathered_stands_across_tokens(tiny, recipe, split, expected):
    narrow = ("precision.gemm", "fp8"), ("precision.recipe", recipe)
    backward = training_lists(tiny(*narrow, *split))[PieceKey(ModelSection("block", 0), "backward")]
    across = {
        one.name.removesuffix(".weight_gradient"): one.operator.across // one.operator.k
        for one in backward
        if isinstance(one.operator, Gemm) and one.operator.across
    }
    assert across == expected


def test_a_kernel_adds_gradients_that_their_products_do_not(tiny):
    key = PieceKey(ModelSection("block", 0), "backward")
    fused, apart = (
        training_lists(tiny(("training.fused_accumulation", fuses)))[key] for fuses in ("true", "false")
    )
    made = [one for one in fused if one.name.endswith(".weight_gradient")]
    adds = [one for one in apart if one.name.endswith(".weight_gradient.add")]
    assert len(made) == len(adds) == 4
    assert [one.parameters for one in made] == [one.parameters for one in adds]
    for product, add in zip(made, adds, strict=True):
        assert product.operator.accumulate and add.operator.kind == "gradient_add"
        assert add.operator.rows * add.operator.columns == product.operator.m * product.operator.n
    assert not any(one.operator.accumulate for one in apart if isinstance(one.operator, Gemm))


def test_sums_of_input_gradients_travel_beside_products_or_behind_them(tiny):
    """`qkv` and `ffn.in` are split by columns; behind means after the weight's gradient too."""
    key = PieceKey(ModelSection("block", 0), "backward")
    for beside in (True, False):
        settings = (("parallelism.tp", "2"), ("training.overlap_tp_gradients", str(beside).lower()))
        operations = training_lists(tiny(*settings))[key]
        for name in ("attention.qkv", "ffn.in"):
            (weights,) = named(operations, f"{name}.weight_gradient")
            (gradient,) = named(operations, f"{name}.input_gradient")
            (summed,) = named(operations, f"{name}.reduce_gradient")
            assert gradient in operations[summed].after
            assert (weights in operations[summed].after) is not beside


@pytest.mark.parametrize(("phase", "copies"), [("forward", 4), ("backward", 4)])
def test_tensors_with_sequences_along_the_second_dimension_are_copied_whole(tiny, phase, copies):
    """Behind gathers and before sums, each of all that is gathered or summed."""
    key, asked = PieceKey(ModelSection("block", 0), phase), ("training.sequence_copies", "true")
    plain, copied = (training_lists(tiny(*SPLIT, HEADS, *more))[key] for more in ((), (asked,)))
    added = [one for one in copied if one.name.endswith(".copy")]
    assert len(added) == len(copied) - len(plain) == copies
    sent = [place for place, one in enumerate(copied) if one.role == "sp.scatter"]
    assert all(any(copied[before].name.endswith(".copy") for before in copied[one].after) for one in sent)


def test_checkpoints_by_operator_copy_what_they_gather_again_and_keep_what_they_summed(tiny):
    asked, again = ("training.sequence_copies", "true"), ("training.recompute", "alternate")
    lists = training_lists(tiny(*SPLIT, HEADS, asked, again))
    names = [one.name for one in lists[PieceKey(ModelSection("block", 0), "backward")]]
    assert len([name for name in names if name.endswith(".regather.copy")]) == 2
    assert not [name for name in names if name.endswith("output.scatter.copy")]
