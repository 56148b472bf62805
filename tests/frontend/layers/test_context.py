"""Attention over sequences that context parallelism splits: by rings, by heads, and by both."""

import pytest

from rapid_des.device.operators import Attention
from rapid_des.errors import ConfigError
from rapid_des.frontend import build, load_job, memory
from rapid_des.frontend.parts import ModelSection, PieceKey, training_lists
from rapid_des.machine import load_machine
from rapid_des.report.job_structure import explain
from rapid_des.simulation import simulate

BLOCK = ModelSection("block", 0)
HEADS = ("model.attention", "{heads: 8, kv_heads: 4, head_dim: 8}")
BOTH = [("parallelism.cp_kind", "ulysses_ring"), ("parallelism.cp_heads", "2")]
WINDOW = ("model.attention", "{heads: 8, kv_heads: 4, window: 8}")
LATENT = (
    "model.attention",
    "{kind: latent_attention, heads: 4, kv_rank: 16, head_dim: 8, rope_dim: 4, value_dim: 12}",
)


def split(kind, cp=4):
    chosen = BOTH if kind == "ulysses_ring" else [("parallelism.cp_kind", kind)]
    return [HEADS, ("parallelism.cp", str(cp)), *chosen]


def listed(job, phase="forward"):
    return training_lists(job)[PieceKey(BLOCK, phase)]


def cores(job, phase="forward"):
    return [one.operator for one in listed(job, phase) if isinstance(one.operator, Attention)]


def sizes(job, role, phase="forward", **wanted):
    return [
        one.size
        for one in listed(job, phase)
        if one.role == role and all(getattr(one, key) == value for key, value in wanted.items())
    ]


@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize("kind", ["all_gather", "ring", "ulysses", "ulysses_ring"])
def test_all_ranks_together_compute_every_causal_pair_once(tiny, kind, phase):
    computed = sum(core.heads * core.visible_pairs for core in cores(tiny(*split(kind)), phase))
    whole = 8 * 32 * 33 // 2
    # With keys gathered the two pieces of rank 0 stand for all: 4 · (1 … 4) + 4 · (29 … 32).
    assert 4 * computed == whole


def test_every_pass_of_a_ring_but_the_first_has_half_of_all_pairs(tiny):
    own, *others = cores(tiny(*split("ring")))
    assert (own.causal, own.visible_pairs) == (True, 8 * 9 // 2)
    assert [core.visible_pairs for core in others] == [8 * 8 // 2] * 3
    # The third of four ranks: two blocks lie before its own, one after.
    assert [(core.query_length, core.key_length) for core in others] == [(8, 4), (8, 4), (4, 8)]


def test_a_ring_passes_each_block_on_and_back_with_its_gradients(tiny):
    job = tiny(*split("ring"))
    block = 8 * 2 * 4 * 8 * 2  # positions, keys and values, heads, channels, bytes
    assert sizes(job, "cp.ring", sends=True) == sizes(job, "cp.ring", sends=False) == [block] * 3
    assert sizes(job, "cp.ring", "backward", sends=True) == [block, 2 * block, 2 * block, block]
    assert {one.step for one in listed(job) if one.sends} == {1}
    assert {one.step for one in listed(job, "backward") if one.sends} == {-1}


def test_a_block_travels_beside_the_attention_to_the_one_before(tiny):
    operations = listed(tiny(*split("ring")))
    names = [one.name for one in operations]
    first, second = (names.index(f"attention.core.{part}") for part in ("own", "early_keys"))
    travels = names.index("attention.kv_ring.receive")
    assert operations[travels].after == operations[first].after
    assert travels in operations[second].after


def test_gradients_of_a_block_wait_for_what_ranks_before_added(tiny):
    operations = listed(tiny(*split("ring")), "backward")
    sums = [one for one in operations if one.name in ("attention.core.kv_gradient", "attention.core")]
    assert len(sums) == 3
    for one in sums:
        assert any("gradient.receive" in operations[position].name for position in one.after)


def test_heads_are_exchanged_for_positions_and_back(tiny):
    job = tiny(*split("ulysses"))
    inputs, output = 8 * (8 + 2 * 4) * 8 * 2, 8 * 8 * 8 * 2
    assert sizes(job, "cp.heads") == [inputs, output]
    assert sizes(job, "cp.heads", "backward") == [output, inputs]
    (core,) = cores(job)
    assert (core.heads, core.kv_heads, core.query_length, core.key_length) == (2, 1, 32, 32)


def test_both_exchange_heads_inside_and_pass_blocks_on_outside(tiny):
    job = tiny(*split("ulysses_ring"))
    assert (job.members("cp_heads"), job.members("cp_ring")) == (2, 2)
    assert job.rows("cp_heads").tolist() == [[0, 1], [2, 3]]
    assert job.rows("cp_ring").tolist() == [[0, 2], [1, 3]]
    # 16 positions of half of the heads go on once.
    assert sizes(job, "cp.ring", sends=True) == [16 * 2 * 2 * 8 * 2]
    assert [core.heads for core in cores(job)] == [4, 4]


def test_what_is_recomputed_is_exchanged_again(tiny):
    again = ("training.recompute", "selective")
    for kind, role in (("ring", "cp.ring"), ("ulysses", "cp.heads")):
        plain, more = (len(sizes(tiny(*split(kind), *extra), role, "backward")) for extra in ((), (again,)))
        assert more - plain == len(sizes(tiny(*split(kind)), role))
        forward, plain, more = (
            len(cores(tiny(*split(kind), *extra), phase))
            for extra, phase in (((), "forward"), ((), "backward"), ((again,), "backward"))
        )
        assert more == forward + plain


def test_exchanging_heads_keeps_the_result_in_both_layouts(tiny):
    ring, heads = (memory(tiny(*split(kind))).stages[0].categories for kind in ("ring", "ulysses"))
    assert heads["activations"] - ring["activations"] == 4 * 8 * 8 * 8 * 2  # of four layers


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ([WINDOW, ("parallelism.cp_kind", "ring")], "a window of 8 leaves blocks of a ring without work"),
        (
            [HEADS, ("parallelism.cp_kind", "ulysses"), ("parallelism.tp", "4")],
            "2 query and 1 key-value heads",
        ),
        ([("parallelism.cp_kind", "ulysses_ring")], "ulysses_ring needs cp_heads"),
        ([("parallelism.cp_heads", "2")], "ulysses_ring needs cp_heads, no other has it"),
        ([("parallelism.cp_kind", "ulysses_ring"), ("parallelism.cp_heads", "3")], "cp 2 is not divisible"),
        (
            [("model.attention", "{heads: 4, chunk: 12}"), ("parallelism.cp_kind", "ring")],
            "chunks of 12 leaves",
        ),
    ],
)
def test_what_has_no_meaning_is_refused_by_name(tiny, settings, problem):
    with pytest.raises(ConfigError, match=problem) as refusal:
        tiny(("parallelism.cp", "2"), *settings)
    assert refusal.value.key in ("parallelism.cp", "parallelism.cp_heads")


def test_heads_may_have_windows_chunks_and_latents(tiny):
    chunks = ("model.attention", "{heads: 4, chunk: 12}")
    for attention in (WINDOW, chunks, LATENT):
        job = tiny(attention, ("parallelism.cp", "2"), ("parallelism.cp_kind", "ulysses"))
        whole = tiny(attention)
        pairs = [sum(core.batch * core.visible_pairs for core in cores(one)) for one in (job, whole)]
        assert pairs[0] == pairs[1]


def test_a_ring_passes_the_keys_and_values_of_latents(tiny):
    job = tiny(LATENT, ("parallelism.cp", "2"), ("parallelism.cp_kind", "ring"))
    assert sizes(job, "cp.ring", sends=True) == [16 * 4 * (12 + 12) * 2]


def test_explain_names_who_sends_how_much_to_whom(tiny, prices):
    messages = {one.name: one for one in explain(build(tiny(*split("ring")), prices)).messages}
    sent = messages["forward.L*.attention.kv_ring.send"]
    assert (sent.what, sent.size, sent.count) == ("send", 8 * 2 * 4 * 8 * 2, 4 * 8 * 3)


SMALL = {
    "model.layers": 2, "parallelism.pp": 1, "parallelism.dp": 1, "parallelism.cp": 4, "parallelism.tp": 2,
    "training.global_batch": 2, "training.micro_batch": 1, "training.sequence_length": 4096, "host": None,
    "training.overlap_gradients": False,
}  # fmt: skip


def on_eight(kind, **options):
    more = {"parallelism.cp_heads": 2} if kind == "ulysses_ring" else {}
    job = load_job("llama2_7b_train", settings=SMALL | {"parallelism.cp_kind": kind} | more)
    return simulate(job, load_machine("dgx_a100", settings={"collectives.contention": False}), **options)


@pytest.mark.parametrize("kind", ["ring", "ulysses", "ulysses_ring"])
def test_engines_agree_and_blocks_come_near(kind):
    by_event, by_kernel = (on_eight(kind, engine=engine) for engine in ("simpy", "compiled"))
    assert by_event.step_time == by_kernel.step_time
    assert on_eight(kind, mode="hierarchical").step_time == pytest.approx(by_kernel.step_time, rel=0.001)


def test_what_a_ring_passes_on_hides_behind_attention():
    assert on_eight("ring").breakdown["cp"] < on_eight("all_gather").breakdown["cp"] / 10


def test_a_ring_that_is_run_again_by_name_sends_and_receives_at_once(tiny, prices, replay):
    job = tiny(*split("ring"), ("training.recompute", "[attention]"))
    again = [one for one in listed(job, "backward") if one.name.startswith("recompute.attention.kv_ring")]
    assert [one.after for one in again[::2]] == [one.after for one in again[1::2]]
    replay(build(job, prices).traces, rendezvous=True)


def test_what_a_ring_exposes_inside_blocks_counts_as_cp():
    slow = {"collectives.contention": False, "fabric.0.bandwidth": "10 GB/s"}
    changes = SMALL | {"parallelism.tp": 1, "parallelism.sequence_parallel": False, "parallelism.dp": 2}
    job = load_job("llama2_7b_train", settings=changes | {"parallelism.cp_kind": "ring"})
    parts = [simulate(job, load_machine("dgx_a100", settings=slow), mode=mode).breakdown
             for mode in ("flattened", "hierarchical")]  # fmt: skip
    assert parts[0]["cp"] > 0
    assert parts[1]["cp"] == pytest.approx(parts[0]["cp"], rel=0.01)
    assert parts[1].get("tp", 0) == 0


DOCUMENTS = ("training.documents", "[16, 8, 8]")


@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize("kind", ["all_gather", "ring", "ulysses", "ulysses_ring"])
def test_each_document_is_cut_so_that_ranks_compute_all_its_pairs_alike(tiny, kind, phase):
    packed = cores(tiny(*split(kind), DOCUMENTS), phase)
    computed = sum(core.batch * core.heads * core.visible_pairs for core in packed)
    assert 4 * computed == 8 * (16 * 17 // 2 + 2 * (8 * 9 // 2))


def test_a_ring_sends_as_much_whatever_documents_a_sequence_holds(tiny):
    whole, packed = (tiny(*split("ring"), *more) for more in ((), (DOCUMENTS,)))
    for phase in ("forward", "backward"):
        assert sizes(packed, "cp.ring", phase) == sizes(whole, "cp.ring", phase)
    assert [stage.peak for stage in memory(packed).stages] == [stage.peak for stage in memory(whole).stages]


def test_a_document_that_no_rank_can_halve_is_refused_with_its_padded_length(tiny):
    odd = ("training.documents", "[20, 12]")
    kernels = cores(tiny(*split("ulysses", 2), odd))
    assert sum(core.visible_pairs for core in kernels) == 20 * 21 // 2 + 12 * 13 // 2
    with pytest.raises(ConfigError, match="one of 20 does not divide: pad it to 24, or take cp_kind ulysses"):
        tiny(*split("ring"), odd)


@pytest.mark.parametrize(("chunk", "balanced"), [(16, True), (8, True), (3, False)])
def test_gathered_keys_serve_attention_in_chunks_by_the_busiest_rank(tiny, chunk, balanced):
    attention = ("model.attention", f"{{heads: 8, kv_heads: 4, head_dim: 8, chunk: {chunk}}}")
    kernels = cores(tiny(*split("all_gather")[1:], attention))
    assert sum(core.batch * core.query_length for core in kernels) == 8
    busiest = sum(core.batch * core.visible_pairs for core in kernels)
    mean = sum(position % chunk + 1 for position in range(32)) / 4
    assert busiest == mean if balanced else mean < busiest < 1.2 * mean


@pytest.mark.parametrize("kind", ["all_gather", "ulysses"])
def test_attention_that_is_not_fused_keeps_a_ranks_share_of_scores(tiny, kind):
    unfused = ("attention", "unfused")
    whole, parts = (tiny(HEADS, unfused), tiny(*split(kind), unfused))
    saved = [sum(one.saved for one in listed(job) if one.name == "attention.core") for job in (whole, parts)]
    widths = 8 * 32 * (8 + 2 * 4) * 2  # queries, keys and values, which ranks keep as they made them
    twice = 32 * 8 * 8 * 2 if kind == "ulysses" else 0  # the result in both layouts
    assert 4 * saved[1] - twice == saved[0] == widths + 8 * 32 * 32 * 2
    assert {core.fused for core in cores(parts)} == {False}
