"""A new kind of layer is one object: operator lists, traces, memory, counts and blocks follow from it."""

from dataclasses import dataclass

import pytest

from rapid_des.errors import ConfigError
from rapid_des.frontend import build, memory
from rapid_des.frontend.blocks import Cuts, blocks
from rapid_des.frontend.inference import serving_lists
from rapid_des.frontend.job_checks import check_job
from rapid_des.frontend.layers import Layer, Parameters
from rapid_des.frontend.matrices import Linear, column_backward, column_forward, row_backward, row_forward
from rapid_des.frontend.memory import section_memory
from rapid_des.frontend.parts import ModelSection, training_lists
from rapid_des.values import replace

DENSE, PLAIN = ModelSection("block", 0), ModelSection("block", 1)
SPLIT = [("parallelism.tp", "2"), ("parallelism.pp", "2"), ("parallelism.dp", "2")]


@dataclass(frozen=True)
class PlainFeedForward:
    """Two matrices and nothing between them: a kind that the library does not have."""

    hidden: int
    inner: int

    name = "plain"
    output_bias = False

    @property
    def parameters(self):
        return Parameters(matrices=2 * self.hidden * self.inner)

    def flops(self, sequence):
        return 4 * self.hidden * self.inner

    def refusal(self, split):
        return (
            f"inner width {self.inner} is not divisible by tp {split.tp}" if self.inner % split.tp else None
        )

    def matrices(self, shard):
        inner = self.inner // shard.tp
        up = Linear("plain.up", inner, self.hidden, False, shard.tokens)
        return up, Linear("plain.down", self.hidden, inner, False, shard.tokens)

    def forward(self, operations, shard):
        up, down = self.matrices(shard)
        column_forward(operations, shard, up, saved=shard.boundary_bytes)
        row_forward(operations, shard, down, saved=shard.activation_bytes(shard.tokens * down.inner))

    def backward(self, operations, shard):
        up, down = self.matrices(shard)
        row_backward(operations, shard, down)
        return column_backward(operations, shard, up)


def mixed(job):
    """Return the job with plain feed-forwards, and one key and value head, in the third layer."""
    dense = job.model.pattern[0]
    core = replace(dense.mixer.core, kv_heads=1)
    plain = Layer(replace(dense.mixer, core=core), PlainFeedForward(hidden=64, inner=96))
    return replace(job, model=replace(job.model, pattern=(dense, dense, plain, dense)))


def simulated(taken, replay):
    """Return each stage's durations of its blocks, each block alone on the stage's first inner group."""
    stages = []
    for stage in range(taken.job.stages):
        ranks = next(group for number, group in enumerate(taken.inner_groups) if taken.stage(number) == stage)
        durations = {}
        for key in taken.keys(stage):
            finish = replay(taken.blocks[key].on(ranks), rendezvous=True)
            slowest = [max(times) for times in zip(*finish.values(), strict=True)]
            durations[key] = Cuts.of(taken.blocks[key].passed(slowest))
        stages.append(durations)
    return stages


def test_equal_layers_are_one_piece_and_other_kinds_have_their_own(tiny):
    lists = training_lists(mixed(tiny(*SPLIT)))
    assert [key.section for key in lists if key.phase == "forward"][1:3] == [DENSE, PLAIN]
    assert len(lists) == 2 * 4  # embedding, two kinds, head; forward and backward


def test_parameters_and_flops_are_the_sum_over_the_layers(tiny):
    job, plain = tiny(), mixed(tiny())
    # SwiGLU's 3 · 64 · 128 become 2 · 64 · 96, and two of four heads of 16 go from keys and from values.
    fewer = 3 * 64 * 128 - 2 * 64 * 96 + 2 * 64 * 16
    assert job.model.parameters - plain.model.parameters == fewer
    tokens = 8 * 32
    assert job.model_flops - plain.model_flops == 3 * tokens * 2 * fewer


def test_stages_hold_the_model_once_and_keep_what_their_layers_keep(tiny):
    job = mixed(tiny(("parallelism.pp", "2")))
    stages = memory(job).stages
    assert sum(stage.parameters for stage in stages) == job.model.parameters
    kept = section_memory(job)
    # A plain layer keeps 96 instead of 3 · 128 wide tensors of its 32 tokens, and 2 · 16 less of K and V.
    assert kept[DENSE].activations - kept[PLAIN].activations == 32 * 2 * (3 * 128 - 96 + 2 * 16)


@pytest.mark.parametrize(
    "extra",
    [[], [("parallelism.sequence_parallel", "true"), ("training.zero_stage", "1")]],
    ids=["plain", "sequence parallel"],
)
def test_the_trace_has_each_layers_operators_and_blocks_take_as_long(tiny, prices, replay, extra):
    job = mixed(tiny(*SPLIT, *extra))
    trace = build(job, prices)
    names = [set(table.names) for table in trace.tables]
    assert "forward.L1.ffn.activation" in names[0]
    assert {"forward.L2.plain.up", "backward.L2.plain.norm", "forward.L3.ffn.in"} <= names[1]
    assert not any(".L2.ffn" in name or "plain" in name and ".L2." not in name for name in names[1])
    taken = blocks(job, prices)
    assert PLAIN not in {key.section for key in taken.keys(0)}
    flat = replay(trace.traces, rendezvous=True)
    outer = taken.outer(simulated(taken, replay))
    for rank, times in replay(outer.traces, rendezvous=True).items():
        assert max(times) == max(flat[rank])


LATENT = (
    "{kind: latent_attention, heads: 4, q_rank: 24, kv_rank: 16, head_dim: 8, rope_dim: 4, value_dim: 12}"
)
KINDS = {
    "latent": [("model.attention", LATENT)],
    "windows": [("model.exceptions", "[{every: 2, attention: {heads: 4, kv_heads: 2, window: 8}}]")],
    "normed": [("model.attention", "{heads: 4, qk_norm: whole}"), ("model.norms", "both")],
    "parallel": [("model.block", "parallel_one_norm"), ("model.norm", "layer_norm")],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sequence_parallel", ["true", "false"])
def test_blocks_of_every_kind_take_as_long_as_in_the_whole_trace(
    tiny, prices, replay, kind, sequence_parallel
):
    job = tiny(*SPLIT, *KINDS[kind], ("parallelism.sequence_parallel", sequence_parallel))
    flat = replay(build(job, prices).traces, rendezvous=True)
    taken = blocks(job, prices)
    outer = taken.outer(simulated(taken, replay))
    for rank, times in replay(outer.traces, rendezvous=True).items():
        assert max(times) == max(flat[rank])


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_served_block_by_block_as_in_the_whole_trace(tiny_service, prices, replay, kind):
    job = tiny_service(*KINDS[kind], ("parallelism.pp", "2"), ("parallelism.tp", "2"))
    flat = replay(build(job, prices).traces, rendezvous=True)
    taken = blocks(job, prices)
    outer = taken.outer(simulated(taken, replay))
    for rank, times in replay(outer.traces, rendezvous=True).items():
        assert max(times) == max(flat[rank])


def test_serving_knows_every_kinds_cache_and_its_growth(tiny_service, prices, replay):
    job = mixed(tiny_service(("parallelism.pp", "2")))
    # K and V of 16 wide in bf16, 2 requests of 21 positions: two heads in three layers, one in the third.
    cache = [stage.categories["kv_cache"] for stage in memory(job).stages]
    assert cache == [2 * 2 * 16 * 2 * 21 * (2 + 2), 2 * 2 * 16 * 2 * 21 * (1 + 2)]
    taken = blocks(job, prices)
    flat = replay(build(job, prices).traces, rendezvous=True)
    outer = taken.outer(simulated(taken, replay))
    for rank, times in replay(outer.traces, rendezvous=True).items():
        assert max(times) == max(flat[rank])


def test_a_kind_refuses_a_split_in_its_own_words(tiny):
    job = tiny(("parallelism.tp", "2"))
    odd = Layer(job.model.pattern[0].mixer, PlainFeedForward(64, 97))
    with pytest.raises(ConfigError, match="parallelism.tp: inner width 97 is not divisible by tp 2"):
        check_job(replace(job, model=replace(job.model, pattern=(odd,) * 4)))


def names_of_decode(job):
    """Return the names and roles of the first decode step of a layer."""
    lists = [each for key, each in serving_lists(job).items() if key.section.name == "block"]
    return [(one.name, one.role) for one in lists[1]]


def test_an_attention_plugin_rotates_and_writes_the_cache_itself(tiny_service):
    inside = names_of_decode(tiny_service(("fusion", "trtllm")))
    outside = names_of_decode(tiny_service(("fusion", "vllm")))
    assert [one for one in outside if one not in inside] == [("attention.rope", ""), ("attention.cache", "")]
    assert [one for one in inside if one not in outside] == []


def test_a_parallel_block_is_served_with_one_sum_where_the_engine_adds_its_halves_first(tiny_service):
    parallel = [*KINDS["parallel"], ("parallelism.tp", "2")]
    each, once = (names_of_decode(tiny_service(*parallel, ("fusion", how))) for how in ("vllm", "trtllm"))
    sums = [[name for name, role in names if role == "tp.reduce"] for names in (each, once)]
    assert sums == [["attention.output.reduce", "ffn.out.reduce"], ["block.reduce"]]
    assert [name for name, _ in once][-3:] == ["attention.residual", "block.reduce", "ffn.residual"]
