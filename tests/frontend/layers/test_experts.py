"""A mixture of experts: parameters, who meets whom, what travels, and what is computed."""

import pytest

from rapid_des.chakra.trace import CollectiveType
from rapid_des.device import load_device
from rapid_des.device.operators import GroupedGemm
from rapid_des.device.pricing import estimate
from rapid_des.errors import ConfigError
from rapid_des.frontend import build, load_job, load_model, memory
from rapid_des.frontend.blocks import blocks
from rapid_des.frontend.inference import serving_lists
from rapid_des.frontend.parts import (
    ModelSection,
    PieceKey,
    section_parameters,
    stage_parameters,
    training_lists,
)
from rapid_des.machine import load_machine
from rapid_des.simulation import simulate

EXPERTS = "{kind: experts, experts: 8, topk: 2, hidden: 32, shared_hidden: 64}"
SPREAD = [
    ("model.feed_forward", EXPERTS),
    ("parallelism.tp", "2"),
    ("parallelism.sequence_parallel", "true"),
    ("parallelism.dp", "4"),
    ("parallelism.ep", "4"),
    ("parallelism.etp", "1"),
]
THREE = [("parallelism.dp", "3"), ("training.global_batch", "9")]
BLOCK = ModelSection("block", 0)


def listed(job, phase):
    """Return the operators of the first kind of layer in one direction."""
    return training_lists(job)[PieceKey(BLOCK, phase)]


def forward(job):
    return listed(job, "forward")


def grouped(job):
    """Return the rows of each of the forward's products over experts."""
    operators = [operation.operator for operation in forward(job)]
    return [operator.rows for operator in operators if isinstance(operator, GroupedGemm)]


def sizes(operations, axis):
    """Return the messages of groups along an axis."""
    return [(one.role, one.size) for one in operations if one.role.startswith(f"{axis}.")]


@pytest.mark.parametrize(
    ("name", "published"),
    # Hugging Face's counts of the checkpoints' tensors.
    [("mixtral_8x7b", 46_702_792_704), ("mixtral_8x22b", 140_620_634_112)],
)
def test_parameters_are_the_published_ones(name, published):
    assert load_model(name).parameters == published


def test_the_ranks_of_a_stage_are_laid_out_again_for_experts(tiny):
    job = tiny(*SPREAD)
    assert job.expert_layout.groups(("ep",)) == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert job.expert_layout.groups(("edp",)) == ((0, 4), (1, 5), (2, 6), (3, 7))
    inner = tiny(
        *SPREAD[:-2],
        ("parallelism.ep", "2"),
        ("parallelism.pp", "2"),
        ("parallelism.order", "[pp, tp, cp, ep, dp]"),
    )
    # Stage 0 has the even ranks, of which those of a tp group share experts.
    assert inner.expert_layout.groups(("etp",))[:2] == ((0, 2), (4, 6))
    assert (0, 4) in inner.expert_layout.groups(("ep",))


def test_a_rank_holds_its_part_of_the_experts_and_of_all_else(tiny):
    job = tiny(*SPREAD)
    here = section_parameters(job)[BLOCK]
    layer = job.model.kinds[0].feed_forward.parameters
    assert here["expert"] == layer.experts // 4 == 8 * 3 * 64 * 32 // 4
    assert here["dense"] == 64 + 64 + (64 * 128 + 64 * 64) // 2 + layer.matrices // 2 + 8 * 64
    assert stage_parameters(job, 0)["expert"] == 4 * here["expert"]


def test_copies_travel_to_the_ranks_of_their_experts_and_back(tiny):
    job = tiny(*SPREAD)
    copies = 32 // 2 * 2 * 64 * 2  # a rank's half of 32 tokens, topk 2, hidden 64, two bytes
    for phase in ("forward", "backward"):
        found = sizes(listed(job, phase), "ep")
        assert sorted(found) == [("ep.combine", copies), ("ep.dispatch", copies)]


def test_latent_experts_see_and_send_fewer_channels(tiny):
    plain, latent = tiny(*SPREAD), tiny(*SPREAD, ("model.feed_forward.latent", "16"))
    # 32 positions over two tp ranks; of 64 channels 16 travel.
    for job, width in ((plain, 64), (latent, 16)):
        travels = {one.name: one.size for one in forward(job) if one.role.startswith("ep.")}
        assert set(travels.values()) == {16 * 2 * width * 2}
    expert = {job: 3 * 32 * width for job, width in ((plain, 64), (latent, 16))}
    here, before = section_parameters(latent)[BLOCK], section_parameters(plain)[BLOCK]
    assert before["expert"] == 2 * expert[plain] and here["expert"] == 2 * expert[latent]
    assert here["dense"] == before["dense"] + 2 * 64 * 16
    layers = latent.model.pattern
    assert layers[0].feed_forward.parameters.total == (
        plain.model.pattern[0].feed_forward.parameters.total
        - 8 * (expert[plain] - expert[latent])
        + 2 * 64 * 16
    )
    marked = sum(one.parameters for one in listed(latent, "backward"))
    assert marked == here.total()


def test_ranks_that_share_experts_gather_and_reduce_copies(tiny):
    job = tiny(*SPREAD[:-2], ("parallelism.ep", "2"))  # etp as tp
    copies = 32 // 2 * 2 * 64 * 2
    assert sizes(forward(job), "etp") == [("etp.gather", copies), ("etp.scatter", 2 * copies)]


@pytest.mark.parametrize(("ep", "etp"), [("4", "1"), ("2", "2"), ("1", "2"), ("8", "1")])
def test_all_ranks_together_compute_each_copy_once(tiny, ep, etp):
    job = tiny(*SPREAD[:-2], ("parallelism.ep", ep), ("parallelism.etp", etp))
    done = sum(
        2 * sum(operation.operator.rows) * operation.operator.n * operation.operator.k
        for operation in forward(job)
        if isinstance(operation.operator, GroupedGemm)
    )
    tokens = 4 * 32  # of the four replicas
    assert done * job.gpus == tokens * 2 * 2 * 3 * 64 * 32


def test_ranks_with_the_same_tokens_each_compute_what_their_experts_add(tiny):
    job = tiny(*SPREAD[:2], ("parallelism.ep", "2"), ("parallelism.etp", "1"))
    operations = forward(job)
    rows = [
        operation.operator.rows for operation in operations if isinstance(operation.operator, GroupedGemm)
    ]
    assert rows == [(8,) * 4] * 2  # half of 32 tokens' 64 copies
    assert [operation.role for operation in operations if operation.role] == ["tp.reduce", "tp.reduce"]


def test_capacity_pads_every_expert_alike(tiny):
    job = tiny(
        ("model.feed_forward", EXPERTS.replace("}", ", capacity: 1.25}")), ("training.sequence_length", "30")
    )
    rows = [
        operation.operator.rows for operation in forward(job) if isinstance(operation.operator, GroupedGemm)
    ]
    assert rows == [(10,) * 8] * 2  # ceil(1.25 x 60 / 8)


def test_experts_gradients_meet_their_own_replicas(tiny, prices):
    job = tiny(*SPREAD[:-2], ("parallelism.ep", "4"), ("parallelism.etp", "1"), ("training.zero_stage", "1"))
    trace = build(job, prices)
    groups = trace.traces.groups
    assert {name for name in groups if name.startswith("expert_gradient")}
    table = trace.tables[0]
    names = [
        table.names[row] for row in table.name[table.collective == CollectiveType.REDUCE_SCATTER].tolist()
    ]
    assert any("edp.scatter" in name for name in names) and any("dp.scatter.0" in name for name in names)


def test_optimizer_states_of_experts_are_split_over_their_replicas(tiny):
    job = tiny(*SPREAD, ("training.zero_stage", "1"))
    held = {domain: sharding.replicas for domain, sharding in job.shardings.items()}
    assert held == {"dense": 4, "expert": 2}
    states = memory(job).fullest.categories["optimizer"]
    parameters = stage_parameters(job, 0)
    assert states == 12 * (-(-parameters["dense"] // 4) + -(-parameters["expert"] // 2))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ([*THREE, ("parallelism.ep", "3")], "8 experts are not divisible by ep 3"),
        ([*THREE, ("parallelism.etp", "3")], "expert hidden 32 is not divisible by etp 3"),
        ([("parallelism.dp", "2"), ("parallelism.ep", "4")], "does not divide tp · cp · dp = 2"),
        ([("parallelism.tp", "2"), ("parallelism.etp", "1")], "ep 1 · etp 1 must be 2"),
        ([("model.feed_forward.topk", "9")], "feed_forward.topk: 9; allowed: up to the 8 experts"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(tiny, changes, problem):
    with pytest.raises(ConfigError, match=problem):
        tiny(("model.feed_forward", EXPERTS), *changes)


def test_blocks_follow_one_rank_of_a_tp_group_or_all_where_experts_are_split_otherwise(tiny, prices):
    assert blocks(tiny(*SPREAD[:-2], ("parallelism.ep", "4")), prices).inner_groups[0] == (0, 1)
    apart = blocks(tiny(*SPREAD), prices)
    assert len(apart.inner_groups) == 8 and apart.run_groups[3] == (2, 3)
    wide = tiny(*SPREAD[:-2], ("parallelism.ep", "2"), ("parallelism.etp", "4"))
    assert "etp" not in blocks(wide, prices).inside  # its ranks are of two tp groups


@pytest.mark.parametrize(("tp", "etp"), [(1, 1), (2, 2), (2, 1)])
def test_blocks_with_exchanges_of_copies_take_the_flattened_time(tp, etp):
    split = {"tp": tp, "dp": 4, "ep": 4, "etp": etp, "sequence_parallel": tp > 1}
    changes = {"model": "mixtral_8x7b", "model.layers": 2, "parallelism": split, "training.global_batch": 8}
    changes["training.overlap_gradients"] = False  # which slow kernels beside them in a flattened run only
    job, machine = load_job("llama2_7b_train", settings=changes), load_machine("dgx_h100")
    flattened, taken_apart = (simulate(job, machine, mode=mode) for mode in ("flattened", "hierarchical"))
    assert int(taken_apart.step_time) == pytest.approx(int(flattened.step_time), rel=0.001)


def test_software_decides_whether_one_kernel_multiplies_for_all_experts(tiny):
    each = tiny(*SPREAD, ("software", "megatron-2025"))
    products = {
        one.name: one.operator for one in forward(each) if one.name in ("ffn.in", "ffn.out")
    }  # two local experts of 4 ranks' 2 * 16 copies each over 8
    assert (products["ffn.in"].batch, products["ffn.in"].m, products["ffn.in"].n) == (2, 16, 64)
    assert (products["ffn.out"].batch, products["ffn.out"].m, products["ffn.out"].k) == (2, 16, 32)
    assert grouped(tiny(*SPREAD)) == [(16, 16)] * 2


@pytest.mark.parametrize(
    ("precision", "forward_kernels", "backward_kernels"),
    [
        ("{}", 1, 2),  # products alone
        ("{gemm: fp8, recipe: mxfp8}", 2, 3),  # and a cast
        (
            "{gemm: fp8, recipe: current}",
            5,
            6,
        ),  # its largest value zeroed, found, made a scale
    ],
)
def test_kernels_of_single_experts_start_one_by_one(tiny, precision, forward_kernels, backward_kernels):
    software = "{name: own, experts: kernel_each, expert_start: 10 us}"
    job = tiny(*SPREAD, ("software", software), ("precision", precision))
    for phase, kernels in (("forward", forward_kernels), ("backward", backward_kernels)):
        starts = {one.name: one.operator for one in listed(job, phase) if one.name.endswith(".starts")}
        assert {name: operator.count for name, operator in starts.items()} == {
            "ffn.in.starts": 2 * kernels,
            "ffn.out.starts": 2 * kernels,  # two local experts
        }
        assert estimate(starts["ffn.in.starts"], load_device("h100_sxm")).duration == 20_000_000 * kernels


SERVED = [("model.feed_forward", "{kind: experts, experts: 8, topk: 2, hidden: 32}")]


def served_rows(job):
    """Return the rows of the experts' first product in prefill and first decode step."""
    lists = [operations for key, operations in serving_lists(job).items() if key.section == BLOCK][:2]
    products = [[one.operator for one in each if isinstance(one.operator, GroupedGemm)] for each in lists]
    return [first.rows for first, _ in products]


def test_few_tokens_that_choose_at_random_leave_experts_without_a_row(tiny_service):
    prefill, decode = served_rows(tiny_service(*SERVED))
    # 2 requests of 16 positions: all 8 experts get their part of 64 copies. 2 tokens, each of which leaves an
    # expert out with probability 3/4, reach 8 (1 - 9/16) = 3.5 of them, 4 as a number.
    assert prefill == (8,) * 8
    assert decode == (1, 1, 1, 1, 0, 0, 0, 0)


def test_tokens_that_choose_alike_meet_at_the_same_experts(tiny_service):
    alike = ("routing.load", "{kind: histogram, counts: [[1, 1, 0, 0, 0, 0, 0, 0]]}")
    prefill, decode = served_rows(tiny_service(*SERVED, alike))
    assert prefill == (32, 32, 0, 0, 0, 0, 0, 0)
    assert decode == (2, 2, 0, 0, 0, 0, 0, 0)


def test_more_tokens_reach_more_experts(tiny_service):
    # 4 tokens reach 8 (1 - (3/4)^4) = 5.5 experts.
    assert served_rows(tiny_service(*SERVED, ("inference.batch", "4")))[1] == (2, 2, 2, 1, 1, 0, 0, 0)


def test_copies_are_sorted_by_expert_after_those_who_share_experts_have_gathered_them(tiny):
    # tp 2, dp 4: 16 tokens a rank, 2 copies of each; ep 4 with etp 2, so 2 local experts of 8
    shared = forward(tiny(*SPREAD[:-1], ("parallelism.etp", "2")))
    names = [one.name for one in shared if one.name.startswith("ffn.dispatch")]
    assert names == ["ffn.dispatch", "ffn.dispatch.gather", "ffn.dispatch.sort"]
    rows = next(one.operator.rows for one in shared if one.name == "ffn.dispatch.sort")
    alone = next(one.operator.rows for one in forward(tiny(*SPREAD)) if one.name == "ffn.dispatch.sort")
    assert rows == 2 * alone


def test_deepep_takes_its_low_latency_kernels_to_decode(tiny_service):
    spread = [("parallelism.dp", "4"), ("parallelism.ep", "4"), ("routing.dispatcher", "deepep")]
    job = tiny_service(*SERVED, *spread, ("routing.dispatch", "fp8"))
    prefill, decode = [own for key, own in serving_lists(job).items() if key.section == BLOCK][:2]
    names = [{one.name for one in each} for each in (prefill, decode)]
    around = {"ffn.dispatch.quantize", "ffn.permute", "ffn.unpermute"}
    # What the low-latency kernels do themselves: quantise, sort by expert, add up.
    assert around <= names[0]
    assert not around & names[1]
    sent = [[(one.exchange.once, one.exchange.returns, one.size) for one in each if one.exchange]
            for each in (prefill, decode)]  # fmt: skip
    # Two requests, two copies each of 64 elements: a byte each, with a scale of 4 a 128; back two bytes.
    assert sent[1] == [(False, False, 4 * 64 + 8), (False, True, 4 * 64 * 2)]
    assert [once for once, *_ in sent[0]] == [True, True]
