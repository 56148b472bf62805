"""How replicas hold the state of a model: copies of what is split, resharding to fewer ranks, formats."""

import pytest

from rapid_des.errors import ConfigError
from rapid_des.frontend import build, load_job, memory
from rapid_des.frontend.parts import ModelSection, PieceKey, training_lists
from rapid_des.machine import load_machine
from rapid_des.report.job_structure import explain
from rapid_des.simulation import simulate

EXPERTS = ("model.feed_forward", "{kind: experts, experts: 4, topk: 2, hidden: 32}")


def shared(tiny, stage, *settings, dp=4, copies=2):
    split = [("parallelism.dp", str(dp)), ("parallelism.dp_replicate", str(copies))]
    return tiny(*split, ("training.zero_stage", str(stage)), *settings)


def messages(job, prices, part):
    found = explain(build(job, prices)).messages
    return [(one.what, one.group, one.members, one.size, one.count) for one in found if part in one.name]


def parameters(job):
    return memory(job).stages[0].parameters


def test_ranks_that_follow_one_another_share_a_state(tiny):
    job = shared(tiny, 1)
    assert (job.members("shard"), job.members("instances")) == (2, 2)
    assert job.rows("shard").tolist() == [[0, 1], [2, 3]]
    assert job.rows("instances").tolist() == [[0, 2], [1, 3]]
    inside = shared(tiny, 1, ("parallelism.cp", "2"))  # cp is innermost: a copy has all of it
    assert inside.rows("shard").tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_gradients_are_scattered_inside_a_copy_and_their_parts_summed_over_copies(tiny, prices):
    job = shared(tiny, 1)
    size = 4 * parameters(job)  # fp32, in one bucket
    assert messages(job, prices, "gradients.dp") == [
        ("reduce_scatter", "shard", 2, size, 1),
        ("all_reduce", "instances", 2, size // 2, 1),
    ]
    # What comes back does so inside, in bf16.
    assert messages(job, prices, "parameters.gather") == [("all_gather", "shard", 2, size // 4, 1)]


def test_each_micro_batch_is_synchronised_or_only_the_last(tiny, prices):
    for stage in (1, 2, 3):
        for each, count in (("true", 2), ("false", 1)):
            job = shared(tiny, stage, ("training.reduce_each_micro_batch", each))
            found = messages(job, prices, "gradients.dp")
            units = 6 if stage == 3 else 1  # four layers, embedding and head
            assert sum(one[4] for one in found if one[0] == "all_reduce") == count * units
            assert sum(one[4] for one in found if one[0] == "reduce_scatter") == count * units


def test_a_rank_holds_its_part_of_one_copy(tiny):
    whole, copied = shared(tiny, 3, copies=1), shared(tiny, 3)
    for state in ("weights", "gradients", "optimizer"):
        parts = [memory(job).stages[0].categories[state] for job in (whole, copied)]
        assert parts[1] == 2 * parts[0]


def test_as_many_copies_as_replicas_are_plain_data_parallelism(tiny, prices):
    plain, copied = shared(tiny, 0, copies=1), shared(tiny, 3, copies=4)
    assert messages(copied, prices, "parameters.gather") == []
    sums = [messages(job, prices, "gradients.dp") for job in (plain, copied)]
    assert {one[0] for found in sums for one in found} == {"all_reduce"}
    once, each = (sum(size * count for _, _, _, size, count in found) for found in sums)
    assert (once, each) == (4 * parameters(plain), 2 * 4 * parameters(plain))  # zero_stage 3: each time


def test_resharded_parameters_are_gathered_from_ranks_nearby(tiny, prices):
    job = shared(tiny, 3, ("training.reshard", "2"), copies=1)
    forward, backward = (messages(job, prices, name) for name in ("parameters.gather", "gather.resharded"))
    far = [one for one in forward if one not in backward]
    assert {one[1:3] for one in far} == {("gradient", 4)}
    assert {one[1:3] for one in backward} == {("reshard", 2)}
    assert [one[3] for one in sorted(backward)] == [2 * one[3] for one in sorted(far)]
    # The second split stands besides: a half of all parameters in bf16.
    gone = shared(tiny, 3, copies=1)
    unsharded = [memory(one).stages[0].categories["unsharded"] for one in (job, gone)]
    assert unsharded[0] - unsharded[1] == parameters(job)


def test_parameters_travel_in_their_own_format(tiny, prices):
    narrow = (("precision.gemm", "fp8"), ("precision.parameter_gather", "fp8"))
    for stage in (1, 3):
        wide, eight = (shared(tiny, stage, *more) for more in (narrow[:1], narrow))
        for one, other in zip(
            *(messages(job, prices, "parameters.gather") for job in (wide, eight)), strict=True
        ):
            assert one[3] == 2 * other[3]


@pytest.mark.parametrize(("gathers", "kind", "bits"), [("int8", "widen", 8), ("fp4", "dequantize", 4)])
def test_parameters_that_travel_narrower_than_products_take_them_are_widened(
    tiny, prices, gathers, kind, bits
):
    narrow, wide = (shared(tiny, 3, *more) for more in ((("precision.parameter_gather", gathers),), ()))
    for one, other in zip(
        *(messages(job, prices, "parameters.gather") for job in (narrow, wide)), strict=True
    ):
        assert one[3] * 16 == other[3] * bits
    lists, block = training_lists(narrow), ModelSection("block")
    parameters_of_layer = sum(one.parameters for one in training_lists(wide)[PieceKey(block, "backward")])
    for phase in ("forward", "backward"):
        first = lists[PieceKey(block, phase)][0]
        assert (first.name, first.operator.kind) == ("unit.widen_parameters", kind)
        assert first.operator.columns == parameters_of_layer
    unsharded = [memory(job).stages[0].tensors for job in (narrow, wide)]
    names = [{tensor.name for tensor in tensors if tensor.category == "unsharded"} for tensors in unsharded]
    assert names[0] - names[1] == {"widened units"}


def test_experts_have_copies_of_their_own(tiny, prices):
    job = shared(tiny, 1, EXPERTS, ("parallelism.ep", "2"))
    found = messages(job, prices, "gradients.edp")
    assert [one[:3] for one in found] == [
        ("all_reduce", "expert_instances", 2)
    ]  # of edp 2 none shares a state
    with pytest.raises(ConfigError, match=r"edp\) 1 is not divisible by dp_replicate 2"):
        shared(tiny, 1, EXPERTS, ("parallelism.ep", "4"))


@pytest.mark.parametrize(
    ("stage", "settings", "problem"),
    [
        (0, (), "dp_replicate: 2 copies of a state that zero_stage 0 does not split"),
        (1, (("parallelism.dp_replicate", "3"),), "dp 4 is not divisible by dp_replicate 3"),
        (1, (("training.reshard", "2"),), "reshard: only zero_stage 3 reshards"),
        (3, (("training.reshard", "3"),), "2 replicas share dense parameters, which is not divisible by 3"),
        (
            1,
            (("precision.parameter_gather", "fp8"),),
            "only zero_stage 3 widens them before each use, it is 1",
        ),
        (0, (("parallelism.dp_replicate", "1"), ("precision.parameter_gather", "fp32")), "gathers no param"),
    ],
)
def test_what_has_no_meaning_is_refused_by_name(tiny, stage, settings, problem):
    with pytest.raises(ConfigError, match=problem):
        shared(tiny, stage, *settings)


def test_copies_keep_gathers_inside_a_node():
    changes = {
        "model.layers": 2, "parallelism.tp": 1, "parallelism.sequence_parallel": False, "parallelism.pp": 1,
        "parallelism.dp": 16, "training.zero_stage": 3, "training.global_batch": 16, "host": None,
        "training.micro_batch": 1, "training.sequence_length": 512,
    }  # fmt: skip
    machine = load_machine("dgx_a100_x2")
    times = {}
    for copies in (1, 2):
        job = load_job("llama2_7b_train", settings=changes | {"parallelism.dp_replicate": copies})
        results = [simulate(job, machine, engine=engine) for engine in ("simpy", "compiled")]
        assert results[0].step_time == results[1].step_time
        times[copies] = results[1]
        near = simulate(job, machine, mode="hierarchical")
        assert near.step_time == pytest.approx(results[1].step_time, rel=0.05)
    assert times[2].breakdown["dp"] < times[1].breakdown["dp"]


@pytest.mark.parametrize("ahead", ["false", "true"])
def test_experts_that_have_replicas_where_nothing_else_has_are_gathered_too(tiny, prices, ahead):
    split = [("parallelism.tp", "2"), ("parallelism.etp", "1"), ("parallelism.sequence_parallel", "true")]
    stage = [("training.zero_stage", "1"), ("training.overlap_parameters", ahead)]
    job = tiny(EXPERTS, *split, *stage)
    (reduced,) = messages(job, prices, "gradients.edp")
    assert reduced[:3] == ("reduce_scatter", "expert_gradient", 2)
    # What was scattered in fp32 comes back in bf16, each rank stating its part.
    gathered = ("all_gather", "expert_gradient", 2, reduced[3] // 4, 1)
    assert messages(job, prices, "experts.gather") == [gathered]


def test_matrices_are_gathered_one_by_one_or_together(tiny, prices):
    """A layer has two norms, qkv, output, in and out; table and head with its norm are units too."""
    layers = 4
    together, singly = (
        messages(shared(tiny, 3, ("training.gather_singly", each), copies=1), prices, "parameters.gather")
        for each in ("false", "true")
    )
    counts = [sum(one[4] for one in found) for found in (together, singly)]
    passes = 2 * 2  # micro-batches, forward and backward
    assert counts == [passes * (layers + 2), passes * (layers * 6 + 1 + 2)]
    volumes = [sum(one[3] * one[4] for one in found) for found in (together, singly)]
    assert volumes[0] == volumes[1]


def test_matrices_gathered_one_by_one_are_gathered_again_for_layers_that_are_run_again(tiny, prices):
    def gathers(*settings):
        job = shared(tiny, 3, ("training.recompute", "full"), *settings, copies=1)
        return sum(one[4] for one in messages(job, prices, "parameters.gather"))

    micro_batches, layers, matrices = 2, 4, 6
    assert gathers() == micro_batches * 2 * (layers + 2)
    singly = ("training.gather_singly", "true")
    assert gathers(singly) == micro_batches * (3 * layers * matrices + 2 * 3)
    norms, others = layers * 2, 1  # two in each layer, one with the head
    few = gathers(("training.gather_singly", "256"))
    assert few == gathers(singly) - micro_batches * (3 * norms + 2 * others)


def test_a_host_copies_the_parts_of_a_gather_one_by_one(tiny, prices):
    """Four replicas' parts: 4 · 5 us on top of 30 us; and it waits for its GPU first where it is told to."""
    host = [("host.kernel", "10 us"), ("host.collective", "30 us")]
    listed = [*host, ("host.list_rank", "5 us")]
    issues = []
    for settings in (host, listed):
        (table,) = build(shared(tiny, 3, *settings, copies=1), prices).tables
        names = [table.names[name] for name in table.name]
        first = names.index("parameters.gather")
        issues.append(int(table.issued[first] - table.issued[first - 1]))
    assert issues == [30_000_000, 50_000_000]
    (table,) = build(shared(tiny, 3, *listed, ("host.waits", "[gathers]"), copies=1), prices).tables
    names = [table.names[name] for name in table.name]
    units = 2 * 2 * (4 + 2)  # each is followed by kernels that wait for no gather
    assert names.count("host") == names.count("parameters.gather") + units + 1


def test_a_host_that_waits_before_gathers_waits_for_the_one_before_and_for_what_was_reduced(tiny, prices):
    host = [("host.kernel", "10 us"), ("host.collective", "30 us"), ("host.waits", "[gathers]")]
    job = shared(tiny, 3, *host, ("training.gather_singly", "true"), ("training.prefetch", "0"), copies=1)
    (table,) = build(job, prices).tables
    names = [table.names[name] for name in table.name]

    def before(row):
        return table.dependencies[table.dependency_starts[row] : table.dependency_starts[row + 1]].tolist()

    waited = [set(before(row)) for row, name in enumerate(names) if name == "host"]
    for row, name in enumerate(names):
        if name == "parameters.gather":
            assert [names[other] for other in before(row)] == ["host"]
            assert names[row + 1] == "host"
    alone = [row for row, name in enumerate(names) if name == "parameters.gather" and names[row + 2] != name]
    assert all(any(row in rows for rows in waited) for row, name in enumerate(names)
               if name == "parameters.gather" and row not in alone)  # fmt: skip
    assert any(names[row].startswith("gradients.dp.scatter") for rows in waited for row in rows)
