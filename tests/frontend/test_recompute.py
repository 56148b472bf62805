"""What is recomputed: which bytes a layer keeps, what runs again and where, and that memory follows.

Megatron-LM's `--recompute-method` uniform and block and `--recompute-num-layers`; operators by name, as
Megatron Core's `--recompute-modules`.
"""

from collections import Counter

import pytest

from rapid_des.errors import ConfigError
from rapid_des.frontend import memory
from rapid_des.frontend.memory import section_memory
from rapid_des.frontend.parts import ModelSection, PieceKey, sections, training_lists

STREAM = 32 * 64 * 2
"""Bytes between two layers: 32 tokens, 64 wide, 16 bit."""
INNER = 32 * 128 * 2
"""Bytes of the feed-forward's inner tensor."""


def recomputing(tiny, what, *more):
    return tiny(("training.recompute", what), *more)


def kept(job, kind=0):
    return section_memory(job)[ModelSection("block", kind)].activations


def backward(job, kind=0):
    return [one.name for one in training_lists(job)[PieceKey(ModelSection("block", kind), "backward")]]


def test_a_named_operator_is_dropped_and_runs_again_before_it_is_needed(tiny):
    plain, less = recomputing(tiny, "none"), recomputing(tiny, "[ffn.activation]")
    # The down projection's input, which the activation makes again from gate and up.
    assert kept(plain) - kept(less) == INNER
    names = backward(less)
    assert names.index("recompute.ffn.activation") == names.index("ffn.out.input_gradient") - 1
    assert Counter(names) - Counter(backward(plain)) == {"recompute.ffn.activation": 1}


def test_the_last_part_of_a_name_means_all_operators_that_end_so(tiny):
    plain, less = recomputing(tiny, "none"), recomputing(tiny, "[norm]")
    assert kept(plain) - kept(less) == 2 * STREAM  # what the first matrix of each half reads
    assert [name for name in backward(less) if "recompute" in name] == [
        "recompute.ffn.norm", "recompute.attention.norm",
    ]  # fmt: skip


def test_a_whole_half_keeps_its_input_alone(tiny):
    plain, less = recomputing(tiny, "none"), recomputing(tiny, "[ffn.in, ffn.activation]")
    # Of gate, up and their product nothing; the norm's result, which they are made of, is kept.
    assert kept(plain) - kept(less) == 3 * INNER
    names = backward(less)
    assert names[:2] == ["recompute.ffn.in", "recompute.ffn.activation"]


def test_the_core_named_is_what_selective_means(tiny):
    selective, named = recomputing(tiny, "selective"), recomputing(tiny, "[attention.core]")
    assert training_lists(selective) == training_lists(named)


def test_operators_wait_for_what_is_made_again_for_them(tiny):
    lists = training_lists(recomputing(tiny, "[ffn.activation]"))[PieceKey(ModelSection("block"), "backward")]
    place = [one.name for one in lists].index("recompute.ffn.activation")
    assert place in lists[place + 1].after
    assert all(other < number for number, one in enumerate(lists) for other in one.after)


def test_groups_keep_one_input_and_run_again_together(tiny):
    job = recomputing(tiny, "full", ("training.recompute_layers", "2"))
    # Four layers in two groups: the first of each keeps its input, the second nothing.
    labels = [section for section, label in sections(job, 0) if label]
    assert labels == [ModelSection("block", 0), ModelSection("block", 1)] * 2
    assert (kept(job, 0), kept(job, 1)) == (STREAM, 0)
    assert not any("recompute" in name for name in backward(job, 0))
    again = [name for name in backward(job, 1) if name.startswith("recompute.1.")]
    assert len(again) == sum(name.startswith("recompute.") for name in backward(job, 1)) / 2


def test_a_groups_backward_holds_all_its_layers(tiny):
    def backward_peak(*settings):
        stage = memory(tiny(("training.recompute", "full"), *settings)).stages[0]
        return max(one.size for one in stage.timeline if one.name == "backward")

    one, two, four = (backward_peak(("training.recompute_layers", str(count))) for count in (1, 2, 4))
    plain = kept(tiny())
    # Another layer's activations are made again in place of one input less that is kept.
    assert plain - 2 * STREAM <= two - one <= plain
    assert one < two < four


def test_everything_is_given_back_when_a_step_has_ended(tiny):
    for count in ("1", "2", "3", "4"):
        job = recomputing(tiny, "full", ("training.recompute_layers", count))
        last = memory(job).stages[0].timeline[-1].categories
        assert last["activations"] == last["temporary"] == 0


def test_what_runs_again_can_stop_at_the_last_tensor_that_is_needed(tiny):
    """torch.utils.checkpoint's early stop: the last product and what follows it do not run again."""
    whole = recomputing(tiny, "full")
    early = recomputing(tiny, "full", ("training.recompute_early_stop", "true"))
    dropped = Counter(backward(whole)) - Counter(backward(early))
    assert set(dropped) == {"recompute.ffn.out", "recompute.ffn.residual"}
    assert not Counter(backward(early)) - Counter(backward(whole))
    assert kept(early) == kept(whole) == STREAM
    # What the product reads is there all the same, without what it makes.
    assert memory(early).stages[0].activations == memory(whole).stages[0].activations


def test_layers_that_run_again_together_stop_early_in_the_last_of_them(tiny):
    settings = ("training.recompute_layers", "2"), ("training.recompute_early_stop", "true")
    names = backward(recomputing(tiny, "full", *settings), kind=1)
    assert "recompute.1.ffn.out" in names
    assert "recompute.ffn.out" not in names


def test_with_dropout_the_last_mask_is_made_again(tiny):
    settings = ("training.dropout", "true"), ("training.recompute_early_stop", "true")
    whole = recomputing(tiny, "full", settings[0])
    assert backward(recomputing(tiny, "full", *settings)) == backward(whole)


def test_block_recomputes_the_first_layers_of_each_part(tiny):
    settings = ("training.recompute_method", "block"), ("training.recompute_layers", "1")
    job = recomputing(tiny, "full", *settings, ("parallelism.pp", "2"))
    for part in range(2):
        kinds = [section.kind for section, label in sections(job, part) if label]
        assert kinds == [0, 1]
    assert (kept(job, 0), kept(job, 1)) == (STREAM, kept(tiny()))


def test_only_layers_of_a_kind_are_recomputed(tiny):
    experts = "{kind: experts, experts: 4, topk: 2, hidden: 64}"
    model = ("model.exceptions", f"[{{start: 2, feed_forward: {experts}}}]")
    job = recomputing(tiny, "full", model, ("training.recompute_kinds", "[experts]"))
    whole = tiny(model)
    assert (kept(job, 0), kept(job, 1)) == (kept(whole, 0), STREAM)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ([("training.recompute", "[ffn.activatoin]")], "no operator is named 'ffn.activatoin'; there are"),
        ([("training.recompute_layers", "2")], "with recompute full only"),
        ([("training.recompute", "full"), ("training.recompute_method", "block")], "needs how many layers"),
        ([("training.recompute", "full"), ("training.recompute_kinds", "[mamba]")], "none of the model's"),
        ([("training.recompute_kinds", "[ffn]")], "recompute is none"),
    ],
)
def test_what_makes_no_sense_is_refused(tiny, settings, said):
    with pytest.raises(ConfigError, match=said):
        tiny(*settings)


def test_alternate_runs_small_kernels_and_every_second_product_again(tiny):
    plain, less = recomputing(tiny, "none"), recomputing(tiny, "alternate")
    again = {one for one in backward(less) if one.startswith("recompute.")}
    assert {"recompute.attention.output", "recompute.attention.qkv", "recompute.ffn.norm"} <= again
    assert "recompute.attention.core" not in again and "recompute.ffn.out" not in again
    assert kept(recomputing(tiny, "full")) < kept(less) < kept(plain)
    split = backward(recomputing(tiny, "alternate", ("parallelism.tp", "2")))
    assert "recompute.attention.output" not in split  # its sum is kept


def test_of_queries_keys_and_values_the_keys_are_made_again(tiny):
    job = recomputing(tiny, "alternate")
    lists = training_lists(job)
    forward = {one.name: one for one in lists[PieceKey(ModelSection("block"), "forward")]}
    again = {one.name: one for one in lists[PieceKey(ModelSection("block"), "backward")]}
    core = forward["attention.core"].operator
    assert again["recompute.attention.qkv"].operator.n == core.kv_heads * core.head_dim
