"""The model that Megatron-LM's arguments describe, and how tokens travel to its experts."""

from __future__ import annotations

import re

from rapid_des.errors import ConfigError
from rapid_des.importers.keys import Tree, sparse, spread
from rapid_des.importers.megatron.shell import Arguments

VOCABULARIES = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000}
"""Vocabulary sizes of tokenizers that are known without their files."""
POSITIONS = {
    "learned_absolute": "learned", "rope": "rope", "mrope": "rope", "yarn": "rope", "none": "none",
}  # fmt: skip
DISPATCHERS = {
    "allgather": "all_gather", "alltoall": "all_to_all", "alltoall_seq": "all_to_all", "flex": "flex",
}  # fmt: skip
_GROUPED = ("group-query-attention", "num-query-groups", "add-qkv-bias")
_LATENT = ("q-lora-rank", "kv-lora-rank", "qk-head-dim", "qk-pos-emb-head-dim", "v-head-dim")


def model_of(arguments: Arguments, vocabulary: int | None) -> Tree:
    """Return the keys of a model file; `vocabulary` overrides the arguments."""
    hidden, layers = arguments.count("hidden-size"), arguments.count("num-layers", least=1)
    bias = not arguments.given("disable-bias-linear")
    gated = arguments.given("swiglu")
    if gated:
        arguments.ignore("--swiglu says it", "squared-relu")
    activation = "swiglu" if gated else "squared_relu" if arguments.given("squared-relu") else "gelu"
    arguments.ignore(
        "it is GELU by other numbers, or the fusion of the job", "openai-gelu", "bias-gelu-fusion"
    )
    usual = hidden * 4 * 2 // 3 // 64 * 64 if gated else 4 * hidden
    width = arguments.count("ffn-hidden-size", usual)
    dense = {"activation": activation, "hidden": width, "bias": bias}
    position = arguments.choice("position-embedding-type", POSITIONS, "learned_absolute")
    if arguments.given("use-rotary-position-embeddings"):
        arguments.overrule("--use-rotary-position-embeddings says it", "position-embedding-type")
        position = "rope"
    if position == "learned" and arguments.given("no-position-embedding"):
        position = "none"
    arguments.ignore("positions are no table, so there is none to leave out", "no-position-embedding")
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
    heads = arguments.count("num-attention-heads", least=1)
    if arguments.given("multi-latent-attention"):
        arguments.ignore("latent attention states dimensions of its own", "kv-channels", *_GROUPED)
        arguments.ignore(
            "norms of the latents are part of latent attention", "qk-layernorm", "rotary-percent"
        )
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
    arguments.ignore("--multi-latent-attention is not given", *_LATENT)
    grouped = arguments.given("group-query-attention")
    if bias:
        arguments.ignore("all matrices have biases (--disable-bias-linear)", "add-qkv-bias")
    attention: Tree = {
        "heads": heads,
        "kv_heads": arguments.count("num-query-groups", 1) if grouped else heads,
        "head_dim": width,
        "qkv_bias": bias or arguments.given("add-qkv-bias"),
        "output_bias": bias,
    }
    if arguments.given("qk-layernorm"):
        attention["qk_norm"] = "head"
    arguments.ignore("--group-query-attention is not given", "num-query-groups")
    if position != "rope":
        arguments.ignore("positions are not rotated", "rotary-percent")
    share = arguments.get("rotary-percent", float, 1.0) if position == "rope" else 1.0
    return attention | ({"rotary": share} if share < 1 else {})


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
    reason = "experts multiply in one kernel, and tokens are put in order by one"
    arguments.ignore(reason, "moe-grouped-gemm", "moe-permute-fusion")
    arguments.ignore("--moe-token-dispatcher-type and its backend say it", "moe-enable-deepep")
    if "capacity" not in experts:
        arguments.ignore("--moe-expert-capacity-factor is not given", "moe-pad-expert-input-to-capacity")
    sparse_layers = _expert_layers(arguments, layers)
    plain = [layer for layer in range(layers) if layer not in sparse_layers]
    if not plain and "moe-ffn-hidden-size" in arguments:
        arguments.overrule("every layer has experts", "ffn-hidden-size")
    exceptions = [place | {"feed_forward": dense} for place in spread(plain, layers)] if plain else []
    return {"feed_forward": experts} | ({"exceptions": exceptions} if exceptions else {})


def routing_of(arguments: Arguments) -> Tree:
    """Return how tokens travel to experts; allgather by default, as in Megatron-LM's parser."""
    dispatcher = arguments.choice("moe-token-dispatcher-type", DISPATCHERS, "allgather")
    flex, backends = dispatcher == "flex", {"deepep": "deepep", "hybridep": "hybridep"}
    if not flex:
        reason = "--moe-token-dispatcher-type is not flex"
        arguments.ignore(reason, "moe-flex-dispatcher-backend", "moe-router-group-topk")
    backend = arguments.choice("moe-flex-dispatcher-backend", backends, "deepep") if flex else ""
    return sparse(
        dispatcher=backend if flex else dispatcher,
        nodes=(arguments.count("moe-router-group-topk", 0) or None) if flex else None,
        overlap_shared=arguments.given("moe-shared-expert-overlap") or None,
    )


def _expert_layers(arguments: Arguments, layers: int) -> set[int]:
    """Return which layers have experts, from a period or from a list such as ([0]*3+[1]*58)."""
    stated = arguments.value("moe-layer-freq", 1)
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
    if stated:
        arguments.overrule("--vocabulary says it", "vocab-size", "padded-vocab-size", "tokenizer-type")
        return stated
    size = arguments.count("vocab-size", 0) or arguments.count("padded-vocab-size", 0)
    if size:
        arguments.overrule("the size of the vocabulary is stated", "tokenizer-type")
    size = size or VOCABULARIES.get(tokenizer, 0)
    if not size:
        problem = (
            f"the size of the vocabulary is the tokenizer's ({tokenizer or 'unnamed'}); give --vocabulary N"
        )
        raise ConfigError(problem, file=arguments.file, key="--vocab-size")
    return size


def chunks_of(arguments: Arguments, pp: int) -> int:
    """Return the model chunks of a stage (virtual stages)."""
    virtual = arguments.count("num-virtual-stages-per-pipeline-rank", 0)
    if virtual:
        return virtual
    each = arguments.count("num-layers-per-virtual-pipeline-stage", 0)
    if not each:
        return 1
    placed = sum(arguments.given(f"account-for-{what}-in-pipeline-split") for what in ("embedding", "loss"))
    uneven = any(f"decoder-{end}-pipeline-num-layers" in arguments for end in ("first", "last"))
    chunks, rest = divmod(arguments.count("num-layers", least=1) + placed, pp * each)
    if rest and not uneven:
        problem = f"{each} do not divide what each of {pp} stages has of the layers"
        raise ConfigError(problem, file=arguments.file, key="--num-layers-per-virtual-pipeline-stage")
    return chunks + bool(rest)


def layers_of(arguments: Arguments, parts: int) -> str | list[int] | None:
    """Return the number of layers of each part; None: equal numbers."""
    embedding = arguments.given("account-for-embedding-in-pipeline-split")
    loss = arguments.given("account-for-loss-in-pipeline-split")
    total = arguments.count("num-layers")
    if parts > total + 2:
        problem = f"{total} layers are fewer than {parts} stages and chunks"
        raise ConfigError(problem, file=arguments.file, key="--num-layers")
    if embedding and loss:
        return "endpoints"
    if embedding or loss:
        each = (total + 1) // parts
        return [each - (embedding and part == 0) - (loss and part == parts - 1) for part in range(parts)]
    first = arguments.count("decoder-first-pipeline-num-layers", 0)
    last = arguments.count("decoder-last-pipeline-num-layers", 0)
    between = parts - bool(first) - bool(last)
    if not (first or last) or between < 1:
        return None
    rest = [(total - first - last) // between] * between
    return [first] * bool(first) + rest + [last] * bool(last)
