"""The arguments of Megatron-LM's `pretrain_gpt.py` to a job file.

Names and defaults are those of `megatron/training/arguments.py` (Megatron Core 0.10 to 0.14).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from rapid_des.config.documents import read_text
from rapid_des.errors import ConfigError
from rapid_des.importers import GPUS, Importer, Option
from rapid_des.importers.keys import ImportedJob, Outcomes, Tree, bounded, imported, replicas, sparse
from rapid_des.importers.megatron.ignored import OF_ARGUMENTS
from rapid_des.importers.megatron.model import chunks_of, layers_of, model_of, routing_of
from rapid_des.importers.megatron.shell import Arguments, LaunchCommand, by_name, read_launch

MARKS = frozenset(("--num-layers", "--hidden-size", "--tensor-model-parallel-size", "--micro-batch-size"))
"""Arguments by which the command that trains a model is recognised in a script."""
RECIPES = {"delayed": "delayed", "tensorwise": "current", "blockwise": "blockwise", "mxfp8": "mxfp8"}
SHARDED = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
CONTEXTS = {"p2p": "ring", "all_gather": "all_gather", "a2a": "ulysses", "a2a+p2p": "ulysses_ring"}
FLASH = {"auto": "flash", "flash": "flash", "fused": "flash", "unfused": "unfused", "local": "unfused"}

LOSSES = {"native": "compiled", "te": "online"}
OF_EXPERTS = ("moe-", "expert-model-parallel-size", "expert-tensor-parallel-size")
"""Prefixes of arguments that only models with experts read."""
_SHARDING = ("use-distributed-optimizer", "data-parallel-sharding-strategy")
SWITCHED_OFF = {"no-gradient-accumulation-fusion": "fused_accumulation",
                "no-async-tensor-model-parallel-allreduce": "overlap_tp_gradients"}  # fmt: skip


def import_megatron(
    path: str | Path,
    *,
    gpus: int | None = None,
    vocabulary: int | None = None,
    variables: Mapping[str, str] | Iterable[tuple[str, str]] = (),
    ignore: Iterable[str] = (),
) -> ImportedJob:
    """Return the job of a launch script, or of a text with nothing but arguments.

    `gpus` stands for what torchrun's options say, `vocabulary` for a tokenizer whose size the arguments do
    not say; `variables` hold whatever the script sets. Arguments to `ignore` change nothing, as whoever names
    them knows. A `ConfigError` names what is missing, unknown or does not fit.
    """
    file = Path(path)
    launch = read_launch(read_text(file), dict(variables), MARKS, file=str(file))
    outcomes = Outcomes(asked=frozenset(f"--{name.lstrip('-').replace('_', '-')}" for name in ignore))
    arguments = Arguments(bounded(by_name(launch.arguments), file), str(file), "--", outcomes)
    if not MARKS.intersection(f"--{name}" for name in arguments.tree):
        raise ConfigError(f"passes none of {', '.join(sorted(MARKS))} to a program", file=str(file))
    job = _job(arguments, gpus or _world(launch, str(file)), vocabulary)
    if launch.conditional:
        names = ", ".join(launch.conditional)
        outcomes.notes.append(f"set in branches, which are not decided: {names}; what stands last holds")
    arguments.ignore_known(OF_ARGUMENTS)
    arguments.finish()
    return imported(job, file, "Megatron-LM", outcomes)


def _world(launch: LaunchCommand, file: str) -> int:
    """Return the number of GPUs on which torchrun starts ranks."""
    options = bounded(by_name(launch.launcher), Path(file))
    each, nodes = options.get("nproc-per-node"), options.get("nnodes", 1)
    if not isinstance(each, int) or not isinstance(nodes, int):
        raise ConfigError("does not say on how many GPUs it runs (torchrun); give --gpus N", file=file)
    return each * nodes


def _job(arguments: Arguments, gpus: int, vocabulary: int | None) -> Tree:
    parallelism = _parallelism(arguments, gpus)
    arguments.choice("fp8-format", dict.fromkeys((None, "hybrid", "e4m3")))
    narrow = arguments.tree.keys() & {"fp8-format", "fp8-hybrid", "fp8-e4m3"}
    arguments.overrule("one rate holds for both formats of 8 bits", "fp8-format", "fp8-hybrid", "fp8-e4m3")
    job = {
        "model": model_of(arguments, vocabulary),
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
    arguments.ignore("--cross-entropy-loss-fusion is not given", "cross-entropy-fusion-impl")
    if arguments.count("num-experts", 0):
        job["routing"] = routing_of(arguments)
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
    else:
        reason = "the model has no experts (--num-experts)"
        arguments.overrule(reason, *(name for name in arguments.tree if name.startswith(OF_EXPERTS)))
    if arguments.given("use-tp-pp-dp-mapping"):
        split["order"] = ["tp", "cp", "ep", "pp", "dp"]
    if tp > 1 and arguments.given("sequence-parallel"):
        split["sequence_parallel"] = True
    arguments.ignore("--tensor-model-parallel-size is 1", "sequence-parallel", "tp-comm-overlap")
    if cp > 1:
        split |= _context(arguments)
    arguments.ignore("--context-parallel-size is 1", "cp-comm-type", "hierarchical-context-parallel-sizes")
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
        arguments.ignore("--cp-comm-type is not a2a+p2p", "hierarchical-context-parallel-sizes")
        return {"cp_kind": kind}
    by_heads, _, _ = arguments.get("hierarchical-context-parallel-sizes", str).partition(" ")
    return {"cp_kind": kind, "cp_heads": int(by_heads)}


def _precision(arguments: Arguments, *, narrow: bool) -> Tree:
    fp16, bf16 = arguments.given("fp16"), arguments.given("bf16")
    if fp16 and bf16:
        raise ConfigError("excludes --bf16", file=arguments.file, key="--fp16")
    wide = "fp16" if fp16 else "bf16" if bf16 else "fp32"
    reduced = arguments.given("grad-reduce-in-bf16")
    if reduced:
        arguments.ignore("--grad-reduce-in-bf16 says it", "accumulate-allreduce-grads-in-fp32")
    single = reduced or (fp16 and not arguments.given("accumulate-allreduce-grads-in-fp32"))
    gradients = wide if single else "fp32"
    if not narrow:
        arguments.ignore("--fp8-format is not given", "fp8-recipe")
    arguments.ignore("gradients are in fp32 beside --bf16 as it is", "accumulate-allreduce-grads-in-fp32")
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
    if _drops(arguments):
        training["dropout"] = True
    if training["zero_stage"] in {1, 2} and arguments.given("overlap-param-gather"):
        training["overlap_parameters"] = True
    reason = "only split optimizer states have parameters to gather beside the forward"
    arguments.ignore(reason, "overlap-param-gather")
    arguments.ignore("it is so with model chunks, and has no effect without", "overlap-p2p-communication")
    if interleaves and arguments.given("no-overlap-p2p-communication"):
        training["overlap_pipeline"] = False
    arguments.ignore("there are no model chunks", "no-overlap-p2p-communication")
    if "ddp-bucket-size" in arguments:
        training["bucket_parameters"] = arguments.count("ddp-bucket-size")
    training["gradient_norm"] = arguments.get("clip-grad", float, 1.0) > 0
    arguments.overrule("that gradients are clipped counts, at what norm does not", "clip-grad")
    training |= {key: False for name, key in SWITCHED_OFF.items() if arguments.given(name)}
    batches = {"overlap_batches": True} if arguments.given("overlap-moe-expert-parallel-comm") else {}
    return training | batches | _optimizer(arguments)


def _drops(arguments: Arguments) -> bool:
    """Return whether any dropout is above 0; its rate does not change the kernels."""
    shares = {kind: arguments.get(f"{kind}-dropout", float, 0.1) for kind in ("attention", "hidden")}
    arguments.overrule(
        "that anything is dropped counts, how much does not", *(f"{kind}-dropout" for kind in shares)
    )
    return max(shares.values()) > 0


def _optimizer(arguments: Arguments) -> Tree:
    chosen = arguments.choice("optimizer", {name: name for name in ("adam", "sgd", "muon")}, "adam")
    return {} if chosen == "adam" else {"optimizer": chosen}


def _recompute(arguments: Arguments) -> Tree:
    known = {"selective": "selective", "full": "full", None: None}
    granularity = arguments.choice("recompute-granularity", known, None)
    if granularity is None and arguments.given("recompute-activations"):
        granularity = "selective"
    arguments.ignore("--recompute-granularity says it", "recompute-activations")
    if arguments.given("checkpoint-activations") or "activations-checkpoint-method" in arguments:
        granularity = "full"  # their names of 2021
        arguments.choice("activations-checkpoint-method", {None: None, "uniform": None})
    if granularity != "full":
        reason = "--recompute-granularity is not full"
        arguments.ignore(reason, "recompute-method", "recompute-num-layers")
        if granularity == "selective":
            arguments.choice("recompute-modules", {"core_attn": None}, "core_attn")
        arguments.ignore("--recompute-granularity is not selective", "recompute-modules")
        return {"recompute": granularity or "none"}
    arguments.ignore("--recompute-granularity is not selective", "recompute-modules")
    methods = {"uniform": "uniform", "block": "block"}
    return {
        "recompute": "full",
        "recompute_method": arguments.choice("recompute-method", methods, "uniform"),
        "recompute_layers": arguments.count("recompute-num-layers", 1),
    }


def _overlap_tp(arguments: Arguments, parallelism: Tree) -> str:
    if not parallelism.get("sequence_parallel"):
        arguments.ignore("--sequence-parallel is not given", "tp-comm-overlap")
        return "none"
    return "userbuffers" if arguments.given("tp-comm-overlap") else "none"


def _zero_stage(arguments: Arguments) -> int:
    if arguments.given("use-torch-fsdp2"):
        arguments.ignore("--use-torch-fsdp2 says it", *_SHARDING)
        return 3
    if arguments.given("use-megatron-fsdp") or arguments.given("use-custom-fsdp"):
        stage = arguments.choice("data-parallel-sharding-strategy", SHARDED, "no_shard")
        arguments.ignore("--data-parallel-sharding-strategy says it", *_SHARDING)
        return stage
    arguments.ignore("--use-megatron-fsdp is not given", "data-parallel-sharding-strategy")
    return int(arguments.given("use-distributed-optimizer"))


IMPORTER = Importer(
    "Read the arguments that a launch script passes to Megatron-LM; the script is not run.",
    match=lambda path: path.suffix == ".sh",
    load=import_megatron,
    writes="job",
    options=(
        GPUS,
        Option("vocabulary", "Tokens, where only the tokenizer knows.", kind="count"),
        Option(
            "variables", "Of the script's environment.", flag="variable", kind="pairs", metavar="NAME=VALUE"
        ),
    ),
)
