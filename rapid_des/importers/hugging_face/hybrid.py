"""Mamba-2, and hybrids of attention with it or the gated delta rule."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rapid_des.errors import ConfigError
from rapid_des.importers.hugging_face.llama import (
    keys_of,
    predictions,
    qwen2_moe,
    qwen3,
    rotated_share,
    with_layers,
)
from rapid_des.importers.keys import Keys, spread

Tree = dict[str, Any]

ORDER = "it is how the library runs the model, which a job says"
_OF_EXPERTS = (
    "n_routed_experts", "n_shared_experts", "moe_intermediate_size", "moe_shared_expert_intermediate_size",
    "num_experts_per_tok", "moe_latent_size",
)  # fmt: skip
NOTHING: Tree = {"kind": "none"}
MIXERS, FEED_FORWARDS = "M*", "-E"
"""Letters of a pattern. Mixers: Mamba-2, attention; feed-forwards: dense, experts."""


def mamba2(keys: Keys) -> Tree:
    """Read Mamba-2: every layer consists of a mixer only."""
    hidden = keys.count("hidden_size", 4096)
    heads, head_dim = keys.count("num_heads", 128), keys.count("head_dim", 64)
    inner = int(keys.get("expand", float, 2) * hidden)
    if heads * head_dim != inner:
        problem = f"num_heads {heads} of head_dim {head_dim} are not expand times hidden_size, {inner}"
        raise ConfigError(problem, file=keys.file, key="num_heads")
    keys.choice("hidden_act", {"silu": "silu", "swish": "silu"}, "silu")
    keys.ignore(ORDER, "norm_before_gate", "rms_norm", "residual_in_fp32")
    return {
        "hidden": hidden,
        "layers": keys.count("num_hidden_layers", 64, least=1),
        "attention": _scan(
            keys, heads, head_dim, keys.count("state_size", 128), keys.count("chunk_size", 256)
        )
        | {"bias": keys.flag("use_bias", default=False)},
        "feed_forward": NOTHING,
        "norm": "rms_norm",
        "position": "none",
        "vocabulary": keys.count("vocab_size", 32768),
        "max_positions": keys.count("max_position_embeddings", 1 << 20),
        "tied_embeddings": keys.flag("tie_word_embeddings", default=False),
    }


def _scan(keys: Keys, heads: int, head_dim: int, state: int, chunk: int) -> Tree:
    limits = ("time_step_limit", "time_step_min", "time_step_max", "time_step_floor", "time_step_rank")
    keys.ignore("it initialises or bounds the steps of the scan, each head has one", *limits)
    return {
        "kind": "mamba2",
        "heads": heads,
        "head_dim": head_dim,
        "state": state,
        "groups": keys.count("n_groups", 8),
        "window": keys.count("conv_kernel", 4),
        "window_bias": keys.flag("use_conv_bias", default=True),
        "chunk": chunk,
    }


def nemotron_h(keys: Keys) -> Tree:
    """Read Nemotron-H: blocks of one half each, of which a mixer and what follows it make a layer here."""
    pattern = _pattern(keys)
    blocks = keys.count("num_hidden_layers", len(pattern), least=1)
    if not pattern or len(pattern) != blocks or set(pattern) - set(MIXERS + FEED_FORWARDS):
        problem = f"{pattern!r} does not say with M, *, - and E what {blocks} blocks are"
        raise ConfigError(problem, file=keys.file, key="hybrid_override_pattern")
    pairs = _pairs(pattern)
    usual, *others = [pair for pair, _ in Counter(pairs).most_common()]
    halves = _halves(keys, pattern)
    parts = {
        pair: {"attention": halves[pair[0]], "feed_forward": halves[pair[1]]} for pair in (usual, *others)
    }
    keys.ignore("mamba_num_heads and mamba_head_dim say it", "expand")
    keys.ignore("mlp_hidden_act and mamba_hidden_act say it", "hidden_act")
    keys.ignore(ORDER, "residual_in_fp32", "rescale_prenorm_residual", "num_logits_to_keep")
    keys.ignore(ORDER, "use_mamba_kernels", "moe_shared_expert_overlap")
    keys.ignore("formats are the job's (precision)", "mamba_ssm_cache_dtype")
    keys.ignore("its attention rotates no positions", "partial_rotary_factor")
    predictions(keys)
    further = "layers that predict further tokens are left out"
    keys.ignore(further, "mtp_hybrid_override_pattern", "mtp_layers_block_type")
    keys.choice("sliding_window", {None: None})
    keys.notes.append(
        f"{blocks} blocks are {len(pairs)} layers: a mixer and the feed-forward after it are one"
    )
    model = {
        "hidden": keys.count("hidden_size"),
        "layers": len(pairs),
        **parts[usual],
        "norm": "rms_norm",
        "position": "none",
        "vocabulary": keys.count("vocab_size"),
        "max_positions": keys.count("max_position_embeddings"),
        "tied_embeddings": keys.flag("tie_word_embeddings", default=False),
    }
    there = {pair: [layer for layer, each in enumerate(pairs) if each == pair] for pair in others}
    exceptions = [
        place | parts[pair] for pair, layers in there.items() for place in spread(layers, len(pairs))
    ]
    return model | ({"exceptions": exceptions} if exceptions else {})


def _pattern(keys: Keys) -> str:
    """Return the letters of the blocks, which newer files spell out as `layers_block_type`."""
    key = "layers_block_type"
    if key not in keys:
        return keys.get("hybrid_override_pattern", str)
    words = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"}
    blocks = [Keys({key: block}, keys.file) for block in keys.get(key, list)]
    return "".join(block.choice(key, words) for block in blocks)


def _pairs(pattern: str) -> list[tuple[str, str]]:
    """Return mixer and feed-forward of each layer, blank where it has none.

    >>> _pairs("M-MM*-"), _pairs("-M")
    ([('M', '-'), ('M', ''), ('M', ''), ('*', '-')], [('', '-'), ('M', '')])
    """
    pairs: list[tuple[str, str]] = []
    for block in pattern:
        if block in MIXERS:
            pairs.append((block, ""))
        elif pairs and not pairs[-1][1]:
            pairs[-1] = (pairs[-1][0], block)
        else:
            pairs.append(("", block))
    return pairs


def _halves(keys: Keys, pattern: str) -> dict[str, Tree]:
    """Return what each letter of a pattern stands for; nothing for the blank."""
    known = {"relu2": "squared_relu", "silu": "swiglu"}
    activation = keys.choice("mlp_hidden_act", known, "relu2")
    keys.choice("mamba_hidden_act", {"silu": "silu"}, "silu")
    scan = _scan(
        keys,
        keys.count("mamba_num_heads"),
        keys.count("mamba_head_dim"),
        keys.count("ssm_state_size"),
        keys.count("chunk_size", 128),
    )
    heads = keys.count("num_attention_heads", least=1)
    width = keys.count("head_dim", keys.count("attention_head_dim", keys.count("hidden_size") // heads))
    bias = keys.flag("attention_bias", default=False)
    attention = {"heads": heads, "kv_heads": keys.count("num_key_value_heads"), "head_dim": width}
    halves = {
        "": NOTHING,
        "M": scan
        | {"bias": keys.flag("use_bias", default=False) or keys.flag("mamba_proj_bias", default=False)},
        "*": attention | {"qkv_bias": bias, "output_bias": bias},
    }
    if "-" in pattern:
        dense = {"activation": activation, "hidden": keys.count("intermediate_size")}
        halves["-"] = dense | {"bias": keys.flag("mlp_bias", default=False)}
    if "E" in pattern:
        shared = keys.count("n_shared_experts", 0)
        each = keys.count("moe_shared_expert_intermediate_size", keys.count("moe_intermediate_size"))
        halves["E"] = {
            "kind": "experts",
            "experts": keys.count("n_routed_experts"),
            "topk": keys.count("num_experts_per_tok"),
            "hidden": keys.count("moe_intermediate_size"),
            "activation": activation,
            "shared_hidden": shared * each,
            "router_bias": True,
        }
        if "moe_latent_size" in keys:
            halves["E"]["latent"] = keys.count("moe_latent_size")
    keys.ignore("hybrid_override_pattern has no dense feed-forward (-)", "intermediate_size", "mlp_bias")
    keys.ignore("hybrid_override_pattern has no experts (E)", *_OF_EXPERTS)
    return halves


def granite(keys: Keys) -> Tree:
    """Read Granite 4: Mamba-2 or attention, and experts, if any, beside a feed-forward for every token."""
    hidden, count = keys.count("hidden_size"), keys.count("num_hidden_layers", least=1)
    types = keys.names("layer_types", count) or ["attention"] * count
    known = {"mamba": True, "attention": False}
    scans = [Keys({"layer_types": word}, keys.file).choice("layer_types", known) for word in types]
    rotates = keys.choice("position_embedding_type", {"rope": True, "nope": False, None: False})
    model = {
        "hidden": hidden,
        "layers": count,
        "attention": _granite_attention(keys),
        "feed_forward": _granite_feed_forward(keys),
        "norm": "rms_norm",
        "position": "rope" if rotates else "none",
        "vocabulary": keys.count("vocab_size"),
        "max_positions": keys.count("max_position_embeddings"),
        "tied_embeddings": keys.flag("tie_word_embeddings", default=False),
    }
    mixer = _granite_scan(keys, hidden)
    return with_layers(model, "attention", mixer, [layer for layer, scan in enumerate(scans) if scan])


def _granite_attention(keys: Keys) -> Tree:
    bias, heads = keys.flag("attention_bias", default=False), keys.count("num_attention_heads", least=1)
    kv_heads = keys.count("num_key_value_heads", heads)
    return {"heads": heads, "kv_heads": kv_heads, "qkv_bias": bias, "output_bias": bias}


def _granite_feed_forward(keys: Keys) -> Tree:
    activation = keys.choice("hidden_act", {"silu": "swiglu"}, "silu")
    keys.choice("normalization_function", {"rmsnorm": None}, "rmsnorm")
    shared, experts = keys.count("shared_intermediate_size", 1024), keys.count("num_local_experts", 8)
    keys.ignore("it initialises weights", "init_method")
    if not experts:
        keys.ignore("num_local_experts is 0", "intermediate_size", "num_experts_per_tok")
        return {"activation": activation, "hidden": shared}
    return {
        "kind": "experts",
        "experts": experts,
        "topk": keys.count("num_experts_per_tok", 2),
        "hidden": keys.count("intermediate_size"),
        "activation": activation,
        "shared_hidden": shared,
    }


def _granite_scan(keys: Keys, hidden: int) -> Tree:
    heads, head_dim = keys.count("mamba_n_heads", 128, least=1), keys.get("mamba_d_head", object, "auto")
    inner = keys.count("mamba_expand", 2) * hidden
    if head_dim != "auto" and heads * keys.count("mamba_d_head") != inner:
        problem = f"{heads} of mamba_d_head {head_dim} are not mamba_expand times hidden_size, {inner}"
        raise ConfigError(problem, file=keys.file, key="mamba_n_heads")
    return {
        "kind": "mamba2",
        "heads": heads,
        "head_dim": inner // heads,
        "state": keys.count("mamba_d_state", 256),
        "groups": keys.count("mamba_n_groups", 1),
        "window": keys.count("mamba_d_conv", 4),
        "window_bias": keys.flag("mamba_conv_bias", default=True),
        "chunk": keys.count("mamba_chunk_size", 256),
        "bias": keys.flag("mamba_proj_bias", default=False),
    }


def qwen3_next(keys: Keys) -> Tree:
    """Read Qwen3-Next: experts, and the gated delta rule in all layers but every fourth."""
    # Qwen3.5 states no width of dense layers, as it has none.
    keys.tree = {"intermediate_size": keys.count("moe_intermediate_size"), **keys.tree}
    return _with_delta(keys, qwen2_moe(keys))


def qwen3_5(keys: Keys) -> Tree:
    """Read Qwen3.5: the same layers with a dense feed-forward."""
    return _with_delta(keys, qwen3(keys))


def _with_delta(keys: Keys, model: Tree) -> Tree:
    """Give attention its norms and gate, and the gated delta rule to the layers that have no attention."""
    keys.choice("attn_output_gate", {True: None}, default=True)
    keys.ignore("the gate's function is part of a kernel", "output_gate_type")
    keys.ignore("no layer has experts", "mlp_only_layers")
    keys.ignore("formats are the job's (precision)", "mamba_ssm_dtype")
    further = "layers that predict further tokens are left out"
    keys.ignore(further, "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings")
    count, types = model["layers"], keys.names("layer_types", model["layers"])
    if types is not None:
        keys.ignore("layer_types says it", "full_attention_interval")
    every = keys.count("full_attention_interval", 4, least=1)
    known = {"linear_attention": True, "full_attention": False}
    linear = [bool((layer + 1) % every) for layer in range(count)]
    if types is not None:
        linear = [keys_of(known, word, keys) for word in types]
    attention = {"head_dim": 256, "rotary": rotated_share(keys, "partial_rotary_factor", 0.25)}
    bias = keys.flag("attention_bias", default=False)
    gated = {"qk_norm": "head", "output_gate": True, "qkv_bias": bias, "output_bias": bias}
    model["attention"] = attention | model["attention"] | gated
    delta = {
        "kind": "gated_delta",
        "heads": keys.count("linear_num_value_heads", 32),
        "key_heads": keys.count("linear_num_key_heads", 16),
        "key_dim": keys.count("linear_key_head_dim", 128),
        "value_dim": keys.count("linear_value_head_dim", 128),
        "window": keys.count("linear_conv_kernel_dim", 4),
    }
    return with_layers(model, "attention", delta, [layer for layer, flag in enumerate(linear) if flag])
