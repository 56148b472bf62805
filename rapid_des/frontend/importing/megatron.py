"""The arguments of Megatron-LM's `pretrain_gpt.py` to a job file.

Names and defaults are those of `megatron/training/arguments.py` (Megatron Core 0.10 to 0.14). What neither
shapes the model nor the step is passed over; any other argument that is not read is named in the notes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from rapid_des.config.documents import read_text
from rapid_des.errors import ConfigError
from rapid_des.frontend.importing.bounds import bounded
from rapid_des.frontend.importing.dealing import chunks_of, layers_of
from rapid_des.frontend.importing.keys import ImportedJob, Tree, imported, replicas, sparse, spread
from rapid_des.frontend.importing.shell import Arguments, Launch, by_name, read_launch

MARKS = frozenset(("--num-layers", "--hidden-size", "--tensor-model-parallel-size", "--micro-batch-size"))
"""What tells the arguments of a model from those of other programs that a script runs."""
VOCABULARIES = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000}
"""Tokenizers whose size is known without their files."""
POSITIONS = {
    "learned_absolute": "learned", "rope": "rope", "mrope": "rope", "yarn": "rope", "none": "none",
}  # fmt: skip
DISPATCHERS = {
    "allgather": "all_gather", "alltoall": "all_to_all", "alltoall_seq": "all_to_all", "flex": "flex",
}  # fmt: skip
RECIPES = {"delayed": "delayed", "tensorwise": "current", "blockwise": "blockwise", "mxfp8": "mxfp8"}
SHARDED = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
CONTEXTS = {"p2p": "ring", "all_gather": "all_gather", "a2a": "ulysses", "a2a+p2p": "ulysses_ring"}
FLASH = {"auto": "flash", "flash": "flash", "fused": "flash", "unfused": "unfused", "local": "unfused"}

LOSSES = {"native": "compiled", "te": "online"}
SWITCHED_OFF = {"no-gradient-accumulation-fusion": "fused_accumulation",
                "no-async-tensor-model-parallel-allreduce": "overlap_tp_gradients"}  # fmt: skip


def import_megatron(
    path: str | Path,
    *,
    gpus: int | None = None,
    vocabulary: int | None = None,
    variables: Mapping[str, str] | None = None,
) -> ImportedJob:
    """Return the job of a launch script, or of a text with nothing but arguments.

    `gpus` stands for what torchrun's options say, `vocabulary` for a tokenizer whose size the arguments do
    not say; `variables` hold whatever the script sets. A `ConfigError` names what is missing or does not fit.
    """
    file = Path(path)
    launch = read_launch(read_text(file), variables or {}, MARKS, file=str(file))
    arguments = Arguments(bounded(by_name(launch.arguments), file), str(file))
    if not MARKS.intersection(f"--{name}" for name in arguments.tree):
        raise ConfigError(f"passes none of {', '.join(sorted(MARKS))} to a program", file=str(file))
    job = _job(arguments, gpus or _world(launch, str(file)), vocabulary)
    notes = []
    if launch.conditional:
        names = ", ".join(launch.conditional)
        notes.append(f"set in branches, which are not decided: {names}; what stands last holds")
    left = arguments.left_out()
    if left:
        notes.append(f"left out: {', '.join(left)}")
    return imported(job, file, "Megatron-LM", [*arguments.notes, *notes])


def _world(launch: Launch, file: str) -> int:
    """Return the GPUs that torchrun starts ranks on."""
    options = bounded(by_name(launch.launcher), Path(file))
    each, nodes = options.get("nproc-per-node"), options.get("nnodes", 1)
    if not isinstance(each, int) or not isinstance(nodes, int):
        raise ConfigError("does not say on how many GPUs it runs (torchrun); give --gpus N", file=file)
    return each * nodes


def _job(arguments: Arguments, gpus: int, vocabulary: int | None) -> Tree:
    parallelism = _parallelism(arguments, gpus)
    narrow = arguments.tree.keys() & {"fp8-format", "fp8-hybrid", "fp8-e4m3"}
    job = {
        "model": _model(arguments, vocabulary),
        "phase": "training",
        "software": "megatron-2025",
        "parallelism": parallelism,
        "precision": _precision(arguments, narrow=bool(narrow)),
        "training": _training(arguments, parallelism),
        "attention": arguments.choice("attention-backend", FLASH, "auto"),
        "cross_entropy": "separate",
    }
    if arguments.given("cross-entropy-loss-fusion"):
        job["cross_entropy"] = arguments.choice("cross-entropy-fusion-impl", LOSSES, "native")
    if arguments.count("num-experts", 0):
        job["routing"] = _routing(arguments)
    multiple = arguments.count("make-vocab-size-divisible-by", 128)
    return job if multiple == 1 else job | {"vocabulary_multiple": multiple}


def _parallelism(arguments: Arguments, gpus: int) -> Tree:
    tp, pp, cp = (
        arguments.count(f"{axis}-parallel-size", 1) for axis in ("tensor-model", "pipeline-model", "context")
    )
    ep = arguments.count("expert-model-parallel-size", 1)
    dp = replicas(gpus, {"tp": tp, "pp": pp, "cp": cp}, arguments.file)
    split: Tree = {"tp": tp, "cp": cp, "dp": dp, "pp": pp}
    if arguments.count("num-experts", 0):
        split |= {"ep": ep, "etp": arguments.count("expert-tensor-parallel-size", tp)}
    if arguments.given("use-tp-pp-dp-mapping"):
        split["order"] = ["tp", "cp", "ep", "pp", "dp"]
    if arguments.given("sequence-parallel") and tp > 1:
        split["sequence_parallel"] = True
    if cp > 1:
        split |= _context(arguments)
    copies = arguments.count("num-distributed-optimizer-instances", 1)
    if copies > 1:
        split["dp_replicate"] = copies
    chunks = chunks_of(arguments, pp)
    if chunks > 1:
        split["chunks"] = chunks
    layers = layers_of(arguments, pp * chunks)
    return split if layers is None else split | {"layers": layers}


def _context(arguments: Arguments) -> Tree:
    """Return how attention sees all of a sequence."""
    kind = arguments.choice("cp-comm-type", CONTEXTS, "p2p")
    if kind != "ulysses_ring":
        return {"cp_kind": kind}
    by_heads, _, _ = arguments.get("hierarchical-context-parallel-sizes", str).partition(" ")
    return {"cp_kind": kind, "cp_heads": int(by_heads)}


def _precision(arguments: Arguments, *, narrow: bool) -> Tree:
    fp16, bf16 = arguments.given("fp16"), arguments.given("bf16")
    if fp16 and bf16:
        raise ConfigError("excludes --bf16", file=arguments.file, key="--fp16")
    wide = "fp16" if fp16 else "bf16" if bf16 else "fp32"
    reduced = arguments.given("grad-reduce-in-bf16")
    single = reduced or (fp16 and not arguments.given("accumulate-allreduce-grads-in-fp32"))
    gradients = wide if single else "fp32"
    arguments.ignore("accumulate-allreduce-grads-in-fp32", "fp8-format", "fp8-hybrid", "fp8-e4m3")
    return sparse(
        activations=wide,
        gemm="fp8" if narrow else None,
        recipe=arguments.choice("fp8-recipe", RECIPES, "delayed") if narrow else None,
        gradients=gradients,
        gradient_reduce=gradients,
        master_weights=None if wide == "fp32" else "fp32",
    )


def _training(arguments: Arguments, parallelism: Tree) -> Tree:
    micro = arguments.count("micro-batch-size")
    interleaves = parallelism.get("chunks", 1) > 1
    training = {
        "global_batch": arguments.count("global-batch-size", micro * parallelism["dp"]), "micro_batch": micro,
        "sequence_length": arguments.count("seq-length"),
        "schedule": "interleaved_1f1b" if interleaves else "1f1b",
        **_recompute(arguments), "zero_stage": _zero_stage(arguments),
        "overlap_gradients": arguments.given("overlap-grad-reduce"),
        "overlap_tp": _overlap_tp(arguments, parallelism),
    }  # fmt: skip
    dropout = max(arguments.get(f"{kind}-dropout", float, 0.1) for kind in ("attention", "hidden"))
    if dropout > 0:
        training["dropout"] = True
    if training["zero_stage"] in {1, 2} and arguments.given("overlap-param-gather"):
        training["overlap_parameters"] = True
    arguments.ignore("overlap-param-gather", "overlap-p2p-communication")
    if interleaves and arguments.given("no-overlap-p2p-communication"):
        training["overlap_pipeline"] = False
    if "ddp-bucket-size" in arguments:
        training["bucket_parameters"] = arguments.count("ddp-bucket-size")
    training["gradient_norm"] = arguments.get("clip-grad", float, 1.0) > 0
    training |= {key: False for name, key in SWITCHED_OFF.items() if arguments.given(name)}
    batches = {"overlap_batches": True} if arguments.given("overlap-moe-expert-parallel-comm") else {}
    return training | batches | _optimizer(arguments)


def _optimizer(arguments: Arguments) -> Tree:
    chosen = arguments.get("optimizer", str, "adam")
    if chosen in {"sgd", "muon"}:
        return {"optimizer": chosen}
    if chosen != "adam":
        arguments.notes.append(f"--optimizer {chosen}: priced as adam")
    return {}


def _recompute(arguments: Arguments) -> Tree:
    known = {"selective": "selective", "full": "full", None: None}
    granularity = arguments.choice("recompute-granularity", known, None)
    if arguments.tree.keys() & {"checkpoint-activations", "activations-checkpoint-method"}:  # names of 2021
        granularity = "full"
    arguments.ignore("checkpoint-activations", "activations-checkpoint-method")
    if granularity != "full":
        arguments.ignore("recompute-method", "recompute-num-layers")
        return {
            "recompute": granularity or ("selective" if arguments.given("recompute-activations") else "none")
        }
    methods = {"uniform": "uniform", "block": "block"}
    return {
        "recompute": "full",
        "recompute_method": arguments.choice("recompute-method", methods, "uniform"),
        "recompute_layers": arguments.count("recompute-num-layers", 1),
    }


def _overlap_tp(arguments: Arguments, parallelism: Tree) -> str:
    given = arguments.given("tp-comm-overlap")
    return "userbuffers" if given and parallelism.get("sequence_parallel") else "none"


def _zero_stage(arguments: Arguments) -> int:
    if arguments.given("use-torch-fsdp2"):
        return 3
    sharded = arguments.given("use-megatron-fsdp") or arguments.given("use-custom-fsdp")
    stage = arguments.choice("data-parallel-sharding-strategy", SHARDED, "no_shard")
    distributed = arguments.given("use-distributed-optimizer")
    return stage if sharded else int(distributed)


def _model(arguments: Arguments, vocabulary: int | None) -> Tree:
    hidden, layers = arguments.count("hidden-size"), arguments.count("num-layers")
    bias = not arguments.given("disable-bias-linear")
    gated = arguments.given("swiglu")
    activation = "swiglu" if gated else "squared_relu" if arguments.given("squared-relu") else "gelu"
    arguments.ignore("openai-gelu", "bias-gelu-fusion")
    usual = hidden * 4 * 2 // 3 // 64 * 64 if gated else 4 * hidden
    width = arguments.count("ffn-hidden-size", usual)
    dense = {"activation": activation, "hidden": width, "bias": bias}
    position = arguments.choice("position-embedding-type", POSITIONS, "learned_absolute")
    if arguments.given("use-rotary-position-embeddings"):
        position = "rope"
    model: Tree = {
        "hidden": hidden,
        "layers": layers,
        "attention": _attention(arguments, hidden, position, bias=bias),
        "feed_forward": dense,
        "norm": arguments.choice(
            "normalization", {"LayerNorm": "layer_norm", "RMSNorm": "rms_norm"}, "LayerNorm"
        ),
        "position": position,
        "vocabulary": _vocabulary(arguments, vocabulary),
        "max_positions": arguments.count("max-position-embeddings", arguments.count("seq-length")),
        "tied_embeddings": not arguments.given("untie-embeddings-and-output-weights"),
    }
    if arguments.count("mtp-num-layers", 0):
        model["predictions"] = arguments.count("mtp-num-layers")
    if not arguments.count("num-experts", 0):
        return model
    return model | _experts(arguments, dense, layers)


def _attention(arguments: Arguments, hidden: int, position: str, *, bias: bool) -> Tree:
    heads = arguments.count("num-attention-heads")
    if arguments.given("multi-latent-attention"):
        arguments.ignore("kv-channels", "qk-layernorm")  # of it, norms of the latents are part
        return sparse(
            kind="latent_attention",
            heads=heads,
            q_rank=arguments.count("q-lora-rank", 0) or None,
            kv_rank=arguments.count("kv-lora-rank", 32),
            head_dim=arguments.count("qk-head-dim", 128),
            rope_dim=arguments.count("qk-pos-emb-head-dim", 64),
            value_dim=arguments.count("v-head-dim", 128),
        )
    width = arguments.count("kv-channels", hidden // heads)
    groups = arguments.count("num-query-groups", 1)
    attention: Tree = {
        "heads": heads,
        "kv_heads": groups if arguments.given("group-query-attention") else heads,
        "head_dim": width,
        "qkv_bias": bias or arguments.given("add-qkv-bias"),
        "output_bias": bias,
    }
    if arguments.given("qk-layernorm"):
        attention["qk_norm"] = "head"
    share = arguments.get("rotary-percent", float, 1.0)
    return attention | ({"rotary": share} if position == "rope" and share < 1 else {})


def _experts(arguments: Arguments, dense: Tree, layers: int) -> Tree:
    experts = sparse(
        kind="experts", experts=arguments.count("num-experts"), topk=arguments.count("moe-router-topk", 2),
        hidden=arguments.count("moe-ffn-hidden-size", dense["hidden"]), activation=dense["activation"],
        shared_hidden=arguments.count("moe-shared-expert-intermediate-size", 0) or None,
        bias=dense["bias"] or None,
        router_bias=arguments.given("moe-router-enable-expert-bias") or None,
        capacity=arguments.get("moe-expert-capacity-factor", float, None),
        latent=arguments.count("moe-latent-size", 0) or None,
    )  # fmt: skip
    arguments.ignore("moe-grouped-gemm", "moe-permute-fusion", "moe-enable-deepep")
    sparse_layers = _expert_layers(arguments, layers)
    plain = [layer for layer in range(layers) if layer not in sparse_layers]
    exceptions = [place | {"feed_forward": dense} for place in spread(plain, layers)] if plain else []
    return {"feed_forward": experts} | ({"exceptions": exceptions} if exceptions else {})


def _routing(arguments: Arguments) -> Tree:
    """Return how tokens travel to experts; allgather where nothing is said, as its parser has it."""
    dispatcher = arguments.choice("moe-token-dispatcher-type", DISPATCHERS, "allgather")
    flex, backends = dispatcher == "flex", {"deepep": "deepep", "hybridep": "hybridep"}
    backend = arguments.choice("moe-flex-dispatcher-backend", backends, "deepep")
    return sparse(
        dispatcher=backend if flex else dispatcher,
        nodes=(arguments.count("moe-router-group-topk", 0) or None) if flex else None,
        overlap_shared=arguments.given("moe-shared-expert-overlap") or None,
    )


def _expert_layers(arguments: Arguments, layers: int) -> set[int]:
    """Return which layers have experts: every so many, or a list such as ([0]*3+[1]*58)."""
    stated = arguments.tree.get("moe-layer-freq", 1)
    arguments.ignore("moe-layer-freq")
    if isinstance(stated, int) and stated > 0:
        return set(range(0, layers, stated))
    text = str(stated).replace(" ", "")
    runs = [
        (digits.split(","), int(times or 1))
        for digits, times in re.findall(r"\[([01](?:,[01])*)\](?:\*([0-9]{1,9}))?", text)
    ]
    pattern = r"\(*\[[01](,[01])*\](\*[0-9]{1,9})?(\+\[[01](,[01])*\](\*[0-9]{1,9})?)*\)*"
    if not re.fullmatch(pattern, text) or sum(len(run) * times for run, times in runs) != layers:
        problem = (
            f"{stated} is neither a number nor a list of {layers} layers such as ([0]*1+[1]*{layers - 1})"
        )
        raise ConfigError(problem, file=arguments.file, key="--moe-layer-freq")
    flags = [flag for run, times in runs for flag in run * times]
    return {layer for layer, flag in enumerate(flags) if flag == "1"}


def _vocabulary(arguments: Arguments, stated: int | None) -> int:
    """Return the vocabulary: as stated, else as the arguments or the tokenizer have it."""
    tokenizer = arguments.get("tokenizer-type", str, "")
    size = arguments.count("vocab-size", 0) or arguments.count("padded-vocab-size", 0)
    size = stated or size or VOCABULARIES.get(tokenizer, 0)
    if not size:
        problem = (
            f"the size of the vocabulary is the tokenizer's ({tokenizer or 'unnamed'}); give --vocabulary N"
        )
        raise ConfigError(problem, file=arguments.file, key="--vocab-size")
    return size
