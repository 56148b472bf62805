"""Every key of every sample, changed and renamed: the result changes, it is refused by name, or ignored."""

import json
from collections import Counter

import pytest

from rapid_des.importers.hugging_face import import_hugging_face
from rapid_des.importers.keys import Ignored
from rapid_des.importers.megatron import import_megatron
from rapid_des.importers.rapid_llm import import_rapid_llm
from rapid_des.importers.torchtitan import import_torchtitan
from rapid_des.testing.importers import ReadFile, silent
from tests.importers import test_hugging_face as checkpoints
from tests.importers import test_published_counts as more_checkpoints
from tests.importers.test_rapid_llm import EXPERTS, SUPERPOD, hardware, model

PUBLISHED = checkpoints.PUBLISHED | more_checkpoints.PUBLISHED


def with_each_key_twice():
    """Yield the configurations that have a key which fewer than two others before them have."""
    met: Counter[str] = Counter()
    for config in sorted((config for config, _ in PUBLISHED.values()), key=len, reverse=True):
        if any(met[key] < 2 for key in config):
            met.update(config.keys())
            yield config


EXTRA = {"rope_theta": 5e5, "rms_norm_eps": 1e-5, "bos_token_id": 1, "torch_dtype": "bfloat16"}


@pytest.mark.parametrize("config", [*with_each_key_twice()], ids=lambda config: config["model_type"])
def test_of_hugging_face(tmp_path, config):
    def importing(tree):
        (tmp_path / "config.json").write_text(json.dumps(tree))
        read = import_hugging_face(tmp_path)
        return ReadFile(read.model.spec, read.ignored)

    assert not silent(config | EXTRA, importing)


DENSE = {
    "num-layers": 8, "hidden-size": 1024, "num-attention-heads": 8, "seq-length": 2048,
    "max-position-embeddings": 2048, "micro-batch-size": 2, "global-batch-size": 256, "vocab-size": 32000,
    "lr": 1e-4, "train-iters": 10, "tokenizer-type": "GPT2BPETokenizer", "distributed-backend": "nccl",
}  # fmt: skip
SPLIT = DENSE | {
    "bf16": True, "tensor-model-parallel-size": 2, "pipeline-model-parallel-size": 2,
    "context-parallel-size": 2, "sequence-parallel": True, "use-distributed-optimizer": True,
    "overlap-grad-reduce": True, "overlap-param-gather": True, "num-layers-per-virtual-pipeline-stage": 2,
    "recompute-granularity": "full", "recompute-method": "uniform", "recompute-num-layers": 1, "swiglu": True,
    "ffn-hidden-size": 4096, "group-query-attention": True, "num-query-groups": 4, "kv-channels": 128,
    "position-embedding-type": "rope", "rotary-percent": 0.5, "normalization": "RMSNorm",
    "untie-embeddings-and-output-weights": True, "disable-bias-linear": True, "attention-dropout": 0.0,
    "hidden-dropout": 0.1, "clip-grad": 1.0, "fp8-format": "hybrid", "fp8-recipe": "blockwise",
    "tp-comm-overlap": True, "cp-comm-type": "p2p", "no-bias-swiglu-fusion": True,
    "attention-backend": "flash", "make-vocab-size-divisible-by": 64, "cross-entropy-loss-fusion": True,
    "cross-entropy-fusion-impl": "te", "qk-layernorm": True, "ddp-bucket-size": 10000000,
    "accumulate-allreduce-grads-in-fp32": True, "expert-model-parallel-size": 1,
    "no-position-embedding": True, "overlap-p2p-communication": True,
    "num-distributed-optimizer-instances": 2,
}  # fmt: skip
ROUTED = DENSE | {
    "fp16": True, "num-experts": 8, "moe-router-topk": 2, "moe-ffn-hidden-size": 512,
    "moe-shared-expert-intermediate-size": 256, "moe-layer-freq": 2, "expert-model-parallel-size": 4,
    "expert-tensor-parallel-size": 1, "moe-token-dispatcher-type": "flex",
    "moe-flex-dispatcher-backend": "deepep", "moe-enable-deepep": True, "moe-grouped-gemm": True,
    "moe-router-group-topk": 2, "use-megatron-fsdp": True,
    "data-parallel-sharding-strategy": "optim_grads_params", "multi-latent-attention": True,
    "q-lora-rank": 128, "kv-lora-rank": 64, "qk-head-dim": 64, "qk-pos-emb-head-dim": 32, "v-head-dim": 64,
    "kv-channels": 128, "mtp-num-layers": 1, "moe-expert-capacity-factor": 1.5,
    "decoder-first-pipeline-num-layers": 3, "pipeline-model-parallel-size": 2, "moe-aux-loss-coeff": 0.01,
    "moe-router-enable-expert-bias": True, "recompute-granularity": "selective", "moe-permute-fusion": True,
    "normalization": "RMSNorm", "attention-dropout": 0.0, "hidden-dropout": 0.0,
    "use-rotary-position-embeddings": True,
}  # fmt: skip
IDLE = DENSE | {
    "bf16": True, "attention-dropout": 0.1, "no-overlap-p2p-communication": True, "openai-gelu": True,
    "moe-router-topk": 2, "ddp-bucket-size": 10**8, "sequence-parallel": True, "context-parallel-size": 1,
    "cp-comm-type": "a2a", "cross-entropy-fusion-impl": "te", "fp8-recipe": "delayed",
    "recompute-num-layers": 2, "use-tp-pp-dp-mapping": True, "tp-comm-overlap": True,
    "no-gradient-accumulation-fusion": True, "data-parallel-sharding-strategy": "optim",
}  # fmt: skip


@pytest.mark.parametrize("arguments", [SPLIT, ROUTED, IDLE], ids=["split", "routed", "idle"])
def test_of_megatron(tmp_path, arguments):
    def importing(tree):
        words = [f"--{key}" if value is True else f"--{key} {value}" for key, value in tree.items() if value]
        (tmp_path / "arguments").write_text(" ".join(words))
        read = import_megatron(tmp_path / "arguments", gpus=64)
        return ReadFile(read.tree, tuple(_renamed(each, each.key[2:]) for each in read.ignored))

    assert not silent({key: value for key, value in arguments.items() if value != 0.0}, importing)


def _renamed(each, key):
    return Ignored(key, each.value, each.reason)


FLOAT8 = {
    "enable_fsdp_float8_all_gather": True, "precompute_float8_dynamic_scale_for_fsdp": True,
    "recipe_name": "tensorwise", "filter_fqns": ["output"], "emulate": False,
}  # fmt: skip
TITAN = {
    "job": {"dump_folder": "x", "description": "y"},
    "profiling": {"enable_profiling": True, "profile_freq": 10},
    "metrics": {"log_freq": 10},
    "model": {"name": "llama3", "flavor": "8B", "hf_assets_path": "x", "converters": ["float8"]},
    "optimizer": {"name": "AdamW", "lr": 1e-4, "eps": 1e-8, "implementation": "fused",
                  "early_step_in_backward": False},
    "lr_scheduler": {"warmup_steps": 200, "decay_type": "linear"},
    "training": {"local_batch_size": 8, "global_batch_size": 64, "seq_len": 8192, "max_norm": 1.0,
                 "steps": 1000, "dataset": "c4", "dtype": "float32", "mixed_precision_param": "bfloat16",
                 "mixed_precision_reduce": "float32", "enable_cpu_offload": False, "gc_freq": 50},
    "parallelism": {"data_parallel_replicate_degree": 2, "data_parallel_shard_degree": -1,
                    "fsdp_reshard_after_forward": "default", "tensor_parallel_degree": 2,
                    "enable_async_tensor_parallel": True, "disable_loss_parallel": False,
                    "pipeline_parallel_degree": 2, "pipeline_parallel_schedule": "Interleaved1F1B",
                    "pipeline_parallel_microbatch_size": 1, "pipeline_parallel_schedule_csv": "",
                    "context_parallel_degree": 2, "context_parallel_rotate_method": "allgather",
                    "expert_parallel_degree": 1, "expert_tensor_parallel_degree": 1,
                    "expert_parallel_comm_backend": "standard"},
    "checkpoint": {"enable": False, "interval": 500},
    "activation_checkpoint": {"mode": "full", "selective_ac_option": "op", "early_stop": False,
                              "memory_budget": 0.5},
    "compile": {"enable": True, "components": ["model", "loss"], "backend": "inductor"},
    "quantize": {"linear": {"float8": FLOAT8}},
    "comm": {"trace_buf_size": 1},
    "memory_estimation": {"enable": False},
    "fault_tolerance": {"enable": False, "group_size": 2},
    "experimental": {"custom_import": ""},
    "validation": {"enable": False, "freq": 10},
    "debug": {"seed": 1, "deterministic": False},
}  # fmt: skip
TITAN_OF_2024 = {
    "model": {"name": "deepseek_v3", "flavor": "16B"},
    "training": {"batch_size": 4, "seq_len": 4096, "compile": True},
    "parallelism": {"data_parallel_shard_degree": 16, "fsdp_reshard_after_forward": "never",
                    "expert_parallel_degree": 8, "expert_tensor_parallel_degree": 1,
                    "expert_parallel_comm_backend": "deepep", "tensor_parallel_degree": 2,
                    "pipeline_parallel_schedule": "1F1B", "pipeline_parallel_microbatch_size": 1},
    "activation_checkpoint": {"mode": "selective", "selective_ac_option": "op"},
    "float8": {"enable_fsdp_float8_all_gather": True},
}  # fmt: skip


@pytest.mark.parametrize("tree", [TITAN, TITAN_OF_2024], ids=["2025", "2024"])
def test_of_torchtitan(tmp_path, tree):
    def importing(tree):
        (tmp_path / "train.toml").write_text("\n".join(_toml(tree)))
        read = import_torchtitan(tmp_path / "train.toml", gpus=64)
        return ReadFile(read.tree, read.ignored)

    assert not silent(tree, importing)


def _toml(tree, name=""):
    yield from (f"{key} = {json.dumps(value)}" for key, value in tree.items() if not isinstance(value, dict))
    for key, value in tree.items():
        if isinstance(value, dict):
            yield f"[{name}{key}]"
            yield from _toml(value, f"{name}{key}.")


MIXTURE = model(moe=EXPERTS | {"n_shared_experts": 1, "moe_layer_freq": 2, "first_k_dense_replace": 1})
FLAT = {"network__faulty_links": [], "parallelism__cp": 1}
RUNS = {
    "experts": (
        hardware(
            **FLAT,
            parallelism__train__ep=2,
            network__dimensions__0__topology=SUPERPOD,
            network__dimensions__1__collective_override={"all_gather": "direct", "all_to_all": "ring"},
        ),
        MIXTURE,
    ),
    "inference": (
        hardware(
            **FLAT,
            parallelism__inference__moe_dp=2,
            sw_param__dp_zero_stage=3,
            network__dimensions__1__topology=SUPERPOD | {"leaf_size": 32},
        ),
        model(run_type="inference", moe=MIXTURE["model_param"]["moe"])
        | {"inference_param": {"sample_every": 7}},
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_of_rapid_llm(tmp_path, name):
    files = tmp_path / "hard.json", tmp_path / "soft.json"

    def importing(tree):
        for file in files:
            file.write_text(json.dumps(tree[file.stem]))
        read = import_rapid_llm(*files)
        ignored = (
            _renamed(
                each, f"{'soft' if each.key.startswith(('model_', 'inference_p')) else 'hard'}.{each.key}"
            )
            for each in read.job.ignored
        )
        return ReadFile((read.job.tree, read.machine, read.device), tuple(ignored))

    hard, soft = RUNS[name]
    assert not silent({"hard": hard, "soft": soft}, importing)
