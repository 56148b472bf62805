"""Good inputs of what other tools wrote, of servers, and of what studies keep; see `samples`."""

from __future__ import annotations

import io
import json
import sqlite3
import tempfile
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout, suppress
from functools import lru_cache
from pathlib import Path

from rapid_des.cli.main import cli
from rapid_des.studies.database import digest_of
from validation.hostile.sample import Sample, of

_LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1000,
    "max_position_embeddings": 512, "tie_word_embeddings": False, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "hidden_act": "silu", "attention_bias": False,
}  # fmt: skip
_DEEPSEEK = {
    "model_type": "deepseek_v3", "hidden_size": 256, "intermediate_size": 512, "moe_intermediate_size": 128,
    "num_hidden_layers": 4, "num_attention_heads": 8, "n_routed_experts": 8, "n_shared_experts": 1,
    "num_experts_per_tok": 2, "q_lora_rank": 64, "kv_lora_rank": 32, "qk_nope_head_dim": 32, "v_head_dim": 32,
    "qk_rope_head_dim": 16, "first_k_dense_replace": 1, "moe_layer_freq": 1, "num_nextn_predict_layers": 1,
    "vocab_size": 1000, "max_position_embeddings": 512, "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip
_GEMMA = {
    "model_type": "gemma3_text", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 6,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 1000,
    "max_position_embeddings": 512, "sliding_window": 128, "sliding_window_pattern": 3,
    "hidden_activation": "gelu_pytorch_tanh",
}  # fmt: skip
_GPT_OSS = {
    "model_type": "gpt_oss", "hidden_size": 256, "intermediate_size": 128, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32, "num_local_experts": 8,
    "num_experts_per_tok": 2, "sliding_window": 64, "vocab_size": 1000, "max_position_embeddings": 512,
    "layer_types": ["sliding_attention", "full_attention"] * 2, "tie_word_embeddings": False,
}  # fmt: skip
_MAMBA = {
    "model_type": "mamba2", "hidden_size": 256, "num_hidden_layers": 4, "state_size": 64, "num_heads": 8,
    "head_dim": 64, "n_groups": 1, "conv_kernel": 4, "expand": 2, "chunk_size": 64, "vocab_size": 1000,
    "time_step_limit": [0.0, 1e30],
}  # fmt: skip
_MEGATRON = """#!/bin/bash
# a comment with "quotes'
export GPUS=${GPUS:-8}
TP=2; PP=2
NODES=1
WORLD=$(($GPUS * NODES))
MODEL_ARGS=(
    --num-layers 4
    --hidden-size 256   # wide
    --num-attention-heads 8 --seq-length 128 --max-position-embeddings 128
    --num-experts 4 --moe-router-topk 2 --moe-layer-freq ([0]*1+[1]*3)
)
if [ -n "$X" ]; then
  MODEL_ARGS+=(--swiglu)
fi
torchrun --nproc_per_node $GPUS --nnodes $NODES pretrain_gpt.py "${MODEL_ARGS[@]}" \\
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size ${PP} --micro-batch-size 1 \\
    --global-batch-size $((8 * 2)) --vocab-size 1000 --bf16 --use-distributed-optimizer --lr 1e-4
"""
_TORCHTITAN = """[job]
description = "x"
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 128
mixed_precision_param = "bfloat16"
[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = 4
tensor_parallel_degree = 2
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "Interleaved1F1B"
[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
[compile]
enable = true
[float8]
enable_fsdp_float8_all_gather = true
"""
_HARDWARE = """sw_param:
  full_recomputation: true
  kernel_launch_overhead: 9e-6
  dp_zero_stage: 1
  precision: {tensor_format: bf16, gradients: fp32, optimizer_states: 4, master_parameters: 0.0}
  dp_microbatch: last_mb
tech_param:
  core: {operating_frequency: 1.41e9, num_bundles: 108, nominal_flop_rate_per_mcu: 512, num_mcu_per_bundle: 4, util: 0.85}
  DRAM: {size: 80 GB, bandwidth: 1986 GB}
  SRAM-L2: {size: 40 MB, bandwidth: 7050 GB}
  SRAM-L1: {size: 20736 KB, bandwidth: 18 TB}
  SRAM-R: {size: 27 MB, bandwidth: 122 TB}
parallelism: {tp: 2, tp_sp: true, cp: 2, lp: 2, mb: 2, train: {dp: 2, ep: 1}, inference: {replica_count: 1}}
network:
  dimensions:
    - {label: torus, size: auto, parallelisms: [tp, cp], topology: {type: Torus2D, bandwidth: 100 GB, latency: 5e-6}}
    - {label: ring, size: auto, parallelisms: [lp, dp], topology: {type: Ring, bandwidth: 200 Gb, latency: 1e-6, util: 0.5}}
  overlap: {tp_overlap: 0.5, cp_overlap: 0.0}
  faulty_links: [[0, 1, 0.5]]
execution_backend: {astra: {collectives: {all_reduce: ring, all_gather: ring}}}
"""
_RAPID_MODEL = """model_param:
  {run_type: training, model_type: llama, tied_embeddings: false, global_batch_size: 8, seq_len: 256,
   decode_len: 56, hidden_dim: 256, num_layers: 4, intermediate_size: 512, vocab_size: 1000,
   attention: {attention_type: gqa, num_heads: 4, kv_heads: 2, use_flashattention: true}}
"""
_SERVING = """model: llama2_7b
phase: inference
software: vllm-0.x
parallelism: {tp: 2, dp: 2}
precision: {activations: bf16}
inference: {batch: 4, prompt_length: 32, output_length: 8, decode_steps: 4}
serving:
  policy: vllm_v1
  max_sequences: 16
  router: round_robin
  arrivals: poisson rate=4/s
  prompt: lognormal mean=64 cv=1 most=256
  output: uniform low=2 high=9
  sessions: 3
  users: 2
  prefix: "4"
  outages: ["replica=1 at=1s down=1s"]
  startup: {initialise: 1 s, storage: 10 GB/s}
"""
_ROLLOUT = """training:
  model: llama2_7b
  phase: training
  software: fsdp
  parallelism: {dp: 8}
  precision: {activations: bf16}
  training: {global_batch: 16, micro_batch: 1, sequence_length: 128, zero_stage: 3, recompute: full}
serving:
  model: llama2_7b
  phase: inference
  software: vllm-0.x
  parallelism: {tp: 2, dp: 4}
  precision: {activations: bf16}
  inference: {batch: 4, prompt_length: 32, output_length: 16}
prompts: 2
samples: 8
prompt: lognormal mean=32 cv=0.5 most=64
output: lognormal mean=16 cv=1 most=60
"""
_REQUESTS = "arrival_s,prompt_tokens,output_tokens,session,priority,prefix_tokens\n" + "".join(
    f"{n / 10},{20 + n},{3 + n % 4},{n % 3},{n % 2},{n % 5}\n" for n in range(12)
)
_HASHED = "".join(
    f'{{"timestamp": {100 * n}, "input_length": {20 + n}, "output_length": {3 + n % 4}, "hash_ids": [{n % 3}, {9 + n}]}}\n'
    for n in range(12)
)
_AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:17:0{n}.9799600,{40 + n},{4 + n}\n" for n in range(9)
)
STUDY = """job:
  model: llama2_7b
  phase: training
  parallelism: {tp: 2, dp: 4}
  training: {global_batch: 8, micro_batch: 1, sequence_length: 128}
on: dgx_a100
mode: analytical
axes:
  tp: {from: 1, to: 8, factor: 2}
  dp: [1, 2, 4, 8]
  machine.fabric.0.bandwidth, machine.fabric.0.latency: [[300 GB/s, 1 us], [150 GB/s, 2 us]]
  job.training.micro_batch: {small: 1}
where: [tp * dp == 8, "tp in [1, 2, 4] and not dp ** 2 > 100"]
derive: {job.parallelism.sequence_parallel: tp > 1}
set: {job.training.zero_stage: 1}
faults: link=0-switch0 bandwidth=0.5
objective: tokens_per_s
"""
_ONE_POINT = """job: {model: llama2_7b, phase: training, parallelism: {tp: 8},
  training: {global_batch: 1, micro_batch: 1, sequence_length: 64}}
on: dgx_a100
mode: analytical
axes: {tp: [8], job.training.micro_batch: [1]}
"""


def _quietly(*words: object) -> None:
    with redirect_stdout(io.StringIO()):
        cli([*map(str, words)], standalone_mode=False)


@lru_cache
def kept_results() -> Mapping[str, bytes]:
    """Return the files of a study's results."""
    with tempfile.TemporaryDirectory() as folder:
        study, results = Path(folder, "s.yaml"), Path(folder, "r")
        study.write_text(_ONE_POINT)
        _quietly("sweep", study, "-o", results, "--executor", "local")
        files = (path for path in results.rglob("*") if path.is_file())
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@lru_cache
def _searched() -> bytes:
    """Return the database of a search."""
    with tempfile.TemporaryDirectory() as folder:
        study, database = Path(folder, "s.yaml"), Path(folder, "d.db")
        study.write_text(_ONE_POINT)
        _quietly("search", study, "--storage", f"sqlite:///{database}", "--executor", "local", "--warm", 0)
        return database.read_bytes()


def kept_rows() -> bytes:
    """Return the row of a study's results as JSON."""
    from pyarrow import parquet

    part = next(content for name, content in kept_results().items() if name.endswith(".parquet"))
    return json.dumps(parquet.read_table(io.BytesIO(part)).to_pylist()).encode()


def as_part(rows: bytes) -> bytes:
    """Return rows as Parquet: as JSON says if it says so, else a cell of bytes."""
    import pyarrow
    from pyarrow import parquet

    try:
        table = pyarrow.Table.from_pylist(json.loads(rows))
    except (ValueError, TypeError, RecursionError, AttributeError, OverflowError, pyarrow.ArrowException):
        table = pyarrow.table({"id": [rows]})
    packed = io.BytesIO()
    try:
        parquet.write_table(table, packed)
    except pyarrow.ArrowException:
        return rows
    return packed.getvalue()


def _found() -> bytes:
    """Return the row that a search keeps."""
    with _database(_searched()) as (_, opened):
        ((text,),) = opened.execute("SELECT value_json FROM trial_user_attributes WHERE key = 'row'")
    return str(text).encode()


def _as_database(row: bytes) -> bytes:
    """Return the database with another row."""
    with _database(_searched()) as (path, opened):
        text = row.decode("utf-8", "replace")
        set_to = "UPDATE trial_user_attributes SET value_json = ? WHERE key = ?"
        opened.execute(set_to, (text, "row"))
        with suppress(ValueError, RecursionError):  # a forger knows how digests are made
            ((identity,),) = opened.execute(
                "SELECT value_json FROM study_user_attributes WHERE key = 'study'"
            )
            digest = digest_of(json.loads(text), json.loads(identity))
            opened.execute(set_to, (json.dumps(digest), "digest"))
        opened.commit()
        return path.read_bytes()


class _database:  # noqa: N801 - a function of two results
    def __init__(self, content: bytes) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._path = Path(self._folder.name, "d.db")
        self._path.write_bytes(content)
        self._opened = sqlite3.connect(self._path)

    def __enter__(self) -> tuple[Path, sqlite3.Connection]:
        return self._path, self._opened

    def __exit__(self, *_: object) -> None:
        self._opened.close()
        self._folder.cleanup()


def importers() -> dict[str, Sample]:
    """Return the kinds that other tools write."""
    configs = {"llama": _LLAMA, "deepseek": _DEEPSEEK, "gemma": _GEMMA, "gpt_oss": _GPT_OSS, "mamba": _MAMBA}
    nested = {"model_type": "gemma3", "text_config": _GEMMA, "vision_config": {"hidden_size": 8}}
    rapid = "import|rapid-llm|@/hw.yaml|@/m.yaml|-o|@"
    return {
        **{
            f"hf {name}": of("import|hf|@/c.json", c_dot_json=json.dumps(tree))
            for name, tree in configs.items()
        },
        "hf nested": of("import|hf|@/c.json", c_dot_json=json.dumps(nested)),
        "megatron": of("import|megatron|@/run.sh", run_dot_sh=_MEGATRON),
        "torchtitan": of("import|torchtitan|@/c.toml", c_dot_toml=_TORCHTITAN),
        "rapid hardware": of(rapid, hw_dot_yaml=_HARDWARE, m_dot_yaml=_RAPID_MODEL),
        "rapid model": of(rapid, m_dot_yaml=_RAPID_MODEL, hw_dot_yaml=_HARDWARE),
    }


def _of_line(line: str) -> Sample:
    """Return a kind whose command line is attacked, but for the number of requests: so many are simulated."""
    words = tuple(line.split("|"))
    return Sample(words, kept=frozenset({0, 1, words.index("--requests") + 1}))


def servers() -> dict[str, Sample]:
    """Return the kinds that a server reads."""
    serve = "serve|@/j.yaml|--on|dgx_a100|--requests|8"
    traced = f"{serve}|--arrivals|trace file=@/t.csv faster=2"
    served = "serve|llama2_7b_inference|--on|dgx_a100|--requests|8|"
    lines = {
        "serve poisson": f"{served}--arrivals|poisson rate=4/s|--output|5",
        "serve gamma": f"{served}--output|5|--arrivals|gamma rate=4/s cv=2.5",
        "serve diurnal": f"{served}--output|5|--arrivals|diurnal rate=4/s swing=0.5 period=60s",
        "serve clients": f"{served}--output|5|--arrivals|clients count=4 think=100ms",
        "serve lengths": f"{served}--arrivals|poisson rate=4/s|--prompt|lognormal mean=64 cv=0.8 most=99|--output|"
        "quantiles p50=4 p90=8 p99=9",
        "serve outage": f"{served}--arrivals|poisson rate=4/s|--output|5|--outage|replica=0 at=1s down=2s",
        "serve slowed": f"{served}--arrivals|poisson rate=4/s|--output|5|--outage|"
        "fault='link=0-switch0 bandwidth=0.5' mtbf=2s down=1s seed=3",
        "serve slo": f"{served}--arrivals|poisson rate=4/s|--output|5|--slo|ttft=2s tpot=50ms",
    }
    bare = _SERVING.replace("  arrivals: poisson rate=4/s\n", "").replace(
        "sessions: 3", "max_batched_tokens: 64"
    )
    tiers = "  prefix_cache: {tiers: [{name: host, capacity: 1 GB}, {name: ssd, capacity: 2 GB, bandwidth: 3 GB/s}]}\n"
    hashed = bare.replace("round_robin", "prefix_aware") + tiers
    return {
        "serve job": of(serve, j_dot_yaml=_SERVING),
        "request trace": of(traced, t_dot_csv=_REQUESTS, j_dot_yaml=bare),
        "public trace": of(traced, t_dot_csv=_AZURE, j_dot_yaml=bare),
        "hashed trace": of(
            f"{serve}|--arrivals|trace file=@/t.jsonl block=16", t_dot_jsonl=_HASHED, j_dot_yaml=hashed
        ),
        "rollout": of("rollout|@/r.yaml|--on|dgx_a100|--mode|analytical", r_dot_yaml=_ROLLOUT),
        **{name: _of_line(line) for name, line in lines.items()},
    }


def studies() -> dict[str, Sample]:
    """Return the kinds that studies read and keep."""
    kept, rows = kept_results(), kept_rows()
    (part,) = (name for name in kept if name.endswith(".parquet"))
    manifest = next(name for name in kept if name.endswith("manifest.json"))

    def folder(first: str, command: str, **how: Callable[[bytes], bytes] | bool) -> Sample:
        return Sample(tuple(command.split("|")), {first: kept[first], **kept}, **how)  # type: ignore[arg-type]

    shown = (
        "show|@/r|--where|tp <= 8 and mfu > 0.001 or tp in [1, 2]|--sort|-mfu|--columns|tp,mfu,step_time_s"
    )
    search = "search|@/s.yaml|--storage|sqlite:///@/d.db|--executor|local|--warm|0"
    text = {"s.yaml": _ONE_POINT.encode()}
    return {
        "study": of("sweep|@/s.yaml|--limit|1|--executor|local", s_dot_yaml=STUDY),
        "store manifest": folder(manifest, "show|@/r"),
        "store rerun": folder(manifest, "show|@/r|--rerun|1"),
        "store part": folder(part, "show|@/r|--json", binary=True),
        "store rows": Sample(
            ("show", "@/r"), {part: rows, **{n: c for n, c in kept.items() if n != part}}, pack=as_part
        ),
        "store point": Sample(
            ("show", "@/r", "--point", "1"),
            {part: rows, **{n: c for n, c in kept.items() if n != part}},
            pack=as_part,
        ),
        "store show": Sample(tuple(shown.split("|")), kept, line=True),
        "database": Sample(tuple(search.split("|")), {"d.db": _searched(), **text}, binary=True),
        "database row": Sample(tuple(search.split("|")), {"d.db": _found(), **text}, pack=_as_database),
    }
