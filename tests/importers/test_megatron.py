"""Arguments of Megatron-LM to job files: scripts as people write them, defaults as its parser has them."""

import pytest

from rapid_des.errors import ConfigError
from rapid_des.frontend import load_job, load_model
from rapid_des.importers.megatron import import_megatron

PLAIN = """
--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128
--micro-batch-size 2 --global-batch-size 32 --bf16 --vocab-size 1000
"""
SCRIPT = """#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1   # a comment with --num-layers 99
GPUS=8; NODES=${NNODES:-2}
TP=${TP:-$((GPUS / 4))}
WORLD=$(($GPUS * $NODES))
mkdir -p "$(dirname "$CHECKPOINT")"
ARGS=(
    --num-layers 4
    --hidden-size 64            # width
    # --hidden-size 65
    "--num-attention-heads 4"
    --tensor-model-parallel-size $TP
    --sequence-parallel
)
options=" \\
    --seq-length 128 --max-position-embeddings 128 \\
    --micro-batch-size 2 --global-batch-size 32 --bf16 --lr ${LR} --vocab-size=1000"
if [[ "$FP8" == 1 ]]; then
    ARGS+=( --fp8-format hybrid --fp8-recipe blockwise )
fi
ARGS+=( --pipeline-model-parallel-size ${PP:-2} --overlap-grad-reduce )
CMD="pretrain_gpt.py ${ARGS[@]} ${options}"
torchrun --nproc_per_node $GPUS --nnodes=$NODES ${CMD} --log-interval 1 --recompute-activations
"""


def job_of(tmp_path, text, **known):
    file = tmp_path / "launch.sh"
    file.write_text(text)
    return import_megatron(file, **known)


def test_defaults_are_those_of_its_parser(tmp_path):
    job = job_of(tmp_path, PLAIN, gpus=4).job
    model, spec = job.model.spec, job.spec
    assert (model.feed_forward.hidden, model.feed_forward.activation) == (256, "gelu")
    assert (model.norm, model.position, model.tied_embeddings) == ("layer_norm", "learned", True)
    assert model.attention.qkv_bias and model.attention.output_bias and model.feed_forward.bias
    assert (job.gpus, spec.parallelism.dp, spec.vocabulary_multiple) == (4, 4, 128)
    assert spec.training.dropout and spec.training.gradient_norm
    assert not spec.training.overlap_gradients and spec.training.zero_stage == 0
    assert (spec.precision.gradients, spec.precision.master_weights) == ("fp32", "fp32")


def test_a_script_is_read_without_being_run(tmp_path):
    result = job_of(tmp_path, SCRIPT)
    split = result.job.spec.parallelism
    assert (split.tp, split.pp, split.dp, result.job.gpus) == (2, 2, 4, 16)
    assert split.sequence_parallel and result.job.spec.training.recompute == "selective"
    assert result.job.spec.precision.recipe == "blockwise"
    assert result.notes == ("set in branches, which are not decided: ARGS; what stands last holds",)


def test_variables_of_the_environment_go_first(tmp_path):
    job = job_of(tmp_path, SCRIPT, variables={"TP": "4", "NODES": "1"}).job
    assert (job.spec.parallelism.tp, job.gpus) == (4, 8)


def test_the_file_loads_to_the_same_job(tmp_path):
    result = job_of(tmp_path, SCRIPT)
    file = tmp_path / "job.yaml"
    file.write_text(result.as_yaml())
    assert load_job(file) == result.job


def test_deepseek_v3_has_its_parameters(tmp_path):
    text = """
    --num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128 --kv-channels 128
    --multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --qk-layernorm --num-experts 256
    --moe-router-topk 8 --moe-ffn-hidden-size 2048 --moe-shared-expert-intermediate-size 2048
    --moe-layer-freq ([0]*3+[1]*58) --moe-router-enable-expert-bias --swiglu --normalization RMSNorm
    --position-embedding-type rope --untie-embeddings-and-output-weights --disable-bias-linear --bf16
    --seq-length 4096 --max-position-embeddings 163840 --micro-batch-size 1 --vocab-size 129280
    --mtp-num-layers 1
    --expert-model-parallel-size 64 --hidden-dropout 0 --attention-dropout 0 --use-distributed-optimizer
    """
    result = job_of(tmp_path, text, gpus=256)
    assert result.job.model.parameters == load_model("deepseek_v3").parameters
    assert (result.job.spec.parallelism.ep, result.job.spec.parallelism.etp) == (64, 1)
    assert not result.job.spec.training.dropout and not result.notes


@pytest.mark.parametrize(
    ("more", "path", "expected"),
    [
        ("--swiglu", "model.feed_forward.hidden", 128),
        ("--group-query-attention --num-query-groups 2", "model.attention.kv_heads", 2),
        ("--add-qkv-bias --disable-bias-linear", "model.attention.qkv_bias", True),
        ("--use-rotary-position-embeddings --rotary-percent 0.5", "model.attention.rotary", 0.5),
        ("--grad-reduce-in-bf16", "precision.gradient_reduce", "bf16"),
        ("--recompute-granularity full --recompute-method uniform", "training.recompute", "full"),
        (
            "--recompute-granularity full --recompute-method block --recompute-num-layers 2",
            "training.recompute_layers",
            2,
        ),
        ("--use-distributed-optimizer --overlap-param-gather", "training.overlap_parameters", True),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", "training.zero_stage", 2),
        (
            "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1",
            "parallelism.chunks",
            2,
        ),
        ("--use-tp-pp-dp-mapping", "parallelism.order", ("tp", "cp", "ep", "pp", "dp")),
        ("--optimizer muon", "training.optimizer", "muon"),
        ("", "cross_entropy", "separate"),
        ("--cross-entropy-loss-fusion", "cross_entropy", "compiled"),
        ("--cross-entropy-loss-fusion --cross-entropy-fusion-impl te", "cross_entropy", "online"),
        ("--no-gradient-accumulation-fusion", "training.fused_accumulation", False),
        ("--no-async-tensor-model-parallel-allreduce", "training.overlap_tp_gradients", False),
        ("--num-experts 4 --moe-token-dispatcher-type alltoall", "routing.dispatcher", "all_to_all"),
        (
            "--num-experts 4 --moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep",
            "routing.dispatcher",
            "hybridep",
        ),
        ("--num-experts 4 --moe-shared-expert-overlap", "routing.overlap_shared", True),
        ("--mtp-num-layers 2", "model.predictions", 2),
        ("--attention-backend unfused", "attention", "unfused"),
        ("--clip-grad 0", "training.gradient_norm", False),
        ("--num-layers 8", "model.layers", 8),
        ("--optimizer muon", "training.optimizer", "muon"),
    ],
)
def test_an_argument_becomes_a_key(tmp_path, more, path, expected):
    value = job_of(tmp_path, f"{PLAIN} {more}", gpus=4).job.spec
    for name in path.split("."):
        value = getattr(value, name)
    assert value == expected


def test_in_fp16_gradients_are_too(tmp_path):
    job = job_of(tmp_path, PLAIN.replace("--bf16", "--fp16"), gpus=4).job
    assert job.spec.precision.gradients == "fp16"


def test_what_is_not_understood_is_named(tmp_path):
    text = f"{PLAIN} --mtp-loss-scaling-factor 0.1 --lr 1e-4 --my-own"
    with pytest.raises(ConfigError, match=r"not understood: --my-own \(True\); --ignore KEY leaves one out"):
        job_of(tmp_path, text, gpus=4)
    result = job_of(tmp_path, text, gpus=4, ignore=["my_own"])
    left = {each.key: (each.value, each.reason) for each in result.ignored}
    assert left["--lr"] == ("0.0001", "it is a rate, decay or scale of the optimizer")
    assert left["--my-own"] == ("", "it was asked for (--ignore)")
    assert "--mtp-loss-scaling-factor" in left and not result.notes
    with pytest.raises(ConfigError, match="--optimizer: 'lion' is not understood; allowed: adam, sgd, muon"):
        job_of(tmp_path, f"{PLAIN} --optimizer lion", gpus=4)


def test_positions_may_be_left_out(tmp_path):
    job = job_of(tmp_path, f"{PLAIN} --no-position-embedding", gpus=4).job
    assert job.model.spec.position == "none"


@pytest.mark.parametrize(
    ("text", "known", "problem"),
    [
        (PLAIN, {}, "does not say on how many GPUs it runs (torchrun); give --gpus N"),
        (PLAIN.replace("--vocab-size 1000", ""), {"gpus": 4}, "give --vocabulary N"),
        (PLAIN.replace("64", "$WIDTH"), {"gpus": 4}, "--hidden-size: $WIDTH is set nowhere in the script"),
        (PLAIN + "--tensor-model-parallel-size 3", {"gpus": 4}, "4 GPUs do not divide by tp 3 · pp 1 · cp 1"),
        (PLAIN + "--num-experts 4 --moe-layer-freq ([0]*9)", {"gpus": 4}, "a list of 4 layers"),
        (PLAIN + "--normalization Other", {"gpus": 4}, "'Other' is not understood; allowed: LayerNorm, "),
        (PLAIN + "--tensor-model-parallel-size 0", {"gpus": 4}, "tp 0 is below 1"),
        (PLAIN + "--fp16 --bf16", {"gpus": 4}, "--fp16: excludes --bf16"),
        (
            PLAIN + "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 3",
            {"gpus": 4},
            "3 do not divide what each of 2 stages has of the layers",
        ),
        ("A=$A$A\n" + PLAIN + "--tensor-model-parallel-size $A", {"gpus": 4}, "$A$A … is set nowhere"),
        ("python train.py --layers 3", {"gpus": 4}, "passes none of --hidden-size"),
    ],
)  # fmt: skip
def test_what_is_missing_or_wrong_is_one_clear_line(tmp_path, text, known, problem):
    with pytest.raises(ConfigError) as error:
        job_of(tmp_path, text, **known)
    assert problem in str(error.value) and "launch.sh" in str(error.value)


@pytest.mark.parametrize(
    ("more", "kind", "heads"),
    [
        ("", "ring", None),
        ("--cp-comm-type a2a", "ulysses", None),
        ("--cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2 2", "ulysses_ring", 2),
    ],
)
def test_sequences_are_put_together_as_it_says(tmp_path, more, kind, heads):
    split = job_of(tmp_path, f"{PLAIN} --context-parallel-size 4 {more}", gpus=4).job.spec.parallelism
    assert (split.cp, split.cp_kind, split.cp_heads) == (4, kind, heads)


def test_instances_of_its_optimizer_are_copies_of_a_split_state(tmp_path):
    text = f"{PLAIN} --use-distributed-optimizer --num-distributed-optimizer-instances 2"
    job = job_of(tmp_path, text, gpus=4).job
    assert (job.sharding.replicas, job.sharding.instances) == (2, 2)


def test_its_user_buffers_overlap_what_tensor_parallelism_moves(tmp_path):
    text = f"{PLAIN} --tensor-model-parallel-size 2 --sequence-parallel --tp-comm-overlap"
    assert job_of(tmp_path, text, gpus=4).job.spec.training.overlap_tp == "userbuffers"
